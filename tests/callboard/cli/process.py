"""Helpers that run the command line in a separate process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]


def start_command(
    *arguments: object, variables: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Start `callboard` with more variables in its environment; it writes text to pipes."""
    paths = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", "callboard", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **(variables or {})},
        **options,
    )
