"""The short way gives the bytes, the values and the refusals of the long one."""

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.model.data import DEPTH_LIMIT, Data
from callboard.model.encoding import (
    data_from_cbor,
    data_to_cbor,
    python_from_cbor,
    python_to_cbor,
)
from callboard.model.errors import DataOverflow, EndpointError, InvalidData, UnsupportedData
from callboard.model.scalar import Count
from tests.callboard.model.strategies import DATA


@given(DATA)
@example(Data([b"text", b"\xff", Count(1), {1: [2]}, (3, {4})]))
def test_bytes_and_values_are_those_of_the_long_way(data):
    value = Data.to_py(data)

    assert python_to_cbor(value) == data_to_cbor(Data(value))
    assert repr(python_from_cbor(data_to_cbor(data))) == repr(value)


def test_bytes_that_are_text_are_text_on_both_ways():
    assert python_to_cbor([b"ab"]) == data_to_cbor(Data(["ab"]))
    assert python_from_cbor(cbor2.dumps([b"ab"])) == ("ab",)


@given(st.binary(max_size=40))
@example(cbor2.dumps(2**63))
@example(cbor2.dumps({1: 2}))
@example(b"\x81" * 101 + b"\xf6")
@example(b"\xf6\xf6")
def test_both_ways_refuse_the_same_bytes(payload):
    try:
        expected = Data.to_py(data_from_cbor(payload))
    except InvalidData:
        with pytest.raises(InvalidData):
            python_from_cbor(payload)
        return
    assert repr(python_from_cbor(payload)) == repr(expected)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ([2**63], DataOverflow),
        ([object()], UnsupportedData),
        (["\ud800"], InvalidData),
        ({"\ud800": 1}, InvalidData),
    ],
)
def test_both_ways_refuse_the_same_values(value, error):
    for write in (python_to_cbor, Data):
        with pytest.raises(error):
            write(value)


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {1: x}, lambda x: (x,)])
def test_both_ways_end_at_the_same_depth(wrap):
    value = 0
    for _ in range(DEPTH_LIMIT):
        value = wrap(value)

    assert python_to_cbor(value) == data_to_cbor(Data(value))
    for write in (python_to_cbor, Data):
        with pytest.raises(EndpointError, match="deeper than 100"):
            write([value])
