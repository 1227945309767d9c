"""The byte format of gateway messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.gateway.errors import MalformedMessage
from callboard.gateway.wire.message import Message

EMPTY = bytes.fromhex("a160 0000000e 00000000 00000000")
GOLDEN = bytes.fromhex(
    "a160 0000001b 00000002" + b"k\0v\0unit\0C\0".hex() + "00000002" + "6869"
)
GOLDEN = GOLDEN[:2] + len(GOLDEN).to_bytes(4) + GOLDEN[6:]
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
MESSAGES = st.builds(Message, st.binary(max_size=60), st.dictionaries(TEXT, TEXT, max_size=4))


def test_the_smallest_message_has_fourteen_bytes():
    assert Message().data == EMPTY
    assert Message.decode(EMPTY) == Message(b"", {})


def test_a_message_has_the_bytes_of_the_original():
    message = Message(b"hi", {"k": "v", "unit": "C"})

    assert message.data == GOLDEN
    assert Message.decode(GOLDEN) == message


@given(MESSAGES)
def test_encoding_and_decoding_give_the_same_message(message):
    read = Message.decode(message.data)

    assert read == message
    assert (read.content, dict(read.properties)) == (message.content, dict(message.properties))
    assert read.data == message.data
    assert hash(read) == hash(message)


@given(MESSAGES, st.binary(max_size=12))
def test_a_message_after_a_topic_decodes_the_same(message, topic):
    read = Message.of_frame(topic + message.data, len(topic))

    assert read == message
    assert read.data == message.data


@given(MESSAGES)
def test_shorter_and_longer_bytes_are_refused(message):
    data = message.data
    for size in range(len(data)):
        with pytest.raises(MalformedMessage):
            Message.decode(data[:size])
    with pytest.raises(MalformedMessage):
        Message.decode(data + b"\0")


@given(MESSAGES, st.data())
def test_a_changed_byte_decodes_to_a_message_or_a_typed_error(message, draw):
    data = bytearray(message.data)
    place = draw.draw(st.integers(0, len(data) - 1))
    data[place] ^= draw.draw(st.integers(1, 255))

    try:
        read = Message.decode(data)
    except MalformedMessage:
        return
    assert Message(read.content, read.properties).data == bytes(data)


def _with(data: bytes, at: int, field: bytes) -> bytes:
    return data[:at] + field + data[at + len(field) :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "not bytes"),
        ("a160", "not bytes"),
        (b"", "smallest has 14"),
        (EMPTY[:13], "smallest has 14"),
        (_with(EMPTY, 1, b"\x6c"), "begins with a160"),
        (_with(EMPTY, 2, (15).to_bytes(4)), "is 15 B, but it has 14 B"),
        (_with(GOLDEN, 6, (-1).to_bytes(4, signed=True)), "-1 properties"),
        (_with(GOLDEN, 6, (2**31 - 1).to_bytes(4)), "2147483647 properties"),
        (_with(GOLDEN, 6, (4).to_bytes(4)), "property 4 of 4 is not terminated"),
        (_with(GOLDEN, 21, (1).to_bytes(4)), "content is 1 B, but it has 2 B"),
        (_with(GOLDEN, 21, (3).to_bytes(4)), "content is 3 B, but it has 2 B"),
        (_with(EMPTY, 10, (-1).to_bytes(4, signed=True)), "content is -1 B"),
        (_with(GOLDEN, 14, b"k\0vv"), "repeated"),
        (_with(GOLDEN, 10, b"\xff"), "not UTF-8"),
    ],
)
def test_bytes_that_are_not_a_message_are_refused(data, words):
    with pytest.raises(MalformedMessage, match=words):
        Message.decode(data)


def test_a_repeated_property_is_refused():
    once = Message(b"", {"a": "1", "b": "2"}).data

    with pytest.raises(MalformedMessage, match="repeated"):
        Message.decode(once.replace(b"b\x002", b"a\x002"))


def test_the_form_with_a_version_is_read_when_it_is_asked_for():
    versioned = GOLDEN[:2] + b"\1" + (len(GOLDEN) + 1).to_bytes(4) + GOLDEN[6:]

    assert Message.decode(versioned, versioned=True) == Message.decode(GOLDEN)
    with pytest.raises(MalformedMessage):
        Message.decode(versioned)
    for wrong in (GOLDEN, versioned[:14], _with(versioned, 3, bytes(4)), EMPTY):
        with pytest.raises(MalformedMessage):
            Message.decode(wrong, versioned=True)


@pytest.mark.parametrize(
    ("content", "properties", "error"),
    [
        ("text", None, TypeError),
        (None, None, TypeError),
        (5, None, TypeError),
        (b"", {"k": 1}, TypeError),
        (b"", {1: "v"}, TypeError),
        (b"", ["k"], (TypeError, ValueError)),
        (b"", 0, TypeError),
        (b"", {"k\0": "v"}, ValueError),
        (b"", {"k": "\0"}, ValueError),
        (b"", {"k": "\ud800"}, ValueError),
    ],
)
def test_an_invalid_message_is_refused_by_its_constructor(content, properties, error):
    with pytest.raises(error):
        Message(content, properties)


def test_a_message_cannot_be_changed():
    content, properties = bytearray(b"one"), {"k": "v"}
    message = Message(content, properties)

    content[0] = 0
    properties["k"] = "w"

    assert message.content == b"one"
    assert message.properties == {"k": "v"}
    with pytest.raises(AttributeError):
        message.content = b""
    with pytest.raises(TypeError):
        message.properties["k"] = "w"
