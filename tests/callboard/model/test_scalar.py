"""Counts and enum values."""

import pytest

from callboard.model.errors import DataOverflow, InvalidData, UnsupportedData
from callboard.model.scalar import COUNT_MAX, Count, Enum


@pytest.mark.parametrize("value", [-1, 2**64])
def test_a_count_out_of_range_raises(value):
    with pytest.raises(DataOverflow, match="outside 0 to"):
        Count(value)


@pytest.mark.parametrize("value", [1.0, "1", True, None])
def test_a_count_is_made_of_an_int(value):
    with pytest.raises(UnsupportedData, match="a count must be an int"):
        Count(value)


def test_counts_compare_with_counts_only():
    assert Count(1) < Count(2) <= Count(COUNT_MAX)
    assert Count(5) == Count(5)
    assert Count(5) != 5
    assert hash(Count(5)) == hash(Count(5))
    with pytest.raises(TypeError):
        assert Count(1) < 2


def test_a_count_shows_its_number():
    assert (Count(5).value, int(Count(5)), str(Count(5)), repr(Count(5))) == (
        5,
        5,
        "5",
        "Count(5)",
    )
    assert [10, 20][Count(1)] == 20


def test_enum_values_are_their_names():
    assert Enum("a") < Enum("b")
    assert Enum("a") == Enum("a") != "a"
    assert hash(Enum("a")) == hash(Enum("a"))
    assert (Enum("A::b").name, str(Enum("A::b")), repr(Enum("A::b"))) == ("A::b",) * 3
    with pytest.raises(InvalidData, match="UTF-8"):
        Enum("\udc00")
