"""Values between endpoints: nothing is lost, and garbage is an error."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.errors import RemoteProtocolError
from callboard.model.address import Port
from callboard.model.data import Data, ImmutableData
from callboard.model.encoding import (
    data_to_cbor,
    immutable_from_cbor,
    immutable_of_item,
    python_to_cbor,
    read_item,
)
from callboard.model.errors import InvalidData, MalformedMessage
from callboard.model.scalar import Count, Enum
from callboard.topics.machine.run import (
    PackedType,
    decode_run,
    encode_pair,
    encode_plain_pair,
    pack_runs,
)
from tests.callboard.model.strategies import DATA

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
def test_values_in_a_run_are_those_of_the_model(value: Data) -> None:
    body = encode_pair("/t", value)

    ((payload, _),) = pack_runs(PackedType.DATA, 16, [body, body])

    expected = ImmutableData.to_py(value)
    assert repr(decode_run(payload)[1]) == repr([("/t", expected), ("/t", expected)])


@given(DATA)
def test_values_with_tags_are_read_in_one_pass(value: Data) -> None:
    payload = data_to_cbor(Data([value, Count(1)]))
    run = b"\x84\x01\x10\x62/t" + payload

    try:
        direct = immutable_from_cbor(run)
    except RemoteProtocolError:  # the long way reads it
        direct = None

    expected = ImmutableData.to_py(Data([value, Count(1)]))
    assert direct is None or repr(direct[3]) == repr(expected)
    assert repr(decode_run(run)[1][0][1]) == repr(expected)


@pytest.mark.parametrize(
    "value",
    [
        Count(2**64 - 1),
        Port(80, Port.TCP),
        Enum("A"),
        {Count(1), "a"},
        {"a": (Count(1),)},
        datetime(2026, 1, 31, tzinfo=UTC),
        timedelta(microseconds=3),
        IPv4Address("10.0.0.1"),
        IPv6Address("2001:db8::1"),
        IPv4Network("10.0.0.0/8"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_events_hold_takes_no_other_way(value: Any) -> None:
    assert immutable_from_cbor(data_to_cbor(Data(value))) == value


@given(DATA)
def test_one_value_alone_is_the_same(value: Data) -> None:
    found = read_item(data_to_cbor(value), immutable_of_item)

    assert repr(found) == repr(ImmutableData.to_py(value))


@given(PLAIN)
def test_plain_values_take_the_short_way_and_mean_the_same(value: Any) -> None:
    assert python_to_cbor(value) == data_to_cbor(Data(value))


@pytest.mark.slow
@given(st.lists(st.tuples(st.text(max_size=20), PLAIN), min_size=1, max_size=20))
def test_a_run_keeps_messages_and_order(messages: list[tuple[str, Any]]) -> None:
    pairs = [encode_pair(topic, value) for topic, value in messages]

    ((payload, count),) = pack_runs(PackedType.DATA, 16, pairs)

    assert count == len(messages)
    assert decode_run(payload) == (
        PackedType.DATA,
        [(topic, frozen(value)) for topic, value in messages],
    )


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
        cbor2.dumps(cbor2.CBORTag(48928, [1])),
        cbor2.dumps(cbor2.CBORTag(258, 1)),
        cbor2.dumps(2**70),
        b"\x81" * 1000,
    ],
)
def test_a_run_with_what_is_no_value_is_an_error(garbage: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_run(b"\x84\x01\x10\x62/t" + garbage)


@pytest.mark.parametrize("count", [1, 30, 300])
def test_bytes_of_commands_stay_bytes_even_if_they_look_like_a_tag(count: int) -> None:
    pairs = [encode_plain_pair("/t", b"\xd9\xbf and text")] * count

    ((payload, _),) = pack_runs(PackedType.COMMAND, 1, pairs)

    assert decode_run(payload) == (
        PackedType.COMMAND,
        [("/t", b"\xd9\xbf and text")] * count,
    )


def test_bytes_behind_a_run_are_an_error() -> None:
    ((payload, _),) = pack_runs(PackedType.DATA, 16, [encode_pair("/t", 1)])

    with pytest.raises(MalformedMessage):
        decode_run(payload + b"\x00")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_run_or_an_error(garbage: bytes) -> None:
    try:
        decode_run(garbage)
    except MalformedMessage:
        return


@given(st.lists(DATA, min_size=1, max_size=3), st.data())
def test_damaged_runs_are_a_run_or_an_error(values: list[Data], draw: Any) -> None:
    ((payload, _),) = pack_runs(PackedType.DATA, 1, [encode_pair("/t", v) for v in values])
    body = bytearray(payload)
    body[draw.draw(st.integers(0, len(body) - 1))] ^= draw.draw(st.integers(1, 255))

    try:
        decode_run(bytes(body))
    except MalformedMessage:
        return


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, [1, [2**64 - 1]], cbor2.CBORSimpleValue(5), cbor2.undefined]
)
def test_plain_values_outside_of_the_model_are_refused(value: Any) -> None:
    pair = encode_plain_pair("/a", value)
    ((run, _),) = pack_runs(PackedType.DATA, 1, [encode_pair("/a", 1), pair])

    with pytest.raises(MalformedMessage):
        decode_run(run)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**32, "a;b", (1, (2**40, -0.5))])
def test_values_that_look_odd_in_bytes_are_read(value: Any) -> None:
    ((run, _),) = pack_runs(PackedType.DATA, 1, [encode_pair("/a", value)])

    assert decode_run(run) == (PackedType.DATA, [("/a", value)])


@pytest.mark.slow
def test_what_holds_too_much_is_refused_on_both_sides() -> None:
    with pytest.raises(ValueError, match="500,000 containers"):
        encode_pair("/t", [()] * 500_001)
    body = encode_plain_pair("/t", [[]] * 600_000)
    ((payload, _),) = pack_runs(PackedType.DATA, 16, [body])
    with pytest.raises(MalformedMessage, match="500,000 containers"):
        decode_run(payload)
    encode_pair("/t", [1.5] * 600_000)


def _of_sets(count: int) -> bytes:
    """A run that says it has a set of so many numbers."""
    pair = encode_pair("/t", {1})
    ((run, _),) = pack_runs(PackedType.DATA, 16, [pair])
    return run.replace(cbor2.dumps([1]), cbor2.dumps([7] * count))


@pytest.mark.parametrize(
    "value",
    [set(range(5_001)), dict.fromkeys(range(2_501)), {(n,) for n in range(2_501)}],
    ids=["set", "table", "set of vectors"],
)
def test_what_is_hashed_counts_as_much_as_a_container(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("topics.machine.run", "model.encoding"):
        monkeypatch.setattr(f"callboard.{module}.MAX_ITEMS", 5_000)

    with pytest.raises(InvalidData, match="5,000 containers"):
        encode_pair("/t", value)


def test_a_run_with_a_set_of_too_many_numbers_is_refused_before_it_is_read() -> None:
    with pytest.raises(MalformedMessage, match="500,000 containers"):
        decode_run(_of_sets(600_000))


def test_the_values_of_all_commands_of_a_run_count_together() -> None:
    heavy = cbor2.dumps([[]] * 490_000)
    pairs = [encode_plain_pair("store", (heavy,))]

    def run() -> bytes:
        return next(iter(pack_runs(PackedType.COMMAND, 16, [b"".join(pairs)])))[0]

    assert decode_run(run())[0] is PackedType.COMMAND
    pairs = [encode_plain_pair("store", (heavy, heavy, heavy))]
    with pytest.raises(MalformedMessage, match="500,000 containers"):
        decode_run(run())


def test_large_byte_strings_of_users_are_no_cbor() -> None:
    value = b"\xff" * 600_000
    ((run, _),) = pack_runs(PackedType.DATA, 16, [encode_pair("/t", value)])

    assert decode_run(run)[1] == [("/t", value)]
