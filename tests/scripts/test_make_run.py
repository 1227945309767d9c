"""`make run` on a machine that has nothing yet: its first picture waits for pip alone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from callboard.demo.analysis import AWAITED, Analysis
from callboard.demo.story import DemoOptions

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[2]

SETUP = """#!/bin/sh
echo "setup $1" >>log
case $1 in
  venv)
    mkdir -p .venv/bin
    echo '#!/bin/sh' >.venv/bin/python
    echo 'echo "python $* ${CALLBOARD_SPARK:-}" >>log' >>.venv/bin/python
    chmod +x .venv/bin/python ;;
esac
"""


@pytest.fixture
def make(tmp_path):
    """A folder with our Makefile, and a set-up that only writes down what it is asked for."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "requirements").mkdir()
    shutil.copy(PROJECT / "Makefile", tmp_path)
    script = tmp_path / "scripts" / "setup.sh"
    script.write_text(SETUP)
    script.chmod(0o755)
    for name in ("build", "run", "dev", "docs", "spark", "spark-jdk"):
        (tmp_path / "requirements" / f"{name}.txt").touch()
    (tmp_path / "pyproject.toml").touch()

    def run(*targets):
        plain = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        plain.pop("ARGS", None)  # those of the tests
        plain.pop("PYTHON", None)
        subprocess.run(
            ["make", "--silent", *targets], cwd=tmp_path, env=plain, check=True, timeout=120
        )
        said = (tmp_path / "log").read_text().splitlines()
        (tmp_path / "log").unlink()
        return [line.strip() for line in said]

    return run


def test_the_demo_starts_before_there_is_spark(make):
    assert make("run") == [
        *("setup venv", "setup run", "setup beside"),
        "python -m callboard demo awaited",
    ]
    assert make("run") == ["setup beside", "python -m callboard demo awaited"]


def test_with_spark_the_demo_has_it(make):
    assert make(".venv/.spark")[-1] == "setup spark"

    assert make("run") == ["python -m callboard demo"]


def test_the_tests_wait_for_spark(make):
    assert make("test")[:-1] == ["setup venv", "setup run", "setup dev", "setup spark"]


def test_while_spark_is_fetched_the_demo_says_so(monkeypatch):
    monkeypatch.setenv(AWAITED, "awaited")

    assert (
        Analysis(DemoOptions()).finish().missing == "it is being fetched; the next run has it"
    )
