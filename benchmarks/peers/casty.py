"""casty (PyPI): actors by key, with a core in Rust; it needs Python 3.12."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

from benchmarks.log_append import check
from benchmarks.measure import PeerMissingError
from benchmarks.peers import environment
from benchmarks.processes import BUILD, ROOT, RunFailedError, printed_rate, serving

ENVIRONMENT: Final = BUILD / "casty"
LOCK: Final = ROOT / "requirements" / "bench-casty.txt"
OLDEST: Final = (3, 12)
HOSTS, SENDERS = 2, 8


def prepare() -> None:
    """Install it in a separate environment.

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
    """Return the installed version."""
    return environment.version("casty", ENVIRONMENT)


def asked(hosts: int, times: int) -> float:
    """Measure a client's read-only asks to 1,000 actors in a number of processes."""
    with ExitStack() as stack:
        seeds = [address for _, address in hosting("memory", hosts, stack)]
        return printed_rate(program("ask", f"{times}", *seeds))


def noted(what: Literal["note", "note-durable"], times: int) -> float:
    """Measure asks that change 1,000 actors in two processes, by four senders in each."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = f"sqlite://{folder}/state.db?mode=rwc" if what == "note-durable" else "memory"
        hosts = [host for host, _ in hosting(store, HOSTS, stack)]
        before = int(told(hosts[:1], f"wake {what}")[0])
        each = max(1, times // SENDERS)
        started = time.perf_counter()
        told(hosts, f"ask {what} {SENDERS // HOSTS} {each}")
        taken = time.perf_counter() - started
        found = int(told(hosts[:1], f"total {what}")[0]) - before
    check(found, each * SENDERS)
    return each * SENDERS / taken


def hosting(
    store: str, hosts: int, stack: ExitStack
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start processes that host; give each with its address."""
    seeds: list[str] = []
    for place in range(hosts):
        host, address = stack.enter_context(serving(program("host", store, f"{place}", *seeds)))
        seeds.append(address)
        yield host, address


def told(hosts: Sequence[subprocess.Popen[str]], order: str) -> list[str]:
    """Send an order to all hosts, and return their output when it is done.

    Raises:
        RunFailedError: one of them has ended.
    """
    for host in hosts:
        assert host.stdin is not None
        host.stdin.write(f"{order}\n")
        host.stdin.flush()
    answers = []
    for host in hosts:
        assert host.stdout is not None
        answers.append(host.stdout.readline().strip())
    if not all(answers):
        message = f"a process of casty ended instead of doing: {order}"
        raise RunFailedError(message)
    return answers


def program(*arguments: str) -> list[str]:
    """Build a command line."""
    return environment.program("casty_program.py", *arguments, folder=ENVIRONMENT)
