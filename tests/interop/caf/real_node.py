"""A real CAF node: a C++ program, compiled once, that reads commands and prints outcomes."""

import contextlib
import queue
import subprocess
import threading
from pathlib import Path

import pytest

from benchmarks.measure import PeerMissingError
from benchmarks.peers.caf import HEADER, version
from benchmarks.peers.compiled import Compiled

SOURCE = Path(__file__).with_name("node.cpp")
LIBRARIES = ("caf_openssl", "caf_io", "caf_core")
PROGRAM = Compiled(SOURCE, HEADER, "libcaf-dev", "c++17", LIBRARIES)


def compiled(program=PROGRAM):
    """Compile a program once, or skip the test with the reason; return its path."""
    try:
        program.prepare(f"CAF {version()} (needs 0.17)")
    except PeerMissingError as error:
        pytest.skip(f"a real CAF node is {error}")
    return program.program


class RealNode:
    """One process of the program."""

    def __init__(self, *options, program=None):
        self.process = subprocess.Popen(
            [str(program or compiled()), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def send(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def line(self, timeout=10):
        """Return the next printed line."""
        return self._lines.get(timeout=timeout)

    def do(self, command):
        """Run a command, and return what it prints."""
        self.send(command)
        return self.line()

    def serve(self, verb="serve"):
        """Publish an actor; return the port."""
        return int(self.do(verb).removeprefix("port "))

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@contextlib.contextmanager
def real_nodes(count=1, *options):
    """Start processes of the program."""
    compiled()
    nodes = [RealNode(*options) for _ in range(count)]
    try:
        yield nodes
    finally:
        for node in nodes:
            with contextlib.suppress(OSError):
                node.end()
