"""The properties of MQTT 5 (section 2.2.2): names, types, and which packet may have which.

On the wire: a variable byte integer with the length of what follows, then identifier and value
of each property. All but user properties, and subscription identifiers in a PUBLISH, appear
at most once.
"""

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, NamedTuple

from callboard.mqtt.errors import InvalidPacket, MalformedPacket, ProtocolViolation
from callboard.mqtt.field import (
    Reader,
    write_binary,
    write_number,
    write_string,
    write_variable,
)
from callboard.mqtt.reason_code import ReasonCode


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


class _Kind(NamedTuple):
    identifier: int
    name: str
    places: Place
    read: Callable[[Reader], Any]
    write: Callable[[Any, str], bytes]
    check: Callable[[Any, str], None]


def _no_check(_value: object, _name: str) -> None:
    return


def _check_switch(value: int, name: str) -> None:
    if value not in {0, 1}:
        msg = f"{name} is {value}; only 0 and 1 are allowed"
        raise ProtocolViolation(msg)


def _check_positive(value: int, name: str) -> None:
    if value == 0:
        msg = f"{name} is 0, which the standard does not allow"
        raise ProtocolViolation(msg)


def _check_alias(value: int, name: str) -> None:
    if value == 0:
        msg = f"{name} is 0, which the standard does not allow"
        raise ProtocolViolation(msg, ReasonCode.TOPIC_ALIAS_INVALID)


def _check_topic(value: str, name: str) -> None:
    if "#" in value or "+" in value:
        msg = f"{name} has a wildcard in it: {value[:80]!r}"
        raise ProtocolViolation(msg, ReasonCode.TOPIC_NAME_INVALID)


def _read_pair(reader: Reader) -> tuple[str, str]:
    return reader.string(), reader.string()


def _write_pair(pair: tuple[str, str], name: str) -> bytes:
    return write_string(pair[0], name) + write_string(pair[1], name)


def _write_variable(value: int, _name: str) -> bytes:
    return write_variable(value)


def _byte(value: int, name: str) -> bytes:
    return write_number(value, 1, name)


def _two(value: int, name: str) -> bytes:
    return write_number(value, 2, name)


def _four(value: int, name: str) -> bytes:
    return write_number(value, 4, name)


_MESSAGE: Final = Place.PUBLISH | Place.WILL
_BOTH: Final = Place.CONNECT | Place.CONNACK
_SIGNED: Final = _BOTH | Place.AUTH
_EVERYWHERE: Final = ~Place(0)
_ANSWERS: Final = (
    Place.CONNACK
    | Place.PUBACK
    | Place.PUBREC
    | Place.PUBREL
    | Place.PUBCOMP
    | Place.SUBACK
    | Place.UNSUBACK
    | Place.DISCONNECT
    | Place.AUTH
)

_KINDS: Final = tuple(
    _Kind(identifier, name, places, *how)
    for identifier, name, places, how in (
        (1, "payload_format_indicator", _MESSAGE, (Reader.byte, _byte, _check_switch)),
        (2, "message_expiry_interval", _MESSAGE, (Reader.four, _four, _no_check)),
        (3, "content_type", _MESSAGE, (Reader.string, write_string, _no_check)),
        (8, "response_topic", _MESSAGE, (Reader.string, write_string, _check_topic)),
        (9, "correlation_data", _MESSAGE, (Reader.binary, write_binary, _no_check)),
        (
            11,
            "subscription_identifiers",
            Place.PUBLISH | Place.SUBSCRIBE,
            (Reader.variable, _write_variable, _check_positive),
        ),
        (
            17,
            "session_expiry_interval",
            _BOTH | Place.DISCONNECT,
            (Reader.four, _four, _no_check),
        ),
        (
            18,
            "assigned_client_identifier",
            Place.CONNACK,
            (Reader.string, write_string, _no_check),
        ),
        (19, "server_keep_alive", Place.CONNACK, (Reader.two, _two, _no_check)),
        (21, "authentication_method", _SIGNED, (Reader.string, write_string, _no_check)),
        (22, "authentication_data", _SIGNED, (Reader.binary, write_binary, _no_check)),
        (23, "request_problem_information", Place.CONNECT, (Reader.byte, _byte, _check_switch)),
        (24, "will_delay_interval", Place.WILL, (Reader.four, _four, _no_check)),
        (
            25,
            "request_response_information",
            Place.CONNECT,
            (Reader.byte, _byte, _check_switch),
        ),
        (26, "response_information", Place.CONNACK, (Reader.string, write_string, _no_check)),
        (
            28,
            "server_reference",
            Place.CONNACK | Place.DISCONNECT,
            (Reader.string, write_string, _no_check),
        ),
        (31, "reason_string", _ANSWERS, (Reader.string, write_string, _no_check)),
        (33, "receive_maximum", _BOTH, (Reader.two, _two, _check_positive)),
        (34, "topic_alias_maximum", _BOTH, (Reader.two, _two, _no_check)),
        (35, "topic_alias", Place.PUBLISH, (Reader.two, _two, _check_alias)),
        (36, "maximum_qos", Place.CONNACK, (Reader.byte, _byte, _check_switch)),
        (37, "retain_available", Place.CONNACK, (Reader.byte, _byte, _check_switch)),
        (38, "user_properties", _EVERYWHERE, (_read_pair, _write_pair, _no_check)),
        (39, "maximum_packet_size", _BOTH, (Reader.four, _four, _check_positive)),
        (
            40,
            "wildcard_subscription_available",
            Place.CONNACK,
            (Reader.byte, _byte, _check_switch),
        ),
        (
            41,
            "subscription_identifier_available",
            Place.CONNACK,
            (Reader.byte, _byte, _check_switch),
        ),
        (
            42,
            "shared_subscription_available",
            Place.CONNACK,
            (Reader.byte, _byte, _check_switch),
        ),
    )
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
    found: dict[str, Any] = {}
    while inner.left:
        kind = _BY_IDENTIFIER.get(inner.variable())
        if kind is None or not kind.places & place:
            what = "an unknown property" if kind is None else kind.name
            msg = f"{what} in a {place.name}"
            raise MalformedPacket(msg)
        value = kind.read(inner)
        kind.check(value, kind.name)
        if kind.name in _REPEATED:
            found.setdefault(kind.name, []).append(value)
        elif kind.name in found:
            msg = f"{kind.name} twice in a {place.name}"
            raise ProtocolViolation(msg)
        else:
            found[kind.name] = value
    for name in _REPEATED & found.keys():
        found[name] = tuple(found[name])
    properties = Properties(**found)
    _check_together(properties, place)
    return properties


def _check_together(properties: Properties, place: Place) -> None:
    if place is Place.SUBSCRIBE and len(properties.subscription_identifiers) > 1:
        msg = "subscription_identifiers twice in a SUBSCRIBE"
        raise ProtocolViolation(msg)
    if properties.authentication_data is not None and properties.authentication_method is None:
        msg = f"a {place.name} has authentication_data without an authentication_method"
        raise ProtocolViolation(msg)


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
    for kind in _KINDS:
        value = getattr(properties, kind.name)
        if value is None or value == ():
            continue
        if not kind.places & place:
            msg = f"{kind.name} may not stand in a {place.name}"
            raise InvalidPacket(msg)
        for each in value if kind.name in _REPEATED else (value,):
            kind.check(each, kind.name)
            yield bytes((kind.identifier,)) + kind.write(each, kind.name)
