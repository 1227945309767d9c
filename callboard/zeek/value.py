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
from typing import Any, Final

from callboard.model.address import Address, Port, Subnet
from callboard.model.data import DEPTH_LIMIT, Data, DataType, Set, Table, Vector
from callboard.model.errors import DataOverflow, InvalidData
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp
from callboard.zeek.varbyte import read_varbyte, write_varbyte

_COUNT: Final = struct.Struct(">BQ")
_INTEGER: Final = struct.Struct(">Bq")
_REAL: Final = struct.Struct(">Bd")
_PORT: Final = struct.Struct(">BHB")
_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_PORT_BODY: Final = struct.Struct(">HB")
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
    write = _WRITE.get(kind)
    if write is not None:
        out += write(value)
        return
    out.append(kind)
    write_varbyte(len(value), out)
    if kind is DataType.String:
        out += value
    elif kind is DataType.Table:
        for key, item in value.pairs:
            append_value(key, out, depth + 1)
            append_value(item, out, depth + 1)
    else:
        for item in value:
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
    return bytes((DataType.Subnet, *network.bytes(), length))


def _enum_bytes(value: Enum) -> bytes:
    """Return the bytes of an enum value."""
    name, out = value.name.encode(), bytearray((DataType.EnumValue,))
    write_varbyte(len(name), out)
    return bytes(out + name)


_WRITE: Final[dict[DataType, Callable[[Any], bytes]]] = {
    DataType.Nil: lambda _value: b"\x00",
    DataType.Boolean: lambda value: b"\x01\x01" if value else b"\x01\x00",
    DataType.Count: lambda value: _COUNT.pack(DataType.Count, value.value),
    DataType.Integer: lambda value: _INTEGER.pack(DataType.Integer, value),
    DataType.Real: lambda value: _REAL.pack(DataType.Real, value),
    DataType.Address: lambda value: b"\x06" + value.bytes(),
    DataType.Subnet: _subnet_bytes,
    DataType.Port: lambda value: _PORT.pack(DataType.Port, value.number(), value.get_type()),
    DataType.Timestamp: lambda value: _INTEGER.pack(
        DataType.Timestamp, value.time_since_epoch().count()
    ),
    DataType.Timespan: lambda value: _INTEGER.pack(DataType.Timespan, value.count()),
    DataType.EnumValue: _enum_bytes,
}

# ------------------------------------------------------------------------------- reading

_Read = tuple[Any, int]


def _read(buffer: bytes, at: int, depth: int) -> tuple[Data, int]:
    """Read a value at some depth."""
    number = buffer[at]
    if number >= len(_READ):
        msg = f"type {number} at byte {at:,} is none of the {len(_READ)} types"
        raise InvalidData(msg)
    kind, reader = _READ[number]
    value, at = reader(buffer, at + 1, depth)
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
    return Port(*_PORT_BODY.unpack_from(buffer, at)), at + _PORT_BODY.size


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


def _items(make: Callable[[list[Data]], Any]) -> Callable[..., _Read]:
    """Return how a set or a vector is read."""

    def read(buffer: bytes, at: int, depth: int) -> _Read:
        count, at = _count_of_items(buffer, at, depth)
        found = []
        for _ in range(count):
            item, at = _read(buffer, at, depth + 1)
            found.append(item)
        return make(found), at

    return read


def _table(buffer: bytes, at: int, depth: int) -> _Read:
    """Read a table."""
    count, at = _count_of_items(buffer, at, depth)
    found = []
    for _ in range(count):
        key, at = _read(buffer, at, depth + 1)
        item, at = _read(buffer, at, depth + 1)
        found.append((key, item))
    return Table(found), at


_READ: Final[tuple[tuple[DataType, Callable[..., _Read]], ...]] = (
    (DataType.Nil, lambda _buffer, at, _depth: (None, at)),
    (DataType.Boolean, _boolean),
    (DataType.Count, _fixed(_U64, Count)),
    (DataType.Integer, _fixed(_I64, int)),
    (DataType.Real, _fixed(_F64, float)),
    (DataType.String, _string),
    (DataType.Address, _address),
    (DataType.Subnet, _subnet),
    (DataType.Port, _port),
    (DataType.Timestamp, _fixed(_I64, lambda ns: Timestamp(Timespan(ns)))),
    (DataType.Timespan, _fixed(_I64, Timespan)),
    (DataType.EnumValue, _enum),
    (DataType.Set, _items(Set)),
    (DataType.Table, _table),
    (DataType.Vector, _items(Vector)),
)
