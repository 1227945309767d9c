"""Commands of stores as Broker's wire carries them, version 2.x.

| bytes | |
|---|---|
| 8 | number in the channel |
| 24 | sender: UUID, then 8 of the object |
| 24 | receiver, all zero for everybody |
| 1 | kind, the place in `COMMANDS` |
| … | fields |

Fields: data and tables as in `zeek.value` (a table without its type byte), numbers 8 bytes,
intervals 2, flags and types 1, a list of numbers a varbyte count and 8 each, an expiry 1 byte
and, if that is 1, 8 of nanoseconds.
"""

import struct
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from callboard.endpoint.container import Table
from callboard.endpoint.data import Data, DataType
from callboard.endpoint.errors import InvalidData
from callboard.endpoint.timespan import Timespan
from callboard.store.command import COMMANDS, InternalCommand
from callboard.store.command_field import FIELDS, SEQS_LIMIT, Field
from callboard.store.entity_id import EntityId
from callboard.zeek.value import append_value, read_value, value_to_bytes
from callboard.zeek.varbyte import read_varbyte, write_varbyte

__all__ = ["command_from_bytes", "command_to_bytes"]

_NUMBERS: Final = {kind: number for number, kind in enumerate(COMMANDS)}
_NUMBER: Final = struct.Struct(">Q")
_SIGNED: Final = struct.Struct(">q")
_INTERVAL: Final = struct.Struct(">H")
_ENTITY: Final = struct.Struct(">16sQ")


def command_to_bytes(command: InternalCommand) -> bytes:
    """Return the bytes of a command."""
    content = command.content
    kind = type(content)
    out = bytearray(_NUMBER.pack(command.seq))
    for entity in (command.sender, command.receiver):
        out += _ENTITY.pack(entity.endpoint.bytes, entity.object)
    out.append(_NUMBERS[kind])
    for field, name in zip(FIELDS[kind], kind.__dataclass_fields__, strict=True):
        _append(field, getattr(content, name), out)
    return bytes(out)


def command_from_bytes(buffer: bytes) -> InternalCommand:
    """Return the command that fills the bytes.

    Raises:
        InvalidData: they are none.
    """
    try:
        command, end = _command(buffer)
    except (IndexError, struct.error) as cause:
        msg = f"a command ends behind the {len(buffer):,} bytes that there are"
        raise InvalidData(msg) from cause
    if end != len(buffer):
        msg = f"{len(buffer) - end:,} bytes follow a command of {end:,} bytes"
        raise InvalidData(msg)
    return command


def _command(buffer: bytes) -> tuple[InternalCommand, int]:
    (seq,), at = _NUMBER.unpack_from(buffer), _NUMBER.size
    sender, at = _read(Field.ENTITY, buffer, at)
    receiver, at = _read(Field.ENTITY, buffer, at)
    number, at = buffer[at], at + 1
    if number >= len(COMMANDS):
        msg = f"there is no command of kind {number}"
        raise InvalidData(msg)
    kind, values = COMMANDS[number], []
    for field in FIELDS[kind]:
        value, at = _read(field, buffer, at)
        values.append(value)
    return InternalCommand(seq, sender, kind(*values), receiver), at


def _append(field: Field, value: Any, out: bytearray) -> None:
    match field:
        case Field.DATA:
            append_value(value, out)
        case Field.STATE:
            out += value_to_bytes(Data.of(DataType.Table, value))[1:]
        case Field.EXPIRY:
            out += b"\x00" if value is None else b"\x01" + _SIGNED.pack(value.count())
        case Field.ENTITY:
            out += _ENTITY.pack(value.endpoint.bytes, value.object)
        case Field.NUMBER:
            out += _NUMBER.pack(value)
        case Field.INTERVAL:
            out += _INTERVAL.pack(value)
        case Field.FLAG | Field.TYPE:
            out.append(value)
        case Field.SEQS:
            write_varbyte(len(value), out)
            out += struct.pack(f">{len(value)}Q", *value)


def _read(field: Field, buffer: bytes, at: int) -> tuple[Any, int]:
    return _READ[field](buffer, at)


def _expiry(buffer: bytes, at: int) -> tuple[Timespan | None, int]:
    is_there, at = _flag(buffer, at)
    if not is_there:
        return None, at
    return Timespan(_SIGNED.unpack_from(buffer, at)[0]), at + _SIGNED.size


def _entity(buffer: bytes, at: int) -> tuple[EntityId, int]:
    uuid, number = _ENTITY.unpack_from(buffer, at)
    return EntityId(UUID(bytes=uuid), number), at + _ENTITY.size


def _fixed(form: struct.Struct) -> Callable[[bytes, int], tuple[int, int]]:
    return lambda buffer, at: (form.unpack_from(buffer, at)[0], at + form.size)


def _flag(buffer: bytes, at: int) -> tuple[bool, int]:
    if buffer[at] > 1:
        msg = f"{buffer[at]} at byte {at:,} of a command is no flag"
        raise InvalidData(msg)
    return buffer[at] == 1, at + 1


def _type(buffer: bytes, at: int) -> tuple[DataType, int]:
    if buffer[at] >= len(DataType):
        msg = f"{buffer[at]} at byte {at:,} of a command is no type of data"
        raise InvalidData(msg)
    return DataType(buffer[at]), at + 1


def _seqs(buffer: bytes, at: int) -> tuple[tuple[int, ...], int]:
    count, at = read_varbyte(buffer, at)
    if count > SEQS_LIMIT:
        msg = f"a nack of {count:,} numbers exceeds the limit of {SEQS_LIMIT:,}"
        raise InvalidData(msg)
    form = struct.Struct(f">{count}Q")
    return form.unpack_from(buffer, at), at + form.size


def _state(buffer: bytes, at: int) -> tuple[Table, int]:
    count, at = read_varbyte(buffer, at)
    if count > len(buffer) - at:
        msg = (
            f"a snapshot of {count:,} entries does not fit the {len(buffer) - at:,} bytes left"
        )
        raise InvalidData(msg)
    entries = []
    for _ in range(count):
        key, at = read_value(buffer, at)
        value, at = read_value(buffer, at)
        entries.append((key, value))
    return Table(entries), at


_READ: Final[dict[Field, Callable[[bytes, int], tuple[Any, int]]]] = {
    Field.DATA: read_value,
    Field.STATE: _state,
    Field.EXPIRY: _expiry,
    Field.ENTITY: _entity,
    Field.NUMBER: _fixed(_NUMBER),
    Field.INTERVAL: _fixed(_INTERVAL),
    Field.FLAG: _flag,
    Field.TYPE: _type,
    Field.SEQS: _seqs,
}
