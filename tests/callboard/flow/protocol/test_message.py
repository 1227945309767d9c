"""The codec of ZIO messages."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.flow import MalformedMessage, Message
from callboard.flow.protocol.message import (
    as_frames,
    decode_frames,
    encode_frames,
    flow_object,
    read_head,
)

LABEL = '{"flow":"BOT"}'
GOLDEN = bytes.fromhex(
    "16" + b"ZIO0FLOW".hex() + LABEL.encode().hex() + "18"
    "0100000000000000"
    "0200000000000000"
    "0300000000000000"
    "02"
    "6869"
)
WORD = st.integers(0, 2**64 - 1)
MESSAGES = st.builds(
    Message,
    form=st.text("ABCDEFLOWTENS", max_size=4),
    label=st.text(max_size=40),
    payload=st.lists(st.binary(max_size=300), max_size=4).map(tuple),
    origin=WORD,
    granule=WORD,
    seqno=WORD,
    level=st.integers(0, 8),
)


def test_a_message_has_the_bytes_of_the_originals():
    message = Message(label=LABEL, payload=(b"hi",), origin=1, granule=2, seqno=3)

    assert message.encode() == GOLDEN
    assert Message.decode(GOLDEN) == message
    assert message.label_object == {"flow": "BOT"}


@given(MESSAGES)
def test_what_is_encoded_is_decoded(message):
    assert Message.decode(message.encode()) == message
    assert Message.from_parts(message.to_parts()) == message


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_frames_come_back_also_when_the_last_one_is_empty(frames):
    assert decode_frames(encode_frames([*frames, b""])) == [*frames, b""]


@pytest.mark.parametrize("length", [0, 254, 255, 256, 70_000])
def test_long_frames_have_five_bytes_of_length(length):
    encoded = encode_frames([bytes(length)])

    assert len(encoded) == length + (1 if length < 255 else 5)
    assert decode_frames(encoded) == [bytes(length)]


@pytest.mark.parametrize("cut", range(len(GOLDEN)))
def test_a_truncated_message_is_malformed(cut):
    if cut == len(GOLDEN) - 3:  # the payload frame is missing as a whole
        assert Message.decode(GOLDEN[:cut]).payload == ()
        return

    with pytest.raises(MalformedMessage):
        Message.decode(GOLDEN[:cut])


@pytest.mark.parametrize(
    "prefix",
    [b"", b"ZIO", b"ZIO0FLO", b"ZIP0FLOW{}", b"ZIO9FLOW{}", b"ZIO0FL\xffW{}", b"ZIO0FLOW\xff"],
)
def test_a_bad_prefix_is_malformed(prefix):
    with pytest.raises(MalformedMessage):
        Message.from_parts([prefix, bytes(24)])


@pytest.mark.parametrize("label", [b"", b"[]", b"null", b"{", b"[" * 50_000, b'{"a":' * 9000])
def test_a_label_that_is_no_object_is_malformed(label):
    with pytest.raises(MalformedMessage):
        flow_object(b"ZIO0FLOW" + label)


def test_a_message_of_another_form_is_no_flow_message():
    with pytest.raises(MalformedMessage, match="TENS"):
        read_head(Message(form="TENS", label="{}").encode())


@pytest.mark.parametrize(
    "message",
    [
        Message(form="FLOWS"),
        Message(form="ÄÖ"),
        Message(level=9),
        Message(seqno=-1),
        Message(origin=2**64),
        Message(label="x" * 70_000),
    ],
)
def test_what_cannot_be_written_is_refused_before_it_is_sent(message):
    with pytest.raises(MalformedMessage):
        message.encode()


def test_more_frames_than_a_message_may_have_are_malformed():
    with pytest.raises(MalformedMessage, match="frames"):
        decode_frames(bytes(5000))


def test_a_payload_is_bytes_text_or_frames():
    assert as_frames("ä") == ("ä".encode(),)
    assert as_frames([b"a", "b", bytearray(b"c")]) == (b"a", b"b", b"c")
    with pytest.raises(TypeError, match="int"):
        as_frames(3)


def test_damaged_messages_give_typed_errors_only():
    rng = random.Random(1)
    bases = [
        Message(label=text, payload=(b"x" * 5, b"")).encode()
        for text in (LABEL, '{"flow":"PAY","credit":3}', '{"flow":"DAT","a":[1,{}]}')
    ]
    read = 0
    for _ in range(5000):
        data = bytearray(rng.choice(bases))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        for reader in (Message.decode, read_head):
            try:
                reader(bytes(data[: rng.randint(0, len(data) * 3 // 2)]))
                read += 1
            except MalformedMessage:
                pass
    assert read > 100
