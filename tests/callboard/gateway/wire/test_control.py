"""The byte format of control messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.gateway.errors import MalformedControl
from callboard.gateway.wire.control import (
    DETACH,
    ControlCreate,
    ControlDestroy,
    ControlReply,
    ControlStart,
    decode_control,
    encode_control,
)

BYTE = st.integers(0, 255)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
CONTROLS = st.one_of(
    st.builds(ControlCreate, TEXT, TEXT, BYTE),
    st.builds(ControlReply, BYTE),
    st.just(ControlStart()),
    st.just(ControlDestroy()),
)
CREATE = bytes.fromhex(
    "a16c 01 01 0000001d 01 10 00000006" + b"ipc:a\0".hex() + "00000005" + b"null\0".hex()
)


@pytest.mark.parametrize(
    ("message", "data"),
    [
        (ControlCreate("ipc:a", "null"), CREATE),
        (
            ControlCreate("", ""),
            bytes.fromhex("a16c 01 01 00000014 01 10 00000001 00 00000001 00"),
        ),
        (ControlReply(0), bytes.fromhex("a16c 01 02 00000009 00")),
        (ControlReply(DETACH), bytes.fromhex("a16c 01 02 00000009 ff")),
        (ControlStart(), bytes.fromhex("a16c 01 03 00000008")),
        (ControlDestroy(), bytes.fromhex("a16c 01 04 00000008")),
    ],
)
def test_control_messages_have_the_bytes_of_the_original(message, data):
    assert encode_control(message) == data
    assert decode_control(data) == message


@given(CONTROLS)
def test_encoding_and_decoding_give_the_same_message(message):
    assert decode_control(encode_control(message)) == message


@given(CONTROLS)
def test_shorter_and_longer_bytes_are_refused(message):
    data = encode_control(message)
    for size in range(len(data)):
        with pytest.raises(MalformedControl):
            decode_control(data[:size])
    with pytest.raises(MalformedControl):
        decode_control(data + b"\0")


@given(CONTROLS, st.data())
def test_a_changed_byte_decodes_to_a_message_or_a_typed_error(message, draw):
    data = bytearray(encode_control(message))
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] ^= draw.draw(st.integers(1, 255))

    try:
        read = decode_control(bytes(data))
    except MalformedControl:
        return
    assert encode_control(read) == bytes(data)


@pytest.mark.parametrize(
    ("at", "field", "words"),
    [
        (1, b"\x60", "begins with a16c01"),
        (2, b"\x02", "begins with a16c01"),
        (3, b"\x00", "type 0"),
        (3, b"\x05", "type 5"),
        (3, b"\x03", "type 3 with a body"),
        (7, b"\xff", "is 255 B"),
        (8, b"\x02", "version 2 of messages"),
        (13, b"\x05", "uri must end"),
        (13, b"\xff", "only"),
        (14, b"\x00", "uri must end"),
        (23, b"\x04", "args must end"),
        (14, b"\xff", "not UTF-8"),
    ],
)
def test_bytes_that_are_not_a_control_message_are_refused(at, field, words):
    data = CREATE[:at] + field + CREATE[at + 1 :]

    with pytest.raises(MalformedControl, match=words):
        decode_control(data)


def test_a_message_that_cannot_be_encoded_is_refused():
    for message in (
        ControlCreate("a\0"),
        ControlCreate("a", "\0"),
        ControlReply(256),
        ControlCreate("a", uri_type=-1),
    ):
        with pytest.raises(ValueError, match=r"NUL|one byte"):
            encode_control(message)
    with pytest.raises(ValueError, match="exceeds"):
        encode_control(ControlCreate("a", "x" * (1 << 20)))
