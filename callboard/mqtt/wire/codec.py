"""Encoding and decoding of packets, as strict as both standards.

`decode` gets the body after the fixed header, which `framing` has parsed. It raises
MalformedPacket if the bytes are not a packet, and ProtocolViolation if the packet is not
allowed; both carry the reason code for the end of the connection. `encode` raises InvalidPacket
for all packets that `decode` would refuse.

The codec does not check rules about several packets (is that identifier in use? may this side
send a CONNACK?). Nor does it check topic filters: an invalid one is refused in the SUBACK and
does not end the connection.

This codec is for rare packets, clients and tests. The router parses runs of PUBLISH packets and
acknowledgements directly in a chunk.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple

import callboard.mqtt.wire.packet as packets
import callboard.mqtt.wire.reason_code as codes
from callboard.mqtt.wire.errors import InvalidPacket, MalformedPacket, ProtocolViolation
from callboard.mqtt.wire.field import (
    MAX_LENGTH,
    Reader,
    write_binary,
    write_number,
    write_string,
    write_variable,
)
from callboard.mqtt.wire.framing import body_start, packet_end
from callboard.mqtt.wire.packet import V3, V4, V5, Packet, PacketType, Publish
from callboard.mqtt.wire.properties import (
    NO_PROPERTIES,
    Place,
    Properties,
    read_properties,
    write_properties,
)
from callboard.mqtt.wire.reason_code import ReasonCode, return_code

_PROTOCOL: Final = b"\x00\x04MQTT"

#: The protocol name of MQTT 3.1. Its packets are those of 3.1.1.
_NAME_V3: Final = "MQIsdp"
#: An int, because each packet is compared with it and an enum is slower.
_PUBLISH: Final = int(PacketType.PUBLISH)
#: The fields after the protocol name of a CONNECT: its level, the flags, the keep-alive.
_CONNECT: Final = Struct(">BBH")
_TURN_QUANTUM: Final = "$share/"
#: Packets whose reserved flags are 2.
_FLAGGED: Final = {PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE}
_CODES: Final = {Place[name]: values for name, values in codes.CODES.items()}
#: Acknowledgements by their first byte.
_ACKS: Final = {
    0x40: packets.PubAck,
    0x50: packets.PubRec,
    0x62: packets.PubRel,
    0x70: packets.PubComp,
}
#: The fixed headers of acknowledgements without a reason code.
_ACK_HEADS: Final[dict[type, bytes]] = {
    kind: bytes((first, 2)) for first, kind in _ACKS.items()
}
_CODES_V4: Final = {Place.CONNACK: codes.RETURN_CODES, Place.SUBACK: codes.SUBACK_RETURN_CODES}


def encode(packet: Packet, version: int) -> bytes:
    """Return a packet with its fixed header.

    Args:
        packet: the packet to encode.
        version: 4 or 5, of the connection.

    Raises:
        InvalidPacket: a field is too large, or the standard does not allow it there.
    """
    if type(packet) is Publish:
        first, body = _write_publish(packet, version)
    elif isinstance(packet, packets.Ack) and (data := _write_plain_ack(packet, version)):
        return data
    else:
        form = _FORM_OF[type(packet)]
        first, body = form.first, form.write(packet, version, form.place)
    return bytes((first,)) + write_variable(len(body)) + body


def decode(first_byte: int, body: bytes, version: int) -> Packet:
    """Return the packet of a fixed header's first byte and a body.

    Args:
        first_byte: type and flags.
        body: the bytes after the fixed header.
        version: 4 or 5; a CONNECT contains its version.

    Raises:
        MalformedPacket: the bytes are not a packet.
        ProtocolViolation: the packet is not allowed.
    """
    kind = first_byte >> 4
    flags = first_byte & 15
    if kind == _PUBLISH:
        return _read_publish(flags, body, version)
    if len(body) == 2 and first_byte in _ACKS and body != b"\0\0":
        # Nearly all acknowledgements are a packet identifier without a reason code.
        properties = NO_PROPERTIES if version >= V5 else None
        return _ACKS[first_byte](body[0] << 8 | body[1], 0, properties)
    if kind == 0 or (version < V5 and kind == PacketType.AUTH):
        message = f"packet type {kind} does not exist in version {version}"
        raise MalformedPacket(message)
    form = _FORMS[kind]
    if first_byte != form.first:
        message = f"the reserved flags of a {PacketType(kind).name} are {flags:04b}"
        raise MalformedPacket(message)
    reader = Reader(body)
    packet = form.read(reader, version, form.place)
    reader.close()
    return packet


def decode_packet(data: bytes, version: int) -> Packet:
    """Return the packet of some bytes, which include the fixed header; see `decode`."""
    return decode(data[0], data[body_start(data) :], version)


def decode_all(chunk: bytes, version: int) -> list[Packet]:
    """Return the packets of a chunk of whole packets; see `decode`."""
    decoded: list[Packet] = []
    position, size = 0, len(chunk)
    while position < size:
        length = chunk[position + 1]
        if length < 0x80:
            start = position + 2
            end = start + length
        else:
            start, end = body_start(chunk, position), packet_end(chunk, position)
        decoded.append(decode(chunk[position], chunk[start:end], version))
        position = end
    return decoded


def encode_refusal(version: int, reason: ReasonCode, text: str = "") -> bytes:
    """Return the CONNACK that refuses a client, in its version.

    Args:
        version: the MQTT version of the client.
        reason: the reason for the refusal.
        text: the reason in words; for *use another server*, the address of that server.
    """
    if version < V5:
        return encode(packets.ConnAck(reason_code=return_code(reason)), V4)
    is_elsewhere = reason is ReasonCode.USE_ANOTHER_SERVER
    properties = Properties(
        reason_string=text or None, server_reference=text if is_elsewhere else None
    )
    return encode(packets.ConnAck(reason_code=reason, properties=properties), V5)


# --- descriptions of packets; the table `_FORMS` is at the end ---

_Read = Callable[[Reader, int, Place], Packet]
_Write = Callable[[Any, int, Place], bytes]


class _Form(NamedTuple):
    """The description of a packet type.

    Its first byte, and functions to read and write a body.
    """

    packet: type
    first: int
    place: Place
    read: _Read
    write: _Write


def _form(packet: type, read: _Read, write: _Write) -> _Form:
    """Return the description of a packet; its type and place follow from its name."""
    kind = PacketType[packet.__name__.upper()]
    flags = 2 if kind in _FLAGGED else 0
    return _Form(packet, kind << 4 | flags, Place(1 << kind), read, write)


# --- common parts ---


def _require(condition: object, label: str, problem: str) -> None:
    """Raise InvalidPacket unless a condition holds."""
    if not condition:
        message = f"{label} is {problem}"
        raise InvalidPacket(message)


def _refuse_if(condition: object, message: str, *reason: ReasonCode) -> None:
    """Raise ProtocolViolation if a condition holds."""
    if condition:
        raise ProtocolViolation(message, *reason)


def _malformed_if(condition: object, message: str) -> None:
    """Raise MalformedPacket if a condition holds."""
    if condition:
        raise MalformedPacket(message)


def _allowed(version: int, place: Place) -> frozenset[int]:
    """Return the reason codes that are allowed in a packet."""
    return _CODES[place] if version >= V5 else _CODES_V4[place]


def _read_code(reader: Reader, version: int, place: Place) -> int:
    """Read a reason code, which must be allowed in this packet."""
    code = reader.byte()
    if code not in _allowed(version, place):
        message = f"0x{code:02x} is not a reason code of a {place.name}"
        raise ProtocolViolation(message)
    return code


def _write_code(code: int, version: int, place: Place) -> bytes:
    """Write a reason code, which must be allowed in this packet."""
    if code not in _allowed(version, place):
        message = f"0x{code:02x} is not a reason code of a {place.name}"
        raise InvalidPacket(message)
    return bytes((code,))


def _read_some_properties(reader: Reader, version: int, place: Place) -> Properties | None:
    """Read properties if the version has them."""
    return read_properties(reader, place) if version >= V5 else None


def _write_some_properties(properties: Properties | None, version: int, place: Place) -> bytes:
    """Write properties if the version has them."""
    if version >= V5:
        return write_properties(properties, place)
    _require(properties is None, "a property", "not possible in MQTT 3.1.1")
    return b""


def _read_id(reader: Reader) -> int:
    """Read a packet identifier, which is never 0."""
    packet_id = reader.two()
    _refuse_if(not packet_id, "a packet identifier is 0")
    return packet_id


def _write_id(packet_id: int) -> bytes:
    """Write a packet identifier, which is never 0."""
    return write_number(packet_id, 2, "the packet identifier", 1)


def _read_topic(reader: Reader, label: str) -> str:
    """Read a topic name; it may be empty here."""
    topic = reader.string()
    if "#" in topic or "+" in topic:
        message = f"the topic of a {label} contains a wildcard: {topic[:80]!r}"
        raise ProtocolViolation(message, ReasonCode.TOPIC_NAME_INVALID)
    return topic


def _write_topic(topic: str, *, alias: object = None) -> bytes:
    """Write a topic name; it may be empty if there is an alias."""
    _require(topic or alias, "the topic", "empty")
    if "#" in topic or "+" in topic:
        message = f"the topic {topic[:80]!r} is a filter"
        raise InvalidPacket(message)
    return write_string(topic, "the topic")


# --- PUBLISH ---


def _read_publish(flags: int, body: bytes, version: int) -> Publish:
    """Read a PUBLISH; its flags have a meaning."""
    qos = flags >> 1 & 3
    dup = bool(flags & 8)
    if qos == 3 or (dup and not qos):
        message = f"a PUBLISH has the invalid flags {flags:04b}"
        raise MalformedPacket(message)
    reader = Reader(body)
    topic = _read_topic(reader, "PUBLISH")
    packet_id = _read_id(reader) if qos else 0
    properties = _read_some_properties(reader, version, Place.PUBLISH)
    if not topic and (properties is None or properties.topic_alias is None):
        message = "a PUBLISH has neither a topic nor a topic alias"
        reason = ReasonCode.TOPIC_NAME_INVALID if version < V5 else ReasonCode.PROTOCOL_ERROR
        raise ProtocolViolation(message, reason)
    return Publish(topic, reader.rest(), qos, bool(flags & 1), dup, packet_id, properties)


def _write_publish(packet: Publish, version: int) -> tuple[int, bytes]:
    """Return the first byte and the body of a PUBLISH."""
    qos, properties = packet.qos, packet.properties
    if qos not in (0, 1, 2):
        message = f"QoS {qos} is not 0, 1 or 2"
        raise InvalidPacket(message)
    _require(qos or not packet.dup, "a retransmission", "impossible with QoS 0")
    _require(bool(qos) == bool(packet.packet_id), "the packet identifier", "for QoS 1 and 2")
    head = _write_topic(packet.topic, alias=properties and properties.topic_alias)
    if qos:
        head += _write_id(packet.packet_id)
    head += _write_some_properties(properties, version, Place.PUBLISH)
    first = _PUBLISH << 4 | packet.dup << 3 | qos << 1 | packet.retain
    return first, head + packet.payload


# --- CONNECT and CONNACK ---


def _read_connect(reader: Reader, _version: int, place: Place) -> packets.Connect:
    """Read a CONNECT, which contains its version."""
    name = "MQTT" if reader.passes(_PROTOCOL) else reader.string()
    version, flags, keep_alive = reader.unpack(_CONNECT)
    is_known = version == V3 if name == _NAME_V3 else name == "MQTT" and V4 <= version <= V5
    if not is_known:
        message = (
            f"protocol {name[:20]!r} level {version}; this router speaks MQTT 4 (3.1.1) and 5"
        )
        raise ProtocolViolation(message, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    if flags & 1:
        message = "the reserved flag of a CONNECT is set"
        raise MalformedPacket(message)
    if version < V5 and flags & 0xC0 == 0x40:
        message = "a CONNECT has a password without a user name, which MQTT 3.1.1 forbids"
        raise ProtocolViolation(message)
    properties = _read_some_properties(reader, version, place)
    client_id = reader.string()
    will = _read_will(reader, flags, version) if flags & 0x3C else None
    username = reader.string() if flags & 0x80 else None
    password = reader.binary() if flags & 0x40 else None
    is_new = bool(flags & 2)
    rest = (username, password, will)
    return packets.Connect(client_id, is_new, keep_alive, *rest, version, properties)


def _write_connect(packet: packets.Connect, version: int, place: Place) -> bytes:
    """Write a CONNECT."""
    _require(packet.version == version, f"version {packet.version}", f"not {version}")
    _require(version in {V4, V5}, f"version {version}", "not 4 or 5")
    will, username, password = packet.will, packet.username, packet.password
    is_named, is_secret = username is not None, password is not None
    is_allowed = is_named or not is_secret or version >= V5
    _require(is_allowed, "a password", "not possible without a user name")
    flags = is_named << 7 | is_secret << 6 | packet.clean_start << 1
    if will is not None:
        _require(will.qos in {0, 1, 2}, f"QoS {will.qos}", "not 0, 1 or 2")
        flags |= will.retain << 5 | will.qos << 3 | 4
    return b"".join(
        (
            _PROTOCOL,
            bytes((version, flags)),
            write_number(packet.keep_alive, 2, "the keep-alive"),
            _write_some_properties(packet.properties, version, place),
            write_string(packet.client_id, "the client id"),
            b"" if will is None else _write_will(will, version),
            b"" if username is None else write_string(username, "the user name"),
            b"" if password is None else write_binary(password, "the password"),
        )
    )


def _read_will(reader: Reader, flags: int, version: int) -> packets.Will | None:
    """Read the will that the flags of a CONNECT announce."""
    qos = flags >> 3 & 3
    retain = bool(flags & 0x20)
    is_wrong = qos == 3 or (not flags & 4 and (qos or retain))
    _malformed_if(is_wrong, f"the will of a CONNECT has the invalid flags {flags:08b}")
    if not flags & 4:
        return None
    properties = _read_some_properties(reader, version, Place.WILL)
    topic = _read_topic(reader, "will")
    _refuse_if(not topic, "the topic of a will is empty", ReasonCode.TOPIC_NAME_INVALID)
    return packets.Will(topic, reader.binary(), qos, retain, properties)


def _write_will(will: packets.Will, version: int) -> bytes:
    """Write the will of a CONNECT."""
    properties = _write_some_properties(will.properties, version, Place.WILL)
    payload = write_binary(will.payload, "the payload of the will")
    return properties + _write_topic(will.topic) + payload


def _read_connack(reader: Reader, version: int, place: Place) -> packets.ConnAck:
    flags = reader.byte()
    _malformed_if(flags > 1, f"the reserved flags of a CONNACK are {flags:08b}")
    code = _read_code(reader, version, place)
    _refuse_if(flags and code, f"a CONNACK refuses with 0x{code:02x}, but has a session")
    return packets.ConnAck(bool(flags), code, _read_some_properties(reader, version, place))


def _write_connack(packet: packets.ConnAck, version: int, place: Place) -> bytes:
    code = _write_code(packet.reason_code, version, place)
    is_allowed = not packet.reason_code or not packet.session_present
    _require(is_allowed, "session_present", "impossible in a refusal")
    head = bytes((packet.session_present,)) + code
    return head + _write_some_properties(packet.properties, version, place)


# --- acknowledgements, DISCONNECT and AUTH: an optional reason code and properties ---


def _read_reason(reader: Reader, version: int, place: Place) -> tuple[int, Properties | None]:
    """Read a reason code and properties, both optional."""
    if version < V5:
        return 0, None
    code = _read_code(reader, version, place) if reader.left else 0
    return code, read_properties(reader, place) if reader.left else NO_PROPERTIES


def _write_reason(
    packet: packets.Ack | packets.Disconnect | packets.Auth, version: int, place: Place
) -> bytes:
    """Write a reason code and properties; omit defaults at the end."""
    code, properties = packet.reason_code, packet.properties
    if version < V5:
        _require(not code and properties is None, "a reason", "not possible in MQTT 3.1.1")
        return b""
    if not code and (properties is None or properties is NO_PROPERTIES):
        return b""
    encoded = write_properties(properties, place)
    head = _write_code(code, version, place)
    if encoded != b"\0":
        return head + encoded
    return head if code else b""


def _write_plain_ack(packet: packets.Ack, version: int) -> bytes:
    """Return an acknowledgement without a reason code or properties; empty if it has them."""
    code, properties, packet_id = packet.reason_code, packet.properties, packet.packet_id
    if code or not 0 < packet_id <= MAX_LENGTH:
        return b""
    if properties is None or (version >= V5 and properties is NO_PROPERTIES):
        return _ACK_HEADS[type(packet)] + packet_id.to_bytes(2, "big")
    return b""


def _ack_form(packet: type[packets.Ack]) -> _Form:
    """Return the description of a class of acknowledgements."""

    def read(reader: Reader, version: int, place: Place) -> Packet:
        return packet(_read_id(reader), *_read_reason(reader, version, place))

    def write(packet: Any, version: int, place: Place) -> bytes:
        end = _write_reason(packet, version, place)
        return _write_id(packet.packet_id) + end

    return _form(packet, read, write)


def _read_disconnect(reader: Reader, version: int, place: Place) -> packets.Disconnect:
    return packets.Disconnect(*_read_reason(reader, version, place))


def _read_auth(reader: Reader, version: int, place: Place) -> packets.Auth:
    code, properties = _read_reason(reader, version, place)
    lacks_method = properties is None or properties.authentication_method is None
    problem = f"an AUTH with 0x{code:02x} lacks the property authentication_method"
    _refuse_if(code and lacks_method, problem)
    return packets.Auth(code, properties)


def _write_auth(packet: packets.Auth, version: int, place: Place) -> bytes:
    _require(version >= V5, "an AUTH", "not possible in MQTT 3.1.1")
    method = packet.properties and packet.properties.authentication_method
    is_allowed = not packet.reason_code or method is not None
    _require(is_allowed, "an AUTH", "not possible without a method")
    return _write_reason(packet, version, place)


# --- subscriptions and their answers: an identifier, properties, a list ---


def _list_form(
    packet: type[packets.Subscribing],
    entries_name: str,
    read_entry: Callable[[Reader, int, Place], Any],
    write_entry: Callable[[Any, int, Place], bytes],
) -> _Form:
    """Return the description of a packet with a list of entries."""

    def read(reader: Reader, version: int, place: Place) -> Packet:
        packet_id = _read_id(reader)
        if version < V5 and place is Place.UNSUBACK:  # only an identifier in MQTT 3.1.1
            return packets.UnsubAck(packet_id)
        properties = _read_some_properties(reader, version, place)
        entries = []
        while reader.left:
            entries.append(read_entry(reader, version, place))
        _refuse_if(not entries, f"the list of a {place.name} is empty")
        return packet(packet_id, tuple(entries), properties)

    def write(packet: Any, version: int, place: Place) -> bytes:
        head, entries = _write_id(packet.packet_id), getattr(packet, entries_name)
        if version < V5 and place is Place.UNSUBACK:
            _require(not entries, "a reason", "not possible in MQTT 3.1.1")
            return head
        _require(entries, f"the list of a {place.name}", "empty")
        head += _write_some_properties(packet.properties, version, place)
        return head + b"".join([write_entry(entry, version, place) for entry in entries])

    return _form(packet, read, write)


def _read_subscription(reader: Reader, version: int, _place: Place) -> packets.Subscription:
    """Read a filter and its options."""
    topic_filter = reader.string()
    options = reader.byte()
    qos = options & 3
    if version < V5:
        _malformed_if(options > 2, f"a SUBSCRIBE asks for QoS 0x{options:02x}")
        return packets.Subscription(topic_filter, qos)
    no_local = bool(options & 4)
    handling = options >> 4 & 3
    _malformed_if(options & 0xC0, f"the reserved options of a SUBSCRIBE are {options:08b}")
    problem = f"a SUBSCRIBE asks for QoS {qos} and retain handling {handling}"
    _refuse_if(3 in {qos, handling}, problem)
    if no_local and topic_filter.startswith(_TURN_QUANTUM):
        message = f"a SUBSCRIBE has no-local for the shared {topic_filter[:80]!r}"
        raise ProtocolViolation(message)
    return packets.Subscription(topic_filter, qos, no_local, bool(options & 8), handling)


def _write_subscription(entry: packets.Subscription, version: int, _place: Place) -> bytes:
    """Write a filter and its options."""
    _require(entry.qos in {0, 1, 2}, f"QoS {entry.qos}", "not 0, 1 or 2")
    options = entry.no_local << 2 | entry.retain_as_published << 3 | entry.retain_handling << 4
    _require(version >= V5 or not options, "an option", "not possible in MQTT 3.1.1")
    _require(entry.retain_handling in {0, 1, 2}, "the retain handling", "not 0, 1 or 2")
    is_shared = entry.topic_filter.startswith(_TURN_QUANTUM)
    _require(not (is_shared and entry.no_local), "no-local", "impossible for shared filters")
    return _write_filter(entry.topic_filter) + bytes((options | entry.qos,))


def _read_filter(reader: Reader, *_: object) -> str:
    return reader.string()


def _write_filter(topic_filter: str, *_: object) -> bytes:
    return write_string(topic_filter, "the filter")


# --- the table of packets ---

_FORMS: Final = {
    form.first >> 4: form
    for form in (
        _form(packets.Connect, _read_connect, _write_connect),
        _form(packets.ConnAck, _read_connack, _write_connack),
        *map(_ack_form, (packets.PubAck, packets.PubRec, packets.PubRel, packets.PubComp)),
        _list_form(packets.Subscribe, "subscriptions", _read_subscription, _write_subscription),
        _list_form(packets.SubAck, "reason_codes", _read_code, _write_code),
        _list_form(packets.Unsubscribe, "topic_filters", _read_filter, _write_filter),
        _list_form(packets.UnsubAck, "reason_codes", _read_code, _write_code),
        _form(packets.PingReq, lambda *_: packets.PingReq(), lambda *_: b""),
        _form(packets.PingResp, lambda *_: packets.PingResp(), lambda *_: b""),
        _form(packets.Disconnect, _read_disconnect, _write_reason),
        _form(packets.Auth, _read_auth, _write_auth),
    )
}
_FORM_OF: Final = {form.packet: form for form in _FORMS.values()}
