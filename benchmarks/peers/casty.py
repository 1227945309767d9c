"""casty (PyPI): actors by key, with a core in Rust; it needs Python 3.12."""

import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

from benchmarks.measure import PeerMissingError
from benchmarks.peers import environment
from benchmarks.processes import BUILD, ROOT, printed_rate, serving

ENVIRONMENT: Final = BUILD / "casty"
LOCK: Final = ROOT / "requirements" / "bench-casty.txt"
OLDEST: Final = (3, 12)


def prepare() -> None:
    """Install it in an environment of its own.

    Raises:
        PeerMissingError: it could not be installed, or there is no Python for it.
    """
    environment.install(ENVIRONMENT, LOCK, python())


def python() -> str:
    """Return a Python that is new enough.

    Raises:
        PeerMissingError: there is none.
    """
    if sys.version_info >= OLDEST:
        return sys.executable
    minors = range(OLDEST[1], OLDEST[1] + 4)
    beside = sorted(Path.home().glob(".pyenv/versions/3.*/bin/python"))
    for command in [*(f"python3.{minor}" for minor in minors), *map(str, beside)]:
        if is_new(command):
            return command
    message = "casty needs Python 3.12 or newer beside ours, and none was found"
    raise PeerMissingError(message)


def is_new(command: str) -> bool:
    """Return whether a command is a Python that is new enough."""
    test = f"import sys; sys.exit(sys.version_info < {OLDEST})"
    try:
        done = subprocess.run([command, "-c", test], check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def version() -> str:
    """Tell the version that is installed."""
    return environment.version("casty", ENVIRONMENT)


def asked(what: Literal["count", "note", "note-durable"], hosts: int, times: int) -> float:
    """Measure asks of 1,000 actors in so many processes, from a client."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = f"sqlite://{folder}/state.db?mode=rwc" if "durable" in what else "memory"
        seeds: list[str] = []
        for _ in range(hosts):
            _, address = stack.enter_context(serving(program("host", store, *seeds)))
            seeds.append(address)
        return printed_rate(program("ask", what, f"{times}", *seeds))


def program(*arguments: str) -> list[str]:
    """Build a command line."""
    return environment.program("casty_program.py", *arguments, folder=ENVIRONMENT)
