"""`callboard replay`: its report on a seed."""

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

    assert capsys.readouterr().err.endswith("run the failing test again to create it\n")


def test_a_damaged_dump_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dump_path(tmp_path, 5).parent.mkdir(parents=True)
    dump_path(tmp_path, 5).write_text('{"seed": ')

    assert main(["replay", "5"]) == 1

    told = capsys.readouterr().err
    assert "is not a dump" in told
    assert told.count("\n") == 1


@pytest.mark.slow
def test_a_replay_from_a_subfolder_reports_different_events(pytester: pytest.Pytester):
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


@pytest.mark.slow
def test_a_test_that_no_longer_exists_is_reported(pytester: pytest.Pytester):
    Dump(5, "test_gone.py::test_it", []).write(pytester.path)

    done = replay(pytester, "5")

    assert done.ret == 1
    assert done.errlines[-1].startswith("callboard: pytest ran no simulation in test_gone.py")


LOSING = """
from callboard.simulation import cluster_test, partition, swarm

@cluster_test(seeds=[4, 5], faults=swarm(partition))
def test_orders(cluster):
    cluster(2)
    cluster.advance(1.0)
    assert BROKEN != cluster.seed
"""

PRINTED = """
from callboard.simulation import cluster_test
import test_shop

@cluster_test(seeds=[5], faults=[])
def test_seed_5(cluster):
    test_shop.test_orders.scenario(cluster)
"""


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    """A test of many seeds, with a seed that is kept and a printed program."""
    pytester.makepyfile(test_shop=f"BROKEN = 5\n{LOSING}", printed=PRINTED)
    kept = pytester.path / ".callboard" / "seeds" / "1.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("# test_shop.py::test_orders\n5\n")
    return pytester


@pytest.mark.slow
def test_a_seed_of_many_is_replayed_from_its_file_or_by_the_name_of_its_test(
    shop: pytest.Pytester,
):
    kept = replay(shop, "5", "--json", "--twice")
    named = replay(shop, "4", "test_shop.py::test_orders", "--trace")

    told = json.loads(kept.outlines[-1])
    assert (kept.ret, told["test"], told["passed"]) == (1, "test_shop.py::test_orders", False)
    assert (told["same_twice"], told["same_events"]) == (True, None)
    assert told["events"] > 0
    assert named.ret == 0
    assert named.outlines[-1].startswith("seed 4: ")
    assert named.outlines[-1].endswith(" events; it passed")
    assert any(" connects to " in line for line in named.outlines)


@pytest.mark.slow
def test_a_printed_program_is_replayed_and_passes_once_mended(shop: pytest.Pytester):
    assert replay(shop, "printed.py").ret == 1

    shop.makepyfile(test_shop=f"BROKEN = 6\n{LOSING}")

    assert replay(shop, "printed.py").ret == 0
    assert replay(shop, "5").ret == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["abc"], "'abc' is neither a seed nor a file of tests; use one of callboard replay"),
        (["5", "test_shp.py::test_orders"], "no file test_shp.py; did you mean test_shop.py?"),
        (["5", "test_shop.py::test_order"], "no test test_order; did you mean test_orders?"),
        (["7"], "name the test: callboard replay 7 FILE::TEST"),
    ],
)
def test_a_typing_error_is_reported_in_one_line(shop, capsys, arguments, told):
    shop.chdir()

    assert main(["replay", *arguments]) == 2

    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["CALLBOARD_SEEDS", "CALLBOARD_SECONDS", "CALLBOARD_SEED"])
def test_a_mistyped_variable_is_named(pytester: pytest.Pytester, monkeypatch, variable):
    pytester.makepyfile(LOSING.replace("[4, 5]", "3").replace("BROKEN", "-1"))
    monkeypatch.setenv(variable, "many")

    done = pytester.runpytest_subprocess()

    assert f"{variable} is 'many'; give a" in done.stdout.str() + done.stderr.str()
