"""`callboard replay`: what it says of a seed."""

import json
import sys

import pytest

from callboard.cli import main
from callboard.simulation.trace import Dump, dump_path

pytest_plugins = ["pytester"]

PASSING = "def test_it(cluster):\n    cluster(2)\n"


def replay(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.run(sys.executable, "-m", "callboard", "replay", *arguments)


def test_an_unknown_seed_is_wrong_use(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    assert main(["replay", "5"]) == 2

    assert capsys.readouterr().err.endswith("run the failing test again, it leaves one\n")


def test_a_damaged_dump_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dump_path(tmp_path, 5).parent.mkdir(parents=True)
    dump_path(tmp_path, 5).write_text('{"seed": ')

    assert main(["replay", "5"]) == 1

    told = capsys.readouterr().err
    assert "is no dump" in told
    assert told.count("\n") == 1


def test_a_replay_from_below_the_root_tells_of_other_events(pytester: pytest.Pytester):
    path = pytester.makepyfile(PASSING)
    Dump(5, f"{path.name}::test_it", ["0.000000000 a Nothing"]).write(pytester.path)
    pytester.chdir()
    (pytester.path / "below").mkdir()

    pytester._monkeypatch.chdir(pytester.path / "below")
    done = replay(pytester, "5", "--json")

    told = json.loads(done.outlines[-1])
    assert done.ret == 0
    assert (told["passed"], told["same_events"], told["seed"]) == (True, False, 5)
    assert told["difference"].startswith("event 1 differs; it was: 0.000000000 a Nothing;")


def test_a_test_that_is_gone_is_told(pytester: pytest.Pytester):
    Dump(5, "test_gone.py::test_it", []).write(pytester.path)

    done = replay(pytester, "5")

    assert done.ret == 1
    assert done.errlines[-1].startswith("callboard: pytest ran no simulation in test_gone.py")
