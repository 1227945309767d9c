"""The codec compared with mqtt5, another codec for MQTT 5: each decodes the other's packets."""

import mqtt5
import pytest
from hypothesis import given

from callboard.mqtt.wire.codec import decode, encode
from callboard.mqtt.wire.framing import find_frames
from callboard.mqtt.wire.packet import (
    V5,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.packets import packets

LIMIT = 1 << 20
_NAMES = {
    Connect: "ConnectPacket",
    ConnAck: "ConnAckPacket",
    Publish: "PublishPacket",
    PubAck: "PubAckPacket",
    PubRec: "PubRecPacket",
    PubRel: "PubRelPacket",
    PubComp: "PubCompPacket",
    Subscribe: "SubscribePacket",
    SubAck: "SubAckPacket",
    Unsubscribe: "UnsubscribePacket",
    UnsubAck: "UnsubAckPacket",
    Disconnect: "DisconnectPacket",
    PingReq: "PingReqPacket",
    PingResp: "PingRespPacket",
    Auth: "AuthPacket",
}
#: Our name of a field or property, and theirs where it differs.
_THEIRS = {
    "assigned_client_identifier": "assigned_client_id",
    "dup": "duplicate",
    "maximum_packet_size": "max_packet_size",
    "maximum_qos": "max_qos",
    "reason_string": "reason_str",
    "receive_maximum": "receive_max",
    "request_problem_information": "request_problem_info",
    "request_response_information": "request_response_info",
    "response_information": "response_info",
    "subscription_identifier_available": "subscription_id_available",
    "subscription_identifiers": "subscription_ids",
    "topic_alias_maximum": "topic_alias_max",
    "topic_filters": "patterns",
}
#: What they say of a property that is absent.
_DEFAULTS = {
    "maximum_qos": 2,
    "payload_format_indicator": 0,
    "receive_maximum": 65_535,
    "request_problem_information": 1,
    "request_response_information": 0,
    "retain_available": 1,
    "session_expiry_interval": 0,
    "shared_subscription_available": 1,
    "subscription_identifier_available": 1,
    "topic_alias_maximum": 0,
    "wildcard_subscription_available": 1,
    "will_delay_interval": 0,
}


def one_way(packet):
    """Return the packet as they read it from our bytes; None where they cannot represent it."""
    found, size = mqtt5.read(encode(packet, V5))
    assert size == len(encode(packet, V5))
    return found


def equal(ours, theirs):
    """Return whether our value equals theirs; their defaults count as absent."""
    if isinstance(ours, tuple):
        return list(ours) == list(theirs or [])
    return ours == theirs


def compare(packet, theirs):
    for field in packet.__dataclass_fields__:
        value = getattr(packet, field)
        if field in {"properties", "version", "will", "subscriptions"}:
            continue
        if field == "packet_id" and not value:
            value = None
        assert equal(value, getattr(theirs, _THEIRS.get(field, field))), field
    if hasattr(packet, "properties"):
        compare_properties(packet.properties or Properties(), theirs)


def compare_properties(properties, theirs):
    for field in Properties.__slots__:
        name = _THEIRS.get(field, field)
        value = getattr(properties, field)
        if not hasattr(theirs, name):
            assert value is None or value == () or field == "subscription_identifiers"
        elif value is None:
            assert getattr(theirs, name) in (None, _DEFAULTS.get(field)), field
        else:
            assert equal(value, getattr(theirs, name)), field


@given(packets(V5))
def test_paho_decodes_our_packets(packet):
    theirs = one_way(packet)

    assert type(theirs).__name__ == _NAMES[type(packet)]
    compare(packet, theirs)
    if isinstance(packet, Subscribe):
        asked = [(each.topic_filter, each.qos, each.no_local) for each in packet.subscriptions]
        assert asked == [
            (each.pattern, each.max_qos, each.no_local) for each in theirs.topic_filters
        ]
    if isinstance(packet, Connect) and packet.will is not None:
        compare(packet.will, theirs.will)


@given(packets(V5))
def test_our_codec_decodes_packets_of_paho(packet):
    theirs = one_way(packet)
    written = theirs.write()
    frames = find_frames(written, LIMIT)
    assert frames == (len(written), 1, 0)
    header = 2 if written[1] < 0x80 else 3

    ours = decode(written[0], written[header:], V5)

    assert one_way(ours) == theirs


def test_every_packet_with_fields_is_compared():
    with pytest.raises(AssertionError):
        compare(PubAck(1, 0x10, Properties()), one_way(PubAck(2, 0x10, Properties())))
