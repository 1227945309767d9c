"""xoscar (PyPI), installed from its lock into `build/peers/xoscar` on first use."""

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import PeerMissingError
from benchmarks.processes import BUILD, ROOT, printed_rate, serving

ENVIRONMENT = BUILD / "xoscar"
LOCK = ROOT / "requirements" / "bench.txt"
PROGRAM = Path(__file__).with_name("xoscar_program.py")
INSTALL_LIMIT = 300
"""Seconds for creating the environment and for installing."""


def prepare() -> None:
    """Install xoscar in an environment of its own, if that lock is not installed there.

    Raises:
        PeerMissingError: It could not be installed (no network, no wheel).
    """
    stamp = ENVIRONMENT / "lock.txt"
    if stamp.exists() and stamp.read_bytes() == LOCK.read_bytes():
        return
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    steps = (
        [sys.executable, "-m", "venv", "--without-pip", str(ENVIRONMENT)],
        [*pip(), "install", "--quiet", "--require-hashes", "-r", str(LOCK)],
    )
    try:
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, timeout=INSTALL_LIMIT)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        message = "not installed: pip could not get it"
        raise PeerMissingError(message) from error
    stamp.write_bytes(LOCK.read_bytes())


def pip() -> list[str]:
    """Give the command that installs into xoscar's environment with the pip of ours."""
    return [sys.executable, "-m", "pip", "--python", str(ENVIRONMENT / "bin" / "python")]


def version() -> str:
    """Tell the version that is installed there."""
    found = sorted(ENVIRONMENT.glob("lib/*/site-packages/xoscar-*.dist-info"))
    return found[0].name.removeprefix("xoscar-").removesuffix(".dist-info") if found else "none"


def program(*arguments: str) -> list[str]:
    """Build a command line; -P keeps this folder, where `xoscar` is this file, off its path."""
    return [str(ENVIRONMENT / "bin" / "python"), "-P", str(PROGRAM), *arguments]


def local(mode: str, count: int) -> float:
    """Measure `local_ask` (through messages) or `local_call` (a direct call) in one process."""
    return printed_rate(program(mode, str(count)))


def remote(mode: str, count: int) -> float:
    """Measure `remote_ask`, `flood` or `flood_gathered` between two processes."""
    with serving(program("serve")) as (_, address):
        return printed_rate(program(mode, str(count), address))
