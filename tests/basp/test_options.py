"""Options of a message: deadline, trace context, idempotency key, and others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.basp.errors import MalformedPayload, NotSerializable
from callboard.basp.options import (
    DEADLINE_MS,
    IDEMPOTENCY_KEY,
    KEY_LIMIT,
    LONGEST_ALONE,
    NO_OPTIONS,
    TRACE_CONTEXT,
    DispatchOptions,
    has_options,
    read_options,
    split_deadline,
    write_deadline,
)
from callboard.basp.payload import PayloadCodec
from tests.basp.message_types import Point, make_registry

CODEC = PayloadCodec(make_registry())
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

options = st.builds(
    DispatchOptions,
    deadline_ms=st.none() | st.integers(0, 2**53),
    trace_parent=st.just(PARENT),
    trace_state=st.sampled_from(["", "vendor=1"]),
    chain=st.lists(st.text(max_size=20), max_size=5).map(tuple),
    idempotency_key=st.none() | st.text(min_size=1, max_size=9) | st.binary(min_size=1),
    others=st.dictionaries(st.integers(5, 99), st.integers() | st.text(), max_size=3),
)


@given(options)
def test_options_survive_the_way(sent):
    payload = CODEC.encode(Point(1, "a"), sent.to_map())

    message, found = CODEC.decode(payload)

    assert message == Point(1, "a")
    assert read_options(found) == sent
    assert CODEC.decode_message(payload) == Point(1, "a")
    assert has_options(payload) == bool(sent.to_map())


def test_golden_bytes():
    sent = DispatchOptions(1000, PARENT, idempotency_key=b"k")

    payload = CODEC.encode("a", sent.to_map())

    text = PARENT.encode().hex()
    assert payload.hex() == f"826161d9bf0686011903e8027837{text}03416b"


@pytest.mark.parametrize("milliseconds", [0, 5, 60_000, LONGEST_ALONE])
@pytest.mark.parametrize("message", [5, "a", b"x" * 5000, Point(1, "a"), [1, {"a": 2}]])
def test_a_deadline_alone_is_ten_bytes_at_the_end(message, milliseconds):
    plain, seen = CODEC.encode(message), []
    codec = PayloadCodec(make_registry(), with_options=lambda *found: seen.append(found))

    payload = CODEC.encode(message, {DEADLINE_MS: milliseconds})
    codec.decode_message(payload)

    assert payload == b"\x82" + plain[1:] + write_deadline(milliseconds)
    assert split_deadline(payload) == (plain, milliseconds)
    assert seen == [(message, {DEADLINE_MS: milliseconds})]
    assert CODEC.decode(payload) == (message, {DEADLINE_MS: milliseconds})
    assert CODEC.decode_message(payload) == message


def test_a_deadline_beyond_four_bytes_travels_too():
    left = LONGEST_ALONE + 1

    assert CODEC.decode(CODEC.encode("a", {DEADLINE_MS: left})) == ("a", {DEADLINE_MS: left})


@given(st.binary(max_size=9), st.integers(0, LONGEST_ALONE))
def test_an_option_that_ends_like_a_deadline_is_not_one(before, milliseconds):
    sent, seen = {IDEMPOTENCY_KEY: before + write_deadline(milliseconds)}, []
    codec = PayloadCodec(make_registry(), with_options=lambda *found: seen.append(found))

    codec.decode_message(CODEC.encode("a", sent))

    assert seen == [("a", sent)]


def test_a_deadline_without_a_message_is_refused():
    for broken in (b"\x82" + write_deadline(5), b"\x82\x62a" + write_deadline(5)):
        with pytest.raises(MalformedPayload):
            CODEC.decode_message(broken)


def test_a_message_without_options_stays_as_it_is():
    payload = CODEC.encode("a")

    assert CODEC.encode("a", DispatchOptions().to_map()) == payload
    assert not has_options(payload)
    assert CODEC.decode(payload) == ("a", NO_OPTIONS)
    assert read_options(NO_OPTIONS) == DispatchOptions()


def test_an_option_without_a_wire_form_is_named():
    with pytest.raises(NotSerializable, match=r"options\[9\] is a"):
        CODEC.encode("a", {9: object()})


def test_unknown_options_are_kept_for_forwarding():
    found = read_options({DEADLINE_MS: 500, 77: ("later", b"release")})

    assert found.others == {77: ("later", b"release")}
    assert found.to_map() == {DEADLINE_MS: 500, 77: ("later", b"release")}


@pytest.mark.parametrize("deadline", [-1, 1.5, "1", True, 2**64, [1]])
def test_a_deadline_is_a_number_of_milliseconds(deadline):
    with pytest.raises(MalformedPayload, match="deadline"):
        read_options({DEADLINE_MS: deadline})
    with pytest.raises(ValueError, match="deadline"):
        DispatchOptions(deadline)


@pytest.mark.parametrize("key", ["", b"", "x" * (KEY_LIMIT + 1), 5, ["x"], bytearray(b"x")])
def test_an_idempotency_key_is_short_text_or_bytes(key):
    with pytest.raises(MalformedPayload, match="idempotency_key"):
        read_options({IDEMPOTENCY_KEY: key})


@pytest.mark.parametrize("key", ["", "x" * (KEY_LIMIT + 1)])
def test_a_sender_cannot_set_a_key_that_is_refused(key):
    with pytest.raises(ValueError, match="1-255 long"):
        DispatchOptions(idempotency_key=key)


UNFIT = [
    "",
    "x",
    PARENT.upper(),
    PARENT[:-1],
    "ff" + PARENT[2:],
    PARENT.replace("0af7651916cd43dd8448eb211c80319c", "0" * 32),
    PARENT.replace("b7ad6b7169203331", "0" * 16),
    PARENT + "x",
    5,
    [PARENT],
    [PARENT, 5],
    [5, "vendor=1"],
    [PARENT, "a", "b"],
]


@pytest.mark.parametrize("context", UNFIT)
def test_a_trace_context_that_is_not_well_formed_is_ignored(context):
    found = read_options({TRACE_CONTEXT: context, DEADLINE_MS: 1})

    assert found == DispatchOptions(1)


def test_a_trace_context_of_a_later_version_is_accepted():
    later = "01" + PARENT[2:] + "-more"

    assert read_options({TRACE_CONTEXT: later}).trace_parent == later


def test_a_trace_context_that_is_not_well_formed_is_not_sent():
    with pytest.raises(ValueError, match="traceparent"):
        DispatchOptions(trace_parent="x")
    with pytest.raises(ValueError, match="trace_state needs trace_parent"):
        DispatchOptions(trace_state="x")


@pytest.mark.parametrize("body", [b"\x00", b"\x80", b"\xa1\x61a\x00", b"\xd9\xbf\x06\x81\x00"])
def test_options_are_a_map_by_integers(body):
    with pytest.raises(MalformedPayload):
        CODEC.decode(b"\x82\x01" + body)


@pytest.mark.parametrize(
    "chain", ["Cart/1", [1], ["x" * 600], ["x"] * 101, {"Cart/1": 1}, [["Cart/1"]], None]
)
def test_a_chain_of_another_form_is_ignored(chain):
    assert read_options({1: 5, 4: chain}) == DispatchOptions(5)
