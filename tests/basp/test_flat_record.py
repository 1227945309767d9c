from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.errors import MalformedPayload, RemoteProtocolError
from callboard.basp.payload import _NOT_FLAT as NOT_FLAT
from callboard.basp.payload import PayloadCodec, read_flat_record
from callboard.basp.registry import MessageRegistry
from tests.basp.message_types import Box, Derived, Empty, Pair, Point, make_registry
from tests.basp.strategies import is_same, scalars

CODEC = PayloadCodec(make_registry())
FLAT = CODEC.registry.flat


def general(payload):
    """Read with the general decoder only."""
    return CODEC._reader.read(payload[1:])


def outcome(read, payload):
    try:
        return read(payload)
    except RemoteProtocolError:
        return RemoteProtocolError


@given(scalars, scalars)
def test_both_decoders_agree(x, y):
    payload = CODEC.encode(Point(x, y))

    assert is_same(CODEC.decode_message(payload), Point(x, y))
    assert is_same(general(payload), Point(x, y))


@given(st.integers(), st.text(max_size=30), st.data())
def test_both_decoders_agree_about_broken_bytes(x, y, data):
    payload = bytearray(CODEC.encode(Point(x, y)))
    index = data.draw(st.integers(1, len(payload) - 1))
    payload[index] = data.draw(st.integers(0, 255))
    broken = bytes(payload[: data.draw(st.integers(2, len(payload)))])

    assert is_same(outcome(CODEC.decode_message, broken), outcome(general, broken))


@given(st.data(), st.sampled_from([Empty(), Point(1, Empty()), Point({}, {})]))
def test_both_decoders_agree_about_broken_bytes_that_end_with_no_fields(data, message):
    payload = bytearray(CODEC.encode(message) + data.draw(st.sampled_from([b"", b"\xa0"])))
    payload[data.draw(st.integers(1, len(payload) - 1))] = data.draw(st.integers(0, 255))
    at = data.draw(st.integers(2, len(payload)))
    broken = bytes(payload[:at]) + data.draw(st.sampled_from([b"", b"\xa0"]))

    assert is_same(outcome(CODEC.decode_message, broken), outcome(general, broken))


@given(scalars, scalars, st.integers(), st.data())
def test_both_decoders_agree_about_a_record_in_a_record(x, y, z, data):
    message = Point(Point(x, y), z)
    payload = bytearray(CODEC.encode(message))

    assert is_same(CODEC.decode_message(bytes(payload)), message)
    assert is_same(general(bytes(payload)), message)
    payload[data.draw(st.integers(1, len(payload) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(payload[: data.draw(st.integers(2, len(payload)))])
    assert is_same(outcome(CODEC.decode_message, broken), outcome(general, broken))


@pytest.mark.parametrize(
    "message",
    [
        Point(1, "a" * 200),
        Point(2**40, 0.5),
        Pair(None, True),
        Empty(),
        Point(Empty(), Pair("b", 3)),
    ],
)
def test_flat_records_are_read(message):
    assert read_flat_record(CODEC.encode(message), FLAT) == message


@pytest.mark.parametrize(
    "message",
    [5, Derived(1), Point(1, [2]), Box(1), Point(-99, 1), Point(1, Point(1, Empty()))],
)
def test_the_rest_is_left_to_the_general_decoder(message):
    payload = CODEC.encode(message)

    assert read_flat_record(payload, FLAT) is NOT_FLAT
    assert CODEC.decode_message(payload) == message


def test_long_names_are_read():
    registry = MessageRegistry()
    registry.register("a.rather.long.module.name.Point", Point)
    codec = PayloadCodec(registry)

    assert read_flat_record(codec.encode(Point(1, 2)), registry.flat) == Point(1, 2)


def test_a_record_that_is_no_longer_flat_leaves_the_table():
    @dataclass
    class Thing:
        a: int

    registry = MessageRegistry()
    registry.register("thing", Thing)
    assert len(registry.flat) == 1

    @dataclass(kw_only=True)
    class Keyed:
        a: int

    Keyed.__qualname__ = Thing.__qualname__
    registry.register("thing", Keyed)
    codec = PayloadCodec(registry)

    assert registry.flat == {}
    assert codec.decode_message(codec.encode(Keyed(a=1))) == Keyed(a=1)


def test_a_constructor_that_refuses_is_the_peers_error():
    @dataclass
    class Even:
        a: int

        def __post_init__(self):
            if self.a % 2:
                raise ArithmeticError("odd")

    registry = MessageRegistry()
    registry.register("even", Even)
    codec = PayloadCodec(registry)
    payload = codec.encode(Even(2))[:-1] + b"\x03"

    with pytest.raises(MalformedPayload, match="ArithmeticError: odd"):
        codec.decode_message(payload)
    registry.register("pair", Pair)
    inner = codec.encode(Pair(Even(2), 1)).replace(b"\x61a\x02", b"\x61a\x03")
    with pytest.raises(MalformedPayload, match="ArithmeticError: odd"):
        codec.decode_message(inner)


def test_no_record_is_read_inside_more_than_may_be():
    codec = PayloadCodec(make_registry(), depth_limit=1)
    payload = CODEC.encode(Point(Empty(), 1))

    assert read_flat_record(payload, codec.registry.flat, 1) is NOT_FLAT
    assert outcome(codec.decode_message, payload) == outcome(codec._reader.read, payload[1:])
