"""The peers from PyPI, installed from their lock into `build/peers/python` on first use."""

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import PeerMissingError
from benchmarks.processes import BUILD, ROOT

ENVIRONMENT = BUILD / "python"
FOLDER = Path(__file__).parent
LOCK = ROOT / "requirements" / "bench.txt"
INSTALL_LIMIT = 300
"""Seconds for creating the environment and for installing."""


def prepare() -> None:
    """Install the peers of the lock in their own environment, if they are not there.

    Raises:
        PeerMissingError: One could not be installed (no network, no wheel).
    """
    install(ENVIRONMENT, LOCK, sys.executable)


def install(folder: Path, lock: Path, python: str) -> None:
    """Create an environment with the packages of a lock, if it does not exist.

    Raises:
        PeerMissingError: One could not be installed (no network, no wheel).
    """
    stamp = folder / "lock.txt"
    if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
        return
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    steps = (
        [python, "-m", "venv", "--without-pip", str(folder)],
        [*pip, "install", "--quiet", "--require-hashes", "-r", str(lock)],
    )
    try:
        for step in steps:
            subprocess.run(step, check=True, capture_output=True, timeout=INSTALL_LIMIT)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        message = "not installed: pip could not get it"
        raise PeerMissingError(message) from error
    stamp.write_bytes(lock.read_bytes())


def version(name: str, folder: Path = ENVIRONMENT) -> str:
    """Return the installed version of a peer."""
    found = sorted(folder.glob(f"lib/*/site-packages/{name}-*.dist-info"))
    return (
        found[0].name.removeprefix(f"{name}-").removesuffix(".dist-info") if found else "none"
    )


def program(script: str, *arguments: str, folder: Path = ENVIRONMENT) -> list[str]:
    """Return the command line of a program in this folder.

    -P keeps this folder off its path: there `xoscar` and `pykka` are files of ours.
    """
    return [str(folder / "bin" / "python"), "-P", str(FOLDER / script), *arguments]
