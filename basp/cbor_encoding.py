"""From Python values to CBOR, exact to the type.

The encoders are chosen by the exact class of each value, so a subclass of a built-in type
never passes for its base. They are written by hand because a scalar or a small message
costs a third of what the general encoder takes; long runs of scalars go to cbor2 in
one call.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address
from operator import attrgetter
from struct import Struct
from typing import Any, Final
from uuid import UUID

import cbor2

from basp import cbor_tags as tags
from basp.errors import CollidingKeys
from basp.hash_collisions import TEXTS, check_hashes
from basp.registry import FreeForm, MessageRegistry, MessageType

__all__ = ["SCALARS", "Encoder", "EncoderTable", "Unserializable", "head"]

#: Takes a value and the number of containers around it.
Encoder = Callable[[Any, int], bytes]

#: Types whose CBOR needs no tag and no look inside.
SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})

# From this many items on, checking their types and calling cbor2 once is cheaper.
_LONG_RUN: Final = 12

_pack_1 = Struct(">BB").pack
_pack_2 = Struct(">BH").pack
_pack_4 = Struct(">BI").pack
_pack_8 = Struct(">BQ").pack
_pack_float = Struct(">Bd").pack
_dumps = cbor2.dumps


class Unserializable(Exception):  # noqa: N818  (never leaves this package)
    """A value that has no encoder; its place in the message is found afterwards."""


def head(major: int, count: int) -> bytes:
    """Write the head of a CBOR item: ``major`` is the type in its upper three bits."""
    if count < 24:
        return bytes((major | count,))
    if count < 0x100:
        return _pack_1(major | 24, count)
    if count < 0x10000:
        return _pack_2(major | 25, count)
    if count < 0x100000000:
        return _pack_4(major | 26, count)
    return _pack_8(major | 27, count)


_ARRAY_HEADS: Final = tuple(head(0x80, count) for count in range(24))
_TEXT_HEADS: Final = tuple(head(0x60, count) for count in range(256))
_BYTES_HEADS: Final = tuple(head(0x40, count) for count in range(256))
_NATURALS: Final = tuple(head(0x00, number) for number in range(1024))

_TUPLE_HEAD: Final = head(0xC0, tags.TUPLE)
_SET_HEAD: Final = head(0xC0, tags.SET)
_FROZENSET_HEAD: Final = head(0xC0, tags.FROZENSET)
_PAIRS_HEAD: Final = head(0xC0, tags.PAIRS)
_REGISTERED_HEAD: Final = head(0xC0, tags.REGISTERED) + b"\x82"
_REFERENCE_HEAD: Final = head(0xC0, tags.REFERENCE) + b"\x82"
_BYTEARRAY_HEAD: Final = head(0xC0, tags.BYTEARRAY)
_DECIMAL_HEAD: Final = head(0xC0, tags.DECIMAL)
_FOLDED_HEAD: Final = head(0xC0, tags.FOLDED) + b"\x81"
_TIMEDELTA_HEAD: Final = head(0xC0, tags.TIMEDELTA) + b"\x83"
_DATE_HEAD: Final = head(0xC0, 1004)
_UUID_HEAD: Final = head(0xC0, 37) + head(0x40, 16)


def _encode_none(_value: None, _depth: int) -> bytes:
    return b"\xf6"


def _encode_bool(value: bool, _depth: int) -> bytes:  # noqa: FBT001
    return b"\xf5" if value else b"\xf4"


def _encode_int(value: int, _depth: int) -> bytes:
    if 0 <= value < 1024:
        return _NATURALS[value]
    if 0 <= value < 0x10000000000000000:
        return head(0x00, value)
    if -0x10000000000000000 <= value < 0:
        return head(0x20, -1 - value)
    return _dumps(value)


def _encode_float(value: float, _depth: int) -> bytes:
    return _pack_float(0xFB, value)


def _encode_str(value: str, _depth: int) -> bytes:
    text = value.encode()
    size = len(text)
    return (_TEXT_HEADS[size] if size < 256 else head(0x60, size)) + text


def _encode_bytes(value: bytes, _depth: int) -> bytes:
    size = len(value)
    return (_BYTES_HEADS[size] if size < 256 else head(0x40, size)) + value


def _encode_bytearray(value: bytearray, depth: int) -> bytes:
    return _BYTEARRAY_HEAD + _encode_bytes(bytes(value), depth)


def _encode_decimal(value: Decimal, depth: int) -> bytes:
    return _DECIMAL_HEAD + _encode_str(str(value), depth)


def _moment_encoder(prefix: bytes) -> Encoder:
    def encode(value: datetime | time, depth: int) -> bytes:
        if value.tzinfo is not None and value.utcoffset() is None:
            msg = f"tzinfo {value.tzinfo!r} gives this {type(value).__name__} no offset"
            raise Unserializable(msg)
        text = prefix + _encode_str(value.isoformat(), depth)
        return _FOLDED_HEAD + text if value.fold else text

    return encode


def _encode_date(value: date, depth: int) -> bytes:
    return _DATE_HEAD + _encode_str(value.isoformat(), depth)


def _encode_timedelta(value: timedelta, depth: int) -> bytes:
    parts = (value.days, value.seconds, value.microseconds)
    return _TIMEDELTA_HEAD + b"".join([_encode_int(part, depth) for part in parts])


def _encode_uuid(value: UUID, _depth: int) -> bytes:
    return _UUID_HEAD + value.bytes


def _ip_encoder(prefix: bytes) -> Encoder:
    def encode(value: IPv4Address, depth: int) -> bytes:
        return prefix + _encode_str(str(value), depth)

    return encode


def _check_keys(keys: Sequence[object]) -> None:
    """Refuse here what the receiver would refuse."""
    try:
        check_hashes(keys)
    except CollidingKeys as error:
        raise Unserializable(str(error)) from None


class EncoderTable(dict[type, Encoder]):
    """Encoders by exact class; those of registered types are made on first use."""

    __slots__ = ("_depth_limit", "_registry")

    def __init__(self, registry: MessageRegistry, depth_limit: int) -> None:
        """Make the table for ``registry``; containers nest ``depth_limit`` deep at most."""
        super().__init__()
        self._registry = registry
        self._depth_limit = depth_limit
        self[type(None)] = _encode_none
        self[bool] = _encode_bool
        self[int] = _encode_int
        self[float] = _encode_float
        self[str] = _encode_str
        self[bytes] = _encode_bytes
        self[bytearray] = _encode_bytearray
        self[Decimal] = _encode_decimal
        self[datetime] = _moment_encoder(head(0xC0, tags.DATETIME))
        self[date] = _encode_date
        self[time] = _moment_encoder(head(0xC0, tags.TIME))
        self[timedelta] = _encode_timedelta
        self[UUID] = _encode_uuid
        for place, ip_type in enumerate(tags.IP_TYPES):
            self[ip_type] = _ip_encoder(head(0xC0, tags.IP) + b"\x82" + head(0x00, place))
        self[list] = self._encode_array
        self[tuple] = self._encode_tuple
        self[set] = self._set_encoder(_SET_HEAD)
        self[frozenset] = self._set_encoder(_FROZENSET_HEAD)
        self[dict] = self._encode_dict

    def __missing__(self, cls: type) -> Encoder:
        """Make the encoder of a registered class.

        Raises:
            Unserializable: the class is not registered.
        """
        kind = self._registry.type_of(cls)
        if kind is None:
            raise Unserializable(cls)
        made = self._registered_encoder(kind)
        self[cls] = made
        return made

    def add_reference(self, cls: type, to_pair: Callable[[Any], tuple[bytes, int]]) -> None:
        """Let instances of ``cls`` travel as references: node id and actor number."""

        def encode(value: object, depth: int) -> bytes:
            node, actor = to_pair(value)
            return _REFERENCE_HEAD + _encode_bytes(node, depth) + _encode_int(actor, depth)

        self[cls] = encode

    def _encode_array(self, items: Sequence[object], depth: int) -> bytes:
        count = len(items)
        if count >= _LONG_RUN and SCALARS.issuperset(map(type, items)):
            return _dumps(items)
        if depth >= self._depth_limit:
            msg = f"nested deeper than {self._depth_limit} containers"
            raise Unserializable(msg)
        inner = depth + 1
        content = b"".join([self[type(item)](item, inner) for item in items])
        return (_ARRAY_HEADS[count] if count < 24 else head(0x80, count)) + content

    def _encode_tuple(self, items: tuple[object, ...], depth: int) -> bytes:
        return _TUPLE_HEAD + self._encode_array(items, depth)

    def _set_encoder(self, prefix: bytes) -> Encoder:
        encode_array = self._encode_array

        def encode(items: Any, depth: int) -> bytes:
            elements = tuple(items)
            _check_keys(elements)
            return prefix + encode_array(elements, depth)

        return encode

    def _encode_dict(self, value: dict[object, object], depth: int) -> bytes:
        if not TEXTS.issuperset(map(type, value)):
            _check_keys(list(value))
            flat = [part for pair in value.items() for part in pair]
            return _PAIRS_HEAD + self._encode_array(flat, depth)
        if len(value) >= _LONG_RUN and SCALARS.issuperset(map(type, value.values())):
            return _dumps(value)
        if depth >= self._depth_limit:
            msg = f"nested deeper than {self._depth_limit} containers"
            raise Unserializable(msg)
        inner = depth + 1
        return head(0xA0, len(value)) + b"".join(
            [
                self[type(key)](key, inner) + self[type(item)](item, inner)
                for key, item in value.items()
            ]
        )

    def _registered_encoder(self, kind: MessageType) -> Encoder:
        prefix = _REGISTERED_HEAD + _encode_str(kind.name, 0)
        if kind.kind == "enum":
            names = {name: prefix + _encode_str(name, 0) for name in kind.members}
            return lambda member, _depth: names[member.name]
        if kind.kind == "flag":
            return lambda flag, depth: prefix + _encode_int(int(flag.value), depth)
        if isinstance(kind, FreeForm):
            written = kind.written
            return lambda value, depth: prefix + self._encode_any(written(value), depth)
        return self._record_encoder(prefix, kind.field_names)

    def _encode_any(self, value: object, depth: int) -> bytes:
        return self[type(value)](value, depth)

    def _record_encoder(self, prefix: bytes, field_names: tuple[str, ...]) -> Encoder:
        """Interleave the constant heads and names with the encoded fields."""
        limit = self._depth_limit
        if not field_names:
            constant = prefix + b"\xa0"
            return lambda _value, _depth: constant
        keys = [_encode_str(name, 0) for name in field_names]
        keys[0] = prefix + head(0xA0, len(keys)) + keys[0]
        if len(field_names) == 1:
            return self._single_field_encoder(keys[0], field_names[0])
        values_of = attrgetter(*field_names)
        blank: list[bytes] = [part for key in keys for part in (key, b"")]

        def encode(value: object, depth: int) -> bytes:
            if depth >= limit:
                msg = f"nested deeper than {limit} containers"
                raise Unserializable(msg)
            inner = depth + 1
            parts = blank.copy()
            parts[1::2] = [self[type(field)](field, inner) for field in values_of(value)]
            return b"".join(parts)

        return encode

    def _single_field_encoder(self, key: bytes, field_name: str) -> Encoder:
        limit = self._depth_limit
        value_of = attrgetter(field_name)

        def encode(value: object, depth: int) -> bytes:
            if depth >= limit:
                msg = f"nested deeper than {limit} containers"
                raise Unserializable(msg)
            field = value_of(value)
            return key + self[type(field)](field, depth + 1)

        return encode
