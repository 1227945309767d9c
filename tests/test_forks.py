"""Tests that run in forks of the process that collected them."""

from pathlib import Path

import pytest

pytest_plugins = "pytester"
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]

SERVER = """
import os, pytest
from pathlib import Path

@pytest.fixture(scope="session")
def server():
    yield os.getpid()
    Path("ends").open("a").write(f"{os.getpid()}\\n")
"""

PASSES = """
import os, pytest, warnings
from pathlib import Path

Path("imports").open("a").write("once\\n")

@pytest.mark.parametrize("number", range(3))
def test_it(server, number, tmp_path):
    assert server == os.getpid()
    Path("processes").open("a").write(f"{__name__} {server}\\n")
    warnings.warn("loud")
"""


@pytest.fixture
def run(pytester, monkeypatch):
    def run_in_forks(*arguments):
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
        options = ("-p", "xdist", "-p", "tests.forks", "--forks", "2", *arguments)
        return pytester.runpytest_subprocess(*options)

    return run_in_forks


def test_files_are_collected_once_and_each_is_run_by_one_worker(pytester, run):
    names = ("one", "two", "three")
    pytester.makeconftest(SERVER)
    pytester.makepyfile(**{f"test_{name}": PASSES for name in names})

    result = run()

    result.assert_outcomes(passed=9, warnings=9)
    assert Path("imports").read_text().splitlines() == ["once"] * 3
    lines = [line.split() for line in Path("processes").read_text().splitlines()]
    by_file = {name: {process for file, process in lines if file == name} for name, _ in lines}
    assert {name: len(processes) for name, processes in by_file.items()} == {
        f"test_{name}": 1 for name in names
    }
    # Each worker tore its session down.
    processes = {process for _, process in lines}
    assert sorted(Path("ends").read_text().split()) == sorted(processes)


def test_a_worker_that_dies_fails_its_test_and_the_others_are_run(pytester, run):
    pytester.makepyfile(
        test_dies="""
import os, signal

def test_before(): pass

def test_death(): os.kill(os.getpid(), signal.SIGKILL)

def test_after(): pass
""",
        test_beside="def test_beside(): pass",
    )

    result = run()

    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*ended with signal 9 in test_dies.py::test_death*"])


def test_after_a_failure_no_further_test_begins_if_the_first_ends_the_run(pytester, run):
    pytester.makepyfile(
        **{f"test_{number}": "def test_it(): assert 1 == 2\n" for number in range(9)}
    )

    result = run("-x")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert 1 <= result.parseoutcomes()["failed"] <= 3  # at most what had begun
    result.stdout.fnmatch_lines(["*assert 1 == 2*", "*stopping after * failures*"])


def test_what_a_test_printed_is_in_its_report_alone(pytester, run):
    pytester.makepyfile(
        test_prints="""
def test_quiet(): print("sound", 1)

def test_loud():
    print("sound", 2)
    assert False
"""
    )

    result = run()

    assert "sound 2" in result.stdout.str()
    assert "sound 1" not in result.stdout.str()


def test_a_test_that_hangs_is_ended_and_the_next_is_run(pytester, run):
    pytester.makepyfile(
        test_hangs="""
import pytest, threading

@pytest.mark.timeout(0.2)
def test_that_hangs():
    with pytest.raises(KeyError):
        threading.Event().wait(60)

def test_next(): pass
"""
    )

    result = run("-p", "pytest_timeout")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Failed: Timeout*0.2*"])
