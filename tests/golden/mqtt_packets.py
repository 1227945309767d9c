"""MQTT packets of every kind, for 3.1.1 and 5, with every property where it may stand."""

from callboard.mqtt.wire.codec import decode, encode
from callboard.mqtt.wire.framing import body_start
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PacketType,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from callboard.mqtt.wire.properties import _KINDS, Place, Properties
from tests.golden.sample import Sample

VALUES = {
    "payload_format_indicator": 1,
    "message_expiry_interval": 70_000,
    "content_type": "text/ä",
    "response_topic": "answers/1",
    "correlation_data": b"\0\xff",
    "session_expiry_interval": 0xFFFF_FFFF,
    "assigned_client_identifier": "auto-1",
    "server_keep_alive": 300,
    "authentication_method": "SCRAM-SHA-256",
    "authentication_data": b"n,,n=u",
    "request_problem_information": 0,
    "will_delay_interval": 5,
    "request_response_information": 1,
    "response_information": "here",
    "server_reference": "other:1883",
    "reason_string": "because",
    "receive_maximum": 20,
    "topic_alias_maximum": 64,
    "topic_alias": 3,
    "maximum_qos": 1,
    "retain_available": 0,
    "user_properties": (("a", "1"), ("a", "2"), ("ä", "")),
    "maximum_packet_size": 1 << 20,
    "wildcard_subscription_available": 1,
    "subscription_identifier_available": 1,
    "shared_subscription_available": 0,
}


def props(place: Place) -> Properties:
    """Return all that may stand there."""
    found = {name: VALUES.get(name) for name, kind in _KINDS.items() if kind.places & place}
    if "subscription_identifiers" in found:
        one_or_two = (1, 268_435_455) if place is Place.PUBLISH else (128,)
        found["subscription_identifiers"] = one_or_two
    return Properties(**found)


def packets(version: int) -> dict[str, Packet]:
    """Return packets that both versions know; MQTT 5's with all properties."""
    is_v5 = version == V5

    def p(place: Place) -> Properties | None:
        return props(place) if is_v5 else None

    will = Will("wills/1", b"gone", 2, True, p(Place.WILL))
    bare = Properties() if is_v5 else None
    options = (True, True, 2) if is_v5 else ()
    last = (0, 0x11) if is_v5 else ()
    granted = (0, 1, 2, 0x87) if is_v5 else (0, 1, 2, 0x80)
    found: dict[str, Packet] = {
        "connect": Connect("c", version=version, properties=bare),
        "connect with all": Connect(
            "client ä", False, 65_535, "user", b"\0pass", will, version, p(Place.CONNECT)
        ),
        "connack": ConnAck(True, 0, p(Place.CONNACK)),
        "connack, refused": ConnAck(False, 0x87 if is_v5 else 5, bare),
        "publish": Publish("t", b"", properties=bare),
        "publish, QoS 1": Publish("a/ä", b"x" * 200, 1, True, False, 7, p(Place.PUBLISH)),
        "publish, QoS 2 again": Publish("a", b"y", 2, False, True, 65_535, bare),
        "puback": PubAck(1, 0, bare),
        "pubrec": PubRec(2, 0, bare),
        "pubrel": PubRel(3, 0, bare),
        "pubcomp": PubComp(4, 0, bare),
        "subscribe": Subscribe(
            5,
            (Subscription("a/+/#", 1, *options), Subscription("$share/g/x", 2)),
            p(Place.SUBSCRIBE),
        ),
        "suback": SubAck(5, granted, p(Place.SUBACK)),
        "unsubscribe": Unsubscribe(6, ("a/+/#", "b"), p(Place.UNSUBSCRIBE)),
        "unsuback": UnsubAck(6, last, p(Place.UNSUBACK)),
        "pingreq": PingReq(),
        "pingresp": PingResp(),
        "disconnect": Disconnect(0, bare),
    }
    if is_v5:
        found |= {
            "publish with an alias alone": Publish(
                "", b"", properties=Properties(topic_alias=1)
            ),
            "puback with all": PubAck(1, 0x10, p(Place.PUBACK)),
            "pubrec with a reason": PubRec(2, 0x97, bare),
            "pubrec with all": PubRec(2, 0x97, p(Place.PUBREC)),
            "pubrel with all": PubRel(3, 0x92, p(Place.PUBREL)),
            "pubcomp with all": PubComp(4, 0x92, p(Place.PUBCOMP)),
            "disconnect with all": Disconnect(0x8E, p(Place.DISCONNECT)),
            "auth": Auth(0, bare),
            "auth with all": Auth(0x18, p(Place.AUTH)),
        }
    return found


def sample(packet: Packet, version: int) -> Sample:
    def read(data: bytes) -> Packet:
        return decode(data[0], data[body_start(data) :], version)

    return Sample(packet, lambda value: encode(value, version), read)


SAMPLES = {
    f"MQTT {version}: {name}": sample(packet, version)
    for version in (V4, V5)
    for name, packet in packets(version).items()
}


def missing() -> set[str]:
    """Return kinds of packets and properties without a sample; 3.1.1 has no AUTH."""
    lost = {
        f"{kind.name} of {version}"
        for version, kinds in ((V4, [*PacketType][:-1]), (V5, [*PacketType]))
        for kind in kinds
        if kind
        not in {
            s.write(s.value)[0] >> 4 for n, s in SAMPLES.items() if n[:6] == f"MQTT {version}"
        }
    }
    return lost | _KINDS.keys() - VALUES.keys() - {"subscription_identifiers"}
