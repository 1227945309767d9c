"""The properties of MQTT 5 (section 2.2.2): names, types, and which packet may have which.

On the wire: a variable byte integer with the length of what follows, then identifier and value
of each property. All but user properties, and subscription identifiers in a PUBLISH, appear
at most once.
"""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
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


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of one packet; what is absent is None or empty.

    Intervals are in seconds, sizes in bytes. The switches (`request_…`, `…_available`) are
    0 or 1 as on the wire, so that an absent one differs from 0.
    """

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


class Place(enum.IntFlag):
    """Where a property may stand: the packets that have any, and the will of a CONNECT."""

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
    """How the value of a property is read, written, and checked on both ways."""

    read: Callable[[Reader], Any]
    write: Callable[[Any, str], bytes]
    check: Callable[[Any, str], None] = lambda _value, _name: None


class _Kind(NamedTuple):
    """One property: how it is known on the wire, and in which packets."""

    identifier: int
    name: str
    places: Place
    type: _Type


def _check_switch(value: int, name: str) -> None:
    """Refuse what is neither 0 nor 1."""
    if value not in {0, 1}:
        message = f"{name} is {value}; only 0 and 1 are allowed"
        raise ProtocolViolation(message)


def _check_positive(
    value: int, name: str, reason: ReasonCode = ReasonCode.PROTOCOL_ERROR
) -> None:
    """Refuse 0."""
    if value == 0:
        message = f"{name} is 0, which the standard does not allow"
        raise ProtocolViolation(message, reason)


def _check_topic(value: str, name: str) -> None:
    """Refuse a topic with a wildcard."""
    if "#" in value or "+" in value:
        message = f"{name} has a wildcard in it: {value[:80]!r}"
        raise ProtocolViolation(message, ReasonCode.TOPIC_NAME_INVALID)


def _read_pair(reader: Reader) -> tuple[str, str]:
    return reader.string(), reader.string()


def _write_pair(pair: tuple[str, str], name: str) -> bytes:
    return write_string(pair[0], name) + write_string(pair[1], name)


def _number(size: int) -> Callable[[int, str], bytes]:
    """Return what writes numbers of a size."""
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
_BOTH: Final = Place.CONNECT | Place.CONNACK
_ACKS: Final = Place.PUBACK | Place.PUBREC | Place.PUBREL | Place.PUBCOMP
_ENDS: Final = Place.SUBACK | Place.UNSUBACK | Place.DISCONNECT | Place.AUTH
_KINDS: Final = (
    _Kind(1, "payload_format_indicator", _MESSAGE, _SWITCH),
    _Kind(2, "message_expiry_interval", _MESSAGE, _FOUR),
    _Kind(3, "content_type", _MESSAGE, _TEXT),
    _Kind(8, "response_topic", _MESSAGE, _TOPIC),
    _Kind(9, "correlation_data", _MESSAGE, _BINARY),
    _Kind(11, "subscription_identifiers", Place.PUBLISH | Place.SUBSCRIBE, _NUMBER),
    _Kind(17, "session_expiry_interval", _BOTH | Place.DISCONNECT, _FOUR),
    _Kind(18, "assigned_client_identifier", Place.CONNACK, _TEXT),
    _Kind(19, "server_keep_alive", Place.CONNACK, _TWO),
    _Kind(21, "authentication_method", _BOTH | Place.AUTH, _TEXT),
    _Kind(22, "authentication_data", _BOTH | Place.AUTH, _BINARY),
    _Kind(23, "request_problem_information", Place.CONNECT, _SWITCH),
    _Kind(24, "will_delay_interval", Place.WILL, _FOUR),
    _Kind(25, "request_response_information", Place.CONNECT, _SWITCH),
    _Kind(26, "response_information", Place.CONNACK, _TEXT),
    _Kind(28, "server_reference", Place.CONNACK | Place.DISCONNECT, _TEXT),
    _Kind(31, "reason_string", Place.CONNACK | _ACKS | _ENDS, _TEXT),
    _Kind(33, "receive_maximum", _BOTH, _SOME),
    _Kind(34, "topic_alias_maximum", _BOTH, _TWO),
    _Kind(35, "topic_alias", Place.PUBLISH, _ALIAS),
    _Kind(36, "maximum_qos", Place.CONNACK, _SWITCH),
    _Kind(37, "retain_available", Place.CONNACK, _SWITCH),
    _Kind(38, "user_properties", ~Place(0), _PAIR),
    _Kind(39, "maximum_packet_size", _BOTH, _SIZE),
    _Kind(40, "wildcard_subscription_available", Place.CONNACK, _SWITCH),
    _Kind(41, "subscription_identifier_available", Place.CONNACK, _SWITCH),
    _Kind(42, "shared_subscription_available", Place.CONNACK, _SWITCH),
)
_BY_IDENTIFIER: Final = {kind.identifier: kind for kind in _KINDS}
_REPEATED: Final = {"user_properties", "subscription_identifiers"}
_NONE: Final = Properties()

assert [kind.name for kind in _KINDS] == [field.name for field in fields(Properties)]


def read_properties(reader: Reader, place: Place) -> Properties:
    """Read the properties of a packet, or of a will.

    Raises:
        MalformedPacket: they cannot be read, or one has no business in this place.
        ProtocolViolation: one appears twice, or has a value that is not allowed.
    """
    length = reader.variable()
    if not length:
        return _NONE
    inner = Reader(reader.take(length))
    values: dict[str, Any] = {}
    while inner.left:
        kind = _BY_IDENTIFIER.get(inner.variable())
        if kind is None or not kind.places & place:
            what = "an unknown property" if kind is None else kind.name
            message = f"{what} in a {place.name}"
            raise MalformedPacket(message)
        value = kind.type.read(inner)
        kind.type.check(value, kind.name)
        if kind.name in _REPEATED:
            values.setdefault(kind.name, []).append(value)
        elif kind.name in values:
            message = f"{kind.name} twice in a {place.name}"
            raise ProtocolViolation(message)
        else:
            values[kind.name] = value
    for name in _REPEATED & values.keys():
        values[name] = tuple(values[name])
    properties = Properties(**values)
    _check_together(properties, place)
    return properties


def _check_together(properties: Properties, place: Place) -> None:
    """Refuse properties that need, or exclude, one another."""
    if place is Place.SUBSCRIBE and len(properties.subscription_identifiers) > 1:
        message = "subscription_identifiers twice in a SUBSCRIBE"
        raise ProtocolViolation(message)
    if properties.authentication_data is not None and properties.authentication_method is None:
        message = f"a {place.name} has authentication_data without an authentication_method"
        raise ProtocolViolation(message)


def write_properties(properties: Properties | None, place: Place) -> bytes:
    """Return the properties of a packet, or of a will, with their length.

    Raises:
        InvalidPacket: one has no business in this place, or a value that is not allowed.
    """
    if properties is None or properties == _NONE:
        return b"\0"
    try:
        _check_together(properties, place)
        written = b"".join(_parts(properties, place))
    except ProtocolViolation as error:
        raise InvalidPacket(str(error)) from None
    return write_variable(len(written)) + written


def _parts(properties: Properties, place: Place) -> Iterable[bytes]:
    """Return each property as it is written."""
    for kind in _KINDS:
        value = getattr(properties, kind.name)
        if value is None or value == ():
            continue
        if not kind.places & place:
            message = f"{kind.name} may not stand in a {place.name}"
            raise InvalidPacket(message)
        for each in value if kind.name in _REPEATED else (value,):
            kind.type.check(each, kind.name)
            yield bytes((kind.identifier,)) + kind.type.write(each, kind.name)
