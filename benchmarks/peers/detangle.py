"""detangle (PyPI): simulated asyncio."""

import json
import tempfile
from pathlib import Path

from benchmarks.peers import environment
from benchmarks.processes import printed_rate

prepare = environment.prepare


def version() -> str:
    """Return the installed version."""
    return environment.version("detangle")


def check(events: list[list[object]]) -> float:
    """Return the seconds that its verdict on a history of a register takes."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(events))
        file.flush()
        command = environment.program("detangle_program.py", "check", str(Path(file.name)))
        return printed_rate(command)
