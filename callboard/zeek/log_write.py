r"""Zeek's log-writes, format `zeek-bin-v1`: records of one log, from Zeek's bytes to our CBOR.

All numbers are big-endian, a text is its length (4) and bytes.

| bytes | |
|---|---|
| texts | stream (`Conn::LOG`), writer, filter, path (`conn`) |
| 4 | number of fields |
| … | for each: 1 whether a second name follows [text], name, 4 type, 4 subtype, 1 optional |
| 4 | number of records |
| … | for each record and field: 4 type, 4 subtype, 1 present, then the value if it is |

| type | value | in the log |
|---|---|---|
| 1 bool | 8, signed | truth value |
| 2 int, 3 count | 8, signed; unsigned | integer |
| 4 double, 6 interval | 8, IEEE 754 | float; an interval is seconds |
| 5 time | 8, IEEE 754 seconds since 1970 | time (CBOR's tag 1, the same 8 bytes) |
| 7 string, 9 enum, 17 func, 18 file | text | text; what is not UTF-8 as `\xff` |
| 10 port | 8 number, 4 protocol | integer |
| 11 addr | 1 family (4 or 6), 4 or 16 | text |
| 12 subnet | 1 length (as of IPv6), 1 family, 4 or 16 | text, `10.0.0.0/8` |
| 14 set, 19 vector | 8 count, whole values of the subtype | list |

What is absent is null. A value's subtype says nothing: Zeek fills it for some types only.
Source: Zeek 9.1-dev, `SerialTypes`, and the test of its `BinarySerializationFormat` of logs.
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

#: Fields of a log, and bytes of a name: Zeek's widest logs have some fifty.
FIELDS_LIMIT: Final = 1_000
NAME_LIMIT: Final = 128
#: Bytes that names of fields may take in the records of one message: each record has them all,
#: the message has them once.
RECORDS_LIMIT: Final = 32 << 20
#: Bytes before a value, and of the least that a field takes.
_HEAD, _FIELD = 9, 14
#: Logs whose fields are kept, so that they are read once.
_KNOWN: Final = 1_024
#: Times that calendars have, the years 1 to 9999; those from 1970 on rise as bytes, too.
_FIRST_TIME, _LAST_TIME = -62_135_596_800.0, 253_402_300_799.0
_LAST_BYTES: Final = _F64.pack(_LAST_TIME)
_NULL, _TRUE, _FALSE = b"\xf6", b"\xf5", b"\xf4"
_MAPPED_BITS: Final = 96
_PORTS: Final = 65_535
_PROTOCOLS: Final = range(4)


class LogType(IntEnum):
    """Zeek's types that logs have."""

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

#: What columns of the log these are.
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
    """One field of a log.

    Attributes:
        name: such as `id.orig_h`.
        type: of its values.
        subtype: of what is in them, for sets and vectors.
        is_optional: whether records may lack it.
    """

    name: str
    type: LogType
    subtype: LogType | None = None
    is_optional: bool = False

    @property
    def type_name(self) -> str:
        """The type as Zeek writes it: `count`, `set[addr]`."""
        inner = "" if self.subtype is None else f"[{self.subtype.name.lower()}]"
        return self.type.name.lower() + inner

    @property
    def column(self) -> DeclaredField:
        """What it is as a column of our log."""
        kind = self.type if self.subtype is None else self.subtype
        ending = "" if self.subtype is None else "[]"
        return DeclaredField(self.name, _COLUMNS.get(kind, "text") + ending, self.type_name)


@dataclass(frozen=True, slots=True, eq=False)
class LogHeader:
    """Which log records are of; one object for all messages that say the same.

    Attributes:
        stream: Zeek's name of it: `Conn::LOG`.
        writer: what Zeek would write it with: `Log::WRITER_ASCII`.
        filter: of the stream, which chose the path: `default`.
        path: that of the log: `conn`.
        fields: of each record.
    """

    stream: str
    writer: str
    filter: str
    path: str
    fields: tuple[LogField, ...]


class LogWrite(NamedTuple):
    """What a node wrote to one log.

    Attributes:
        header: which log that is.
        records: maps from names of fields to values, as CBOR.
    """

    header: LogHeader
    records: list[Cbor]


#: Reads a value that is there; returns it as CBOR, and the place behind it.
_Reader = Callable[[bytes, int], tuple[bytes, int]]


class _Step(NamedTuple):
    """How a field is read: its type, itself as null, what precedes a value, and the rest."""

    kind: bytes
    null: bytes
    before: bytes
    read: _Reader | None  # None: 8 bytes that are CBOR as they are


class _Layout(NamedTuple):
    """The beginning of a message up to its records, and how these are read."""

    begin: bytes
    header: LogHeader
    head: bytes
    steps: tuple[_Step, ...]
    size: int


class LogWriteDecoder:
    """Decodes log-writes; what was said of a log's fields before is not read again."""

    def __init__(self) -> None:
        self._known: dict[bytes, _Layout] = {}

    def decode(self, payload: bytes) -> LogWrite:
        """Return what a payload says.

        Raises:
            InvalidData: it is none.
        """
        try:
            layout = self._layout(payload)
            (count,) = _U32.unpack_from(payload, at := len(layout.begin))
            left = len(payload) - at - _U32.size
            if count * len(layout.steps) * _HEAD > left:
                msg = f"{count:,} records are announced, and {left:,} bytes left"
                raise InvalidData(msg)
            if count * layout.size > RECORDS_LIMIT:
                msg = f"the names in {count:,} records exceed {RECORDS_LIMIT:,} bytes"
                raise InvalidData(msg)
            records = _records(payload, at + _U32.size, count, layout)
        except (IndexError, struct.error) as cause:
            msg = f"a log-write ends behind the {len(payload):,} bytes that there are"
            raise InvalidData(msg) from cause
        return LogWrite(layout.header, records)

    def _layout(self, payload: bytes) -> _Layout:
        """Return what precedes the records."""
        at = 0
        for _ in range(4):
            at += _U32.size + _U32.unpack_from(payload, at)[0]
        key = payload[:at]
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
        InvalidData: they are none, or too many.
    """
    stream, at = _name(payload, 0)
    writer, at = _name(payload, at)
    filtered, at = _name(payload, at)
    path, at = _name(payload, at)
    (count,) = _U32.unpack_from(payload, at)
    at += _U32.size
    if not 1 <= count <= FIELDS_LIMIT or count * _FIELD > len(payload) - at:
        msg = f"{count:,} fields; a log has 1 to {FIELDS_LIMIT:,}"
        raise InvalidData(msg)
    fields: dict[str, LogField] = {}
    for _ in range(count):
        field, at = _field(payload, at)
        if fields.setdefault(field.name.casefold(), field) is not field:
            msg = f"the field {field.name!r} stands there twice"
            raise InvalidData(msg)
    steps = tuple(map(_step, fields.values()))
    size = sum(len(step.before) for step in steps)
    header = LogHeader(stream, writer, filtered, path, tuple(fields.values()))
    return _Layout(payload[:at], header, _head(5, len(steps)), steps, size)


def _name(payload: bytes, at: int) -> tuple[str, int]:
    """Read a name: printable text of some length."""
    (size,) = _U32.unpack_from(payload, at)
    raw = payload[at + _U32.size : at + _U32.size + size]
    if not 1 <= len(raw) == size <= NAME_LIMIT:
        msg = f"a name of {size:,} bytes at byte {at:,}; 1 to {NAME_LIMIT} are fine"
        raise InvalidData(msg)
    try:
        name = raw.decode()
    except UnicodeDecodeError as cause:
        msg = f"the name at byte {at:,} is no UTF-8"
        raise InvalidData(msg) from cause
    if not name.isprintable():
        msg = f"the name {name!r} at byte {at:,} is not printable"
        raise InvalidData(msg)
    return name, at + _U32.size + size


def _field(payload: bytes, at: int) -> tuple[LogField, int]:
    """Read a field."""
    has_second, at = _flag(payload, at)
    if has_second:
        _, at = _name(payload, at)
    name, at = _name(payload, at)
    kind = _type(payload, at)
    subtype = None
    if kind in _CONTAINERS:
        subtype = _type(payload, at + 4)
        if subtype in _CONTAINERS:
            msg = f"the field {name!r} holds containers; logs have none of these"
            raise InvalidData(msg)
    is_optional, at = _flag(payload, at + 8)
    return LogField(name, kind, subtype, is_optional), at


def _flag(payload: bytes, at: int) -> tuple[bool, int]:
    """Read a truth value of one byte."""
    if payload[at] > 1:
        msg = f"{payload[at]} at byte {at:,} is neither true nor false"
        raise InvalidData(msg)
    return payload[at] == 1, at + 1


def _type(payload: bytes, at: int) -> LogType:
    """Read a type."""
    (number,) = _U32.unpack_from(payload, at)
    try:
        return LogType(number)
    except ValueError:
        msg = f"type {number} at byte {at:,} is none that logs have"
        raise InvalidData(msg) from None


def _step(field: LogField) -> _Step:
    """Return how the values of a field are read."""
    key = dumps(field.name)
    kind = _U32.pack(field.type)
    if field.subtype is not None:
        return _Step(kind, key + _NULL, key, _list_of(field.subtype))
    if field.type in _RAW:
        return _Step(kind, key + _NULL, key + _RAW[field.type], None)
    return _Step(kind, key + _NULL, key, _READERS[field.type])


# ------------------------------------------------------------------------------- records


def _records(payload: bytes, at: int, count: int, layout: _Layout) -> list[Cbor]:
    """Read records, of which no byte may be left over."""
    head, steps, size = layout.head, layout.steps, len(payload)
    records: list[Cbor] = []
    for _ in range(count):
        parts = [head]
        add = parts.append
        for kind, null, before, read in steps:
            if payload[at : at + 4] != kind or (flag := payload[at + 8]) > 1:
                raise _no_value(payload, at, kind)
            at += _HEAD
            if not flag:
                add(null)
                continue
            add(before)
            if read is None:
                add(payload[at : at + 8])
                at += 8
            else:
                value, at = read(payload, at)
                add(value)
        if at > size:
            raise IndexError(at)
        record = Cbor(b"".join(parts))
        if len(record) > MAX_RECORD:
            msg = f"a record of {len(record):,} bytes; {MAX_RECORD:,} are the most"
            raise InvalidData(msg)
        records.append(record)
    if at != size:
        msg = f"{size - at:,} bytes follow the {count:,} records"
        raise InvalidData(msg)
    return records


def _no_value(payload: bytes, at: int, kind: bytes) -> InvalidData:
    """Return why no value stands at a place."""
    if at + _HEAD > len(payload):
        raise IndexError(at)
    found, wanted = int.from_bytes(payload[at : at + 4]), LogType(int.from_bytes(kind))
    if found == wanted:
        return InvalidData(f"{payload[at + 8]} at byte {at + 8:,} is neither true nor false")
    return InvalidData(f"type {found} at byte {at:,}, where {wanted.name.lower()} is announced")


def _head(major: int, length: int) -> bytes:
    """Return CBOR's head of a text (3), list (4) or map (5)."""
    major <<= 5
    for most, code in ((0x17, -1), (0xFF, 24), (0xFFFF, 25), (0xFFFF_FFFF, 26)):
        if length <= most:
            extra = b"" if code < 0 else length.to_bytes(1 << code - 24)
            return bytes((major | (length if code < 0 else code),)) + extra
    msg = f"a length of {length:,}"
    raise InvalidData(msg)


_TEXT_HEADS: Final = [_head(3, length) for length in range(256)]


def _text(payload: bytes, at: int) -> tuple[bytes, int]:
    """Read a text."""
    (size,) = _U32.unpack_from(payload, at)
    at += 4
    raw = payload[at : at + size]
    if not raw.isascii():
        raw = raw.decode(errors="backslashreplace").encode()
    length = len(raw)
    return (_TEXT_HEADS[length] if length < 256 else _head(3, length)) + raw, at + size


def _bool(payload: bytes, at: int) -> tuple[bytes, int]:
    """Read a truth value."""
    return _TRUE if any(payload[at : at + 8]) else _FALSE, at + 8


def _int(payload: bytes, at: int) -> tuple[bytes, int]:
    """Read a signed integer."""
    (number,) = _I64.unpack_from(payload, at)
    return (b"\x1b" + payload[at : at + 8] if number >= 0 else dumps(number)), at + 8


def _time(payload: bytes, at: int) -> tuple[bytes, int]:
    """Read a time; null for one that no calendar has."""
    raw = payload[at : at + 8]
    if raw <= _LAST_BYTES or _FIRST_TIME <= _F64.unpack(raw)[0] <= _LAST_TIME:
        return b"\xc1\xfb" + raw, at + 8
    return _NULL, at + 8


def _port(payload: bytes, at: int) -> tuple[bytes, int]:
    """Read a port."""
    number, protocol = _PORT.unpack_from(payload, at)
    if number > _PORTS or protocol not in _PROTOCOLS:
        msg = f"{number}/{protocol} at byte {at:,} is no port"
        raise InvalidData(msg)
    return b"\x19" + number.to_bytes(2), at + _PORT.size


def _addr(payload: bytes, at: int) -> tuple[bytes, int]:
    """Read an address."""
    end = _end_of(payload, at + 1)
    return _address_text(payload[at + 1 : end]), end


def _subnet(payload: bytes, at: int) -> tuple[bytes, int]:
    """Read a subnet."""
    end = _end_of(payload, at + 2)
    size = end - at - 2
    bits = payload[at] - (_MAPPED_BITS if size == 4 else 0)
    if not 0 <= bits <= size * 8:
        msg = f"a subnet of length {bits} at byte {at:,}"
        raise InvalidData(msg)
    return _subnet_text(payload[at + 2 : end], bits), end


def _end_of(payload: bytes, at: int) -> int:
    """Return the place behind an address; its family stands before it."""
    family = payload[at - 1]
    if family not in {4, 6}:
        msg = f"{family} at byte {at - 1:,} is no family of addresses"
        raise InvalidData(msg)
    end = at + (4 if family == 4 else 16)
    if end > len(payload):
        raise IndexError(end)
    return end


@lru_cache(65_536)
def _address_text(raw: bytes) -> bytes:
    """Return an address as a text of CBOR."""
    return dumps(str(ip_address(raw)))


@lru_cache(4_096)
def _subnet_text(raw: bytes, bits: int) -> bytes:
    """Return a subnet as a text of CBOR; bits behind its length do not count, as in Zeek."""
    return dumps(str(ip_network((raw, bits), strict=False)))


def _list_of(kind: LogType) -> _Reader:
    """Return what reads sets and vectors of a type."""
    expected, read, before = _U32.pack(kind), _READERS.get(kind), _RAW.get(kind, b"")

    def read_list(payload: bytes, at: int) -> tuple[bytes, int]:
        (count,) = _I64.unpack_from(payload, at)
        at += 8
        if not 0 <= count * _HEAD <= len(payload) - at:
            msg = f"{count:,} items at byte {at:,}, {len(payload) - at:,} bytes left"
            raise InvalidData(msg)
        parts = [_head(4, count)]
        for _ in range(count):
            if payload[at : at + 4] != expected or payload[at + 8] > 1:
                raise _no_value(payload, at, expected)
            at += _HEAD
            if not payload[at - 1]:
                value = _NULL
            elif read is None:
                value, at = before + payload[at : at + 8], at + 8
            else:
                value, at = read(payload, at)
            parts.append(value)
        return b"".join(parts), at

    return read_list


#: Types whose 8 bytes are CBOR as they are, behind this one.
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
    """Return a log-write as Zeek sends it.

    Args:
        path: of the log.
        fields: of each row.
        rows: values in the order of the fields, None for what is absent: numbers, texts or
            bytes, addresses and networks of `ipaddress` or as texts, a port as its number or
            with a protocol, `(53, 2)`; times and intervals in seconds.
        stream: that of the log; as Zeek would call it by default.
        writer: what Zeek would write it with.
        log_filter: the filter's name.

    Raises:
        InvalidData: a value is none of its type.
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
        msg = f"{value!r:.80} is no {kind.name.lower()}"
        raise InvalidData(msg) from cause


def _sized(content: bytes) -> bytes:
    """Return bytes with their length before them."""
    return _U32.pack(len(content)) + content


def _text_bytes(value: str | bytes) -> bytes:
    """Return a text, or bytes, as Zeek writes it."""
    return _sized(value.encode() if isinstance(value, str) else value)


def _addr_bytes(value: Any) -> bytes:
    """Return an address as Zeek writes it."""
    address = ip_address(value)
    return bytes((address.version,)) + address.packed


def _subnet_bytes(value: Any) -> bytes:
    """Return a subnet as Zeek writes it."""
    network = ip_network(value)
    bits = network.prefixlen + (_MAPPED_BITS if network.version == 4 else 0)
    return bytes((bits,)) + _addr_bytes(network.network_address)


def _port_bytes(value: int | tuple[int, int]) -> bytes:
    """Return a port as Zeek writes it."""
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
