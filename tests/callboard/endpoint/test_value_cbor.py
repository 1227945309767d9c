"""Values between endpoints: nothing is lost, and garbage is an error."""

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.endpoint.data import Data, ImmutableData
from callboard.endpoint.errors import DataOverflow, EndpointError, MalformedMessage
from callboard.endpoint.message import MessageType, pack_runs
from callboard.endpoint.value_cbor import (
    decode_data,
    decode_run,
    decode_value,
    encode_pair,
    encode_value,
)
from tests.callboard.endpoint.strategies import DATA

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner),
)


def frozen(value: Any) -> Any:
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


@given(DATA)
def test_every_value_of_the_model_comes_back_exactly(value: Data) -> None:
    assert decode_data(encode_value(value)) == value


@given(DATA)
def test_python_values_are_those_of_the_model(value: Data) -> None:
    assert Data(decode_value(encode_value(value))) == Data(ImmutableData.to_py(value))


@given(PLAIN)
def test_plain_values_take_the_short_way_and_mean_the_same(value: Any) -> None:
    assert decode_value(encode_value(value)) == frozen(value)
    assert decode_data(encode_value(value)) == Data(value)


@given(st.lists(st.tuples(st.text(max_size=20), PLAIN), min_size=1, max_size=20))
def test_a_run_keeps_messages_and_order(messages: list[tuple[str, Any]]) -> None:
    pairs = [encode_pair(topic, value) for topic, value in messages]

    ((payload, count),) = pack_runs(MessageType.DATA, 16, pairs)

    assert count == len(messages)
    assert decode_run(payload) == (
        MessageType.DATA,
        [(topic, frozen(value)) for topic, value in messages],
    )


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, [[2**64]], {"a": 2**70}])
def test_integers_beyond_64_bits_are_refused_by_the_sender(value: Any) -> None:
    with pytest.raises(DataOverflow):
        encode_value(value)


@pytest.mark.parametrize("value", [object(), [1j], {"a": [range(3)]}, "\ud800", ["\ud800"]])
def test_what_the_model_has_not_is_refused_by_the_sender(value: Any) -> None:
    with pytest.raises(EndpointError):
        encode_value(value)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\xff",
        cbor2.dumps({"a": 1}),
        cbor2.dumps(cbor2.CBORTag(28, [])),
        cbor2.dumps(cbor2.CBORTag(48920, -1)),
        cbor2.dumps(cbor2.CBORTag(48920, 2**64)),
        cbor2.dumps(cbor2.CBORTag(48921, b"short")),
        cbor2.dumps(cbor2.CBORTag(48922, [bytes(16), 129])),
        cbor2.dumps(cbor2.CBORTag(48923, [70000, 1])),
        cbor2.dumps(cbor2.CBORTag(48924, "now")),
        cbor2.dumps(cbor2.CBORTag(48926, 7)),
        cbor2.dumps(cbor2.CBORTag(48927, [1])),
        cbor2.dumps(cbor2.CBORTag(258, 1)),
        cbor2.dumps(2**70),
        b"\x81" * 1000,
        cbor2.dumps(cbor2.CBORTag(258, [i * (2**61 - 1) for i in range(1000)])),
    ],
)
def test_what_is_no_value_is_an_error(garbage: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_data(garbage)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_an_error(garbage: bytes) -> None:
    for decode in (decode_value, decode_data, decode_run):
        try:
            decode(garbage)
        except MalformedMessage:
            continue


@given(DATA, st.data())
def test_damaged_values_are_a_value_or_an_error(value: Data, draw: Any) -> None:
    body = bytearray(encode_value(value))
    body[draw.draw(st.integers(0, len(body) - 1))] ^= draw.draw(st.integers(1, 255))

    for decode in (decode_value, decode_data):
        try:
            decode(bytes(body))
        except MalformedMessage:
            continue
