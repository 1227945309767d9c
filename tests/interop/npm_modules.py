"""npm's mqtt on this machine, for tests that talk to it; they are skipped where it is not."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TIMEOUT = 20


def node() -> tuple[str, Path]:
    """Return the node program and the folder of modules; skips the test without npm's mqtt."""
    program = shutil.which("node")
    modules = os.environ.get("NODE_PATH") or _npm_root()
    if program is None or modules is None or not (Path(modules) / "mqtt").is_dir():
        pytest.skip("npm's mqtt is not installed (npm install --global mqtt)")
    return program, Path(modules)


def _npm_root() -> str | None:
    npm = shutil.which("npm")
    if npm is None:
        return None
    found = subprocess.run(
        [npm, "root", "--global"], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    return found.stdout.strip() or None
