"""Zeek's WebSocket JSON against what a real Broker 2.7.0 said, and hostile texts."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.model.data import Data, DataType, ImmutableData, Set, Table, Vector
from callboard.model.encoding import data_from_cbor, data_to_cbor
from callboard.model.errors import EndpointError, InvalidData, MalformedMessage, UnsupportedData
from callboard.model.scalar import Count
from callboard.model.timespan import Timespan, Timestamp
from callboard.zeek.json_message import (
    content_to_json,
    message_of_frame,
    message_to_json,
    parse_frame,
)
from tests.callboard.model.strategies import DATA
from tests.callboard.zeek.conversation import frames

MESSAGES = [
    text
    for text in frames("each type", is_sent=True) + frames("an event", is_sent=True)
    if text.startswith("{")
]
ANSWERS = [
    text
    for text in frames("each type", is_sent=False) + frames("an event", is_sent=False)
    if "ack" not in text
]
REFUSED = frames("refused", is_sent=True)[1:-1]


def read(text: str) -> tuple[str, Data]:
    topic, content = message_of_frame(parse_frame(text))
    return topic, data_from_cbor(content)


def of_one_type(kind: str, data: str) -> Data:
    return read(f'{{"topic": "/t", "@data-type": "{kind}", "data": {data}}}')[1]


@pytest.mark.parametrize("text", MESSAGES)
def test_what_a_real_broker_took_is_read_and_written_the_same(text):
    frame = parse_frame(text)

    topic, content = message_of_frame(frame)
    written = json.loads(content_to_json(topic, content))

    expected = text.replace('"1500ms"', '"1.5s"').replace('"1500000000.0ns"', '"1.5s"')
    assert written == json.loads(expected)
    assert topic == "/test"


@pytest.mark.parametrize("text", ANSWERS)
def test_what_a_real_broker_said_is_written_byte_for_byte_alike(text):
    topic, content = message_of_frame(parse_frame(text))

    assert json.dumps(json.loads(content_to_json(topic, content)), ensure_ascii=False) == text


@pytest.mark.parametrize("text", REFUSED)
def test_what_a_real_broker_refused_is_refused(text):
    with pytest.raises((InvalidData, MalformedMessage)):
        read(text)


def test_the_type_of_the_frame_may_be_absent_and_the_topic_may_not():
    assert read('{"topic":"/t","@data-type":"count","data":7}') == ("/t", Data(Count(7)))
    with pytest.raises(InvalidData, match="topic"):
        read('{"@data-type":"count","data":7}')


def test_the_topics_of_endpoints_are_not_zeeks():
    with pytest.raises(InvalidData, match="is reserved"):
        read('{"topic":"a/<$>/data/master","@data-type":"count","data":7}')


def kept(data: Data) -> Data | None:
    """Return data as JSON keeps it: milliseconds, texts; None for reals without a number."""
    value = data.value
    match data.get_type():
        case DataType.Timestamp:
            ms = value.time_since_epoch().count() // 1_000_000
            return (
                Data(Timestamp(Timespan(ms * 1_000_000))) if ms > -9_223_372_036_854 else None
            )
        case DataType.String:
            return Data(value.decode("utf-8", "backslashreplace"))
        case DataType.Real:
            return data if math.isfinite(value) else None
        case DataType.Vector | DataType.Set:
            parts = [kept(item) for item in value]
            if None in parts:
                return None
            return Data(Vector(parts) if data.get_type() is DataType.Vector else Set(parts))
        case DataType.Table:
            entries = [(kept(key), kept(item)) for key, item in value.pairs]
            return None if any(None in entry for entry in entries) else Data(Table(entries))
    return data


@given(DATA, st.text(st.characters(codec="utf-8"), max_size=5))
def test_each_value_finds_back(data, topic):
    expected = kept(data)

    try:
        text = content_to_json(topic, data_to_cbor(data))
    except UnsupportedData:
        assert expected is None
        return

    assert read(text)[0] == topic
    if expected is not None:
        assert read(text)[1] == expected


@given(DATA)
def test_what_receivers_get_is_written_as_its_bytes_are(data):
    value = ImmutableData.to_py(data)
    again = data_to_cbor(Data(value))
    try:
        expected = content_to_json("t", again)
    except UnsupportedData:
        return

    assert read(message_to_json("t", value))[1] == read(expected)[1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_real_that_json_has_no_number_for_is_a_text(value):
    assert f'"data":"{value}"' in message_to_json("/t", [value])


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("boolean", "1"), ("count", "true"), ("count", "18446744073709551616"), ("real", '"1"'),
        ("count", "NaN"), ("real", "1" + "0" * 400), ("real", "1e999999"),
        ("string", r'"\ud800"'), ("string", "[]"),
        ("timespan", '"5"'), ("timespan", '"99999999999999d"'), ("timestamp", '"2023-05-03"'),
        ("timestamp", '"0001-01-01T00:00:00.000"'), ("address", '"::1%e"'), ("address", '"1"'),
        ("subnet", '"10.0.0.0/33"'), ("port", '"80"'), ("port", '"65536/tcp"'), ("set", "{}"),
        ("vector", "[1]"), ("set", '[{"data": 1}]'), ("table", '[{"key": 1}]'), ("none", "1"),
        ("vector", "[[]]"), ("enum-value", "1"), ("[]", "1"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_with_a_typed_error(kind, data):
    with pytest.raises((InvalidData, MalformedMessage)):
        of_one_type(kind, data)


def test_a_value_nested_too_deep_is_refused():
    deep = '{"@data-type":"vector","data":[' * 101 + "]}" * 101
    deeper = '{"@data-type":"vector","data":[' * 5_000 + "]}" * 5_000
    for text in (deep, deeper):
        with pytest.raises((InvalidData, MalformedMessage)):
            read(f'{{"topic":"/t",{text[1:]}')


def test_keys_with_one_hash_are_refused_before_they_cost_time():
    text = '{"@data-type":"vector","data":[%s]}'
    reals = [
        f'{{"@data-type":"real","data":{2.0 ** (61 * power)!r}}}' for power in range(-16, 17)
    ]
    keys = ",".join(text % f"{one},{other}" for one in reals for other in reals)

    with pytest.raises(InvalidData):
        of_one_type("set", f"[{keys}]")


@given(st.sampled_from(["", *MESSAGES]), st.integers(0), st.integers(0), st.text(max_size=20))
def test_any_text_is_a_message_or_a_typed_error(text, start, end, inserted):
    at = start % (len(text) + 1)
    try:
        read(text[:at] + inserted + text[max(at, end % (len(text) + 1)) :])
    except EndpointError:
        pass
