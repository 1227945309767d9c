"""Encoder of CBOR that preserves exact Python types.

A table has the encoder of each exact class, so a subclass of a built-in type is never encoded
as its base. A package adds encoders of its own types to its table, by assignment or at their
first use::

    table = EncoderTable(depth_limit=16)
    table[Point] = lambda point, depth: TAG_HEAD + table.encode_array(point.parts, depth)
    payload = table.encode(value)

The encoders are written by hand because they encode a scalar or a small message in a third of
the time of cbor2; long runs of scalars are passed to cbor2 in one call. The tags are those that
`PYTHON_TAGS` of :mod:`callboard.cbor.reader` decodes.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from struct import Struct
from typing import Any, Final

import cbor2

from callboard.cbor import tags
from callboard.cbor.collisions import TEXTS, check_hashes
from callboard.protocol_errors import CollidingKeys

#: Encodes a value; the second argument is the number of containers around it.
Encoder = Callable[[Any, int], bytes]

# Types that cbor2 encodes as we do, without tags.
_SCALARS: Final = frozenset({type(None), bool, int, float, str, bytes})

# From this many items on, checking all types and calling cbor2 once is faster than our loop.
_LONG_RUN: Final = 12

_pack_1 = Struct(">BB").pack
_pack_2 = Struct(">BH").pack
_pack_4 = Struct(">BI").pack
_pack_8 = Struct(">BQ").pack
_pack_float = Struct(">Bd").pack
_dumps = cbor2.dumps


class Unserializable(Exception):
    """A value cannot be encoded; the codec searches for its path in the message afterwards."""


def too_deep(limit: int) -> Unserializable:
    """Return the error for a value that is nested deeper than ``limit`` containers."""
    return Unserializable(f"nested deeper than {limit} containers")


def head(major: int, count: int) -> bytes:
    """Encode the head of a CBOR item; ``major`` has the major type in its upper three bits."""
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
TEXT_HEADS: Final = tuple(head(0x60, count) for count in range(256))
_BYTES_HEADS: Final = tuple(head(0x40, count) for count in range(256))
_NATURALS: Final = tuple(head(0x00, number) for number in range(1024))

_TUPLE_HEAD: Final = head(0xC0, tags.TUPLE)
_SET_HEAD: Final = head(0xC0, tags.SET)
_FROZENSET_HEAD: Final = head(0xC0, tags.FROZENSET)
_PAIRS_HEAD: Final = head(0xC0, tags.PAIRS)
_BYTEARRAY_HEAD: Final = head(0xC0, tags.BYTEARRAY)
_FOLDED_HEAD: Final = head(0xC0, tags.FOLDED) + b"\x81"
_TIMEDELTA_HEAD: Final = head(0xC0, tags.TIMEDELTA) + b"\x83"
_UUID_HEAD: Final = head(0xC0, 37) + head(0x40, 16)


def encode_int(value: int, _depth: int = 0) -> bytes:
    """Encode an integer of any size."""
    if 0 <= value < 1024:
        return _NATURALS[value]
    if 0 <= value < 0x10000000000000000:
        return head(0x00, value)
    if -0x10000000000000000 <= value < 0:
        return head(0x20, -1 - value)
    return _dumps(value)


def encode_text(value: str, _depth: int = 0) -> bytes:
    """Encode a string.

    Raises:
        UnicodeEncodeError: UTF-8 cannot encode the string.
    """
    text = value.encode()
    size = len(text)
    return (TEXT_HEADS[size] if size < 256 else head(0x60, size)) + text


def encode_bytes(value: bytes, _depth: int = 0) -> bytes:
    """Encode a byte string."""
    size = len(value)
    return (_BYTES_HEADS[size] if size < 256 else head(0x40, size)) + value


def _moment_encoder(prefix: bytes) -> Encoder:
    """Return the encoder of datetimes or times; ``prefix`` is the head of the tag."""

    def encode(value: datetime | time, _depth: int) -> bytes:
        if value.tzinfo is not None and value.utcoffset() is None:
            msg = f"tzinfo {value.tzinfo!r} returns no offset for this {type(value).__name__}"
            raise Unserializable(msg)
        text = prefix + encode_text(value.isoformat())
        return _FOLDED_HEAD + text if value.fold else text

    return encode


def _encode_timedelta(value: timedelta, _depth: int) -> bytes:
    """Encode a timedelta as days, seconds and microseconds."""
    parts = (value.days, value.seconds, value.microseconds)
    return _TIMEDELTA_HEAD + b"".join([encode_int(part) for part in parts])


def _text_encoder(prefix: bytes) -> Encoder:
    """Return the encoder of a type that is encoded as ``str(value)`` after a prefix."""
    return lambda value, _depth: prefix + encode_text(str(value))


def _check_keys(keys: Sequence[object]) -> None:
    """Refuse keys that the receiver would refuse, so the error reaches the sender."""
    try:
        check_hashes(keys)
    except CollidingKeys as error:
        raise Unserializable(str(error)) from None


_PYTHON_ENCODERS: Final[Mapping[type, Encoder]] = {
    type(None): lambda _value, _depth: b"\xf6",
    bool: lambda value, _depth: b"\xf5" if value else b"\xf4",
    int: encode_int,
    float: lambda value, _depth: _pack_float(0xFB, value),
    str: encode_text,
    bytes: encode_bytes,
    bytearray: lambda value, _depth: _BYTEARRAY_HEAD + encode_bytes(bytes(value)),
    datetime: _moment_encoder(head(0xC0, tags.DATETIME)),
    date: _text_encoder(head(0xC0, 1004)),
    time: _moment_encoder(head(0xC0, tags.TIME)),
    timedelta: _encode_timedelta,
    **{
        ip_type: _text_encoder(head(0xC0, tags.IP) + b"\x82" + head(0x00, place))
        for place, ip_type in enumerate(tags.IP_TYPES)
    },
}

#: Encoders of classes whose modules take long to import, by module and name. They are not
#: imported here: a program that has such a value has imported its module.
_LATE_ENCODERS: Final[Mapping[tuple[str, str], Encoder]] = {
    ("decimal", "Decimal"): _text_encoder(head(0xC0, tags.DECIMAL)),
    ("uuid", "UUID"): lambda value, _depth: _UUID_HEAD + value.bytes,
}


class EncoderTable(dict[type, Encoder]):
    """Encoders by exact class; the owner adds encoders of its own classes."""

    def __init__(
        self,
        depth_limit: int,
        find: Callable[["EncoderTable", type], Encoder | None] | None = None,
    ) -> None:
        """Create the table of Python's types.

        Args:
            depth_limit: limit of nested containers.
            find: returns the encoder of a new class, given the table; None if the class has no
                wire form.
        """
        super().__init__(_PYTHON_ENCODERS)
        self.depth_limit = depth_limit
        self._find = find
        self[list] = self.encode_array
        self[tuple] = self._encode_tuple
        self[set] = self._set_encoder(_SET_HEAD)
        self[frozenset] = self._set_encoder(_FROZENSET_HEAD)
        self[dict] = self._encode_dict

    def __missing__(self, cls: type) -> Encoder:
        """Add the encoder of a new class to the table, and return it.

        Raises:
            Unserializable: the class cannot be encoded.
        """
        module, name = cls.__module__, cls.__qualname__
        encoder = _LATE_ENCODERS.get((module, name))
        if encoder is None or getattr(sys.modules.get(module), name, None) is not cls:
            encoder = None if self._find is None else self._find(self, cls)
        if encoder is None:
            raise Unserializable(cls)
        self[cls] = encoder
        return encoder

    def encode(self, value: object, depth: int = 0) -> bytes:
        """Encode a value that has ``depth`` containers around it.

        Raises:
            Unserializable: the value, or a part of it, cannot be encoded.
        """
        return self[type(value)](value, depth)

    def encode_array(self, items: Sequence[object], depth: int) -> bytes:
        """Encode the items of a sequence as an array."""
        count = len(items)
        if count >= _LONG_RUN and _SCALARS.issuperset(map(type, items)):
            return _dumps(items)
        if depth >= self.depth_limit:
            raise too_deep(self.depth_limit)
        inner = depth + 1
        content = b"".join([self[type(item)](item, inner) for item in items])
        return (_ARRAY_HEADS[count] if count < 24 else head(0x80, count)) + content

    def _encode_tuple(self, items: tuple[object, ...], depth: int) -> bytes:
        """Encode a tuple: an array with a tag."""
        return _TUPLE_HEAD + self.encode_array(items, depth)

    def _set_encoder(self, prefix: bytes) -> Encoder:
        """Return the encoder of sets or frozensets."""
        encode_array = self.encode_array

        def encode(items: Any, depth: int) -> bytes:
            elements = tuple(items)
            _check_keys(elements)
            return prefix + encode_array(elements, depth)

        return encode

    def _encode_dict(self, value: dict[object, object], depth: int) -> bytes:
        """Encode a dict: a map, or pairs in an array if a key is not text or bytes."""
        if not TEXTS.issuperset(map(type, value)):
            _check_keys(list(value))
            flat = [part for pair in value.items() for part in pair]
            return _PAIRS_HEAD + self.encode_array(flat, depth)
        if len(value) >= _LONG_RUN and _SCALARS.issuperset(map(type, value.values())):
            return _dumps(value)
        if depth >= self.depth_limit:
            raise too_deep(self.depth_limit)
        inner = depth + 1
        return head(0xA0, len(value)) + b"".join(
            [
                self[type(key)](key, inner) + self[type(item)](item, inner)
                for key, item in value.items()
            ]
        )
