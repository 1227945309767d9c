"""Values in Broker's encoding, the same in versions 1.4 and 2.x.

A byte with the number of the type (`DataType`), then:

| type | bytes, big-endian |
|---|---|
| none | nothing |
| boolean | 1: 0 or 1 |
| count, integer | 8, unsigned or signed |
| real | 8, IEEE 754 |
| string, enum value | a varbyte length, then UTF-8 (a string may have any bytes) |
| address | 16, IPv4 mapped into IPv6 |
| subnet | 16 for the network, 1 for the prefix length, which is 96 more for IPv4 |
| port | 2 for the number, 1 for the protocol |
| timestamp, timespan | 8, signed nanoseconds |
| set, vector | a varbyte count, then the values |
| table | a varbyte count, then each key and its value |

Source: bytes captured between two endpoints of version 1.4 (see the tests).
"""

import struct
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from callboard.caf.wire.varbyte import read_varbyte, write_varbyte
from callboard.model.address import Address, Port, Subnet
from callboard.model.data import DEPTH_LIMIT, Data, DataType, Set, Table, Vector
from callboard.model.errors import DataOverflow, InvalidData
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp

_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_PORT: Final = struct.Struct(">HB")
_ADDRESS_BYTES: Final = 16
_MAPPED_BITS: Final = 96


def value_to_bytes(data: Data) -> bytes:
    """Return an encoded value.

    Raises:
        InvalidData: the value is nested deeper than `DEPTH_LIMIT`.
    """
    out = bytearray()
    append_value(data, out)
    return bytes(out)


def value_from_bytes(buffer: bytes) -> Data:
    """Return the value that fills the buffer.

    Raises:
        InvalidData: the buffer is not a value, or bytes follow it.
    """
    data, end = read_value(buffer, 0)
    if end != len(buffer):
        msg = f"{len(buffer) - end:,} bytes follow a value of {end:,} bytes"
        raise InvalidData(msg)
    return data


def append_value(data: Data, out: bytearray, depth: int = 0) -> None:
    """Append an encoded value."""
    if depth > DEPTH_LIMIT:
        raise _too_deep()
    kind, value = data.get_type(), data.value
    out.append(kind)
    _, _, write = _TYPES[kind]
    if write is not None:
        out += write(value)
        return
    write_varbyte(len(value), out)
    for item in chain.from_iterable(value.pairs) if kind is DataType.Table else value:
        append_value(item, out, depth + 1)


def read_value(buffer: bytes, offset: int) -> tuple[Data, int]:
    """Return the value at an offset, and the offset after it.

    Raises:
        InvalidData: there is no valid value, or it is cut off.
    """
    try:
        return _read(buffer, offset, 0)
    except (IndexError, struct.error) as cause:
        msg = f"a value is cut off after {len(buffer):,} bytes"
        raise InvalidData(msg) from cause
    except DataOverflow as cause:
        raise InvalidData(str(cause)) from cause


def _too_deep() -> InvalidData:
    return InvalidData(f"a value is nested deeper than {DEPTH_LIMIT} containers")


# ------------------------------------------------------------------------------- writing


def _subnet_bytes(subnet: Subnet) -> bytes:
    """Return an encoded subnet."""
    network = subnet.network()
    length = subnet.length() + (_MAPPED_BITS if network.is_v4() else 0)
    return bytes((*network.bytes(), length))


def _sized(content: bytes) -> bytes:
    """Return bytes with their length in front."""
    out = bytearray()
    write_varbyte(len(content), out)
    return bytes(out + content)


# ------------------------------------------------------------------------------- reading

_Read = tuple[Any, int]
_Write = Callable[[Any], bytes]


def _read(buffer: bytes, offset: int, depth: int) -> tuple[Data, int]:
    """Read a value at a nesting depth."""
    number = buffer[offset]
    if number >= len(_TYPES):
        msg = f"type {number} at byte {offset:,} is not one of the {len(_TYPES)} types"
        raise InvalidData(msg)
    kind, read, _ = _TYPES[number]
    value, offset = read(buffer, offset + 1, depth)
    return Data.of(kind, value), offset


def _boolean(buffer: bytes, offset: int, _depth: int) -> _Read:
    """Read a boolean."""
    if buffer[offset] > 1:
        msg = f"{buffer[offset]} at byte {offset:,} is not a boolean"
        raise InvalidData(msg)
    return buffer[offset] == 1, offset + 1


def _bytes(buffer: bytes, offset: int, length: int) -> bytes:
    """Read `length` bytes."""
    if length > len(buffer) - offset:
        left = len(buffer) - offset
        msg = f"{length:,} bytes are announced at byte {offset:,}, and {left:,} are left"
        raise InvalidData(msg)
    return buffer[offset : offset + length]


def _string(buffer: bytes, offset: int, _depth: int) -> _Read:
    """Read a string."""
    length, offset = read_varbyte(buffer, offset)
    return bytes(_bytes(buffer, offset, length)), offset + length


def _enum(buffer: bytes, offset: int, depth: int) -> _Read:
    """Read an enum value."""
    name, end = _string(buffer, offset, depth)
    try:
        return Enum(name.decode()), end
    except UnicodeDecodeError as cause:
        msg = f"the name of the enum value at byte {offset:,} is not UTF-8"
        raise InvalidData(msg) from cause


def _address(buffer: bytes, offset: int, _depth: int) -> _Read:
    """Read an address."""
    end = offset + _ADDRESS_BYTES
    return Address(bytes(_bytes(buffer, offset, _ADDRESS_BYTES))), end


def _subnet(buffer: bytes, offset: int, depth: int) -> _Read:
    """Read a subnet."""
    network, offset = _address(buffer, offset, depth)
    mapped_bits = _MAPPED_BITS if network.is_v4() else 0
    return Subnet(network, buffer[offset] - mapped_bits), offset + 1


def _port(buffer: bytes, offset: int, _depth: int) -> _Read:
    return Port(*_PORT.unpack_from(buffer, offset)), offset + _PORT.size


def _fixed(form: struct.Struct, make: Callable[[Any], Any]) -> Callable[..., _Read]:
    """Return a reader for values of fixed size."""

    def read(buffer: bytes, offset: int, _depth: int) -> _Read:
        return make(form.unpack_from(buffer, offset)[0]), offset + form.size

    return read


def _count_of_items(buffer: bytes, offset: int, depth: int) -> tuple[int, int]:
    """Read a count of items, each of which needs at least one byte."""
    if depth >= DEPTH_LIMIT:
        raise _too_deep()
    count, offset = read_varbyte(buffer, offset)
    _bytes(buffer, offset, count)
    return count, offset


def _items(make: Callable[[list[Data]], Any], values_per_item: int = 1) -> Callable[..., _Read]:
    """Return a reader for containers with `values_per_item` values per item."""

    def read(buffer: bytes, offset: int, depth: int) -> _Read:
        count, offset = _count_of_items(buffer, offset, depth)
        values = []
        for _ in range(count * values_per_item):
            item, offset = _read(buffer, offset, depth + 1)
            values.append(item)
        return make(values), offset

    return read


def _table(values: list[Data]) -> Table:
    """Return the table of alternating keys and values."""
    return Table(list(zip(values[::2], values[1::2], strict=True)))


# ------------------------------------------------------------------------------- the types

#: The types by their number, with reader and writer; containers have no writer here.
_TYPES: Final[tuple[tuple[DataType, Callable[..., _Read], _Write | None], ...]] = (
    (DataType.Nil, lambda _buffer, offset, _depth: (None, offset), lambda _value: b""),
    (DataType.Boolean, _boolean, lambda value: bytes((value,))),
    (DataType.Count, _fixed(_U64, Count), lambda value: _U64.pack(value.value)),
    (DataType.Integer, _fixed(_I64, int), _I64.pack),
    (DataType.Real, _fixed(_F64, float), _F64.pack),
    (DataType.String, _string, _sized),
    (DataType.Address, _address, Address.bytes),
    (DataType.Subnet, _subnet, _subnet_bytes),
    (DataType.Port, _port, lambda value: _PORT.pack(value.number(), value.get_type())),
    (
        DataType.Timestamp,
        _fixed(_I64, lambda ns: Timestamp(Timespan(ns))),
        lambda value: _I64.pack(value.time_since_epoch().count()),
    ),
    (DataType.Timespan, _fixed(_I64, Timespan), lambda value: _I64.pack(value.count())),
    (DataType.EnumValue, _enum, lambda value: _sized(value.name.encode())),
    (DataType.Set, _items(Set), None),
    (DataType.Table, _items(_table, values_per_item=2), None),
    (DataType.Vector, _items(Vector), None),
)
