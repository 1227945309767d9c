"""pykka (PyPI)."""

from benchmarks.peers import environment
from benchmarks.processes import printed_rate

prepare = environment.prepare


def version() -> str:
    """Return the installed version."""
    return environment.version("pykka")


def flood(count: int) -> float:
    """Measure one-way messages from actor to actor."""
    return printed_rate(environment.program("pykka_program.py", str(count)))
