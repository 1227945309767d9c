"""The short way between both encodings of values gives what the way by objects gives."""

import random
import struct

import cbor2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.model.address import Address, Port, Subnet
from callboard.model.data import DEPTH_LIMIT, Data
from callboard.model.encoding import MAX_ITEMS, data_from_cbor, data_to_cbor
from callboard.model.errors import InvalidData
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp
from callboard.zeek import transcoder
from callboard.zeek.transcoder import broker_from_cbor, cbor_at, cbor_from_broker
from callboard.zeek.value import value_from_bytes, value_to_bytes
from tests.callboard.model.strategies import DATA

NUMBERS = (0, 1, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1)
EXAMPLES = [
    Data([*map(Count, NUMBERS), Count(2**64 - 1)]),
    Data([*NUMBERS, *(-number for number in NUMBERS), -(2**63)]),
    Data([b"", b"x" * 23, b"x" * 24, b"x" * 127, b"x" * 128, b"x" * 70_000, "hé", b"\xff"]),
    Data([1.5, -0.0, float("inf"), float("nan"), 1e308, 5e-324, True, False, None]),
    Data([Enum("A::B"), Enum("é"), Enum("x" * 300)]),
    Data([Count(1), Count(1), ["e", [1, {2, 3}, {"k": Count(4)}]]]),
    Data([0] * 300),
    Data([Address(bytes([192, 0, 2, 7]), 4), Address(bytes(range(16))), Port(80, Port.TCP)]),
    Data([Subnet(Address(bytes([10, 0, 0, 0]), 4), 8), Subnet(Address(b"\x20" * 16), 32)]),
    Data([Timespan(-1), Timespan(2**40), Timestamp(0), Timestamp(1e9)]),
    Data([{1, 2}, {"key": Address(bytes([10, 0, 0, 1]), 4)}, set(), {}, []]),
]


def outcome(function, given):
    """Return what comes of a call: a value, or that it is refused."""
    try:
        return function(given)
    except InvalidData:
        return InvalidData


def cbor_by_objects(payload):
    return data_to_cbor(value_from_bytes(payload))


def broker_by_objects(content):
    return value_to_bytes(data_from_cbor(content))


def compare(payload, content):
    """Hold both ways equal, for bytes of both kinds."""
    assert outcome(cbor_from_broker, payload) == outcome(cbor_by_objects, payload)
    assert outcome(broker_from_cbor, content) == outcome(broker_by_objects, content)


@given(DATA)
def test_each_value_is_that_of_the_way_by_objects(data):
    compare(value_to_bytes(data), data_to_cbor(data))


@given(st.binary(max_size=9), DATA, st.binary(max_size=9))
def test_a_value_among_others_is_the_same_and_ends_where_it_ends(before, data, behind):
    alone = value_to_bytes(data)
    buffer = before + alone + behind

    assert cbor_at(buffer, len(before)) == (cbor_from_broker(alone), len(before + alone))
    for end in range(len(before), len(before + alone)):
        with pytest.raises(InvalidData):
            cbor_at(buffer[:end], len(before))


@pytest.mark.parametrize("data", EXAMPLES)
def test_edges_of_numbers_and_lengths(data):
    payload, content = value_to_bytes(data), data_to_cbor(data)
    assert cbor_from_broker(payload) == content
    assert broker_from_cbor(content) == payload


#: One value of each form that both short ways know.
USUAL = [
    *NUMBERS, -1, -256, Count(5), Count(300), Count(2**64 - 1), 1.5, True, False, None,
    "", "text", "x" * 23, "x" * 24, "x" * 300, "hé", Enum("A::B"), Enum("x" * 300),
    Address(bytes([192, 0, 2, 7]), 4), Address(bytes(range(16))),
    Port(80, Port.TCP), Port(65_535, Port.UDP), Timespan(-1), Timespan(2**40),
    Timestamp(0), Timestamp(1e9), [], [0] * 24, [[1, ["two"]]],
]  # fmt: skip


@pytest.mark.parametrize("value", USUAL, ids=lambda value: repr(value)[:30])
def test_a_usual_value_is_converted_without_objects(value, monkeypatch):
    payload, content = value_to_bytes(Data([value])), data_to_cbor(Data([value]))
    for name in ("value_from_bytes", "data_to_cbor", "data_from_cbor", "value_to_bytes"):
        monkeypatch.delattr(transcoder, name)

    assert cbor_from_broker(payload) == content
    assert broker_from_cbor(content) == payload


@given(DATA, st.data())
def test_damaged_values_are_refused_by_both_or_by_none(data, draws):
    """Cut, and with bytes changed: a typed error, or the value that the long way finds."""
    damaged = []
    for whole in (value_to_bytes(data), data_to_cbor(data)):
        changed = bytearray(whole)
        for _ in range(draws.draw(st.integers(0, 2))):
            place = draws.draw(st.integers(0, len(whole) - 1))
            changed[place] = draws.draw(st.integers(0, 255))
        damaged.append(bytes(changed[: draws.draw(st.integers(0, len(whole)))]))
    compare(*damaged)


@given(st.binary(max_size=40), st.binary(max_size=40))
@example(b"\x0e\x81\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x9b" + b"\x7f" * 8)
@example(b"\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x7b" + b"\xff" * 8)
@example(b"\x05\x80\x00", b"\xd9\xbf\x1b\x82\x1a\x00\x00\x00\x50\x01")
@example(b"\x08\x00\x50\x04", b"\xd9\xbf\x1b\x82\x19\x00\x50\x04")
@example(b"\x01\x02", b"\xd9\xbf\x18\x20")
@example(b"", b"\xd9\xbf\x1c\x3b" + b"\xff" * 8)
@example(b"\x04" + struct.pack(">d", 1.0)[:7], b"\xfb\x3f\xf0")
@example(b"\x0b\x02\xc3\x28", b"\xd9\xbf\x1e\x62\xc3\x28")
@example(b"\x05\x03\xed\xa0\x80", b"\x63\xed\xa0\x80")
def test_any_bytes_are_a_value_for_both_or_for_none(payload, content):
    compare(payload, content)


def test_values_in_odd_forms_of_cbor_are_taken_as_the_reader_takes_them():
    rng = random.Random(7)
    for content in (
        b"\x18\x05", b"\x19\x00\x05", b"\x78\x01a", b"\x98\x01\x00", b"\x9f\x01\xff",
        b"\x7f\x61a\xff", b"\xf9\x3c\x00", b"\xfa\x3f\x80\x00\x00", b"\xc2\x41\x05", b"\xf7",
        b"\xd9\xbf\x18\x18\x05", cbor2.dumps(b"octets"), cbor2.dumps(2**63),
        b"\xd9\xbf\x1e\x7f\x61a\xff", b"\xd9\xbf\x19\x58\x04abcd",
        *(rng.randbytes(6) for _ in range(200)),
    ):  # fmt: skip
        compare(b"\x00", content)


@pytest.mark.parametrize("depth", [DEPTH_LIMIT - 1, DEPTH_LIMIT, DEPTH_LIMIT + 1, 10_000])
def test_the_depth_has_a_bound(depth):
    payload, content = b"\x0e\x01" * depth + b"\x00", b"\x81" * depth + b"\xf6"
    compare(payload, content)
    assert (outcome(cbor_from_broker, payload) is InvalidData) == (depth > DEPTH_LIMIT)


def test_the_number_of_containers_has_a_bound():
    many = MAX_ITEMS + 1
    payload = b"\x0e" + bytes((many & 127 | 128, many >> 7 & 127 | 128, many >> 14))
    payload += b"\x0e\x00" * many
    with pytest.raises(InvalidData, match="containers"):
        cbor_from_broker(payload)
    with pytest.raises(InvalidData, match="containers"):
        broker_from_cbor(b"\x9a" + many.to_bytes(4) + b"\x80" * many)
