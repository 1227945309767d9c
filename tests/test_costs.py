"""What the suite says about the time that its tests take."""

import pytest

from tests.costs import DEFAULT_BUDGET, folder_of, measure_speed, over_budget


@pytest.mark.parametrize(
    ("nodeid", "folder"),
    [
        ("tests/basp/routing/test_router.py::test_x[a/b]", "tests/basp"),
        ("tests/callboard/mqtt/wire/test_codec.py::test_x", "tests/callboard/mqtt"),
        ("tests/callboard/test_text.py::test_x", "tests/callboard"),
        ("tests/test_api.py::test_x", "tests"),
    ],
)
def test_each_test_belongs_to_the_folder_of_its_package(nodeid, folder):
    assert folder_of(nodeid) == folder


def test_a_folder_beyond_its_budget_is_named_and_others_are_not():
    (line,) = over_budget({"a": 2.0, "b": 3.5}, {"a": 2.5, "b": 3.0}, speed=1.0)

    assert line == "b took 3.5 s, its budget is 3.0 s"


def test_a_new_folder_has_a_budget_too():
    assert over_budget({"new": DEFAULT_BUDGET - 1}, {}, speed=1.0) == []
    assert over_budget({"new": DEFAULT_BUDGET + 1}, {}, speed=1.0)


def test_a_slow_machine_has_larger_budgets_and_a_fast_one_no_smaller_ones():
    spent, budgets = {"a": 3.0}, {"a": 2.0}

    assert over_budget(spent, budgets, speed=2.0) == []
    assert over_budget({"a": 1.9}, budgets, speed=0.1) == []


def test_the_speed_of_this_machine_is_measured():
    assert 0.01 < measure_speed() < 1000
