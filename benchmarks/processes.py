"""Child processes of benchmarks, which end after a time limit with all their children."""

import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
"""The checkout; the working directory of every child."""

BUILD = ROOT / "build" / "peers"
"""The folder in which peers are installed and compiled; git ignores it."""

MARK = "CALLBOARD_BENCHMARK_RUN"
"""Environment variable that marks all processes of a run, even in other process groups."""


class RunFailedError(Exception):
    """A run ended with an error, or did not end in time."""


def run_bounded(command: Sequence[str], limit: float, folder: Path = ROOT) -> str:
    """Run a command in a folder for at most `limit` seconds, and return its output.

    Processes that it started and that still run are killed when it ends.

    Raises:
        RunFailedError: It took longer, or its exit code was not 0.
    """
    mark = uuid.uuid4().hex
    child = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, errors = child.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        message = f"stopped after {limit:.0f} s"
        raise RunFailedError(message) from None
    finally:
        kill_marked(mark)
        child.communicate()
    if child.returncode:
        last = errors.strip().rpartition("\n")[2]
        message = f"exit code {child.returncode}: {last[-300:]}"
        raise RunFailedError(message)
    return printed


def kill_marked(mark: str) -> None:
    """Kill every process that carries the mark of one run."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()


@contextmanager
def serving(command: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server that ends with its stdin; yield it and its first line of output.

    Use it only inside a bounded run, which ends both if the server hangs.
    """
    server = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        first = server.stdout.readline().strip()
        if not first:
            message = f"{command[0]} printed no address"
            raise RunFailedError(message)
        yield server, first
    finally:
        assert server.stdin is not None
        with suppress(BrokenPipeError):
            server.stdin.close()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def printed_rate(command: Sequence[str]) -> float:
    """Run a program that ends with the line `rate X`; return X."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.split("\n")
    rates = [line.removeprefix("rate ") for line in lines if line.startswith("rate ")]
    if not rates or done.returncode:
        message = f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}"
        raise RunFailedError(message)
    return float(rates[-1])
