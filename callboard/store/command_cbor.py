"""Commands between our own nodes, as plain CBOR.

    [sender, receiver, number, command, command …]

Sender and receiver are null or `[16 bytes, integer]`. A command is `[kind, field …]`, its kind
the place in `COMMANDS`. Actions are numbered one after the other, from `number` on; a control
command stands alone and has the number 0. Keys and values are as `stored` holds them: plain,
or byte strings that hold their own CBOR.

The snapshot of an `AckClone` travels in chunks: offset, interval, index of the chunk, whether
it is the last, and then key, value, key, value …
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import cbor2

from basp.plain_cbor import is_natural
from callboard.endpoint.errors import InvalidData
from callboard.store.action import Action, checked_actions, checked_who
from callboard.store.command import (
    COMMANDS,
    AckClone,
    AttachWriter,
    Command,
    CumulativeAckCommand,
    Keepalive,
    NackCommand,
    RetransmitFailedCommand,
)
from callboard.store.command_field import INTERVAL_MAX, SEQS_LIMIT
from callboard.store.entity_id import NIL, EntityId
from callboard.store.snapshot import SnapshotChunk
from callboard.store.stored import checked_stored, checked_token

__all__ = ["CommandRun", "encode_run", "read_run"]

SIZE_LIMIT: Final = 256 * 1024
"""Bytes after which a run is cut in two."""

LENGTH_LIMIT: Final = 1024
"""Commands of one run: its receiver's turn stays short."""

_CHUNK: Final = COMMANDS.index(AckClone)
_HEAD: Final = 3
_CHUNK_HEAD: Final = 5
_NUMBERS: Final = {kind: number for number, kind in enumerate(COMMANDS)}

Control = Command | SnapshotChunk
"""A command that changes no store by itself."""


@dataclass(frozen=True, slots=True)
class CommandRun:
    """What one message carries: actions one after the other, or one control command."""

    sender: EntityId
    receiver: EntityId = NIL
    first: int = 0
    actions: Sequence[Action] = field(default=())
    control: Control | None = None


def encode_run(run: CommandRun) -> list[bytes]:
    """Return the CBOR of a run: one item, or several where it is long."""
    sender, receiver = _plain_entity(run.sender), _plain_entity(run.receiver)
    if run.control is not None:
        return [cbor2.dumps([sender, receiver, 0, _plain_control(run.control)])]
    encoded: list[bytes] = []
    _encode_actions([sender, receiver], run.first, run.actions, encoded)
    return encoded


def read_run(content: Any) -> CommandRun:
    """Return the run that a node sent, after cbor2 has read it (arrays as tuples).

    Raises:
        InvalidData: it is none.
    """
    if type(content) is not tuple or len(content) <= _HEAD:
        msg = "a run of commands is an array of sender, receiver, number and commands"
        raise InvalidData(msg)
    sender, receiver, first = _entity(content[0]), _entity(content[1]), content[2]
    if not is_natural(first):
        msg = f"{first!r:.40} is no number of a command"
        raise InvalidData(msg)
    if first:
        return CommandRun(sender, receiver, first, checked_actions(content[_HEAD:]))
    control = content[_HEAD]
    if len(content) != _HEAD + 1 or type(control) is not tuple or not control:
        msg = "a control command is an array of its kind and fields, and stands alone"
        raise InvalidData(msg)
    return CommandRun(sender, receiver, control=_read_control(control))


def _encode_actions(
    head: list[Any], first: int, actions: Sequence[Action], encoded: list[bytes]
) -> None:
    for start in range(0, len(actions), LENGTH_LIMIT):
        part = actions[start : start + LENGTH_LIMIT]
        made = cbor2.dumps([*head, first + start, *part])
        if len(made) <= SIZE_LIMIT or len(part) == 1:
            encoded.append(made)
        else:
            middle = len(part) // 2
            _encode_actions(head, first + start, part[:middle], encoded)
            _encode_actions(head, first + start + middle, part[middle:], encoded)


def _plain_entity(entity: EntityId) -> tuple[bytes, int] | None:
    return (entity.endpoint.bytes, entity.object) if entity else None


def _entity(part: Any) -> EntityId:
    if part is None:
        return NIL
    endpoint, number = checked_who(part)
    return EntityId(UUID(bytes=endpoint), number)


def _plain_control(control: Control) -> list[Any]:
    match control:
        case SnapshotChunk():
            head = [_CHUNK, control.offset, control.heartbeat_interval, control.index]
            return [*head, control.is_last, *control.entries]
        case AttachWriter(offset, interval):
            fields: list[Any] = [offset, interval]
        case Keepalive(seq) | CumulativeAckCommand(seq) | RetransmitFailedCommand(seq):
            fields = [seq]
        case NackCommand(seqs):
            fields = [list(seqs)]
        case _:
            msg = f"{type(control).__name__} is no control command of our own nodes"
            raise TypeError(msg)
    return [_NUMBERS[type(control)], *fields]


def _read_control(part: tuple[Any, ...]) -> Control:
    number, *fields = part
    kind = COMMANDS[number] if is_natural(number, len(COMMANDS)) else None
    match fields:
        case [int() as offset, int() as interval] if kind is AttachWriter:
            return AttachWriter(_natural(offset), _natural(interval, INTERVAL_MAX))
        case [int() as seq] if kind is Keepalive:
            return Keepalive(_natural(seq))
        case [int() as seq] if kind is CumulativeAckCommand:
            return CumulativeAckCommand(_natural(seq))
        case [int() as seq] if kind is RetransmitFailedCommand:
            return RetransmitFailedCommand(_natural(seq))
        case [tuple() as seqs] if kind is NackCommand and len(seqs) <= SEQS_LIMIT:
            return NackCommand(tuple(map(_natural, seqs)))
        case [*_] if kind is AckClone:
            return _read_chunk(fields)
    msg = f"{part!r:.80} is no control command"
    raise InvalidData(msg)


def _read_chunk(fields: list[Any]) -> SnapshotChunk:
    entries = fields[_CHUNK_HEAD - 1 :]
    if len(fields) < _CHUNK_HEAD - 1 or len(entries) % 2 or type(fields[3]) is not bool:
        msg = "a chunk has offset, interval, index, whether it is the last, keys and values"
        raise InvalidData(msg)
    return SnapshotChunk(
        _natural(fields[0]),
        _natural(fields[1], INTERVAL_MAX),
        _natural(fields[2]),
        fields[3],
        tuple(_checked_entries(entries)),
    )


def _checked_entries(parts: list[Any]) -> Iterable[Any]:
    for index, part in enumerate(parts):
        yield checked_stored(part) if index % 2 else checked_token(part)


def _natural(part: Any, limit: int = (1 << 64) - 1) -> int:
    if is_natural(part, limit + 1):
        return int(part)
    msg = f"{part!r:.40} is no integer from 0 to {limit:,}"
    raise InvalidData(msg)
