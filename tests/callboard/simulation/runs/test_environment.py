"""What the environment says of simulated tests, and how a wrong value is told."""

import random

import pytest

from callboard.actors.errors import WrongValue
from callboard.simulation.runs import environment

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in ("SEED", "SEEDS", "SECONDS", "NEW_SEEDS"):
        monkeypatch.delenv(f"CALLBOARD_{name}", raising=False)


def test_without_variables_the_defaults_count():
    assert environment.seed() is None
    assert environment.seeds(7) == 7
    assert environment.seconds(1.5) == 1.5
    assert environment.chance("a").random() == environment.chance("a").random()
    assert environment.chance("a").random() != environment.chance("b").random()


def test_variables_count(monkeypatch):
    monkeypatch.setenv("CALLBOARD_SEED", "17")
    monkeypatch.setenv("CALLBOARD_SEEDS", " 3 ")
    monkeypatch.setenv("CALLBOARD_SECONDS", "0.5")
    monkeypatch.setenv("CALLBOARD_NEW_SEEDS", "1")

    assert (environment.seed(), environment.seeds(7), environment.seconds(1)) == (17, 3, 0.5)
    assert isinstance(environment.chance("a"), random.SystemRandom)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("CALLBOARD_SEED", ""),
        ("CALLBOARD_SEED", "-1"),
        ("CALLBOARD_SEED", "x"),
        ("CALLBOARD_SEEDS", "0"),
        ("CALLBOARD_SEEDS", "-3"),
        ("CALLBOARD_SEEDS", "1.5"),
        ("CALLBOARD_SEEDS", "many"),
        ("CALLBOARD_SECONDS", "-1"),
        ("CALLBOARD_SECONDS", "nan"),
        ("CALLBOARD_SECONDS", "1 h"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)

    with pytest.raises(WrongValue, match=f"{variable} is {text!r}; give .*, or unset it"):
        environment.check()


@pytest.mark.parametrize("variable", ["CALLBOARD_SEED", "CALLBOARD_SEEDS", "CALLBOARD_SECONDS"])
def test_pytest_tells_it_in_one_line_before_any_test(pytester, monkeypatch, variable):
    pytester.makepyfile("def test_it(cluster):\n    cluster(1)\n")
    monkeypatch.setenv(variable, "abc")

    result = pytester.runpytest()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [line for line in result.errlines if line]
    assert len(lines) == 1
    assert lines[0].startswith(f"ERROR: {variable} is 'abc'; give ")


def test_a_negative_seed_as_an_option_is_refused(pytester):
    result = pytester.runpytest("--callboard-seed=-4")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "pass a seed that a failed test printed" in result.stderr.str()
