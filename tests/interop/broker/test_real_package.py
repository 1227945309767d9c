"""What is recorded of Zeek Broker's Python package is what it shows and prints."""

import json
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SYSTEM_PYTHON = "/usr/bin/python3"
HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "programs").glob("*.py"))


@pytest.fixture(scope="module", autouse=True)
def _real_package():
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"no {SYSTEM_PYTHON}")
    probe = subprocess.run(
        [SYSTEM_PYTHON, "-c", "import broker"], capture_output=True, timeout=120, check=False
    )
    if probe.returncode:
        pytest.skip("Zeek Broker 1.4 is not installed (apt-get install python3-broker)")


def run(*arguments):
    done = subprocess.run(
        [SYSTEM_PYTHON, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PYTHONPATH": "", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_recorded_surface_is_that_of_the_package():
    recorded = json.loads((HERE / "surface_1_4.json").read_text())

    assert json.loads(run(HERE / "surface.py")) == recorded


@pytest.mark.parametrize("name", NAMES)
def test_the_package_prints_what_is_recorded(name):
    try:
        printed = run(HERE / "run.py", HERE / "programs" / f"{name}.py")
    except subprocess.TimeoutExpired:
        pytest.skip("the real package hangs now and then on a busy machine")

    assert printed == (HERE / "programs" / f"{name}.txt").read_text()
