"""Two checkouts compared in turns."""

import sys
from pathlib import Path

import pytest

from benchmarks import compare
from benchmarks.compare import Pairs
from benchmarks.processes import RunFailedError, run_bounded


@pytest.fixture
def other(tmp_path):
    """A folder that looks like a checkout that is set up."""
    python = compare.python_of(tmp_path)
    python.parent.mkdir(parents=True)
    python.touch()
    return tmp_path


@pytest.fixture
def figures(monkeypatch, other):
    """What a run gives here and in the other checkout, and the order of the runs."""
    given = {compare.ROOT: 90.0, other: 100.0}
    ran = []

    def run(command, limit, folder):
        ran.append(folder)
        if given[folder] is None:
            raise RunFailedError("exit code 1: no")
        return f"words\nfigure {given[folder]}\n"

    monkeypatch.setattr(compare, "run_bounded", run)
    return given, ran


def test_a_median_below_the_least_is_marked_and_fails(figures, other, capsys):
    assert compare.main([str(other), "local_ask", "--turns", "3"]) == 1

    said = capsys.readouterr().err
    assert "local_ask, callboard: 0.900 (0.90 to 0.90)" in said
    assert "below 0.97" in said


def test_the_checkout_that_begins_changes_from_turn_to_turn(figures, other):
    figures[0][compare.ROOT] = 100.0

    assert compare.main([str(other), "local_ask", "--turns", "3"]) == 0

    here = compare.ROOT
    assert figures[1] == [here, other, other, here, here, other]


def test_less_can_be_better():
    assert Pairs("restart", "callboard", False, [2.0], [1.0]).ratios == [0.5]


def test_a_run_that_fails_is_told(figures, other, capsys):
    figures[0][other] = None

    assert compare.main([str(other), "local_ask"]) == 1

    assert "local_ask, callboard: exit code 1: no" in capsys.readouterr().err


def test_a_folder_that_is_not_set_up_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        compare.main([str(tmp_path)])

    assert "run make setup there" in capsys.readouterr().err


def test_instructions_of_twice_the_work_less_those_of_the_work_are_compared(
    monkeypatch, other, capsys
):
    each = {str(compare.ROOT): 90, str(other): 100}

    def run(command, limit, folder):
        logs = next(part for part in command if part.startswith("--log-file=")).partition("=")[
            2
        ]
        count = 5_000 + int(float(command[-1]) * each[str(folder)])
        Path(logs.replace("%p", "1")).write_text(f"==1== I   refs:      {count:,}\n")
        Path(logs.replace("%p", "2")).write_text("==2== I   refs:      7,000\n")
        return "figure 1.0\n"

    monkeypatch.setattr(compare, "run_bounded", run)
    arguments = [str(other), "local_ask", "--instructions", "--turns", "2", "--share", "100"]

    assert compare.main(arguments) == 0

    assert "local_ask, callboard: 1.111 (1.11 to 1.11)" in capsys.readouterr().err


def test_a_measure_that_the_other_checkout_lacks_is_run_by_the_file_of_this_one(tmp_path):
    package = tmp_path / "benchmarks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "once.py").write_text(
        "import importlib\n"
        "def main(measure, *words):\n"
        "    print(importlib.import_module('benchmarks.' + measure).__file__, *words)\n"
    )
    command = compare.once(compare.ROOT, Pairs("floors", "callboard", True), 0.5)

    printed = run_bounded([sys.executable, *command[1:]], 20.0, tmp_path)

    assert printed.split() == [str(compare.ROOT / "benchmarks/floors.py"), "callboard", "0.5"]
