"""Forms in which stores hold keys and values."""

import math

import cbor2
import pytest
from hypothesis import given

from callboard.model.data import Data
from callboard.model.errors import DataOverflow, EndpointError, InvalidData
from callboard.model.scalar import Count
from callboard.store.machine.stored import (
    SIZE_LIMIT,
    checked_stored,
    checked_token,
    data_of,
    key_of,
    python_of,
    stored_of,
    token_of,
)
from tests.callboard.model.strategies import DATA


@given(DATA)
def test_a_value_comes_back_as_data(data):
    assert data_of(stored_of(data)) == data
    assert repr(python_of(stored_of(data))) == repr(Data.to_py(data))


@given(DATA)
def test_what_travels_is_read_as_it_was_stored(data):
    stored, token = stored_of(data), token_of(data)

    value, key = cbor2.loads(cbor2.dumps([stored, token]), immutable=True)

    assert repr(checked_stored(value)) == repr(stored)
    assert checked_token(key) == token


@given(DATA, DATA)
def test_different_keys_have_different_tokens(one, other):
    assert one == other or token_of(one) != token_of(other)


def test_what_python_calls_equal_are_different_keys():
    keys = [1, 1.0, True, Count(1), "1", b"\xff", (1,), None]

    assert len(set(map(token_of, keys))) == len(keys)
    assert [key_of(token_of(key)) for key in keys] == keys
    assert token_of(0.0) == token_of(-0.0)
    assert token_of(math.nan) == token_of(-math.nan)
    assert token_of(b"text") == token_of("text") == "text"


def test_a_list_is_stored_as_it_was():
    items = [1, [2]]
    stored = stored_of(items)
    items[1].append(3)

    assert python_of(stored) == (1, (2,))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (2**63, DataOverflow),
        ("\ud800", InvalidData),
        (["\ud800"], InvalidData),
        (object(), EndpointError),
        ("x" * (SIZE_LIMIT + 1), InvalidData),
        (["x" * SIZE_LIMIT, "x"], InvalidData),
    ],
)
def test_what_is_no_data_is_refused(value, error):
    for form in (stored_of, token_of):
        with pytest.raises(error):
            form(value)


@pytest.mark.slow
@pytest.mark.parametrize("value", [[()] * 500_001, set(range(500_001))], ids=["list", "set"])
def test_what_other_nodes_would_not_read_is_not_stored(value):
    with pytest.raises(InvalidData, match="500,000 containers"):
        stored_of(value)
