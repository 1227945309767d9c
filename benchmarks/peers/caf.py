"""The C++ Actor Framework 0.17 (Debian's libcaf-dev), in its default configuration.

The program beside this file is compiled once, with -O2, into `build/peers`.
"""

import re
import time
from pathlib import Path

from benchmarks.peers.compiled import Compiled
from benchmarks.processes import printed_rate, serving

SOURCE = Path(__file__).with_name("caf_bench.cpp")
HEADER = Path("/usr/include/caf/config.hpp")
COMPILED = Compiled(SOURCE, HEADER, "libcaf-dev", "c++17", ("caf_io", "caf_core"))
TUNED = ("--scheduler.policy=sharing", "--scheduler.max-threads=1")
"""One worker that sleeps until there is work: the fastest for one request at a time."""


def prepare() -> None:
    """Compile the program, unless it was compiled before.

    Raises:
        PeerMissingError: CAF or the compiler is not installed, or CAF is another one.
    """
    COMPILED.prepare(f"CAF {version()} (needs 0.17)")


def version() -> str:
    """Return the installed version, from its header."""
    found = (
        re.search(r"define CAF_VERSION (\d+)", HEADER.read_text()) if HEADER.exists() else None
    )
    if found is None:
        return "not installed"
    major, rest = divmod(int(found[1]), 10000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def local(mode: str, count: int) -> float:
    """Measure in one process.

    `local` is messages to and fro, `reqlocal` requests, `floodlocal` one-way messages, `spawn`
    new actors, `memory` the bytes of one.
    """
    return printed_rate([str(COMPILED.program), f"--mode={mode}", f"--num={count}"])


def remote(mode: str, count: int, *tuning: str) -> float:
    """Measure `flood`, `rr`, `rrblock` or `pipe` between two processes."""
    program = [str(COMPILED.program), *tuning]
    with serving([*program, "--mode=server"]) as (_, port):
        return printed_rate([*program, f"--mode={mode}", f"--port={port}", f"--num={count}"])


def milliseconds_to_down() -> float:
    """Kill a server and wait for the down message of the directly connected client."""
    with (
        serving([str(COMPILED.program), "--mode=server"]) as (server, port),
        serving([str(COMPILED.program), "--mode=monitor", f"--port={port}"]) as (client, _),
    ):
        assert client.stdout is not None
        killed_at = time.monotonic_ns()
        server.kill()
        down_at = int(client.stdout.readline().split()[1])
    return (down_at - killed_at) / 1e6
