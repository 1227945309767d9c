"""The properties of MQTT 5 (section 2.2.2): names, types, and the packets that may have them.

On the wire: the length of the properties as a variable byte integer, then identifier and value
of each. User properties, and subscription identifiers in a PUBLISH, may be repeated; all others
must not.
"""

import enum
from collections.abc import Callable, Iterable
from dataclasses import field, fields
from functools import partial
from typing import Any, Final, NamedTuple

from callboard.mqtt.wire.errors import InvalidPacket, MalformedPacket, ProtocolViolation
from callboard.mqtt.wire.field import (
    Reader,
    write_binary,
    write_number,
    write_string,
    write_variable,
)
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass


class Place(enum.IntFlag):
    """The places of properties: packets, and the will of a CONNECT."""

    CONNECT = 1 << 1
    CONNACK = 1 << 2
    PUBLISH = 1 << 3
    PUBACK = 1 << 4
    PUBREC = 1 << 5
    PUBREL = 1 << 6
    PUBCOMP = 1 << 7
    SUBSCRIBE = 1 << 8
    SUBACK = 1 << 9
    UNSUBSCRIBE = 1 << 10
    UNSUBACK = 1 << 11
    DISCONNECT = 1 << 14
    AUTH = 1 << 15
    WILL = 1 << 16


class _Type(NamedTuple):
    """Functions that read, write and check the value of a property."""

    read: Callable[[Reader], Any]
    write: Callable[[Any, str], bytes]
    check: Callable[[Any, str], None] = lambda _value, _name: None


def _check_switch(value: int, name: str) -> None:
    """Refuse values other than 0 and 1."""
    if value not in {0, 1}:
        message = f"{name} is {value}; only 0 and 1 are allowed"
        raise ProtocolViolation(message)


def _check_positive(
    value: int, name: str, reason: ReasonCode = ReasonCode.PROTOCOL_ERROR
) -> None:
    """Refuse 0."""
    if value == 0:
        message = f"{name} is 0, which the standard forbids"
        raise ProtocolViolation(message, reason)


def _check_topic(value: str, name: str) -> None:
    """Refuse a topic with a wildcard."""
    if "#" in value or "+" in value:
        message = f"{name} contains a wildcard: {value[:80]!r}"
        raise ProtocolViolation(message, ReasonCode.TOPIC_NAME_INVALID)


def _read_pair(reader: Reader) -> tuple[str, str]:
    return reader.string(), reader.string()


def _write_pair(pair: tuple[str, str], name: str) -> bytes:
    return write_string(pair[0], name) + write_string(pair[1], name)


def _number(size: int) -> Callable[[int, str], bytes]:
    """Return a function that writes numbers of a size."""
    return lambda value, name: write_number(value, size, name)


_check_alias = partial(_check_positive, reason=ReasonCode.TOPIC_ALIAS_INVALID)
_SWITCH: Final = _Type(Reader.byte, _number(1), _check_switch)
_TWO: Final = _Type(Reader.two, _number(2))
_SOME: Final = _TWO._replace(check=_check_positive)
_ALIAS: Final = _TWO._replace(check=_check_alias)
_FOUR: Final = _Type(Reader.four, _number(4))
_SIZE: Final = _FOUR._replace(check=_check_positive)
_NUMBER: Final = _Type(Reader.variable, lambda value, _: write_variable(value), _check_positive)
_TEXT: Final = _Type(Reader.string, write_string)
_TOPIC: Final = _TEXT._replace(check=_check_topic)
_BINARY: Final = _Type(Reader.binary, write_binary)
_PAIR: Final = _Type(_read_pair, _write_pair)

_MESSAGE: Final = Place.PUBLISH | Place.WILL
_SUBSCRIBED: Final = Place.PUBLISH | Place.SUBSCRIBE
_BOTH: Final = Place.CONNECT | Place.CONNACK
_ACKS: Final = Place.PUBACK | Place.PUBREC | Place.PUBREL | Place.PUBCOMP
_ENDS: Final = Place.SUBACK | Place.UNSUBACK | Place.DISCONNECT | Place.AUTH


class _Kind(NamedTuple):
    """The identifier of a property, the packets that may have it, and the type of its value."""

    identifier: int
    places: Place
    type: _Type


def _kind(identifier: int, places: Place, type_: _Type, default: object = None) -> Any:
    """Return a field of `Properties`."""
    return field(default=default, metadata={"kind": _Kind(identifier, places, type_)})


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of one packet; absent ones are None or empty.

    Intervals are in seconds, sizes in bytes. The switches (`request_…`, `…_available`) are 0
    or 1 as on the wire, because an absent switch differs from 0.
    """

    payload_format_indicator: int | None = _kind(1, _MESSAGE, _SWITCH)
    message_expiry_interval: int | None = _kind(2, _MESSAGE, _FOUR)
    content_type: str | None = _kind(3, _MESSAGE, _TEXT)
    response_topic: str | None = _kind(8, _MESSAGE, _TOPIC)
    correlation_data: bytes | None = _kind(9, _MESSAGE, _BINARY)
    subscription_identifiers: tuple[int, ...] = _kind(11, _SUBSCRIBED, _NUMBER, ())
    session_expiry_interval: int | None = _kind(17, _BOTH | Place.DISCONNECT, _FOUR)
    assigned_client_identifier: str | None = _kind(18, Place.CONNACK, _TEXT)
    server_keep_alive: int | None = _kind(19, Place.CONNACK, _TWO)
    authentication_method: str | None = _kind(21, _BOTH | Place.AUTH, _TEXT)
    authentication_data: bytes | None = _kind(22, _BOTH | Place.AUTH, _BINARY)
    request_problem_information: int | None = _kind(23, Place.CONNECT, _SWITCH)
    will_delay_interval: int | None = _kind(24, Place.WILL, _FOUR)
    request_response_information: int | None = _kind(25, Place.CONNECT, _SWITCH)
    response_information: str | None = _kind(26, Place.CONNACK, _TEXT)
    server_reference: str | None = _kind(28, Place.CONNACK | Place.DISCONNECT, _TEXT)
    reason_string: str | None = _kind(31, Place.CONNACK | _ACKS | _ENDS, _TEXT)
    receive_maximum: int | None = _kind(33, _BOTH, _SOME)
    topic_alias_maximum: int | None = _kind(34, _BOTH, _TWO)
    topic_alias: int | None = _kind(35, Place.PUBLISH, _ALIAS)
    maximum_qos: int | None = _kind(36, Place.CONNACK, _SWITCH)
    retain_available: int | None = _kind(37, Place.CONNACK, _SWITCH)
    user_properties: tuple[tuple[str, str], ...] = _kind(38, ~Place(0), _PAIR, ())
    maximum_packet_size: int | None = _kind(39, _BOTH, _SIZE)
    wildcard_subscription_available: int | None = _kind(40, Place.CONNACK, _SWITCH)
    subscription_identifier_available: int | None = _kind(41, Place.CONNACK, _SWITCH)
    shared_subscription_available: int | None = _kind(42, Place.CONNACK, _SWITCH)


_KINDS: Final[dict[str, _Kind]] = {
    item.name: item.metadata["kind"] for item in fields(Properties)
}
_BY_IDENTIFIER: Final = {kind.identifier: (name, kind) for name, kind in _KINDS.items()}
_UNKNOWN: Final = "an unknown property", _Kind(0, Place(0), _BINARY)
_REPEATED: Final = {"user_properties", "subscription_identifiers"}
#: The properties of a packet without any.
NO_PROPERTIES: Final = Properties()


def read_properties(reader: Reader, place: Place) -> Properties:
    """Read the properties of a packet, or of a will.

    Raises:
        MalformedPacket: the properties cannot be parsed, or one is not allowed in this place.
        ProtocolViolation: a property is repeated, or has a forbidden value.
    """
    length = reader.variable()
    if not length:
        return NO_PROPERTIES
    inner = Reader(reader.take(length))
    values: dict[str, Any] = {}
    while inner.left:
        name, kind = _BY_IDENTIFIER.get(inner.variable(), _UNKNOWN)
        if not kind.places & place:
            message = f"{name} is not allowed in a {place.name}"
            raise MalformedPacket(message)
        value = kind.type.read(inner)
        kind.type.check(value, name)
        if name in _REPEATED:
            values.setdefault(name, []).append(value)
        elif name in values:
            message = f"{name} is repeated in a {place.name}"
            raise ProtocolViolation(message)
        else:
            values[name] = value
    for name in _REPEATED & values.keys():
        values[name] = tuple(values[name])
    properties = Properties(**values)
    _check_together(properties, place)
    return properties


def _check_together(properties: Properties, place: Place) -> None:
    """Refuse properties that require or exclude each other."""
    if place is Place.SUBSCRIBE and len(properties.subscription_identifiers) > 1:
        message = "subscription_identifiers is repeated in a SUBSCRIBE"
        raise ProtocolViolation(message)
    if properties.authentication_data is not None and properties.authentication_method is None:
        message = f"a {place.name} has authentication_data without an authentication_method"
        raise ProtocolViolation(message)


def write_properties(properties: Properties | None, place: Place) -> bytes:
    """Encode the properties of a packet, or of a will, with their length.

    Raises:
        InvalidPacket: a property is not allowed in this place, or has a forbidden value.
    """
    if properties is None or properties is NO_PROPERTIES or properties == NO_PROPERTIES:
        return b"\0"
    try:
        _check_together(properties, place)
        encoded = b"".join(_parts(properties, place))
    except ProtocolViolation as error:
        raise InvalidPacket(str(error)) from None
    return write_variable(len(encoded)) + encoded


def _parts(properties: Properties, place: Place) -> Iterable[bytes]:
    """Return the encoding of each property."""
    for name, kind in _KINDS.items():
        value = getattr(properties, name)
        if value is None or value == ():
            continue
        if not kind.places & place:
            message = f"{name} is not allowed in a {place.name}"
            raise InvalidPacket(message)
        for item in value if name in _REPEATED else (value,):
            kind.type.check(item, name)
            yield bytes((kind.identifier,)) + kind.type.write(item, name)
