"""Celery (PyPI) with Redis (Debian)."""

import shutil
import tempfile

from benchmarks.measure import PeerMissingError
from benchmarks.peers import environment
from benchmarks.processes import printed_rate


def prepare() -> None:
    """Find Redis, and install Celery.

    Raises:
        PeerMissingError: one of them is not there.
    """
    if shutil.which("redis-server") is None:
        message = "not installed: apt install redis-server"
        raise PeerMissingError(message)
    environment.prepare()


def jobs(count: int) -> float:
    """Measure jobs that are put, taken and acknowledged."""
    with tempfile.TemporaryDirectory() as folder:
        return printed_rate(environment.program("celery_program.py", str(count), folder))
