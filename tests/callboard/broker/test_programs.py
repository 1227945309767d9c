"""Programs written for `import broker` run with that line changed, and print the same.

What the real package prints is recorded beside each program (see tests/interop/broker).
"""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).parents[2] / "interop" / "broker" / "programs"
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py"))


def test_there_are_programs():
    assert len(NAMES) == 8


@pytest.mark.parametrize("name", NAMES)
def test_program_prints_what_it_prints_with_the_real_package(name, tmp_path):
    source = (PROGRAMS / f"{name}.py").read_text()
    assert source.count("\nimport broker\n") == 1
    ours = tmp_path / f"{name}.py"
    ours.write_text(
        source.replace("\nimport broker\n", "\nimport callboard.broker as broker\n")
    )

    done = subprocess.run(
        [sys.executable, ours], capture_output=True, text=True, timeout=120, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout == (PROGRAMS / f"{name}.txt").read_text()
