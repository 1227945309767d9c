"""Packets to bytes; what the decoder would refuse is refused here as well."""

from typing import Final

from callboard.mqtt.errors import InvalidPacket
from callboard.mqtt.field import write_binary, write_number, write_string, write_variable
from callboard.mqtt.packet import (
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
from callboard.mqtt.properties import Place, Properties, write_properties
from callboard.mqtt.reason_code import (
    AUTH_CODES,
    CONNACK_CODES,
    DISCONNECT_CODES,
    PUBACK_CODES,
    PUBREL_CODES,
    RETURN_CODES,
    SUBACK_CODES,
    SUBACK_RETURN_CODES,
    UNSUBACK_CODES,
)

_PROTOCOL: Final = b"\x00\x04MQTT"
_ACKS: Final = {
    PubAck: (PacketType.PUBACK << 4, PUBACK_CODES, Place.PUBACK),
    PubRec: (PacketType.PUBREC << 4, PUBACK_CODES, Place.PUBREC),
    PubRel: (PacketType.PUBREL << 4 | 2, PUBREL_CODES, Place.PUBREL),
    PubComp: (PacketType.PUBCOMP << 4, PUBREL_CODES, Place.PUBCOMP),
}


def encode(packet: Packet, version: int) -> bytes:  # noqa: C901  (one case for each packet)
    """Return a packet with its fixed header.

    Args:
        packet: what to write.
        version: 4 or 5, of the connection.

    Raises:
        InvalidPacket: a field does not fit, or the standard does not allow it there.
    """
    match packet:
        case Publish():
            return _publish(packet, version)
        case PubAck() | PubRec() | PubRel() | PubComp():
            return _ack(packet, version)
        case Connect():
            return _frame(PacketType.CONNECT << 4, _connect(packet, version))
        case ConnAck():
            return _frame(PacketType.CONNACK << 4, _connack(packet, version))
        case Subscribe():
            return _frame(PacketType.SUBSCRIBE << 4 | 2, _subscribe(packet, version))
        case SubAck():
            return _frame(PacketType.SUBACK << 4, _suback(packet, version))
        case Unsubscribe():
            return _frame(PacketType.UNSUBSCRIBE << 4 | 2, _unsubscribe(packet, version))
        case UnsubAck():
            return _frame(PacketType.UNSUBACK << 4, _unsuback(packet, version))
        case PingReq():
            return b"\xc0\x00"
        case PingResp():
            return b"\xd0\x00"
        case Disconnect(reason_code=code):
            body = _short_end(
                code, packet.properties, version, DISCONNECT_CODES, Place.DISCONNECT
            )
            return _frame(PacketType.DISCONNECT << 4, body)
        case Auth(reason_code=code):
            _require(version >= V5, "an AUTH", "not known to MQTT 3.1.1")
            method = packet.properties.authentication_method if packet.properties else None
            _require(not code or method is not None, "an AUTH", "nothing without a method")
            body = _short_end(code, packet.properties, version, AUTH_CODES, Place.AUTH)
            return _frame(PacketType.AUTH << 4, body)


def _frame(first_byte: int, body: bytes) -> bytes:
    return bytes((first_byte,)) + write_variable(len(body)) + body


def _require(condition: object, what: str, problem: str) -> None:
    if not condition:
        msg = f"{what} is {problem}"
        raise InvalidPacket(msg)


def _properties(properties: Properties | None, version: int, place: Place) -> bytes:
    if version >= V5:
        return write_properties(properties, place)
    _require(properties is None, "a property", "not known to MQTT 3.1.1")
    return b""


def _packet_id(packet_id: int) -> bytes:
    return write_number(packet_id, 2, "the packet identifier", 1)


def _code(code: int, allowed: frozenset[int], what: str) -> int:
    _require(code in allowed, f"0x{code:02x}", f"nothing that a {what} may say")
    return code


def _topic(topic: str, *, alias: object = None) -> bytes:
    _require(topic or alias, "the topic", "empty")
    _require("#" not in topic and "+" not in topic, f"the topic {topic[:80]!r}", "a filter")
    return write_string(topic, "the topic")


def _publish(packet: Publish, version: int) -> bytes:
    qos = packet.qos
    _require(qos in {0, 1, 2}, f"QoS {qos}", "not 0, 1 or 2")
    _require(qos or not packet.dup, "a second try", "impossible with QoS 0")
    _require(bool(qos) == bool(packet.packet_id), "the packet identifier", "for QoS 1 and 2")
    alias = packet.properties.topic_alias if packet.properties else None
    body = b"".join(
        (
            _topic(packet.topic, alias=alias),
            _packet_id(packet.packet_id) if qos else b"",
            _properties(packet.properties, version, Place.PUBLISH),
            packet.payload,
        )
    )
    flags = packet.dup << 3 | qos << 1 | packet.retain
    return _frame(PacketType.PUBLISH << 4 | flags, body)


def _ack(packet: PubAck | PubRec | PubRel | PubComp, version: int) -> bytes:
    first_byte, allowed, place = _ACKS[type(packet)]
    end = _short_end(packet.reason_code, packet.properties, version, allowed, place)
    return _frame(first_byte, _packet_id(packet.packet_id) + end)


def _short_end(
    code: int,
    properties: Properties | None,
    version: int,
    allowed: frozenset[int],
    place: Place,
) -> bytes:
    """Write a reason code and properties, leaving out what says nothing."""
    if version < V5:
        _require(not code and properties is None, "a reason", "not known to MQTT 3.1.1")
        return b""
    written = write_properties(properties, place)
    head = bytes((_code(code, allowed, str(place.name)),))
    if written != b"\0":
        return head + written
    return head if code else b""


def _connect(packet: Connect, version: int) -> bytes:
    _require(packet.version == version, f"version {packet.version}", f"not {version}")
    _require(version in {V4, V5}, f"version {version}", "not 4 or 5")
    will = packet.will
    named = packet.username is not None
    secret = packet.password is not None
    _require(named or not secret or version >= V5, "a password", "nothing without a user name")
    flags = named << 7 | secret << 6 | packet.clean_start << 1
    if will is not None:
        _require(will.qos in {0, 1, 2}, f"QoS {will.qos}", "not 0, 1 or 2")
        flags |= will.retain << 5 | will.qos << 3 | 4
    return b"".join(
        (
            _PROTOCOL,
            bytes((version, flags)),
            write_number(packet.keep_alive, 2, "the keep-alive"),
            _properties(packet.properties, version, Place.CONNECT),
            write_string(packet.client_id, "the client id"),
            b"" if will is None else _will(will, version),
            b"" if packet.username is None else write_string(packet.username, "the user name"),
            b"" if packet.password is None else write_binary(packet.password, "the password"),
        )
    )


def _will(will: Will, version: int) -> bytes:
    return (
        _properties(will.properties, version, Place.WILL)
        + _topic(will.topic)
        + write_binary(will.payload, "the payload of the will")
    )


def _connack(packet: ConnAck, version: int) -> bytes:
    code = packet.reason_code
    _code(code, CONNACK_CODES if version >= V5 else RETURN_CODES, "CONNACK")
    _require(not code or not packet.session_present, "a session", "not there when refused")
    head = bytes((packet.session_present, code))
    return head + _properties(packet.properties, version, Place.CONNACK)


def _subscribe(packet: Subscribe, version: int) -> bytes:
    _require(packet.subscriptions, "a SUBSCRIBE", "empty")
    head = _packet_id(packet.packet_id)
    head += _properties(packet.properties, version, Place.SUBSCRIBE)
    return head + b"".join(_subscription(each, version) for each in packet.subscriptions)


def _subscription(each: Subscription, version: int) -> bytes:
    _require(each.qos in {0, 1, 2}, f"QoS {each.qos}", "not 0, 1 or 2")
    options = each.no_local << 2 | each.retain_as_published << 3 | each.retain_handling << 4
    _require(version >= V5 or not options, "an option", "not known to MQTT 3.1.1")
    _require(each.retain_handling in {0, 1, 2}, "the retain handling", "not 0, 1 or 2")
    shared = each.topic_filter.startswith("$share/")
    _require(not (shared and each.no_local), "no-local", "not for shared filters")
    return write_string(each.topic_filter, "the filter") + bytes((options | each.qos,))


def _suback(packet: SubAck, version: int) -> bytes:
    allowed = SUBACK_CODES if version >= V5 else SUBACK_RETURN_CODES
    _require(packet.reason_codes, "a SUBACK", "empty")
    codes = bytes(_code(code, allowed, "SUBACK") for code in packet.reason_codes)
    head = _packet_id(packet.packet_id)
    return head + _properties(packet.properties, version, Place.SUBACK) + codes


def _unsubscribe(packet: Unsubscribe, version: int) -> bytes:
    _require(packet.topic_filters, "an UNSUBSCRIBE", "empty")
    head = _packet_id(packet.packet_id)
    head += _properties(packet.properties, version, Place.UNSUBSCRIBE)
    return head + b"".join(write_string(each, "the filter") for each in packet.topic_filters)


def _unsuback(packet: UnsubAck, version: int) -> bytes:
    if version < V5:
        _require(not packet.reason_codes, "a reason", "not known to MQTT 3.1.1")
        return _packet_id(packet.packet_id)
    _require(packet.reason_codes, "an UNSUBACK", "empty")
    codes = bytes(_code(code, UNSUBACK_CODES, "UNSUBACK") for code in packet.reason_codes)
    head = _packet_id(packet.packet_id)
    return head + _properties(packet.properties, version, Place.UNSUBACK) + codes
