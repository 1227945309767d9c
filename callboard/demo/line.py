"""The line A-B-C-D: four processes, their pipes, and faults for them.

Each process has its own process group, so Ctrl-C in the terminal reaches only the parent, which
ends the others in order. If the parent is killed, the input of the processes ends, and they end
with it. A frozen process then gets SIGHUP and SIGCONT from the kernel, as a stopped member of
an orphaned process group.
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

#: Seconds until processes that do not end are killed.
CLOSE_LIMIT: Final = 3.0


class ChildProcess:
    """One child process and its pipes; its standard error goes to a file."""

    def __init__(self, name: str, port: int, folder: Path, join: list[str]) -> None:
        self.name = name
        self.is_frozen = False
        self._errors = folder / f"{name}.txt"
        arguments = (name, str(port), str(folder / "metrics.db"), *join)
        with self._errors.open("wb") as errors:
            self.popen = start_child("node_process", *arguments, errors=errors)
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout
        self._partial = b""
        os.set_blocking(self.stdout.fileno(), False)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self.popen.poll() is None

    def send(self, command: dict[str, Any]) -> None:
        """Send a command; does nothing if the process has ended."""
        with suppress(BrokenPipeError):
            self.stdin.write(json.dumps(command).encode() + b"\n")
            self.stdin.flush()

    def read_reports(self) -> Iterator[dict[str, Any]]:
        """Yield the received reports; a line truncated by a kill is dropped."""
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
    """The four processes; as a context manager, it ends all of them."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.processes: dict[str, ChildProcess] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="callboard-demo-")
        # Bound but not listening. Otherwise another program could get the port of a node while
        # it restarts, and a dialing socket could get the port it dials as its own port and
        # connect to itself.
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
        """Return the address of a node."""
        return f"basp://127.0.0.1:{self._ports[name]}"

    def alive(self) -> list[ChildProcess]:
        """Return the running processes."""
        return [process for process in self.processes.values() if process.is_alive]

    def kill(self, name: str) -> int:
        """Kill a process with SIGKILL; return the time, in monotonic nanoseconds."""
        process = self.processes[name]
        at_ns = time.monotonic_ns()
        process.signal(signal.SIGKILL)
        process.popen.wait()
        process.is_frozen = False
        return at_ns

    def freeze(self, name: str) -> int:
        """Stop a process with SIGSTOP, or resume a stopped one; return the time."""
        process = self.processes[name]
        at_ns = time.monotonic_ns()
        process.signal(signal.SIGCONT if process.is_frozen else signal.SIGSTOP)
        process.is_frozen = not process.is_frozen
        return at_ns

    def thaw_all(self) -> bool:
        """Resume all stopped processes; return whether there were any."""
        frozen = [process.name for process in self.alive() if process.is_frozen]
        for name in frozen:
            self.freeze(name)
        return bool(frozen)

    def send_all(self, command: dict[str, Any]) -> None:
        """Send a command to all processes."""
        for process in self.alive():
            process.send(command)

    def read(self, key: selectors.SelectorKey) -> list[tuple[str, dict[str, Any]]]:
        """Read a ready pipe; return (node, report) pairs."""
        process: ChildProcess = key.data
        reports = [(process.name, report) for report in process.read_reports()]
        if not process.is_alive:
            self._forget(process)  # the selector would report an ended pipe without end
        return reports

    def close(self) -> bool:
        """End all processes; return False if some had to be killed."""
        self.thaw_all()
        self.send_all({"do": "close"})
        deadline = time.monotonic() + CLOSE_LIMIT
        for process in self.processes.values():
            self._release(process)  # the end of its input means close as well
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
        with suppress(BrokenPipeError):  # flushes commands that a dead process did not read
            process.stdin.close()

    def _forget(self, process: ChildProcess) -> None:
        """Stop waiting for reports of a process."""
        with suppress(KeyError, ValueError):  # unregistered before
            self.selector.unregister(process.stdout)


def _reserve_port() -> socket.socket:
    """Return a bound socket that reserves its port for a node."""
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
    """Run a module of the demo in a child process that reads from a pipe."""
    return subprocess.Popen(  # noqa: S603  # the same interpreter, no shell
        [sys.executable, "-m", f"callboard.demo.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        env=child_environment(**environment),
        process_group=0,
    )


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a child, with the path to this callboard package."""
    root = str(Path(__file__).resolve().parents[2])
    current = os.environ.get("PYTHONPATH")
    path = root if not current else root + os.pathsep + current
    return {**os.environ, "PYTHONPATH": path, **more}
