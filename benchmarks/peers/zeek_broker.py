"""Topics: Zeek Broker 1.4 in Python (python3-broker) and C++ (libbroker-dev), and callboard.

Broker's Python package belongs to the system's interpreter. The program beside this file runs
with either package.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import PeerMissingError
from benchmarks.peers.compiled import Compiled
from benchmarks.processes import printed_rate, serving

PROGRAM = Path(__file__).with_name("topic_program.py")
SOURCE = Path(__file__).with_name("broker_bench.cpp")
HEADER = Path("/usr/include/broker/version.hh")
COMPILED = Compiled(SOURCE, HEADER, "libbroker-dev", "c++14", ("broker", "caf_core", "caf_io"))
SYSTEM_PYTHON = "/usr/bin/python3"

OURS = (sys.executable, "-m", "benchmarks.peers.topic_program", "callboard.broker")
PEER = (SYSTEM_PYTHON, str(PROGRAM), "broker")
#: Arguments with which our endpoints speak the wire of the package.
WIRE = ("--wire", "zeek-1.4")


def prepare() -> None:
    """Find Broker's Python package.

    Raises:
        PeerMissingError: the system's interpreter does not have it.
    """
    # 1.4 was written for Python 3.9 and needs a name that is gone.
    look = (
        "import collections.abc as a, collections as c; c.Iterable = a.Iterable; import broker"
    )
    done = subprocess.run([SYSTEM_PYTHON, "-c", look], capture_output=True, check=False)
    if done.returncode:
        message = "not installed: apt install python3-broker"
        raise PeerMissingError(message)


def prepare_cpp() -> None:
    """Compile the C++ program, if that was not done before.

    Raises:
        PeerMissingError: Broker or the compiler is not installed, or Broker is another one.
    """
    COMPILED.prepare(f"Broker {version()} (needs 1.4)")


def version() -> str:
    """Return the installed version, from its header or its package."""
    if HEADER.exists():
        found = re.findall(r"type (?:major|minor|patch) = (\d+)", HEADER.read_text())
        return ".".join(found[:3]) or "unknown"
    shown = (
        shutil.which("dpkg-query")
        and subprocess.run(
            ["dpkg-query", "-Wf", "${Version}", "python3-broker"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.partition("+")[0]
    )
    return shown or "not installed"


def measure(command: Sequence[str], role: str, count: int, *, relays: int = 0) -> float:
    """Measure a role of the program; the messages pass a number of nodes that only forward."""
    with serving([*command, "sink"]) as (_, port):
        return _measure_at(command, role, count, port, relays)


def _measure_at(command: Sequence[str], role: str, count: int, port: str, relays: int) -> float:
    if relays:
        with serving([*command, "relay", "--peer", port]) as (_, nearer):
            return _measure_at(command, role, count, nearer, relays - 1)
    return printed_rate([*command, role, str(count), "--peer", port])


def measure_between(sink: Sequence[str], *command: str) -> float:
    """Measure a role of the program with a sink that is another program."""
    with serving(sink) as (_, port):
        return printed_rate([*command, "--peer", port])


def flood_cpp(count: int) -> float:
    """Measure the C++ program: publish one by one, two processes."""
    with serving([str(COMPILED.program), "sink"]) as (_, port):
        return printed_rate([str(COMPILED.program), "flood", str(count), port])
