"""From Broker's bytes of a value to ours and back, without an object for each value.

Doors carry values of which nobody here looks at one: what came in Broker's encoding leaves
in ours (CBOR), and the other way round. Scalars, vectors, and what is in them, are copied from
the one form to the other as they are passed by; nearly all that events hold. What is left (sets
and tables, whose order has to be right, subnets, odd forms of CBOR, everything malformed) takes
the way by objects, `zeek.value` and `model.encoding`. That way defines the results and the
errors, so both are equal for all values; a property test holds them to it.
"""

import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

from callboard.model.data import DEPTH_LIMIT, DataType
from callboard.model.encoding import MAX_ITEMS, data_from_cbor, data_to_cbor, refuse_heavy
from callboard.zeek.value import read_value, value_from_bytes, value_to_bytes

_U64: Final = struct.Struct(">Q").unpack_from
_I64: Final = struct.Struct(">q").unpack_from
_F64: Final = struct.Struct(">d").unpack_from
_PORT_FIELDS: Final = struct.Struct(">HB").unpack_from
_pack_u64: Final = struct.Struct(">Q").pack
_pack_tagged: Final = struct.Struct(">BQ").pack

# Plain numbers: an attribute of an enum for each value would take most of the time.
_STRING: Final = int(DataType.String)
_VECTOR: Final = int(DataType.Vector)
_COUNT: Final = int(DataType.Count)
_ADDRESS: Final = int(DataType.Address)

_MAPPED: Final = bytes(10) + b"\xff\xff"

#: Our tags, from that of counts on, as CBOR writes them; see `callboard.model.encoding`.
_TAG_COUNT: Final = b"\xd9\xbf\x18"
_TAG_ADDRESS: Final = b"\xd9\xbf\x19"
_TAG_PORT: Final = b"\xd9\xbf\x1b\x82"
_TAG_ENUM: Final = b"\xd9\xbf\x1e"


def _heads(major: int) -> list[bytes]:
    """Return the heads of CBOR items of one kind for all numbers of one byte."""
    return [bytes((major | n,)) if n < 24 else bytes((major | 24, n)) for n in range(256)]


_UINTS, _NEGATIVES = _heads(0x00), _heads(0x20)
_TEXTS, _ARRAYS = _heads(0x60), _heads(0x80)
_COUNTS: Final = [_TAG_COUNT + head for head in _UINTS]
_SMALL_COUNTS: Final = {n.to_bytes(8): _COUNTS[n] for n in range(256)}


#: How events begin, in both forms: a vector of three, version 1, and kind 1.
_EVENT: Final = b"\x0e\x03" + 2 * b"\x02\0\0\0\0\0\0\0\x01"
_OUR_EVENT: Final = b"\x83" + 2 * _COUNTS[1]
_INNER, _OUR_INNER = len(_EVENT), len(_OUR_EVENT)


class _LongWay(Exception):
    """This value has to go by objects."""


# ------------------------------------------------------------------------------- in


def cbor_from_broker(buffer: bytes) -> bytes:
    """Return the CBOR of the value that fills Broker's bytes.

    Raises:
        InvalidData: they are no value, bytes follow it, or it is too deep or too heavy.
    """
    try:
        out: list[bytes] = []
        if buffer.startswith(_EVENT):
            stop = _INNER + 4 + buffer[_INNER + 3]
            if start := _read_start(buffer[_INNER:stop]):
                out += _OUR_EVENT, start
                end = _read_items(buffer, stop, buffer[_INNER + 1] - 1, out, 2)
            else:
                end = _read_items(buffer, 0, 1, out, 0)
        else:
            end = _read_items(buffer, 0, 1, out, 0)
        if end != len(buffer):  # what a slice lacks shows here
            raise _LongWay
        content = b"".join(out)
    except (_LongWay, IndexError, struct.error):
        content = data_to_cbor(value_from_bytes(buffer))
    if len(content) > MAX_ITEMS:
        refuse_heavy(content)
    return content


@lru_cache(1024)
def _read_start(start: bytes) -> bytes:
    """Return the CBOR of how the inner vector of an event begins: its length and its name.

    Nothing where it begins otherwise.
    """
    out: list[bytes] = []
    is_usual = len(start) > 3 and start[0] == _VECTOR and 0 < start[1] < 0x80
    is_usual = is_usual and start[2] == _STRING and start[3] < 0x80
    if is_usual and _read_items(start, 2, 1, out, 2) == len(start):
        return _ARRAYS[start[1]] + b"".join(out)
    return b""


def cbor_at(buffer: bytes, at: int) -> tuple[bytes, int]:
    """Return the CBOR of the value at a place in Broker's bytes, and the place behind it.

    Raises:
        InvalidData: there is no value, it does not end, or it is too deep or too heavy.
    """
    try:
        out: list[bytes] = []
        end = _read_items(buffer, at, 1, out, 0)
        if end > len(buffer):
            raise _LongWay
        content = b"".join(out)
    except (_LongWay, IndexError, struct.error):
        data, end = read_value(buffer, at)
        content = data_to_cbor(data)
    if len(content) > MAX_ITEMS:
        refuse_heavy(content)
    return content, end


def _head(major: int, number: int) -> bytes:
    """Return the head of a CBOR item."""
    if number < 24:
        return bytes((major | number,))
    for more, size in ((24, 1), (25, 2), (26, 4)):
        if number < 1 << 8 * size:
            return bytes((major | more,)) + number.to_bytes(size)
    return _pack_tagged(major | 27, number)


def _length(buffer: bytes, at: int) -> tuple[int, int]:
    """Read a varbyte; longer ones than values have go the long way."""
    number = shift = 0
    while (byte := buffer[at]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 28:
            raise _LongWay
    return number | byte << shift, at + 1


# One branch for each common kind, here and below: a call costs as much as what it does.
def _read_items(  # noqa: C901
    buffer: bytes, at: int, count: int, out: list[bytes], depth: int
) -> int:
    """Copy values one behind the other; returns the place behind them."""
    append = out.append
    for _ in range(count):
        kind = buffer[at]
        at += 1
        if kind == _STRING:
            size = buffer[at]
            at += 1
            if size > 0x7F:
                size, at = _length(buffer, at - 1)
            text = buffer[at : at + size]
            at += size
            if not text.isascii():
                _check_text(text)
            append(_TEXTS[size] if size < 256 else _head(0x60, size))
            append(text)
        elif kind == _COUNT:
            small = _SMALL_COUNTS.get(buffer[at : at + 8])
            append(_read_count(buffer, at)[0] if small is None else small)
            at += 8
        elif kind == _VECTOR:
            size = buffer[at]
            at += 1
            if size > 0x7F:
                size, at = _length(buffer, at - 1)
            if depth >= DEPTH_LIMIT or size > len(buffer) - at:
                raise _LongWay
            append(_ARRAYS[size] if size < 256 else _head(0x80, size))
            at = _read_items(buffer, at, size, out, depth + 1)
        elif kind == _ADDRESS:
            append(_address(buffer[at : at + 16]))
            at += 16
        elif kind in _READ:
            piece, at = _READ[kind](buffer, at)
            append(piece)
        else:
            raise _LongWay
    return at


def _read_count(buffer: bytes, at: int) -> tuple[bytes, int]:
    """Read a count."""
    (number,) = _U64(buffer, at)
    return _COUNTS[number] if number < 256 else _TAG_COUNT + _head(0, number), at + 8


@lru_cache(4096)
def _address(address: bytes) -> bytes:
    """Return the CBOR of an address, of 4 bytes where it is of IPv4; events repeat them."""
    if address.startswith(_MAPPED):
        return _TAG_ADDRESS + b"\x44" + address[12:]
    return _TAG_ADDRESS + b"\x50" + address


def _read_port(buffer: bytes, at: int) -> tuple[bytes, int]:
    """Read a port."""
    number, protocol = _PORT_FIELDS(buffer, at)
    if protocol > 3:
        raise _LongWay
    return _TAG_PORT + _head(0, number) + _UINTS[protocol], at + 3


def _read_real(buffer: bytes, at: int) -> tuple[bytes, int]:
    """Read a number that has 64 bits in both forms."""
    (real,) = _F64(buffer, at)
    if real - real != 0.0:  # neither infinite nor "not a number": CBOR has shorter forms
        raise _LongWay
    return b"\xfb" + buffer[at : at + 8], at + 8


def _read_integer(buffer: bytes, at: int, tag: bytes = b"") -> tuple[bytes, int]:
    """Read a signed number, of a tag or without one."""
    (number,) = _I64(buffer, at)
    return tag + _integer(number), at + 8


def _read_enum(buffer: bytes, at: int) -> tuple[bytes, int]:
    """Read the name of an enum value."""
    size, at = _length(buffer, at)
    text = buffer[at : at + size]
    _check_text(text)
    return _TAG_ENUM + _head(0x60, size) + text, at + size


_BOOLEANS: Final = (b"\xf4", b"\xf5")

#: How values are read that are no strings and no vectors; what is missing goes the long way.
_READ: Final[dict[int, Callable[[bytes, int], tuple[bytes, int]]]] = {
    DataType.Nil: lambda _, at: (b"\xf6", at),
    DataType.Boolean: lambda buffer, at: (_BOOLEANS[buffer[at]], at + 1),
    DataType.Count: _read_count,
    DataType.Integer: _read_integer,
    DataType.Real: _read_real,
    DataType.Address: lambda buffer, at: (_address(buffer[at : at + 16]), at + 16),
    DataType.Port: _read_port,
    DataType.Timestamp: partial(_read_integer, tag=b"\xd9\xbf\x1c"),
    DataType.Timespan: partial(_read_integer, tag=b"\xd9\xbf\x1d"),
    DataType.EnumValue: _read_enum,
}


def _integer(number: int) -> bytes:
    """Return the CBOR of a signed number of 64 bits."""
    if number >= 0:
        return _UINTS[number] if number < 256 else _head(0, number)
    number = ~number
    return _NEGATIVES[number] if number < 256 else _head(0x20, number)


def _check_text(text: bytes) -> None:
    """Let a string that is not UTF-8 go the long way: it travels as bytes."""
    try:
        text.decode()
    except UnicodeDecodeError:
        raise _LongWay from None


# ------------------------------------------------------------------------------- out


def broker_from_cbor(content: bytes) -> bytes:
    """Return Broker's bytes of the value that fills the CBOR.

    Raises:
        InvalidData: they are no value, bytes follow it, or it is too deep or too heavy.
    """
    if len(content) > MAX_ITEMS:
        refuse_heavy(content)
    try:
        out: list[bytes] = []
        if content.startswith(_OUR_EVENT):
            size = content[_OUR_INNER + 1] - 0x60
            stop = _OUR_INNER + (2 + size if size < 24 else 3 + content[_OUR_INNER + 2])
            if start := _write_start(content[_OUR_INNER:stop]):
                out += _EVENT, start
                end = _write_items(content, stop, content[_OUR_INNER] - 0x81, out, 2)
            else:
                end = _write_items(content, 0, 1, out, 0)
        else:
            end = _write_items(content, 0, 1, out, 0)
        if end == len(content):  # what a slice lacks shows here
            return b"".join(out)
    except (_LongWay, IndexError, struct.error):
        pass
    return value_to_bytes(data_from_cbor(content))


@lru_cache(1024)
def _write_start(start: bytes) -> bytes:
    """Return Broker's bytes of how the inner vector of an event begins, or nothing."""
    out: list[bytes] = []
    is_usual = len(start) > 1 and 0x80 < start[0] < 0x98 and 0x60 <= start[1] <= 0x78
    if is_usual and _write_items(start, 1, 1, out, 2) == len(start):
        return _VECTORS[start[0] - 0x80] + b"".join(out)
    return b""


def _number(content: bytes, at: int, kind: int) -> tuple[int, int]:
    """Read the number in the head of an item, from the byte behind the first one on."""
    size = _SIZES[kind]
    if size is None or len(content) < at + size:
        raise _LongWay
    return int.from_bytes(content[at : at + size]), at + size


#: Bytes of the number behind the first byte, by its lower five bits; None for odd forms.
_SIZES: Final = (*[None] * 24, 1, 2, 4, 8, *[None] * 4)
#: Small counts by the bytes behind the first one of their tag.
_SMALL: Final = {_COUNTS[n][1:]: b"\x02" + n.to_bytes(8) for n in range(24)}
_MIDDLE: Final = {_COUNTS[n][1:]: b"\x02" + n.to_bytes(8) for n in range(24, 256)}
_V4: Final = _TAG_ADDRESS[1:] + b"\x44"
_BROKER_V4: Final = b"\x06" + _MAPPED
_SMALL_INTEGERS: Final = [b"\x03" + n.to_bytes(8) for n in range(24)]


def _varbyte(number: int) -> bytes:
    """Return a length as Broker writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_VARBYTES: Final = [_varbyte(number) for number in range(256)]
_STRINGS: Final = [b"\x05" + size for size in _VARBYTES]
_VECTORS: Final = [b"\x0e" + size for size in _VARBYTES]


def _write_items(  # noqa: C901
    content: bytes, at: int, count: int, out: list[bytes], depth: int
) -> int:
    """Copy items one behind the other; returns the place behind them."""
    append = out.append
    for _ in range(count):
        first = content[at]
        at += 1
        if 0x60 <= first < 0x78:
            end = at + first - 0x60
            text = content[at:end]
            if not text.isascii():
                _check_text(text)
            append(_STRINGS[first - 0x60])
            append(text)
            at = end
        elif first == 0xD9:
            if (small := _SMALL.get(content[at : at + 3])) is not None:
                append(small)
                at += 3
            elif content.startswith(_V4, at):
                append(_BROKER_V4 + content[at + 3 : at + 7])
                at += 7
            elif (middle := _MIDDLE.get(content[at : at + 4])) is not None:
                append(middle)
                at += 4
            else:
                at = _write_tagged(content, at, out)
        elif 0x80 <= first < 0x9C:
            size = first & 0x1F
            if size >= 24:
                size, at = _number(content, at, size)
            if depth >= DEPTH_LIMIT or size > len(content) - at:
                raise _LongWay
            append(_VECTORS[size] if size < 256 else b"\x0e" + _varbyte(size))
            at = _write_items(content, at, size, out, depth + 1)
        else:
            at = _write_scalar(content, at, first, out)
    return at


def _write_scalar(content: bytes, at: int, first: int, out: list[bytes]) -> int:
    """Copy a value of plain CBOR that is not an array; `first` is its first byte."""
    if first < 24:
        out.append(_SMALL_INTEGERS[first])
    elif first < 0x3C:
        number, at = _signed(content, at, first)
        out.append(b"\x03" + _pack_u64(number & 0xFFFFFFFFFFFFFFFF))
    elif 0x78 <= first < 0x7C:
        return _write_text(content, at, first, _STRINGS, out)
    elif first == 0xFB and content[at] & 0x7F != 0x7F:  # then it is none of the odd numbers
        out.append(b"\x04" + content[at : at + 8])
        at += 8
    elif 0xF4 <= first <= 0xF6:
        out.append(_PLAIN[first - 0xF4])
    else:
        raise _LongWay
    return at


_PLAIN: Final = (b"\x01\x00", b"\x01\x01", b"\x00")


def _signed(content: bytes, at: int, first: int) -> tuple[int, int]:
    """Read an integer that fits 64 bits with its sign."""
    number = first & 0x1F
    if number >= 24:
        number, at = _number(content, at, number)
    if number >> 63 or first >= 0x40:
        raise _LongWay
    return ~number if first >= 0x20 else number, at


def _write_text(
    content: bytes, at: int, first: int, heads: list[bytes], out: list[bytes]
) -> int:
    """Copy a text; `first` is the first byte of its head."""
    size = first & 0x1F
    if size >= 24:
        size, at = _number(content, at, size)
    end = at + size
    text = content[at:end]
    if not text.isascii():
        _check_text(text)
    out.append(heads[size] if size < 256 else heads[0][:1] + _varbyte(size))
    out.append(text)
    return end


def _write_tagged(content: bytes, at: int, out: list[bytes]) -> int:
    """Copy a value whose type is a tag of ours: `0xd9` and two bytes."""
    tag, first = content[at + 1], content[at + 2]
    if content[at] != 0xBF:
        raise _LongWay
    at += 3
    if tag == 0x18:
        if not 24 <= first < 0x1C:
            raise _LongWay
        number, at = _number(content, at, first)
        out.append(b"\x02" + _pack_u64(number))
        return at
    if tag in (0x1C, 0x1D):
        number, at = _signed(content, at, first)
        out.append((b"\x09" if tag == 0x1C else b"\x0a") + _pack_u64(number & (1 << 64) - 1))
        return at
    if tag == 0x1E and 0x60 <= first < 0x7C:
        return _write_text(content, at, first, _ENUMS, out)
    if tag == 0x19 and first in (0x44, 0x50):
        size = first & 0x1F
        address = content[at : at + size]
        out.append(b"\x06" + (_MAPPED + address if size == 4 else address))
        return at + size
    if tag == 0x1B and first == 0x82:
        return _write_port(content, at, out)
    raise _LongWay


_ENUMS: Final = [b"\x0b" + size for size in _VARBYTES]


def _write_port(content: bytes, at: int, out: list[bytes]) -> int:
    """Copy the two numbers of a port."""
    number, protocol = content[at], 0
    at += 1
    if number >= 24:
        number, at = _number(content, at, number) if number < 0x1A else (1 << 16, at)
    protocol = content[at]
    if number > 0xFFFF or protocol > 3:
        raise _LongWay
    out.append(b"\x08" + number.to_bytes(2) + bytes((protocol,)))
    return at + 1
