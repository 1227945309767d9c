"""The C++ Actor Framework 0.17 (Debian's libcaf-dev), in its default configuration.

The program beside this file is compiled once, with -O2, into `build/peers`.
"""

import hashlib
import re
import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.measure import PeerMissingError
from benchmarks.processes import BUILD, printed_rate, serving

SOURCE = Path(__file__).with_name("caf_bench.cpp")
HEADER = Path("/usr/include/caf/config.hpp")
COMPILE_LIMIT = 300
"""Seconds; six on a quiet machine, but it takes 450 MB and may swap."""


def program() -> Path:
    """Tell where the compiled program is; a changed source has another name."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    return BUILD / f"caf_bench-{digest}"


def prepare() -> None:
    """Compile the program, if that was not done before.

    Raises:
        PeerMissingError: CAF or the compiler is not installed, or CAF is another one.
    """
    if program().exists():
        return
    compiler = shutil.which("g++")
    if compiler is None or not HEADER.exists():
        message = "not installed: apt install libcaf-dev g++"
        raise PeerMissingError(message)
    BUILD.mkdir(parents=True, exist_ok=True)
    unfinished = program().with_suffix(".unfinished")
    command = [compiler, "-std=c++17", "-O2", str(SOURCE), "-o", str(unfinished)]
    try:
        subprocess.run(
            [*command, "-lcaf_io", "-lcaf_core", "-pthread"],
            check=True,
            capture_output=True,
            timeout=COMPILE_LIMIT,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        message = f"does not compile with CAF {version()} (needs 0.17)"
        raise PeerMissingError(message) from error
    unfinished.rename(program())


def version() -> str:
    """Tell the version that is installed, from its header."""
    found = (
        re.search(r"define CAF_VERSION (\d+)", HEADER.read_text()) if HEADER.exists() else None
    )
    if found is None:
        return "not installed"
    major, rest = divmod(int(found[1]), 10000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def local(mode: str, count: int) -> float:
    """Measure `local` (messages to and fro) or `reqlocal` (requests) in one process."""
    return printed_rate([str(program()), f"--mode={mode}", f"--num={count}"])


def remote(mode: str, count: int) -> float:
    """Measure `flood`, `rr`, `rrblock` or `pipe` between two processes."""
    with serving([str(program()), "--mode=server"]) as (_, port):
        return printed_rate(
            [str(program()), f"--mode={mode}", f"--port={port}", f"--num={count}"]
        )


def milliseconds_to_down() -> float:
    """Kill a server and wait for the down message of the directly connected client."""
    with (
        serving([str(program()), "--mode=server"]) as (server, port),
        serving([str(program()), "--mode=monitor", f"--port={port}"]) as (client, _),
    ):
        assert client.stdout is not None
        killed_at = time.monotonic_ns()
        server.kill()
        down_at = int(client.stdout.readline().split()[1])
    return (down_at - killed_at) / 1e6
