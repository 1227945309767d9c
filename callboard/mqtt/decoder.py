"""Bodies of packets to packets, strict as the standards are.

A body is what follows the fixed header; `framing` finds it. Two kinds of mistakes come out:
MalformedPacket, when the bytes are no packet, and ProtocolViolation, when the packet says what
is not allowed. Both carry the reason code that ends the connection.

What needs more than one packet to judge (is that identifier known? may this side send a
CONNACK?) is not judged here, and neither are topic filters: an invalid one is refused in the
SUBACK, and does not end the connection.
"""

from collections.abc import Callable
from typing import Final

from callboard.mqtt.errors import MalformedPacket, ProtocolViolation
from callboard.mqtt.field import Reader
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
from callboard.mqtt.properties import Place, Properties, read_properties
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
    ReasonCode,
)

PROTOCOL_NAME: Final = "MQTT"
_NAME_FIELD: Final = b"\x00\x04MQTT"
SHARE_PREFIX: Final = "$share/"
_FLAGS: Final[dict[int, int]] = {
    PacketType.PUBREL: 2,
    PacketType.SUBSCRIBE: 2,
    PacketType.UNSUBSCRIBE: 2,
}


def decode(first_byte: int, body: bytes, version: int) -> Packet:
    """Return the packet of a fixed header's first byte and the body behind it.

    Args:
        first_byte: type and flags.
        body: as many bytes as the remaining length said.
        version: 4 or 5; a CONNECT says its own.

    Raises:
        MalformedPacket: the bytes are no packet.
        ProtocolViolation: the packet is not allowed to say that.
    """
    kind = first_byte >> 4
    flags = first_byte & 15
    if kind == PacketType.PUBLISH:
        return _publish(flags, body, version)
    if kind == 0 or (kind == PacketType.AUTH and version < V5):
        msg = f"packet type {kind} does not exist in version {version}"
        raise MalformedPacket(msg)
    if flags != _FLAGS.get(kind, 0):
        msg = f"the reserved flags of a {PacketType(kind).name} are {flags:04b}"
        raise MalformedPacket(msg)
    reader = Reader(body)
    packet = _DECODERS[kind](reader, version)
    reader.close()
    return packet


def _properties(reader: Reader, version: int, place: Place) -> Properties | None:
    return read_properties(reader, place) if version >= V5 else None


def _packet_id(reader: Reader) -> int:
    packet_id = reader.two()
    if not packet_id:
        msg = "a packet identifier is 0"
        raise ProtocolViolation(msg)
    return packet_id


def _code(code: int, allowed: frozenset[int], what: str) -> int:
    if code not in allowed:
        msg = f"a {what} says 0x{code:02x}, which it may not"
        raise ProtocolViolation(msg)
    return code


def _topic(topic: str, what: str) -> str:
    if "#" in topic or "+" in topic:
        msg = f"the topic of a {what} has a wildcard in it: {topic[:80]!r}"
        raise ProtocolViolation(msg, ReasonCode.TOPIC_NAME_INVALID)
    return topic


def _publish(flags: int, body: bytes, version: int) -> Publish:
    qos = flags >> 1 & 3
    dup = bool(flags & 8)
    if qos == 3 or (dup and not qos):
        msg = f"a PUBLISH has the flags {flags:04b}"
        raise MalformedPacket(msg)
    reader = Reader(body)
    topic = _topic(reader.string(), "PUBLISH")
    packet_id = _packet_id(reader) if qos else 0
    properties = _properties(reader, version, Place.PUBLISH)
    if not topic and (properties is None or properties.topic_alias is None):
        msg = "a PUBLISH has neither a topic nor an alias of one"
        raise ProtocolViolation(
            msg, ReasonCode.TOPIC_NAME_INVALID if version < V5 else ReasonCode.PROTOCOL_ERROR
        )
    return Publish(topic, reader.rest(), qos, bool(flags & 1), dup, packet_id, properties)


def _connect(reader: Reader, _version: int) -> Connect:
    is_ours = reader.skip(_NAME_FIELD)
    name = PROTOCOL_NAME if is_ours else reader.string()
    version = reader.byte()
    if not is_ours or not V4 <= version <= V5:
        msg = f"protocol {name[:20]!r} level {version}; MQTT 4 (3.1.1) and 5 are spoken here"
        raise ProtocolViolation(msg, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    flags = reader.byte()
    if flags & 1:
        msg = "the reserved flag of a CONNECT is set"
        raise MalformedPacket(msg)
    if version < V5 and flags & 0xC0 == 0x40:
        msg = "a CONNECT has a password and no user name, which MQTT 3.1.1 does not allow"
        raise ProtocolViolation(msg)
    keep_alive = reader.two()
    properties = _properties(reader, version, Place.CONNECT)
    client_id = reader.string()
    will = _will(reader, flags, version) if flags & 0x3C else None
    username = reader.string() if flags & 0x80 else None
    password = reader.binary() if flags & 0x40 else None
    return Connect(
        client_id,
        bool(flags & 2),
        keep_alive,
        username,
        password,
        will,
        version,
        properties,
    )


def _will(reader: Reader, flags: int, version: int) -> Will | None:
    qos = flags >> 3 & 3
    retain = bool(flags & 0x20)
    if qos == 3 or (not flags & 4 and (qos or retain)):
        msg = f"the will of a CONNECT has the flags {flags:08b}"
        raise MalformedPacket(msg)
    if not flags & 4:
        return None
    properties = _properties(reader, version, Place.WILL)
    topic = _topic(reader.string(), "will")
    if not topic:
        msg = "the topic of a will is empty"
        raise ProtocolViolation(msg, ReasonCode.TOPIC_NAME_INVALID)
    return Will(topic, reader.binary(), qos, retain, properties)


def _connack(reader: Reader, version: int) -> ConnAck:
    flags = reader.byte()
    if flags > 1:
        msg = f"the reserved flags of a CONNACK are {flags:08b}"
        raise MalformedPacket(msg)
    allowed = CONNACK_CODES if version >= V5 else RETURN_CODES
    code = _code(reader.byte(), allowed, "CONNACK")
    if flags and code:
        msg = f"a CONNACK refuses with 0x{code:02x} and has a session"
        raise ProtocolViolation(msg)
    return ConnAck(bool(flags), code, _properties(reader, version, Place.CONNACK))


def _short_end(
    reader: Reader, version: int, allowed: frozenset[int], place: Place
) -> tuple[int, Properties | None]:
    """Read a reason code and properties that the end of the packet may leave out."""
    if version < V5:
        return 0, None
    code = _code(reader.byte(), allowed, str(place.name)) if reader.left else 0
    if not reader.left:
        return code, Properties()
    return code, read_properties(reader, place)


def _puback(reader: Reader, version: int) -> PubAck:
    packet_id = _packet_id(reader)
    return PubAck(packet_id, *_short_end(reader, version, PUBACK_CODES, Place.PUBACK))


def _pubrec(reader: Reader, version: int) -> PubRec:
    packet_id = _packet_id(reader)
    return PubRec(packet_id, *_short_end(reader, version, PUBACK_CODES, Place.PUBREC))


def _pubrel(reader: Reader, version: int) -> PubRel:
    packet_id = _packet_id(reader)
    return PubRel(packet_id, *_short_end(reader, version, PUBREL_CODES, Place.PUBREL))


def _pubcomp(reader: Reader, version: int) -> PubComp:
    packet_id = _packet_id(reader)
    return PubComp(packet_id, *_short_end(reader, version, PUBREL_CODES, Place.PUBCOMP))


def _subscription(reader: Reader, version: int) -> Subscription:
    topic_filter = reader.string()
    options = reader.byte()
    qos = options & 3
    if version < V5:
        if options > 2:
            msg = f"a SUBSCRIBE asks for QoS 0x{options:02x}"
            raise MalformedPacket(msg)
        return Subscription(topic_filter, qos)
    no_local = bool(options & 4)
    handling = options >> 4 & 3
    if options & 0xC0:
        msg = f"the reserved options of a SUBSCRIBE are {options:08b}"
        raise MalformedPacket(msg)
    if qos == 3 or handling == 3:
        msg = f"a SUBSCRIBE asks for QoS {qos} and retain handling {handling}"
        raise ProtocolViolation(msg)
    if no_local and topic_filter.startswith(SHARE_PREFIX):
        msg = f"a SUBSCRIBE has no-local with the shared {topic_filter[:80]!r}"
        raise ProtocolViolation(msg)
    return Subscription(topic_filter, qos, no_local, bool(options & 8), handling)


def _subscribe(reader: Reader, version: int) -> Subscribe:
    packet_id = _packet_id(reader)
    properties = _properties(reader, version, Place.SUBSCRIBE)
    found = []
    while reader.left:
        found.append(_subscription(reader, version))
    _require(found, "SUBSCRIBE")
    return Subscribe(packet_id, tuple(found), properties)


def _require(found: list[Subscription] | list[str] | bytes, what: str) -> None:
    if not found:
        msg = f"a {what} has nothing in it"
        raise ProtocolViolation(msg)


def _suback(reader: Reader, version: int) -> SubAck:
    packet_id = _packet_id(reader)
    properties = _properties(reader, version, Place.SUBACK)
    allowed = SUBACK_CODES if version >= V5 else SUBACK_RETURN_CODES
    codes = reader.rest()
    _require(codes, "SUBACK")
    return SubAck(
        packet_id, tuple(_code(code, allowed, "SUBACK") for code in codes), properties
    )


def _unsubscribe(reader: Reader, version: int) -> Unsubscribe:
    packet_id = _packet_id(reader)
    properties = _properties(reader, version, Place.UNSUBSCRIBE)
    found = []
    while reader.left:
        found.append(reader.string())
    _require(found, "UNSUBSCRIBE")
    return Unsubscribe(packet_id, tuple(found), properties)


def _unsuback(reader: Reader, version: int) -> UnsubAck:
    packet_id = _packet_id(reader)
    if version < V5:
        return UnsubAck(packet_id)
    properties = read_properties(reader, Place.UNSUBACK)
    codes = reader.rest()
    _require(codes, "UNSUBACK")
    return UnsubAck(
        packet_id, tuple(_code(code, UNSUBACK_CODES, "UNSUBACK") for code in codes), properties
    )


def _disconnect(reader: Reader, version: int) -> Disconnect:
    return Disconnect(*_short_end(reader, version, DISCONNECT_CODES, Place.DISCONNECT))


def _auth(reader: Reader, version: int) -> Auth:
    code, properties = _short_end(reader, version, AUTH_CODES, Place.AUTH)
    if code and (properties is None or properties.authentication_method is None):
        msg = f"an AUTH says 0x{code:02x} and has no authentication_method"
        raise ProtocolViolation(msg)
    return Auth(code, properties)


_DECODERS: Final[dict[int, Callable[[Reader, int], Packet]]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBACK: _puback,
    PacketType.PUBREC: _pubrec,
    PacketType.PUBREL: _pubrel,
    PacketType.PUBCOMP: _pubcomp,
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: lambda _reader, _version: PingReq(),
    PacketType.PINGRESP: lambda _reader, _version: PingResp(),
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
