"""Commands of stores as Broker's wire carries them, version 2.x.

| bytes | |
|---|---|
| 8 | number in the channel |
| 24 | sender: UUID, then 8 of the object |
| 24 | receiver, all zero for everybody |
| 1 | kind, its number in `callboard.store.machine.command` |
| … | fields |
| 24 | publisher, of the kinds 0 to 7, which change a store: UUID, then 8 of the object |

Fields: data and tables as in `zeek.value` (a table without its type byte), numbers 8 bytes,
intervals 2, flags and types 1, a list of numbers a varbyte count and 8 each, an expiry 1 byte
and, if that is 1, 8 of nanoseconds.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from callboard.model.data import Data, DataType, Table
from callboard.model.errors import InvalidData
from callboard.model.timespan import Timespan
from callboard.store.machine.command import (
    FIELDS,
    NIL,
    SEQS_LIMIT,
    Command,
    CommandField,
    EntityId,
)
from callboard.zeek.value import read_value, value_to_bytes
from callboard.zeek.varbyte import read_varbyte, write_varbyte

_NUMBER: Final = struct.Struct(">Q")
_SIGNED: Final = struct.Struct(">q")
_INTERVAL: Final = struct.Struct(">H")
_ENTITY: Final = struct.Struct(">16sQ")


@dataclass(frozen=True, slots=True)
class InternalCommand:
    """A command on its way.

    Attributes:
        seq: its number in the channel, 0 for controls.
        sender: the store that sends it.
        content: its number and fields, as the model's data: keys and values are `Data`, an
            expiry is a `Timespan` or None, a type a `DataType`.
        receiver: the store that it is for; nil for all.
        publisher: the endpoint or store whose change this is; nil where `content` is a control.
    """

    seq: int
    sender: EntityId
    content: tuple[Any, ...]
    receiver: EntityId = NIL
    publisher: EntityId = NIL


def command_to_bytes(command: InternalCommand) -> bytes:
    """Return the bytes of a command."""
    number, *values = command.content
    out = bytearray(_NUMBER.pack(command.seq))
    for entity in (command.sender, command.receiver):
        out += _entity_bytes(entity)
    out.append(number)
    for field, value in zip(FIELDS[number], values, strict=True):
        _, write = _CODECS[field]
        out += write(value)
    if number < Command.ATTACH_WRITER:
        out += _entity_bytes(command.publisher)
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
    """Read a command; returns it and where it ends."""
    (seq,), at = _NUMBER.unpack_from(buffer), _NUMBER.size
    sender, at = _entity(buffer, at)
    receiver, at = _entity(buffer, at)
    number, at = buffer[at], at + 1
    if number >= len(FIELDS):
        msg = f"there is no command of kind {number}"
        raise InvalidData(msg)
    content: list[Any] = [number]
    for field in FIELDS[number]:
        read, _ = _CODECS[field]
        value, at = read(buffer, at)
        content.append(value)
    publisher = NIL
    if number < Command.ATTACH_WRITER:
        publisher, at = _entity(buffer, at)
    return InternalCommand(seq, sender, tuple(content), receiver, publisher), at


def _expiry_bytes(expiry: Timespan | None) -> bytes:
    """Return the bytes of an expiry."""
    return b"\x00" if expiry is None else b"\x01" + _SIGNED.pack(expiry.count())


def _expiry(buffer: bytes, at: int) -> tuple[Timespan | None, int]:
    """Read an expiry."""
    is_there, at = _flag(buffer, at)
    if not is_there:
        return None, at
    return Timespan(_SIGNED.unpack_from(buffer, at)[0]), at + _SIGNED.size


def _entity_bytes(entity: EntityId) -> bytes:
    """Return the bytes of an entity."""
    return _ENTITY.pack(entity.endpoint.bytes, entity.object)


def _entity(buffer: bytes, at: int) -> tuple[EntityId, int]:
    uuid, number = _ENTITY.unpack_from(buffer, at)
    return EntityId(UUID(bytes=uuid), number), at + _ENTITY.size


def _fixed(form: struct.Struct) -> Callable[[bytes, int], tuple[int, int]]:
    return lambda buffer, at: (form.unpack_from(buffer, at)[0], at + form.size)


def _flag(buffer: bytes, at: int) -> tuple[bool, int]:
    """Read a flag."""
    if buffer[at] > 1:
        msg = f"{buffer[at]} at byte {at:,} of a command is no flag"
        raise InvalidData(msg)
    return buffer[at] == 1, at + 1


def _type(buffer: bytes, at: int) -> tuple[DataType, int]:
    """Read the number of a type of data."""
    if buffer[at] >= len(DataType):
        msg = f"{buffer[at]} at byte {at:,} of a command is no type of data"
        raise InvalidData(msg)
    return DataType(buffer[at]), at + 1


def _one_byte(value: int) -> bytes:
    """Return the byte of a flag or a type."""
    return bytes((value,))


def _seqs_bytes(numbers: Sequence[int]) -> bytes:
    """Return the bytes of a list of numbers."""
    out = bytearray()
    write_varbyte(len(numbers), out)
    return bytes(out) + struct.pack(f">{len(numbers)}Q", *numbers)


def _seqs(buffer: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Read a list of numbers."""
    count, at = read_varbyte(buffer, at)
    if count > SEQS_LIMIT:
        msg = f"a nack of {count:,} numbers exceeds the limit of {SEQS_LIMIT:,}"
        raise InvalidData(msg)
    form = struct.Struct(f">{count}Q")
    return form.unpack_from(buffer, at), at + form.size


def _state_bytes(entries: Any) -> bytes:
    """Return the bytes of a table, without its type."""
    return value_to_bytes(Data.of(DataType.Table, entries))[1:]


def _state(buffer: bytes, at: int) -> tuple[Table, int]:
    """Read a table."""
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


_Read = Callable[[bytes, int], tuple[Any, int]]
_Write = Callable[[Any], bytes]

#: How each field is read and written.
_CODECS: Final[dict[CommandField, tuple[_Read, _Write]]] = {
    CommandField.KEY: (read_value, value_to_bytes),
    CommandField.VALUE: (read_value, value_to_bytes),
    CommandField.STATE: (_state, _state_bytes),
    CommandField.EXPIRY: (_expiry, _expiry_bytes),
    CommandField.ENTITY: (_entity, _entity_bytes),
    CommandField.NUMBER: (_fixed(_NUMBER), _NUMBER.pack),
    CommandField.INTERVAL: (_fixed(_INTERVAL), _INTERVAL.pack),
    CommandField.FLAG: (_flag, _one_byte),
    CommandField.TYPE: (_type, _one_byte),
    CommandField.SEQS: (_seqs, _seqs_bytes),
}
