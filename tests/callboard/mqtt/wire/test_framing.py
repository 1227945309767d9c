"""Finding packets in a read: complete, cut anywhere, in runs, hostile."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.errors import MalformedPacket, ProtocolViolation
from callboard.mqtt.wire.framing import Frames, find_frames, is_connect
from callboard.mqtt.wire.packet import V4, V5, Connect, PingReq, Publish
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.packets import packets

LIMIT = 1 << 28
long_ones = st.integers(100, 20_000).map(lambda size: encode(Publish("a", bytes(size)), 4))
written = st.lists(packets(4).map(lambda packet: encode(packet, 4)) | long_ones, max_size=12)
runs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30)), max_size=5).map(
    lambda pairs: [encode(Publish("t", b"0" * size), 4) for size, n in pairs for _ in range(n)]
)


def plain(data):
    """The same answer, found one packet at a time."""
    position = count = 0
    while position + 1 < len(data):
        length = shift = 0
        for index in range(position + 1, position + 5):
            if index >= len(data):
                return Frames(position, count, 0)
            length |= (data[index] & 0x7F) << shift
            shift += 7
            if data[index] < 0x80:
                break
        step = index - position + 1 + length
        if position + step > len(data):
            return Frames(position, count, step)
        position += step
        count += 1
    return Frames(position, count, 0)


@given(written | runs, st.data())
@example([encode(PingReq(), 4)] * 40, None)
def test_the_last_complete_packet_is_recognized_for_any_read_boundary(parts, data):
    whole = b"".join(parts)
    end = data.draw(st.integers(0, len(whole))) if data else len(whole)

    assert find_frames(whole[:end], LIMIT) == plain(whole[:end])
    assert find_frames(whole, LIMIT) == Frames(len(whole), len(parts), 0)


@given(st.binary(max_size=200))
@example(b"\0\0\0\0\0\x80\0")  # a good one, and one whose length takes too many bytes
def test_any_bytes_decode_to_frames_or_a_typed_error(data):
    try:
        frames = find_frames(data, LIMIT)
    except (MalformedPacket, ProtocolViolation):
        return
    if frames.need < 0:
        with pytest.raises((MalformedPacket, ProtocolViolation)):
            find_frames(data[frames.end :], LIMIT)
        data, frames = data[: frames.end], frames._replace(need=0)
    assert frames == plain(data)


def test_a_packet_above_the_limit_is_refused_when_its_length_is_known():
    with pytest.raises(ProtocolViolation, match="exceeds the limit of 1000") as caught:
        find_frames(b"\x30\xff\x7f", 1000)

    assert caught.value.reason_code is ReasonCode.PACKET_TOO_LARGE
    with pytest.raises(ProtocolViolation):
        find_frames(b"\x30\x20" + bytes(32) * 500, 33)


def test_a_length_of_five_bytes_is_malformed():
    with pytest.raises(MalformedPacket):
        find_frames(b"\x30\xff\xff\xff\xff\x01", LIMIT)


def test_a_padded_length_is_malformed_in_mqtt_5_and_borne_in_3_1_1():
    with pytest.raises(MalformedPacket):
        find_frames(b"\xc0\x80\x00", LIMIT)

    assert find_frames(b"\xc0\x80\x00", LIMIT, minimal=False) == Frames(3, 1, 0)


@given(written | runs, st.integers(1, 9))
def test_the_deframer_returns_at_most_the_requested_packets(parts, most):
    whole = b"".join(parts)

    frames = find_frames(whole, LIMIT, most=most)

    assert frames.packets == min(most, len(parts))
    assert whole[: frames.end] == b"".join(parts[:most])


@pytest.mark.parametrize("version", [V4, V5])
def test_every_beginning_of_a_connect_is_accepted(version) -> None:
    properties = Properties() if version == V5 else None
    short = encode(Connect("c", version=version, properties=properties), version)
    long = encode(Connect("c" * 300, version=version, properties=properties), version)

    assert all(is_connect(data[:end]) for data in (short, long) for end in range(len(data)))
    assert is_connect(b"\x10\x10\0\6MQIsdp")
    for junk in (b"G", b"\x10\x20\0\4MQTX", b"\x10\x20\1", b"\x10\xff\1\0\6MQTT", b"\x30"):
        assert not is_connect(junk)
