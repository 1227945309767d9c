"""Data as CBOR: golden bytes, round trips, damaged bytes."""

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.model.data import DEPTH_LIMIT, Data
from callboard.model.encoding import data_from_cbor, data_to_cbor
from callboard.model.errors import InvalidData
from tests.callboard.model.strategies import DATA, build

GOLDEN = [
    (("none", None), "f6"),
    (("boolean", True), "f5"),
    (("count", 2**64 - 1), "d9bf181bffffffffffffffff"),
    (("integer", -1), "20"),
    (("real", "1.5"), "fb3ff8000000000000"),
    (("string", "hé"), "6368c3a9"),
    (("string", b"\xff"), "41ff"),
    (("address", (b"abcd", 4)), "d9bf194461626364"),
    (("subnet", ((b"abcd", 4), 20)), "d9bf1a82446162600014"),
    (("port", (80, 1)), "d9bf1b82185001"),
    (("timestamp", 1), "d9bf1c1a3b9aca00"),
    (("timespan", 5), "d9bf1d05"),
    (("enum", "A"), "d9bf1e6141"),
    (("set", [("integer", 2), ("integer", 1)]), "d9bf1f820102"),
    (("table", [(("string", "k"), ("none", None))]), "d9bf2082616bf6"),
    (("vector", [("integer", 1), ("vector", [])]), "820180"),
]


@pytest.mark.parametrize(("description", "encoded"), GOLDEN)
def test_each_type_has_its_bytes(description, encoded):
    data = build(description)

    assert data_to_cbor(data).hex() == encoded
    assert data_from_cbor(bytes.fromhex(encoded)) == data


@given(DATA)
def test_data_comes_back(data):
    again = data_from_cbor(data_to_cbor(data))

    assert again == data
    assert str(again) == str(data)


def test_as_much_nesting_as_data_may_have_comes_back():
    data, other = Data(), Data()
    for _ in range(DEPTH_LIMIT):
        data, other = Data([data]), Data({1: other})

    for deep in (data, other):
        assert data_from_cbor(data_to_cbor(deep)) == deep
        with pytest.raises(InvalidData, match="deeper"):
            data_to_cbor(Data([deep]))
    with pytest.raises(InvalidData):
        data_from_cbor(b"\x81" + data_to_cbor(data))


@pytest.mark.parametrize(
    "item",
    [
        2**63,
        2**70,
        {1: 2},
        {1, 2},
        cbor2.undefined,
        cbor2.CBORSimpleValue(99),
        cbor2.CBORTag(48920, -1),
        cbor2.CBORTag(48920, "1"),
        cbor2.CBORTag(48920, True),
        cbor2.CBORTag(48921, b"abc"),
        cbor2.CBORTag(48922, [b"abcd", 33]),
        cbor2.CBORTag(48922, [b"abc", 3]),
        cbor2.CBORTag(48922, ["abcd", 3]),
        cbor2.CBORTag(48922, [b"abcd"]),
        cbor2.CBORTag(48923, [80, 4]),
        cbor2.CBORTag(48923, [65_536, 1]),
        cbor2.CBORTag(48924, 2**63),
        cbor2.CBORTag(48926, 5),
        cbor2.CBORTag(48928, [1]),
        cbor2.CBORTag(48929, 1),
        cbor2.CBORTag(37, bytes(16)),
        cbor2.CBORTag(1, 0),
        [[cbor2.CBORTag(28, [])]],
    ],
)
def test_other_items_are_refused(item):
    with pytest.raises(InvalidData):
        data_from_cbor(cbor2.dumps(item))


@given(DATA, st.data())
def test_cut_bytes_are_refused(data, draws):
    whole = data_to_cbor(data)

    with pytest.raises(InvalidData):
        data_from_cbor(whole[: draws.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InvalidData):
        data_from_cbor(whole + b"\x00")


@given(st.binary(max_size=40))
@example(b"\x62\xff\xff")
@example(b"\xd9\xbf\x1e\x61\xff")
def test_any_bytes_give_data_or_a_typed_error(payload):
    try:
        data = data_from_cbor(payload)
    except InvalidData:
        return
    assert data_from_cbor(data_to_cbor(data)) == data
