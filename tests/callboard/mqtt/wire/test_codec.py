"""The codec: round trips, bytes of the standards, and everything that must be refused."""

from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from callboard.mqtt.wire.codec import decode, encode
from callboard.mqtt.wire.errors import (
    InvalidPacket,
    MalformedPacket,
    ProtocolViolation,
    RemoteMqttError,
)
from callboard.mqtt.wire.framing import find_frames
from callboard.mqtt.wire.packet import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    PubRel,
    Subscribe,
    Subscription,
    Will,
)
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode, reason_text, return_code
from tests.callboard.mqtt.packets import versioned


def read(data, version):
    """Decode the one packet that `data` is."""
    frames = find_frames(data, 1 << 28)
    assert (frames.end, frames.packets) == (len(data), 1)
    return decode(data[0], read_body(data), version)


def read_body(data):
    return data[_header(data) :]


def _header(data):
    return next(index for index in range(1, 5) if data[index] < 0x80) + 1


@given(versioned)
def test_every_packet_decodes_to_what_was_encoded(pair):
    version, packet = pair

    assert read(encode(packet, version), version) == packet


@given(versioned, st.data())
def test_a_packet_that_is_cut_anywhere_is_refused_or_another_packet(pair, data):
    version, packet = pair
    whole = encode(packet, version)
    start = _header(whole)
    end = data.draw(st.integers(start, len(whole)))

    try:
        found = decode(whole[0], whole[start:end], version)
    except RemoteMqttError as error:
        found = None
        event(error.reason_code.name)
    if found is not None:
        assert decode(whole[0], read_body(encode(found, version)), version) == found


@pytest.mark.parametrize(
    ("packet", "version", "written"),
    [
        (Publish("a/b", b"x", 1, packet_id=10), 4, "3208 0003612f62 000a 78"),
        (Connect("c", keep_alive=60), 4, "100d 00044d515454 04 02 003c 000163"),
        (
            Connect("c", version=5, properties=Properties(session_expiry_interval=10)),
            5,
            "1013 00044d515454 05 02 0000 05 11 0000000a 000163",
        ),
        (
            Connect("", will=Will("w", b"", 2, retain=True), username="u", password=b"p"),
            4,
            "1017 00044d515454 04 f6 0000 0000 0001 77 0000 0001 75 0001 70",
        ),
        (ConnAck(session_present=True), 4, "2002 0100"),
        (ConnAck(), 5, "2003 0000 00"),
        (Subscribe(10, (Subscription("a/b", 1),)), 4, "8208 000a 0003612f62 01"),
        (
            Subscribe(
                1,
                (Subscription("a", 2, True, True, 2),),
                Properties(subscription_identifiers=(300,)),
            ),
            5,
            "820a 0001 03 0bac02 0001 61 2e",
        ),
        (PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS, Properties()), 5, "4003 0001 10"),
        (PubRel(1, 0, Properties()), 5, "6202 0001"),
        (Disconnect(ReasonCode.DISCONNECT_WITH_WILL, Properties()), 5, "e001 04"),
    ],
)
def test_the_bytes_equal_those_of_the_standard(packet, version, written):
    data = bytes.fromhex(written)

    assert encode(packet, version) == data
    assert encode(read(data, version), version) == data


_MALFORMED = MalformedPacket, ReasonCode.MALFORMED_PACKET
_VIOLATION = ProtocolViolation, ReasonCode.PROTOCOL_ERROR
_TOPIC = ProtocolViolation, ReasonCode.TOPIC_NAME_INVALID
CONNECT = "00044d515454"


@pytest.mark.parametrize(
    ("rule", "first", "body", "version", "expected"),
    [
        ("type 0", 0x00, "", 5, _MALFORMED),
        ("AUTH in 3.1.1", 0xF0, "", 4, _MALFORMED),
        ("flags of PUBREL (2.1.3)", 0x60, "0001", 4, _MALFORMED),
        ("flags of SUBSCRIBE", 0x80, "0001 000161 00", 4, _MALFORMED),
        ("flags of UNSUBSCRIBE", 0xA0, "0001 000161", 4, _MALFORMED),
        ("flags of PINGREQ", 0xC1, "", 5, _MALFORMED),
        ("QoS 3", 0x36, "000161 0001", 4, _MALFORMED),
        ("second try of QoS 0", 0x38, "000161", 4, _MALFORMED),
        ("packet id 0", 0x32, "000161 0000", 4, _VIOLATION),
        ("packet id 0 of an answer", 0x40, "0000", 5, _VIOLATION),
        ("wildcard in a topic", 0x30, "0001 23", 4, _TOPIC),
        ("no topic", 0x30, "0000", 4, _TOPIC),
        ("neither topic nor alias", 0x30, "0000 00", 5, _VIOLATION),
        ("alias 0", 0x30, "0000 03 23 0000", 5, (ProtocolViolation, 0x94)),
        ("U+0000 in a string", 0x30, "0001 00", 4, _MALFORMED),
        ("a surrogate in a string", 0x30, "0003 eda080", 4, _MALFORMED),
        ("bytes behind the end", 0x40, "0001 00", 4, _MALFORMED),
        ("body of a PINGRESP", 0xD0, "00", 4, _MALFORMED),
        ("DISCONNECT of 3.1.1 has no body", 0xE0, "00", 4, _MALFORMED),
        (
            "protocol name",
            0x10,
            "00064d5149736470 04 02 0000 0000",
            4,
            (ProtocolViolation, 0x84),
        ),
        ("protocol level", 0x10, CONNECT + "06 02 0000 0000", 4, (ProtocolViolation, 0x84)),
        ("reserved connect flag", 0x10, CONNECT + "04 03 0000 0000", 4, _MALFORMED),
        ("password without name", 0x10, CONNECT + "04 42 0000 0000 0000", 4, _VIOLATION),
        ("will QoS without will", 0x10, CONNECT + "04 0a 0000 0000", 4, _MALFORMED),
        ("will retain without will", 0x10, CONNECT + "05 22 0000 00 0000", 5, _MALFORMED),
        ("will QoS 3", 0x10, CONNECT + "04 1e 0000 0000 000161 0000", 4, _MALFORMED),
        ("wildcard in a will", 0x10, CONNECT + "04 06 0000 0000 00012b 0000", 4, _TOPIC),
        ("session of a refusal", 0x20, "01 05", 4, _VIOLATION),
        ("reserved acknowledge flags", 0x20, "02 00", 4, _MALFORMED),
        ("return code 6", 0x20, "00 06", 4, _VIOLATION),
        ("unknown reason", 0x40, "0001 01", 5, _VIOLATION),
        ("filter without options", 0x82, "0001 000161", 4, _MALFORMED),
        ("no filters", 0x82, "0001", 4, _VIOLATION),
        ("no filters to leave", 0xA2, "0001 00", 5, _VIOLATION),
        ("options of MQTT 5 in 3.1.1", 0x82, "0001 000161 04", 4, _MALFORMED),
        ("reserved options", 0x82, "0001 00 000161 40", 5, _MALFORMED),
        ("QoS 3 in options", 0x82, "0001 00 000161 03", 5, _VIOLATION),
        ("retain handling 3", 0x82, "0001 00 000161 30", 5, _VIOLATION),
        ("no-local shared", 0x82, "000100000a2473686172652f672f6104", 5, _VIOLATION),
        ("property twice", 0x30, "000161 04 0100 0100", 5, _VIOLATION),
        ("unknown property", 0x30, "000161 02 0400", 5, _MALFORMED),
        ("property of another packet", 0x30, "000161 03 21 0001", 5, _MALFORMED),
        ("switch of 2", 0x30, "000161 02 0102", 5, _VIOLATION),
        ("receive maximum 0", 0x10, CONNECT + "05 02 0000 03 21 0000 0000", 5, _VIOLATION),
        ("packet size 0", 0x10, CONNECT + "05 02 0000 05 2700000000 0000", 5, _VIOLATION),
        ("data without method", 0x10, CONNECT + "05 02 0000 03 160000 0000", 5, _VIOLATION),
        ("AUTH without method", 0xF0, "18 00", 5, _VIOLATION),
        ("subscription id 0", 0x82, "0001 02 0b00 000161 00", 5, _VIOLATION),
        ("two subscription ids", 0x82, "0001 04 0b01 0b02 000161 00", 5, _VIOLATION),
        ("properties longer than the packet", 0x30, "000161 7f", 5, _MALFORMED),
        ("padded number", 0x30, "000161 8000", 5, _MALFORMED),
        ("response topic with wildcard", 0x30, "000161 04 08 0001 23", 5, _TOPIC),
    ],
)
def test_a_packet_that_breaks_a_rule_is_refused_with_its_reason(
    rule, first, body, version, expected
):
    error, reason = expected

    with pytest.raises(error) as caught:
        decode(first, bytes.fromhex(body), version)

    assert caught.value.reason_code == reason, rule


MARK = "\u00e9~mark"  # no other bytes of a packet are these
ILL_FORMED = (
    b"\xff",
    b"\x80",
    b"\xc0\x80",
    b"\xc3(",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\0",
)


def marked(value):
    """Return a packet with the mark in place of each text."""
    if isinstance(value, str):
        return MARK
    if isinstance(value, tuple):
        return tuple(map(marked, value))
    if not is_dataclass(value):
        return value
    return replace(
        value, **{each.name: marked(getattr(value, each.name)) for each in fields(value)}
    )


@given(versioned, st.sampled_from(ILL_FORMED), st.data())
def test_invalid_utf_8_is_a_malformed_packet_in_every_text(pair, bad, data):
    version, packet = pair
    whole, mark = encode(marked(packet), version), MARK.encode()
    places = [at for at in range(len(whole)) if whole.startswith(mark, at)]
    assume(places)
    at = data.draw(st.sampled_from(places))
    wrong = (bad + b"~~~~~~~")[: len(mark)]
    whole = whole[:at] + wrong + whole[at + len(mark) :]

    with pytest.raises(MalformedPacket) as caught:
        decode(whole[0], read_body(whole), version)

    assert caught.value.reason_code == ReasonCode.MALFORMED_PACKET
    event(type(packet).__name__)


@pytest.mark.parametrize(
    ("packet", "version"),
    [
        (Publish("", b""), 4),
        (Publish("a/#"), 4),
        (Publish("a", qos=1), 4),
        (Publish("a", dup=True), 4),
        (Publish("a\0b"), 4),
        (Publish("a\ud800"), 4),
        (Publish("a" * 65_536), 4),
        (Publish("a", properties=Properties()), 4),
        (Publish("a", properties=Properties(receive_maximum=1)), 5),
        (Publish("a", properties=Properties(payload_format_indicator=2)), 5),
        (Publish("a", properties=Properties(topic_alias=65_536)), 5),
        (PubAck(0), 4),
        (PubAck(1, 0x10), 4),
        (PubAck(1, 0x11), 5),
        (Connect("", password=b"x"), 4),
        (Connect("", version=5), 4),
        (Connect("", keep_alive=65_536), 4),
        (ConnAck(True, 5), 4),
        (Subscribe(1, ()), 4),
        (Subscribe(1, (Subscription("a", no_local=True),)), 4),
        (Subscribe(1, (Subscription("$share/a/b", no_local=True),)), 5),
    ],
)
def test_a_packet_that_would_break_a_rule_is_not_sent(packet, version):
    with pytest.raises(InvalidPacket):
        encode(packet, version)


def test_a_refusal_has_a_counterpart_in_3_1_1():
    assert return_code(ReasonCode.BAD_USER_NAME_OR_PASSWORD) == 4
    assert return_code(ReasonCode.BANNED) == 5
    assert return_code(ReasonCode.QUOTA_EXCEEDED) == 3
    assert reason_text(0x8E) == "session taken over"
    assert reason_text(0x7F) == "reason 0x7f"
