"""Adding to values and taking away from them."""

import datetime

import pytest

from callboard.model.data import DataType
from callboard.model.errors import DataOverflow, EndpointError
from callboard.model.scalar import Count
from callboard.store.errors import TypeClash
from callboard.store.machine.arithmetic import add, empty_value, index_of, subtract
from callboard.store.machine.stored import python_of, stored_of

SECOND = datetime.timedelta(seconds=1)
MOMENT = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("value", "operand", "total", "back"),
    [
        (1, 2, 3, 1),
        (1.5, 2.0, 3.5, 1.5),
        (Count(1), Count(2), Count(3), Count(1)),
        (SECOND, SECOND, 2 * SECOND, SECOND),
        (MOMENT, SECOND, MOMENT + SECOND, MOMENT),
        ({1}, 2, {1, 2}, {1}),
        ((1,), 2, (1, 2), (1,)),
    ],
)
def test_a_sum_and_back(value, operand, total, back):
    found = add(stored_of(value), stored_of(operand))

    assert python_of(found) == total
    assert python_of(subtract(found, stored_of(operand))) == back


def test_text_tables_and_nothing():
    assert add("ab", "c") == "abc"
    table = add(stored_of({}), stored_of(["k", 1]))
    assert python_of(table) == {"k": 1}
    assert python_of(subtract(table, "k")) == {}
    assert add(None, 5) == 5
    assert subtract(stored_of(()), None) == ()


@pytest.mark.parametrize(
    ("value", "operand"),
    [(1, 1.5), (1, "x"), ("x", 1), (True, True), (Count(1), 1), ({}, 5), ({}, [1, 2, 3])],
)
def test_other_pairs_clash(value, operand):
    with pytest.raises(TypeClash):
        add(stored_of(value), stored_of(operand))


@pytest.mark.parametrize(("value", "operand"), [("x", "x"), (1, None), (True, True)])
def test_some_cannot_be_taken_away_from(value, operand):
    with pytest.raises(TypeClash):
        subtract(stored_of(value), stored_of(operand))


def test_numbers_do_not_wrap_around():
    with pytest.raises(DataOverflow):
        add(2**63 - 1, 1)
    with pytest.raises(EndpointError):
        subtract(stored_of(Count(0)), stored_of(Count(1)))


def test_sums_start_from_the_empty_value_of_a_type():
    assert empty_value(DataType.Integer) == 0
    assert python_of(empty_value(DataType.Set)) == set()
    with pytest.raises(TypeClash):
        empty_value(DataType.Address)


def test_elements_by_index():
    assert index_of(stored_of({1, 2}), 2) is True
    assert index_of(stored_of({1, 2}), 3) is False
    assert index_of(stored_of({"k": [1]}), "k") == (1,)
    assert index_of((5, 6), 1) == 6
    assert index_of((5, 6), Count(0)) == 5
    for value, index in (({"k": 1}, "x"), ((5,), 1)):
        with pytest.raises(KeyError):
            index_of(stored_of(value), index)
    for value, index in ((5, 1), ((5,), "x")):
        with pytest.raises(TypeClash):
            index_of(stored_of(value), index)
