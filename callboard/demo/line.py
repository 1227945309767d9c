"""The line A-B-C-D: four processes, their pipes, and what one can do to them.

Each process is in a process group of its own, so that Ctrl-C in the terminal reaches only the
parent, which ends the others in order. Should the parent be killed, their input ends, and they
with it; one that is frozen then gets SIGHUP and SIGCONT from the kernel, as the stopped member
of an orphaned group.
"""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, Self

NAMES: Final = ("A", "B", "C", "D")

LINKS: Final = (("A", "B"), ("B", "C"), ("C", "D"))

#: Seconds that the processes have to end by themselves before they are killed.
CLOSE_LIMIT: Final = 3.0


class ChildProcess:
    """One child process and its pipes; a file takes its standard error."""

    def __init__(self, name: str, port: int, folder: Path, join: list[str]) -> None:
        self.name = name
        self.is_frozen = False
        self._errors = folder / f"{name}.txt"
        arguments = (name, str(port), str(folder / "metrics.db"), *join)
        with self._errors.open("wb") as said:
            self.popen = start_child("node_process", *arguments, errors=said)
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout
        self._partial = b""
        os.set_blocking(self.stdout.fileno(), False)

    @property
    def is_alive(self) -> bool:
        """False once the process ended."""
        return self.popen.poll() is None

    def send(self, command: dict[str, Any]) -> None:
        """Send a command; no effect on a process that ended."""
        with suppress(BrokenPipeError):
            self.stdin.write(json.dumps(command).encode() + b"\n")
            self.stdin.flush()

    def read_reports(self) -> Iterator[dict[str, Any]]:
        """Yield the reports that came in; a line that a kill cut off is dropped."""
        try:
            chunk = os.read(self.stdout.fileno(), 1 << 20)
        except BlockingIOError:
            return
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def last_error(self) -> str:
        """Return the last line that the process wrote to its standard error."""
        return next(reversed(self._errors.read_text(errors="replace").splitlines()), "")

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it is there."""
        if self.is_alive:
            self.popen.send_signal(number)


class Line:
    """The four processes. As a context manager it leaves none behind."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.processes: dict[str, ChildProcess] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="callboard-demo-")
        # Bound but not listening: nobody else gets these ports, so a node that starts again
        # listens where it did before, and nobody's dialling socket is given the port it dials.
        self._reserved = [_reserve_port() for _ in NAMES]
        ports = [sock.getsockname()[1] for sock in self._reserved]
        self._ports = dict(zip(NAMES, ports, strict=True))

    def start(self, name: str) -> None:
        """Start the process of a node, the first time or again."""
        neighbours = [left for left, right in LINKS if right == name]
        join = [f"basp://127.0.0.1:{self._ports[left]}" for left in neighbours]
        if name in self.processes:
            self._release(self.processes[name])
        process = self.processes[name] = ChildProcess(
            name, self._ports[name], Path(self._folder.name), join
        )
        self.selector.register(process.stdout, selectors.EVENT_READ, process)

    def address(self, name: str) -> str:
        """Return where the node of a process listens."""
        return f"basp://127.0.0.1:{self._ports[name]}"

    def alive(self) -> list[ChildProcess]:
        """Return the processes that have not ended."""
        return [process for process in self.processes.values() if process.is_alive]

    def kill(self, name: str) -> int:
        """End a process with SIGKILL; returns when, in nanoseconds of the monotonic clock."""
        process = self.processes[name]
        at_ns = time.monotonic_ns()
        process.signal(signal.SIGKILL)
        process.popen.wait()
        process.is_frozen = False
        return at_ns

    def freeze(self, name: str) -> int:
        """Stop a process with SIGSTOP, or let a stopped one go on; returns the moment."""
        process = self.processes[name]
        at_ns = time.monotonic_ns()
        process.signal(signal.SIGCONT if process.is_frozen else signal.SIGSTOP)
        process.is_frozen = not process.is_frozen
        return at_ns

    def thaw_all(self) -> bool:
        """Let all stopped processes go on; True when there were any."""
        frozen = [process.name for process in self.alive() if process.is_frozen]
        for name in frozen:
            self.freeze(name)
        return bool(frozen)

    def tell_all(self, command: dict[str, Any]) -> None:
        """Send a command to all processes."""
        for process in self.alive():
            process.send(command)

    def read(self, key: selectors.SelectorKey) -> list[tuple[str, dict[str, Any]]]:
        """Read a pipe that is ready; returns (node, report) pairs."""
        process: ChildProcess = key.data
        reports = [(process.name, report) for report in process.read_reports()]
        if not process.is_alive:
            self._forget(process)  # an ended pipe stays readable for ever
        return reports

    def close(self) -> bool:
        """End all processes; False when some had to be killed."""
        self.thaw_all()
        self.tell_all({"do": "close"})
        deadline = time.monotonic() + CLOSE_LIMIT
        for process in self.processes.values():
            self._release(process)  # its input ends, which means close as well
        clean = True
        for process in self.processes.values():
            try:
                process.popen.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                clean = False
                process.signal(signal.SIGKILL)
                process.popen.wait()
        for sock in self._reserved:
            sock.close()
        self.selector.close()
        self._folder.cleanup()
        return clean

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.selector.get_map() is not None:  # not closed yet
            self.close()

    def _release(self, process: ChildProcess) -> None:
        """Stop reading the pipe of a process, and close both."""
        self._forget(process)
        process.stdout.close()
        with suppress(BrokenPipeError):  # closing flushes what a dead process did not read
            process.stdin.close()

    def _forget(self, process: ChildProcess) -> None:
        """Stop waiting for reports of a process."""
        with suppress(KeyError, ValueError):  # ended before
            self.selector.unregister(process.stdout)


def _reserve_port() -> socket.socket:
    """Return a bound socket, so that its port is free for a node."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


def start_child(
    module: str,
    *arguments: str,
    errors: IO[bytes] | int,
    output: IO[bytes] | int = subprocess.PIPE,
    **environment: str,
) -> subprocess.Popen[bytes]:
    """Run a module of the demo in a process of its own, which reads from a pipe."""
    return subprocess.Popen(  # noqa: S603  # this very interpreter, no shell
        [sys.executable, "-m", f"callboard.demo.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        env=child_environment(**environment),
        process_group=0,
    )


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a child: it finds the same callboard as this process."""
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH")
    path = root if not known else root + os.pathsep + known
    return {**os.environ, "PYTHONPATH": path, **more}
