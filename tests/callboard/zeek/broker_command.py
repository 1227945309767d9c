"""Store commands in Broker's encoding, version 2.x.

| bytes | |
|---|---|
| 8 | sequence number in the channel |
| 24 | sender: UUID, then 8 bytes for the object |
| 24 | receiver; zeros for all |
| 1 | kind, its number in `callboard.store.machine.command` |
| … | fields |
| 24 | publisher, for the kinds 0 to 7, which change a store: UUID, then 8 for the object |

Fields: data and tables as in `zeek.value` (a table without its type byte), numbers 8 bytes,
intervals 2, flags and types 1, a list of numbers a varbyte count and 8 each, an expiry 1 byte
and, if that is 1, 8 bytes of nanoseconds.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from callboard.caf.wire.varbyte import read_varbyte, write_varbyte
from callboard.model.data import Data, DataType, Table
from callboard.model.errors import InvalidData
from callboard.model.timespan import Timespan
from callboard.store.machine.command import (
    ACTIONS,
    FIELDS,
    FIRST_OWN,
    NIL,
    SEQS_LIMIT,
    CommandField,
    EntityId,
)
from callboard.zeek.value import read_value, value_to_bytes

_NUMBER: Final = struct.Struct(">Q")
_SIGNED: Final = struct.Struct(">q")
_INTERVAL: Final = struct.Struct(">H")
_ENTITY: Final = struct.Struct(">16sQ")


@dataclass(frozen=True, slots=True)
class InternalCommand:
    """A command in transit.

    Attributes:
        seq: its number in the channel, 0 for controls.
        sender: the sending store.
        content: its number and fields, as data of the model: keys and values are `Data`, an
            expiry is a `Timespan` or None, a type a `DataType`.
        receiver: the receiving store; nil for all.
        publisher: the endpoint or store that makes the change; nil if `content` is a control.
    """

    seq: int
    sender: EntityId
    content: tuple[Any, ...]
    receiver: EntityId = NIL
    publisher: EntityId = NIL


def command_to_bytes(command: InternalCommand) -> bytes:
    """Return an encoded command."""
    number, *values = command.content
    out = bytearray(_NUMBER.pack(command.seq))
    for entity in (command.sender, command.receiver):
        out += _entity_bytes(entity)
    out.append(number)
    for field, value in zip(FIELDS[number], values, strict=True):
        _, write = _CODECS[field]
        out += write(value)
    if number in ACTIONS:
        out += _entity_bytes(command.publisher)
    return bytes(out)


def command_from_bytes(buffer: bytes) -> InternalCommand:
    """Return the command that fills the buffer.

    Raises:
        InvalidData: the buffer is not a command.
    """
    try:
        command, end = _command(buffer)
    except (IndexError, struct.error) as cause:
        msg = f"a command is cut off after {len(buffer):,} bytes"
        raise InvalidData(msg) from cause
    if end != len(buffer):
        msg = f"{len(buffer) - end:,} bytes follow a command of {end:,} bytes"
        raise InvalidData(msg)
    return command


def _command(buffer: bytes) -> tuple[InternalCommand, int]:
    """Read a command; return it and the offset after it."""
    (seq,), offset = _NUMBER.unpack_from(buffer), _NUMBER.size
    sender, offset = _entity(buffer, offset)
    receiver, offset = _entity(buffer, offset)
    number, offset = buffer[offset], offset + 1
    if number not in FIELDS or number >= FIRST_OWN:
        msg = f"{number} is not a kind of command"
        raise InvalidData(msg)
    content: list[Any] = [number]
    for field in FIELDS[number]:
        read, _ = _CODECS[field]
        value, offset = read(buffer, offset)
        content.append(value)
    publisher = NIL
    if number in ACTIONS:
        publisher, offset = _entity(buffer, offset)
    return InternalCommand(seq, sender, tuple(content), receiver, publisher), offset


def _expiry_bytes(expiry: Timespan | None) -> bytes:
    """Return an encoded expiry."""
    return b"\x00" if expiry is None else b"\x01" + _SIGNED.pack(expiry.count())


def _expiry(buffer: bytes, offset: int) -> tuple[Timespan | None, int]:
    """Read an expiry."""
    has_expiry, offset = _flag(buffer, offset)
    if not has_expiry:
        return None, offset
    return Timespan(_SIGNED.unpack_from(buffer, offset)[0]), offset + _SIGNED.size


def _entity_bytes(entity: EntityId) -> bytes:
    """Return an encoded entity."""
    return _ENTITY.pack(entity.endpoint.bytes, entity.object)


def _entity(buffer: bytes, offset: int) -> tuple[EntityId, int]:
    uuid, number = _ENTITY.unpack_from(buffer, offset)
    return EntityId(UUID(bytes=uuid), number), offset + _ENTITY.size


def _fixed(form: struct.Struct) -> Callable[[bytes, int], tuple[int, int]]:
    return lambda buffer, offset: (form.unpack_from(buffer, offset)[0], offset + form.size)


def _flag(buffer: bytes, offset: int) -> tuple[bool, int]:
    """Read a flag."""
    if buffer[offset] > 1:
        msg = f"{buffer[offset]} at byte {offset:,} of a command is not a flag"
        raise InvalidData(msg)
    return buffer[offset] == 1, offset + 1


def _type(buffer: bytes, offset: int) -> tuple[DataType, int]:
    """Read a data type."""
    if buffer[offset] >= len(DataType):
        msg = f"{buffer[offset]} at byte {offset:,} of a command is not a data type"
        raise InvalidData(msg)
    return DataType(buffer[offset]), offset + 1


def _one_byte(value: int) -> bytes:
    """Return an encoded flag or type."""
    return bytes((value,))


def _seqs_bytes(numbers: Sequence[int]) -> bytes:
    """Return an encoded list of numbers."""
    out = bytearray()
    write_varbyte(len(numbers), out)
    return bytes(out) + struct.pack(f">{len(numbers)}Q", *numbers)


def _seqs(buffer: bytes, offset: int) -> tuple[tuple[int, ...], int]:
    """Read a list of numbers."""
    count, offset = read_varbyte(buffer, offset)
    if count > SEQS_LIMIT:
        msg = f"a nack of {count:,} numbers exceeds the limit of {SEQS_LIMIT:,}"
        raise InvalidData(msg)
    form = struct.Struct(f">{count}Q")
    return form.unpack_from(buffer, offset), offset + form.size


def _state_bytes(entries: Any) -> bytes:
    """Return an encoded table, without its type byte."""
    return value_to_bytes(Data.of(DataType.Table, entries))[1:]


def _state(buffer: bytes, offset: int) -> tuple[Table, int]:
    """Read a table."""
    count, offset = read_varbyte(buffer, offset)
    if count > len(buffer) - offset:
        msg = (
            f"a snapshot of {count:,} entries does not fit into the "
            f"{len(buffer) - offset:,} bytes left"
        )
        raise InvalidData(msg)
    entries = []
    for _ in range(count):
        key, offset = read_value(buffer, offset)
        value, offset = read_value(buffer, offset)
        entries.append((key, value))
    return Table(entries), offset


_Read = Callable[[bytes, int], tuple[Any, int]]
_Write = Callable[[Any], bytes]

#: Reader and writer of each field.
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
