"""Values as Broker's wires carry them, versions 1.4 and 2.x alike.

One byte with the number of the type (`DataType`), then:

| type | bytes, big-endian |
|---|---|
| none | nothing |
| boolean | 1: 0 or 1 |
| count, integer | 8, unsigned or signed |
| real | 8, IEEE 754 |
| string, enum value | a varbyte length, then UTF-8 (strings: any bytes) |
| address | 16, IPv4 mapped into IPv6 |
| subnet | 16 of the network, 1 of the length in the mapped address: 96 more for IPv4 |
| port | 2 of the number, 1 of the protocol |
| timestamp, timespan | 8, signed nanoseconds |
| set, vector | a varbyte count, then the values |
| table | a varbyte count, then each key and its value |

Source: bytes captured between two endpoints of version 1.4 (see the tests).
"""

import struct
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from callboard.model.address import Address, Port, Subnet
from callboard.model.data import DEPTH_LIMIT, Data, DataType, Set, Table, Vector
from callboard.model.errors import DataOverflow, InvalidData
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp
from callboard.zeek.varbyte import read_varbyte, write_varbyte

_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_PORT: Final = struct.Struct(">HB")
_ADDRESS_BYTES: Final = 16
_MAPPED_BITS: Final = 96


def value_to_bytes(data: Data) -> bytes:
    """Return the bytes of one value.

    Raises:
        InvalidData: nested deeper than `DEPTH_LIMIT`.
    """
    out = bytearray()
    append_value(data, out)
    return bytes(out)


def value_from_bytes(buffer: bytes) -> Data:
    """Return the value that fills the bytes.

    Raises:
        InvalidData: they are no value, or bytes follow it.
    """
    data, end = read_value(buffer, 0)
    if end != len(buffer):
        msg = f"{len(buffer) - end:,} bytes follow a value of {end:,} bytes"
        raise InvalidData(msg)
    return data


def append_value(data: Data, out: bytearray, depth: int = 0) -> None:
    """Append the bytes of one value."""
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


def read_value(buffer: bytes, at: int) -> tuple[Data, int]:
    """Return the value at a place, and the place behind it.

    Raises:
        InvalidData: there is none, or it does not end.
    """
    try:
        return _read(buffer, at, 0)
    except (IndexError, struct.error) as cause:
        msg = f"a value ends behind the {len(buffer):,} bytes that there are"
        raise InvalidData(msg) from cause
    except DataOverflow as cause:
        raise InvalidData(str(cause)) from cause


def _too_deep() -> InvalidData:
    return InvalidData(f"a value is nested deeper than {DEPTH_LIMIT} containers")


# ------------------------------------------------------------------------------- writing


def _subnet_bytes(subnet: Subnet) -> bytes:
    """Return the bytes of a subnet."""
    network = subnet.network()
    length = subnet.length() + (_MAPPED_BITS if network.is_v4() else 0)
    return bytes((*network.bytes(), length))


def _sized(content: bytes) -> bytes:
    """Return a run of bytes with its length before it."""
    out = bytearray()
    write_varbyte(len(content), out)
    return bytes(out + content)


# ------------------------------------------------------------------------------- reading

_Read = tuple[Any, int]
_Write = Callable[[Any], bytes]


def _read(buffer: bytes, at: int, depth: int) -> tuple[Data, int]:
    """Read a value at some depth."""
    number = buffer[at]
    if number >= len(_TYPES):
        msg = f"type {number} at byte {at:,} is none of the {len(_TYPES)} types"
        raise InvalidData(msg)
    kind, read, _ = _TYPES[number]
    value, at = read(buffer, at + 1, depth)
    return Data.of(kind, value), at


def _boolean(buffer: bytes, at: int, _depth: int) -> _Read:
    """Read a boolean."""
    if buffer[at] > 1:
        msg = f"{buffer[at]} at byte {at:,} is no boolean"
        raise InvalidData(msg)
    return buffer[at] == 1, at + 1


def _bytes(buffer: bytes, at: int, length: int) -> bytes:
    """Read a run of bytes and its length."""
    if length > len(buffer) - at:
        left = len(buffer) - at
        msg = f"{length:,} bytes are announced at byte {at:,}, and {left:,} are left"
        raise InvalidData(msg)
    return buffer[at : at + length]


def _string(buffer: bytes, at: int, _depth: int) -> _Read:
    """Read a string."""
    length, at = read_varbyte(buffer, at)
    return bytes(_bytes(buffer, at, length)), at + length


def _enum(buffer: bytes, at: int, depth: int) -> _Read:
    """Read an enum value."""
    name, end = _string(buffer, at, depth)
    try:
        return Enum(name.decode()), end
    except UnicodeDecodeError as cause:
        msg = f"the name of the enum value at byte {at:,} is no UTF-8"
        raise InvalidData(msg) from cause


def _address(buffer: bytes, at: int, _depth: int) -> _Read:
    """Read an address."""
    end = at + _ADDRESS_BYTES
    return Address(bytes(_bytes(buffer, at, _ADDRESS_BYTES))), end


def _subnet(buffer: bytes, at: int, depth: int) -> _Read:
    """Read a subnet."""
    network, at = _address(buffer, at, depth)
    ahead = _MAPPED_BITS if network.is_v4() else 0
    return Subnet(network, buffer[at] - ahead), at + 1


def _port(buffer: bytes, at: int, _depth: int) -> _Read:
    return Port(*_PORT.unpack_from(buffer, at)), at + _PORT.size


def _fixed(form: struct.Struct, make: Callable[[Any], Any]) -> Callable[..., _Read]:
    """Return how a value of fixed length is read."""

    def read(buffer: bytes, at: int, _depth: int) -> _Read:
        return make(form.unpack_from(buffer, at)[0]), at + form.size

    return read


def _count_of_items(buffer: bytes, at: int, depth: int) -> tuple[int, int]:
    """Read a count that the bytes left can hold: no item takes less than one."""
    if depth >= DEPTH_LIMIT:
        raise _too_deep()
    count, at = read_varbyte(buffer, at)
    _bytes(buffer, at, count)
    return count, at


def _items(make: Callable[[list[Data]], Any], each: int = 1) -> Callable[..., _Read]:
    """Return how a container is read whose items are of `each` values."""

    def read(buffer: bytes, at: int, depth: int) -> _Read:
        count, at = _count_of_items(buffer, at, depth)
        found = []
        for _ in range(count * each):
            item, at = _read(buffer, at, depth + 1)
            found.append(item)
        return make(found), at

    return read


def _table(found: list[Data]) -> Table:
    """Return the table of keys and values that take turns."""
    return Table(list(zip(found[::2], found[1::2], strict=True)))


# ------------------------------------------------------------------------------- the types

#: By its number: each type, how it is read, and how it is written unless it has items.
_TYPES: Final[tuple[tuple[DataType, Callable[..., _Read], _Write | None], ...]] = (
    (DataType.Nil, lambda _buffer, at, _depth: (None, at), lambda _value: b""),
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
    (DataType.Table, _items(_table, each=2), None),
    (DataType.Vector, _items(Vector), None),
)
