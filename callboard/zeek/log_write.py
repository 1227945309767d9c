r"""Zeek's log-write messages, format `zeek-bin-v1`, and their conversion to our CBOR.

All numbers are big-endian; a text is a length of 4 bytes and the bytes.

| bytes | |
|---|---|
| texts | stream (`Conn::LOG`), writer, filter, path (`conn`) |
| 4 | number of fields |
| … | for each: 1 whether another name comes first [text], name, 4 type, 4 subtype, 1 optional |
| 4 | number of records |
| … | for each record and field: 4 type, 4 subtype, 1 present, then the value if present |

| type | value | in the log |
|---|---|---|
| 1 bool | 8, signed | truth value |
| 2 int, 3 count | 8, signed; unsigned | integer |
| 4 double, 6 interval | 8, IEEE 754 | float; an interval in seconds |
| 5 time | 8, IEEE 754 seconds since 1970 | time (CBOR's tag 1, the same 8 bytes) |
| 7 string, 9 enum, 17 func, 18 file | text | text; invalid UTF-8 as `\xff` |
| 10 port | 8 number, 4 protocol | integer |
| 11 addr | 1 family (4 or 6), 4 or 16 | text |
| 12 subnet | 1 length (as of IPv6), 1 family, 4 or 16 | text, `10.0.0.0/8` |
| 14 set, 19 vector | 8 count, complete values of the subtype | list |

An absent value is null. The subtype of a value is ignored, as Zeek sets it for some types only.
Source: Zeek 9.1-dev, `SerialTypes`, and the test of its `BinarySerializationFormat` for logs.
"""

import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Any, Final, NamedTuple

from cbor2 import dumps

from callboard.commitlog.batch import MAX_RECORD
from callboard.commitlog.columns import Cbor
from callboard.commitlog.fields.declared import DeclaredField
from callboard.model.errors import InvalidData
from callboard.support.dataclass import dataclass

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_PORT: Final = struct.Struct(">Qi")

#: Fields of a log (Zeek's widest logs have about fifty), and bytes of a name.
FIELDS_LIMIT: Final = 1_000
NAME_LIMIT: Final = 128
#: Bytes for field names in the decoded records of a message. A message has the names once, but
#: each record repeats them, so a small message could expand to gigabytes.
RECORDS_LIMIT: Final = 32 << 20
#: Bytes before a value, and of the smallest field description.
_HEAD, _FIELD = 9, 14
#: Cached field descriptions of logs.
_KNOWN: Final = 1_024
#: Valid times, the years 1 to 9999. From 1970 on, times sort like their bytes.
_FIRST_TIME, _LAST_TIME = -62_135_596_800.0, 253_402_300_799.0
_LAST_BYTES: Final = _F64.pack(_LAST_TIME)
_NULL, _TRUE, _FALSE = b"\xf6", b"\xf5", b"\xf4"
_MAPPED_BITS: Final = 96
_PORTS: Final = 65_535
_PROTOCOLS: Final = range(4)


class LogType(IntEnum):
    """Zeek's types of log fields."""

    BOOL = 1
    INT = 2
    COUNT = 3
    DOUBLE = 4
    TIME = 5
    INTERVAL = 6
    STRING = 7
    ENUM = 9
    PORT = 10
    ADDR = 11
    SUBNET = 12
    SET = 14
    FUNC = 17
    FILE = 18
    VECTOR = 19


_CONTAINERS: Final = (LogType.SET, LogType.VECTOR)

#: Column types of our logs; text for all others.
_COLUMNS: Final = {
    LogType.BOOL: "bool",
    LogType.INT: "int",
    LogType.COUNT: "uint",
    LogType.PORT: "int",
    LogType.DOUBLE: "float",
    LogType.INTERVAL: "float",
    LogType.TIME: "time",
}


class LogField(NamedTuple):
    """A field of a log.

    Attributes:
        name: such as `id.orig_h`.
        type: the type of the field's values.
        subtype: the subtype of the items of a set or vector.
        is_optional: whether records may lack it.
    """

    name: str
    type: LogType
    subtype: LogType | None = None
    is_optional: bool = False

    @property
    def type_name(self) -> str:
        """The type in Zeek's notation: `count`, `set[addr]`."""
        inner = "" if self.subtype is None else f"[{self.subtype.name.lower()}]"
        return self.type.name.lower() + inner

    @property
    def column(self) -> DeclaredField:
        """The field as a column of our log."""
        kind = self.type if self.subtype is None else self.subtype
        ending = "" if self.subtype is None else "[]"
        return DeclaredField(self.name, _COLUMNS.get(kind, "text") + ending, self.type_name)


@dataclass(frozen=True, slots=True, eq=False)
class LogHeader:
    """The log of a message; messages with equal headers share one object.

    Attributes:
        stream: Zeek's name of the log: `Conn::LOG`.
        writer: Zeek's writer for it: `Log::WRITER_ASCII`.
        filter: the filter of the stream that chose the path: `default`.
        path: the path of the log, such as `conn`.
        fields: the fields of each record.
    """

    stream: str
    writer: str
    filter: str
    path: str
    fields: tuple[LogField, ...]


class LogWrite(NamedTuple):
    """Records of one log.

    Attributes:
        header: the log.
        records: maps from field names to values, as CBOR.
    """

    header: LogHeader
    records: list[Cbor]


#: Reads a present value; returns it as CBOR, and the offset after it.
_Reader = Callable[[bytes, int], tuple[bytes, int]]


class _Step(NamedTuple):
    """Reader of a field: its type, CBOR for null, CBOR before a value, and the value reader."""

    kind: bytes
    null: bytes
    before: bytes
    read: _Reader | None  # None: the 8 bytes of the value are its CBOR


class _Layout(NamedTuple):
    """The part of a message before its records, and how to read these."""

    begin: bytes
    header: LogHeader
    head: bytes
    steps: tuple[_Step, ...]
    size: int


class LogWriteDecoder:
    """Decodes log-write messages; the fields of a log are parsed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Layout] = {}

    def decode(self, payload: bytes) -> LogWrite:
        """Return a decoded payload.

        Raises:
            InvalidData: the payload is not a log-write message.
        """
        try:
            layout = self._layout(payload)
            (count,) = _U32.unpack_from(payload, offset := len(layout.begin))
            left = len(payload) - offset - _U32.size
            if count * len(layout.steps) * _HEAD > left:
                msg = f"{count:,} records are announced, but {left:,} bytes are left"
                raise InvalidData(msg)
            if count * layout.size > RECORDS_LIMIT:
                msg = f"the names in {count:,} records exceed {RECORDS_LIMIT:,} bytes"
                raise InvalidData(msg)
            records = _records(payload, offset + _U32.size, count, layout)
        except (IndexError, struct.error) as cause:
            msg = f"a log-write is cut off after {len(payload):,} bytes"
            raise InvalidData(msg) from cause
        return LogWrite(layout.header, records)

    def _layout(self, payload: bytes) -> _Layout:
        """Return the layout of a message, from the cache if possible."""
        offset = 0
        for _ in range(4):
            offset += _U32.size + _U32.unpack_from(payload, offset)[0]
        key = payload[:offset]
        layout = self._known.get(key)
        if layout is None or not payload.startswith(layout.begin):
            if len(self._known) >= _KNOWN:
                self._known.clear()
            layout = self._known[key] = _read_layout(payload)
        return layout


# ------------------------------------------------------------------------------- fields


def _read_layout(payload: bytes) -> _Layout:
    """Read names and fields.

    Raises:
        InvalidData: the names and fields are invalid, or there are too many.
    """
    stream, offset = _name(payload, 0)
    writer, offset = _name(payload, offset)
    filtered, offset = _name(payload, offset)
    path, offset = _name(payload, offset)
    (count,) = _U32.unpack_from(payload, offset)
    offset += _U32.size
    if not 1 <= count <= FIELDS_LIMIT or count * _FIELD > len(payload) - offset:
        msg = f"{count:,} fields; a log must have 1 to {FIELDS_LIMIT:,}"
        raise InvalidData(msg)
    fields: dict[str, LogField] = {}
    for _ in range(count):
        field, offset = _field(payload, offset)
        if fields.setdefault(field.name.casefold(), field) is not field:
            msg = f"the field {field.name!r} appears twice"
            raise InvalidData(msg)
    steps = tuple(map(_step, fields.values()))
    size = sum(len(step.before) for step in steps)
    header = LogHeader(stream, writer, filtered, path, tuple(fields.values()))
    return _Layout(payload[:offset], header, _head(5, len(steps)), steps, size)


def _name(payload: bytes, offset: int) -> tuple[str, int]:
    """Read a name, which must be printable."""
    (size,) = _U32.unpack_from(payload, offset)
    raw = payload[offset + _U32.size : offset + _U32.size + size]
    if not 1 <= len(raw) == size <= NAME_LIMIT:
        msg = f"a name of {size:,} bytes at byte {offset:,}; use 1 to {NAME_LIMIT}"
        raise InvalidData(msg)
    try:
        name = raw.decode()
    except UnicodeDecodeError as cause:
        msg = f"the name at byte {offset:,} is not UTF-8"
        raise InvalidData(msg) from cause
    if not name.isprintable():
        msg = f"the name {name!r} at byte {offset:,} is not printable"
        raise InvalidData(msg)
    return name, offset + _U32.size + size


def _field(payload: bytes, offset: int) -> tuple[LogField, int]:
    """Read a field."""
    has_second, offset = _flag(payload, offset)
    if has_second:
        _, offset = _name(payload, offset)
    name, offset = _name(payload, offset)
    kind = _type(payload, offset)
    subtype = None
    if kind in _CONTAINERS:
        subtype = _type(payload, offset + 4)
        if subtype in _CONTAINERS:
            msg = f"the field {name!r} holds containers, which logs do not support"
            raise InvalidData(msg)
    is_optional, offset = _flag(payload, offset + 8)
    return LogField(name, kind, subtype, is_optional), offset


def _flag(payload: bytes, offset: int) -> tuple[bool, int]:
    """Read a boolean of one byte."""
    if payload[offset] > 1:
        msg = f"{payload[offset]} at byte {offset:,} is neither true nor false"
        raise InvalidData(msg)
    return payload[offset] == 1, offset + 1


def _type(payload: bytes, offset: int) -> LogType:
    """Read a type."""
    (number,) = _U32.unpack_from(payload, offset)
    try:
        return LogType(number)
    except ValueError:
        msg = f"type {number} at byte {offset:,} is not a type of log fields"
        raise InvalidData(msg) from None


def _step(field: LogField) -> _Step:
    """Return the reader of a field."""
    key = dumps(field.name)
    kind = _U32.pack(field.type)
    if field.subtype is not None:
        return _Step(kind, key + _NULL, key, _list_of(field.subtype))
    if field.type in _RAW:
        return _Step(kind, key + _NULL, key + _RAW[field.type], None)
    return _Step(kind, key + _NULL, key, _READERS[field.type])


# ------------------------------------------------------------------------------- records


def _records(payload: bytes, offset: int, count: int, layout: _Layout) -> list[Cbor]:
    """Read records; no byte may be left over."""
    head, steps, size = layout.head, layout.steps, len(payload)
    records: list[Cbor] = []
    for _ in range(count):
        parts = [head]
        add = parts.append
        for kind, null, prefix, read in steps:
            if payload[offset : offset + 4] != kind or (flag := payload[offset + 8]) > 1:
                raise _no_value(payload, offset, kind)
            offset += _HEAD
            if not flag:
                add(null)
                continue
            add(prefix)
            if read is None:
                add(payload[offset : offset + 8])
                offset += 8
            else:
                value, offset = read(payload, offset)
                add(value)
        if offset > size:
            raise IndexError(offset)
        record = Cbor(b"".join(parts))
        if len(record) > MAX_RECORD:
            msg = f"a record of {len(record):,} bytes exceeds {MAX_RECORD:,}"
            raise InvalidData(msg)
        records.append(record)
    if offset != size:
        msg = f"{size - offset:,} bytes follow the {count:,} records"
        raise InvalidData(msg)
    return records


def _no_value(payload: bytes, offset: int, kind: bytes) -> InvalidData:
    """Return the error for a value that does not fit its field."""
    if offset + _HEAD > len(payload):
        raise IndexError(offset)
    actual, expected = (
        int.from_bytes(payload[offset : offset + 4]),
        LogType(int.from_bytes(kind)),
    )
    if actual == expected:
        return InvalidData(
            f"{payload[offset + 8]} at byte {offset + 8:,} is neither true nor false"
        )
    name = expected.name.lower()
    return InvalidData(f"type {actual} at byte {offset:,} instead of {name}")


def _head(major: int, length: int) -> bytes:
    """Return CBOR's head of a text (3), list (4) or map (5)."""
    major <<= 5
    for most, code in ((0x17, -1), (0xFF, 24), (0xFFFF, 25), (0xFFFF_FFFF, 26)):
        if length <= most:
            extra = b"" if code < 0 else length.to_bytes(1 << code - 24)
            return bytes((major | (length if code < 0 else code),)) + extra
    msg = f"a length of {length:,} exceeds 32 bits"
    raise InvalidData(msg)


_TEXT_HEADS: Final = [_head(3, length) for length in range(256)]


def _text(payload: bytes, offset: int) -> tuple[bytes, int]:
    """Read a text."""
    (size,) = _U32.unpack_from(payload, offset)
    offset += 4
    raw = payload[offset : offset + size]
    if not raw.isascii():
        raw = raw.decode(errors="backslashreplace").encode()
    length = len(raw)
    return (_TEXT_HEADS[length] if length < 256 else _head(3, length)) + raw, offset + size


def _bool(payload: bytes, offset: int) -> tuple[bytes, int]:
    """Read a boolean."""
    return _TRUE if any(payload[offset : offset + 8]) else _FALSE, offset + 8


def _int(payload: bytes, offset: int) -> tuple[bytes, int]:
    """Read a signed integer."""
    (number,) = _I64.unpack_from(payload, offset)
    return (
        b"\x1b" + payload[offset : offset + 8] if number >= 0 else dumps(number)
    ), offset + 8


def _time(payload: bytes, offset: int) -> tuple[bytes, int]:
    """Read a time; null for one outside the years 1 to 9999."""
    raw = payload[offset : offset + 8]
    if raw <= _LAST_BYTES or _FIRST_TIME <= _F64.unpack(raw)[0] <= _LAST_TIME:
        return b"\xc1\xfb" + raw, offset + 8
    return _NULL, offset + 8


def _port(payload: bytes, offset: int) -> tuple[bytes, int]:
    """Read a port."""
    number, protocol = _PORT.unpack_from(payload, offset)
    if number > _PORTS or protocol not in _PROTOCOLS:
        msg = f"{number}/{protocol} at byte {offset:,} is not a port"
        raise InvalidData(msg)
    return b"\x19" + number.to_bytes(2), offset + _PORT.size


def _addr(payload: bytes, offset: int) -> tuple[bytes, int]:
    """Read an address."""
    end = _end_of(payload, offset + 1)
    return _address_text(payload[offset + 1 : end]), end


def _subnet(payload: bytes, offset: int) -> tuple[bytes, int]:
    """Read a subnet."""
    end = _end_of(payload, offset + 2)
    size = end - offset - 2
    bits = payload[offset] - (_MAPPED_BITS if size == 4 else 0)
    if not 0 <= bits <= size * 8:
        msg = f"the subnet at byte {offset:,} has the invalid length {bits}"
        raise InvalidData(msg)
    return _subnet_text(payload[offset + 2 : end], bits), end


def _end_of(payload: bytes, offset: int) -> int:
    """Return the offset after an address; the byte before it is its family."""
    family = payload[offset - 1]
    if family not in {4, 6}:
        msg = f"{family} at byte {offset - 1:,} is not an address family"
        raise InvalidData(msg)
    end = offset + (4 if family == 4 else 16)
    if end > len(payload):
        raise IndexError(end)
    return end


@lru_cache(65_536)
def _address_text(raw: bytes) -> bytes:
    """Return the CBOR text of an address."""
    return dumps(str(ip_address(raw)))


@lru_cache(4_096)
def _subnet_text(raw: bytes, bits: int) -> bytes:
    """Return the CBOR text of a subnet; the bits after its length are ignored, as in Zeek."""
    return dumps(str(ip_network((raw, bits), strict=False)))


def _list_of(kind: LogType) -> _Reader:
    """Return a reader for sets and vectors of a type."""
    expected, read, prefix = _U32.pack(kind), _READERS.get(kind), _RAW.get(kind, b"")

    def read_list(payload: bytes, offset: int) -> tuple[bytes, int]:
        (count,) = _I64.unpack_from(payload, offset)
        offset += 8
        if not 0 <= count * _HEAD <= len(payload) - offset:
            left = len(payload) - offset
            msg = (
                f"{count:,} items are announced at byte {offset:,}, but {left:,} bytes are left"
            )
            raise InvalidData(msg)
        parts = [_head(4, count)]
        for _ in range(count):
            if payload[offset : offset + 4] != expected or payload[offset + 8] > 1:
                raise _no_value(payload, offset, expected)
            offset += _HEAD
            if not payload[offset - 1]:
                value = _NULL
            elif read is None:
                value, offset = prefix + payload[offset : offset + 8], offset + 8
            else:
                value, offset = read(payload, offset)
            parts.append(value)
        return b"".join(parts), offset

    return read_list


#: Types whose 8 bytes become CBOR with this byte in front.
_RAW: Final = {LogType.COUNT: b"\x1b", LogType.DOUBLE: b"\xfb", LogType.INTERVAL: b"\xfb"}
_READERS: Final[dict[LogType, _Reader]] = {
    LogType.BOOL: _bool,
    LogType.INT: _int,
    LogType.TIME: _time,
    LogType.PORT: _port,
    LogType.ADDR: _addr,
    LogType.SUBNET: _subnet,
    **dict.fromkeys((LogType.STRING, LogType.ENUM, LogType.FUNC, LogType.FILE), _text),
}


# ------------------------------------------------------------------------------- writing


def encode_log_write(
    path: str,
    fields: Sequence[LogField],
    rows: Sequence[Sequence[Any]],
    *,
    stream: str = "",
    writer: str = "Log::WRITER_ASCII",
    log_filter: str = "default",
) -> bytes:
    """Return a log-write message as Zeek sends it.

    Args:
        path: the path of the log.
        fields: the fields of each row.
        rows: values in the order of the fields, None for an absent one: numbers, texts or
            bytes, addresses and networks of `ipaddress` or as texts, a port as its number or
            with a protocol, `(53, 2)`; times and intervals in seconds.
        stream: the stream of the log; by default Zeek's name for that path.
        writer: Zeek's writer.
        log_filter: name of the filter.

    Raises:
        InvalidData: a value does not fit the type of its field.
    """
    names = (stream or f"{path.capitalize()}::LOG", writer, log_filter, path)
    parts = [_sized(name.encode()) for name in names]
    parts.append(_U32.pack(len(fields)))
    for field in fields:
        types = struct.pack(">II?", field.type, field.subtype or 0, field.is_optional)
        parts += (b"\0", _sized(field.name.encode()), types)
    parts.append(_U32.pack(len(rows)))
    for row in rows:
        for field, value in zip(fields, row, strict=True):
            _write(parts, field.type, field.subtype, value)
    return b"".join(parts)


def _write(parts: list[bytes], kind: LogType, subtype: LogType | None, value: Any) -> None:
    """Append a value."""
    parts.append(struct.pack(">II?", kind, subtype or 0, value is not None))
    if value is None:
        return
    try:
        if subtype is None:
            parts.append(_WRITERS[kind](value))
            return
        parts.append(_I64.pack(len(value)))
        for item in value:
            _write(parts, subtype, None, item)
    except (struct.error, TypeError, ValueError, AttributeError) as cause:
        msg = f"{value!r:.80} is not of the type {kind.name.lower()}"
        raise InvalidData(msg) from cause


def _sized(content: bytes) -> bytes:
    """Return bytes with their length in front."""
    return _U32.pack(len(content)) + content


def _text_bytes(value: str | bytes) -> bytes:
    """Encode a text or bytes."""
    return _sized(value.encode() if isinstance(value, str) else value)


def _addr_bytes(value: Any) -> bytes:
    """Encode an address."""
    address = ip_address(value)
    return bytes((address.version,)) + address.packed


def _subnet_bytes(value: Any) -> bytes:
    """Encode a subnet."""
    network = ip_network(value)
    bits = network.prefixlen + (_MAPPED_BITS if network.version == 4 else 0)
    return bytes((bits,)) + _addr_bytes(network.network_address)


def _port_bytes(value: int | tuple[int, int]) -> bytes:
    """Encode a port."""
    return _PORT.pack(*(value if isinstance(value, tuple) else (value, 0)))


_WRITERS: Final[dict[LogType, Callable[[Any], bytes]]] = {
    LogType.BOOL: _I64.pack,
    LogType.INT: _I64.pack,
    LogType.COUNT: _U64.pack,
    LogType.PORT: _port_bytes,
    LogType.ADDR: _addr_bytes,
    LogType.SUBNET: _subnet_bytes,
    **dict.fromkeys((LogType.DOUBLE, LogType.TIME, LogType.INTERVAL), _F64.pack),
    **dict.fromkeys((LogType.STRING, LogType.ENUM, LogType.FUNC, LogType.FILE), _text_bytes),
}
