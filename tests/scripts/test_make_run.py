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
    echo 'case $* in *demo) mkdir -p "$CALLBOARD_FLIGHTS"' >>.venv/bin/python
    echo '  exit ${ENDS:-0} ;; esac' >>.venv/bin/python
    chmod +x .venv/bin/python ;;
  arrived) [ -n "${ARRIVES:-}" ] ;;
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

    def run(*targets, code=0, **variables):
        plain = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
        plain.pop("ARGS", None)  # those of the tests
        plain.pop("PYTHON", None)
        made = subprocess.run(
            ["make", "--silent", *targets], cwd=tmp_path, env=plain | variables, timeout=120
        )
        assert (made.returncode != 0) == bool(code)
        said = (tmp_path / "log").read_text().splitlines()
        (tmp_path / "log").unlink()
        return [line.strip() for line in said]

    return run


def test_the_demo_starts_before_there_is_spark(make):
    assert make("run") == [
        *("setup venv", "setup run", "setup beside"),
        "python -m callboard demo awaited",
        "setup arrived",
    ]
    assert make("run")[0] == "setup beside"


def test_the_analysis_with_spark_follows_the_demo_if_spark_has_arrived(make):
    *_, arrived, spark, analysis = make("run", ARRIVES="yes")

    assert (arrived, spark) == ("setup arrived", "setup spark")
    assert analysis == "python -m callboard.demo.analysis build/flights"


def test_a_demo_that_fails_is_not_followed_by_an_analysis(make):
    assert (
        make("run", ENDS="1", ARRIVES="yes", code=1)[-1] == "python -m callboard demo awaited"
    )


def test_with_spark_the_demo_has_it(make):
    assert make(".venv/.spark")[-1] == "setup spark"

    assert make("run") == ["python -m callboard demo"]


def test_the_tests_wait_for_spark(make):
    assert make("test")[:-1] == ["setup venv", "setup run", "setup dev", "setup spark"]


def test_while_spark_is_downloaded_the_demo_says_what_computes_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv(AWAITED, "awaited")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with Analysis(DemoOptions()) as analysis:
        assert not analysis.is_running
        assert analysis.finish().without_spark == (
            "it is being downloaded; make analysis computes the same with it"
        )
