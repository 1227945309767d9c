"""Conversion between Broker's encoding of values and ours (CBOR), without objects for values.

Adapters forward values without reading them: a value that arrives in Broker's encoding leaves
in ours, and vice versa. Scalars, vectors and their items are converted while the buffer is
read; events hold hardly anything else. The rest takes the slow path through objects,
`zeek.value` and `model.encoding`: sets and tables, which must be sorted, subnets, unusual forms
of CBOR, and everything malformed. The slow path defines results and errors. Both paths must be
equal for all values, which a property test checks.
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

# Plain integers: reading an enum member for each value would take most of the time.
_STRING: Final = int(DataType.String)
_VECTOR: Final = int(DataType.Vector)
_COUNT: Final = int(DataType.Count)
_ADDRESS: Final = int(DataType.Address)

_MAPPED: Final = bytes(10) + b"\xff\xff"

#: Our tags in CBOR; see `callboard.model.encoding`.
_TAG_COUNT: Final = b"\xd9\xbf\x18"
_TAG_ADDRESS: Final = b"\xd9\xbf\x19"
_TAG_PORT: Final = b"\xd9\xbf\x1b\x82"
_TAG_ENUM: Final = b"\xd9\xbf\x1e"


def _heads(major: int) -> list[bytes]:
    """Return the heads of CBOR items of a major type for the numbers 0 to 255."""
    return [bytes((major | n,)) if n < 24 else bytes((major | 24, n)) for n in range(256)]


_UINTS, _NEGATIVES = _heads(0x00), _heads(0x20)
_TEXTS, _ARRAYS = _heads(0x60), _heads(0x80)
_COUNTS: Final = [_TAG_COUNT + head for head in _UINTS]
_SMALL_COUNTS: Final = {n.to_bytes(8): _COUNTS[n] for n in range(256)}


#: The beginning of an event in both encodings: a vector of three, version 1, and kind 1.
_EVENT: Final = b"\x0e\x03" + 2 * b"\x02\0\0\0\0\0\0\0\x01"
_OUR_EVENT: Final = b"\x83" + 2 * _COUNTS[1]
_INNER, _OUR_INNER = len(_EVENT), len(_OUR_EVENT)


class _SlowPath(Exception):
    """This value needs the conversion through objects."""


# ------------------------------------------------------------------------------- reading


def cbor_from_broker(buffer: bytes) -> bytes:
    """Return the CBOR of the value that fills Broker's bytes.

    Raises:
        InvalidData: the buffer is not a value, bytes follow it, or it is too deep or too large.
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
        if end != len(buffer):  # a slice beyond the buffer is short, not an error
            raise _SlowPath
        content = b"".join(out)
    except (_SlowPath, IndexError, struct.error):
        content = data_to_cbor(value_from_bytes(buffer))
    if len(content) > MAX_ITEMS:
        refuse_heavy(content)
    return content


@lru_cache(1024)
def _read_start(start: bytes) -> bytes:
    """Return the CBOR of an event's inner vector up to its name, or nothing.

    Results are cached by these bytes, which hold the vector's length and the event's name.
    """
    out: list[bytes] = []
    is_usual = len(start) > 3 and start[0] == _VECTOR and 0 < start[1] < 0x80
    is_usual = is_usual and start[2] == _STRING and start[3] < 0x80
    if is_usual and _read_items(start, 2, 1, out, 2) == len(start):
        return _ARRAYS[start[1]] + b"".join(out)
    return b""


def cbor_at(buffer: bytes, offset: int) -> tuple[bytes, int]:
    """Return the CBOR of the value at an offset, and the offset after it.

    Raises:
        InvalidData: there is no valid value, it is cut off, or it is too deep or too large.
    """
    try:
        out: list[bytes] = []
        end = _read_items(buffer, offset, 1, out, 0)
        if end > len(buffer):
            raise _SlowPath
        content = b"".join(out)
    except (_SlowPath, IndexError, struct.error):
        data, end = read_value(buffer, offset)
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


def _length(buffer: bytes, offset: int) -> tuple[int, int]:
    """Read a varbyte; one of more than 35 bits takes the slow path."""
    number = shift = 0
    while (byte := buffer[offset]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        offset += 1
        if shift > 28:
            raise _SlowPath
    return number | byte << shift, offset + 1


# A branch per common kind, here and below: a call would cost as much as the conversion.
def _read_items(  # noqa: C901
    buffer: bytes, offset: int, count: int, out: list[bytes], depth: int
) -> int:
    """Convert consecutive values; return the offset after them."""
    append = out.append
    for _ in range(count):
        kind = buffer[offset]
        offset += 1
        if kind == _STRING:
            size = buffer[offset]
            offset += 1
            if size > 0x7F:
                size, offset = _length(buffer, offset - 1)
            text = buffer[offset : offset + size]
            offset += size
            if not text.isascii():
                _check_text(text)
            append(_TEXTS[size] if size < 256 else _head(0x60, size))
            append(text)
        elif kind == _COUNT:
            small = _SMALL_COUNTS.get(buffer[offset : offset + 8])
            append(_read_count(buffer, offset)[0] if small is None else small)
            offset += 8
        elif kind == _VECTOR:
            size = buffer[offset]
            offset += 1
            if size > 0x7F:
                size, offset = _length(buffer, offset - 1)
            if depth >= DEPTH_LIMIT or size > len(buffer) - offset:
                raise _SlowPath
            append(_ARRAYS[size] if size < 256 else _head(0x80, size))
            offset = _read_items(buffer, offset, size, out, depth + 1)
        elif kind == _ADDRESS:
            append(_address(buffer[offset : offset + 16]))
            offset += 16
        elif kind in _READ:
            item, offset = _READ[kind](buffer, offset)
            append(item)
        else:
            raise _SlowPath
    return offset


def _read_count(buffer: bytes, offset: int) -> tuple[bytes, int]:
    """Read a count."""
    (number,) = _U64(buffer, offset)
    return _COUNTS[number] if number < 256 else _TAG_COUNT + _head(0, number), offset + 8


@lru_cache(4096)
def _address(address: bytes) -> bytes:
    """Return the CBOR of an address, 4 bytes for IPv4; cached, as events repeat them."""
    if address.startswith(_MAPPED):
        return _TAG_ADDRESS + b"\x44" + address[12:]
    return _TAG_ADDRESS + b"\x50" + address


def _read_port(buffer: bytes, offset: int) -> tuple[bytes, int]:
    """Read a port."""
    number, protocol = _PORT_FIELDS(buffer, offset)
    if protocol > 3:
        raise _SlowPath
    return _TAG_PORT + _head(0, number) + _UINTS[protocol], offset + 3


def _read_real(buffer: bytes, offset: int) -> tuple[bytes, int]:
    """Read a double, which has the same 64 bits in both encodings."""
    (real,) = _F64(buffer, offset)
    if real - real != 0.0:  # infinite or not a number: CBOR has shorter forms for these
        raise _SlowPath
    return b"\xfb" + buffer[offset : offset + 8], offset + 8


def _read_integer(buffer: bytes, offset: int, tag: bytes = b"") -> tuple[bytes, int]:
    """Read a signed number, and put a tag in front."""
    (number,) = _I64(buffer, offset)
    return tag + _integer(number), offset + 8


def _read_enum(buffer: bytes, offset: int) -> tuple[bytes, int]:
    """Read the name of an enum value."""
    size, offset = _length(buffer, offset)
    text = buffer[offset : offset + size]
    _check_text(text)
    return _TAG_ENUM + _head(0x60, size) + text, offset + size


_BOOLEANS: Final = (b"\xf4", b"\xf5")

#: Readers of the other types; a type that is missing takes the slow path.
_READ: Final[dict[int, Callable[[bytes, int], tuple[bytes, int]]]] = {
    DataType.Nil: lambda _, offset: (b"\xf6", offset),
    DataType.Boolean: lambda buffer, offset: (_BOOLEANS[buffer[offset]], offset + 1),
    DataType.Count: _read_count,
    DataType.Integer: _read_integer,
    DataType.Real: _read_real,
    DataType.Address: lambda buffer, offset: (
        _address(buffer[offset : offset + 16]),
        offset + 16,
    ),
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
    """Raise for a string that is not UTF-8: its CBOR is a byte string."""
    try:
        text.decode()
    except UnicodeDecodeError:
        raise _SlowPath from None


# ------------------------------------------------------------------------------- writing


def broker_from_cbor(content: bytes) -> bytes:
    """Return Broker's bytes of the value that fills the CBOR.

    Raises:
        InvalidData: the buffer is not a value, bytes follow it, or it is too deep or too large.
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
        if end == len(content):  # a slice beyond the buffer is short, not an error
            return b"".join(out)
    except (_SlowPath, IndexError, struct.error):
        pass
    return value_to_bytes(data_from_cbor(content))


@lru_cache(1024)
def _write_start(start: bytes) -> bytes:
    """Return Broker's bytes of an event's inner vector up to its name, or nothing."""
    out: list[bytes] = []
    is_usual = len(start) > 1 and 0x80 < start[0] < 0x98 and 0x60 <= start[1] <= 0x78
    if is_usual and _write_items(start, 1, 1, out, 2) == len(start):
        return _VECTORS[start[0] - 0x80] + b"".join(out)
    return b""


def _number(content: bytes, offset: int, kind: int) -> tuple[int, int]:
    """Read the number in the head of an item, after its first byte."""
    size = _SIZES[kind]
    if size is None or len(content) < offset + size:
        raise _SlowPath
    return int.from_bytes(content[offset : offset + size]), offset + size


#: Size of the number after the first byte, by the lower five bits of that; None: slow path.
_SIZES: Final = (*[None] * 24, 1, 2, 4, 8, *[None] * 4)
#: Small counts, by their bytes after the first byte of the tag.
_SMALL: Final = {_COUNTS[n][1:]: b"\x02" + n.to_bytes(8) for n in range(24)}
_MIDDLE: Final = {_COUNTS[n][1:]: b"\x02" + n.to_bytes(8) for n in range(24, 256)}
_V4: Final = _TAG_ADDRESS[1:] + b"\x44"
_BROKER_V4: Final = b"\x06" + _MAPPED
_SMALL_INTEGERS: Final = [b"\x03" + n.to_bytes(8) for n in range(24)]


def _varbyte(number: int) -> bytes:
    """Return a length in Broker's encoding."""
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
    content: bytes, offset: int, count: int, out: list[bytes], depth: int
) -> int:
    """Convert consecutive items; return the offset after them."""
    append = out.append
    for _ in range(count):
        first = content[offset]
        offset += 1
        if 0x60 <= first < 0x78:
            end = offset + first - 0x60
            text = content[offset:end]
            if not text.isascii():
                _check_text(text)
            append(_STRINGS[first - 0x60])
            append(text)
            offset = end
        elif first == 0xD9:
            if (small := _SMALL.get(content[offset : offset + 3])) is not None:
                append(small)
                offset += 3
            elif content.startswith(_V4, offset):
                append(_BROKER_V4 + content[offset + 3 : offset + 7])
                offset += 7
            elif (middle := _MIDDLE.get(content[offset : offset + 4])) is not None:
                append(middle)
                offset += 4
            else:
                offset = _write_tagged(content, offset, out)
        elif 0x80 <= first < 0x9C:
            size = first & 0x1F
            if size >= 24:
                size, offset = _number(content, offset, size)
            if depth >= DEPTH_LIMIT or size > len(content) - offset:
                raise _SlowPath
            append(_VECTORS[size] if size < 256 else b"\x0e" + _varbyte(size))
            offset = _write_items(content, offset, size, out, depth + 1)
        else:
            offset = _write_scalar(content, offset, first, out)
    return offset


def _write_scalar(content: bytes, offset: int, first: int, out: list[bytes]) -> int:
    """Convert an item of plain CBOR that is not an array; `first` is its first byte."""
    if first < 24:
        out.append(_SMALL_INTEGERS[first])
    elif first < 0x3C:
        number, offset = _signed(content, offset, first)
        out.append(b"\x03" + _pack_u64(number & 0xFFFFFFFFFFFFFFFF))
    elif 0x78 <= first < 0x7C:
        return _write_text(content, offset, first, _STRINGS, out)
    elif first == 0xFB and content[offset] & 0x7F != 0x7F:  # neither infinite nor NaN
        out.append(b"\x04" + content[offset : offset + 8])
        offset += 8
    elif 0xF4 <= first <= 0xF6:
        out.append(_PLAIN[first - 0xF4])
    else:
        raise _SlowPath
    return offset


_PLAIN: Final = (b"\x01\x00", b"\x01\x01", b"\x00")


def _signed(content: bytes, offset: int, first: int) -> tuple[int, int]:
    """Read an integer that fits into 64 bits with its sign."""
    number = first & 0x1F
    if number >= 24:
        number, offset = _number(content, offset, number)
    if number >> 63 or first >= 0x40:
        raise _SlowPath
    return ~number if first >= 0x20 else number, offset


def _write_text(
    content: bytes, offset: int, first: int, heads: list[bytes], out: list[bytes]
) -> int:
    """Convert a text; `first` is the first byte of its head."""
    size = first & 0x1F
    if size >= 24:
        size, offset = _number(content, offset, size)
    end = offset + size
    text = content[offset:end]
    if not text.isascii():
        _check_text(text)
    out.append(heads[size] if size < 256 else heads[0][:1] + _varbyte(size))
    out.append(text)
    return end


def _write_tagged(content: bytes, offset: int, out: list[bytes]) -> int:
    """Convert a value with a tag of ours: `0xd9` and two bytes."""
    tag, first = content[offset + 1], content[offset + 2]
    if content[offset] != 0xBF:
        raise _SlowPath
    offset += 3
    if tag == 0x18:
        if not 24 <= first < 0x1C:
            raise _SlowPath
        number, offset = _number(content, offset, first)
        out.append(b"\x02" + _pack_u64(number))
        return offset
    if tag in (0x1C, 0x1D):
        number, offset = _signed(content, offset, first)
        out.append((b"\x09" if tag == 0x1C else b"\x0a") + _pack_u64(number & (1 << 64) - 1))
        return offset
    if tag == 0x1E and 0x60 <= first < 0x7C:
        return _write_text(content, offset, first, _ENUMS, out)
    if tag == 0x19 and first == 0x50:  # `_write_items` converts IPv4 addresses
        out.append(b"\x06" + content[offset : offset + 16])
        return offset + 16
    if tag == 0x1B and first == 0x82:
        return _write_port(content, offset, out)
    raise _SlowPath


_ENUMS: Final = [b"\x0b" + size for size in _VARBYTES]


def _write_port(content: bytes, offset: int, out: list[bytes]) -> int:
    """Convert the two numbers of a port."""
    number, protocol = content[offset], 0
    offset += 1
    if number >= 24:
        number, offset = (
            _number(content, offset, number) if number < 0x1A else (1 << 16, offset)
        )
    protocol = content[offset]
    if number > 0xFFFF or protocol > 3:
        raise _SlowPath
    out.append(b"\x08" + number.to_bytes(2) + bytes((protocol,)))
    return offset + 1
