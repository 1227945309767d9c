"""The commands that masters and clones of a store send each other: one table, and their CBOR.

| number | command | fields |
|---|---|---|
| 0 | put | key, value, expiry |
| 1 | put unique | key, value, expiry, who asks, request |
| 2 | put unique result | whether it was inserted, who asked, request |
| 3 | erase | key |
| 4 | expire | key |
| 5 | add | key, value, type to start from, expiry |
| 6 | subtract | key, value, expiry |
| 7 | clear | |
| 8 | attach writer | number before its first command, heartbeat interval |
| 9 | keepalive | number of the last command |
| 10 | cumulative ack | number up to which all commands were processed |
| 11 | nack | numbers of commands that did not arrive |
| 12 | ack clone | number, heartbeat interval, the state of the master |
| 13 | retransmit failed | number of a command that is gone |

Names and order are those of Broker's developer guide, section 7.5.

*Actions*, 0 to 7, change a store and travel as events of a channel. Thousands of them pass a
store in one turn, so they have the form in which they travel and no other: plain tuples
`(number, field, …)`, with keys and values in the forms of `stored`, expiries in nanoseconds or
None, and entities as `(16 bytes, integer)`.

*Controls*, 8 to 13, are the messages of the channels themselves: `Handshake`, `Heartbeat`,
`CumulativeAck`, `Nack`, `RetransmitFailed`; the handshake of a clone carries a snapshot, in
chunks.

Between our own nodes a *run* of commands is one CBOR array:

    [sender, receiver, number, command, command …]

Sender and receiver are null or `[16 bytes, integer]`. Actions are numbered one after the
other, from `number` on; a control stands alone and has the number 0. A chunk of a snapshot
holds offset, interval, index of the chunk, whether it is the last, and then key, value, key,
value …
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from enum import Enum, auto
from itertools import cycle
from typing import Any, Final, NoReturn
from uuid import UUID

import cbor2

from callboard.channel.message import (
    CumulativeAck,
    Handshake,
    Heartbeat,
    Nack,
    RetransmitFailed,
)
from callboard.kernel.codec import is_natural
from callboard.model.data import DataType
from callboard.model.errors import InvalidData
from callboard.store.machine.snapshot import SnapshotChunk
from callboard.store.machine.stored import checked_stored, checked_token
from callboard.support.dataclass import dataclass


class Command:
    """The numbers of the commands, on every wire."""

    PUT: Final = 0
    PUT_UNIQUE: Final = 1
    RESULT: Final = 2
    ERASE: Final = 3
    EXPIRE: Final = 4
    ADD: Final = 5
    SUBTRACT: Final = 6
    CLEAR: Final = 7
    ATTACH_WRITER: Final = 8
    KEEPALIVE: Final = 9
    CUMULATIVE_ACK: Final = 10
    NACK: Final = 11
    ACK_CLONE: Final = 12
    RETRANSMIT_FAILED: Final = 13


NUMBER_LIMIT: Final = 2**64 - 1
#: A heartbeat interval has 16 bits.
INTERVAL_LIMIT: Final = 2**16 - 1

#: Numbers in one nack; more than a consumer of ours asks for, less than would cost memory.
SEQS_LIMIT: Final = 65_536

#: Bytes after which a run is cut in two.
RUN_SIZE_LIMIT: Final = 256 * 1024

#: Commands of one run: its receiver's turn stays short.
RUN_LENGTH_LIMIT: Final = 1024


class CommandField(Enum):
    """The kinds of fields that commands have, on every wire."""

    KEY = auto()
    VALUE = auto()
    #: Nanoseconds, or None.
    EXPIRY = auto()
    ENTITY = auto()
    #: An unsigned integer of 64 bits.
    NUMBER = auto()
    #: An unsigned integer of 16 bits.
    INTERVAL = auto()
    FLAG = auto()
    #: The number of a type of data.
    TYPE = auto()
    SEQS = auto()
    #: A table.
    STATE = auto()


_KEY, _VALUE, _EXPIRY = CommandField.KEY, CommandField.VALUE, CommandField.EXPIRY
_ENTITY, _NUMBER = CommandField.ENTITY, CommandField.NUMBER

#: The fields of each command; its place is its number on every wire.
FIELDS: Final[tuple[tuple[CommandField, ...], ...]] = (
    (_KEY, _VALUE, _EXPIRY),
    (_KEY, _VALUE, _EXPIRY, _ENTITY, _NUMBER),
    (CommandField.FLAG, _ENTITY, _NUMBER),
    (_KEY,),
    (_KEY,),
    (_KEY, _VALUE, CommandField.TYPE, _EXPIRY),
    (_KEY, _VALUE, _EXPIRY),
    (),
    (_NUMBER, CommandField.INTERVAL),
    (_NUMBER,),
    (_NUMBER,),
    (CommandField.SEQS,),
    (_NUMBER, CommandField.INTERVAL, CommandField.STATE),
    (_NUMBER,),
)

#: A command that changes a store; see the table above.
Action = tuple[Any, ...]

#: An entity, plain.
Who = tuple[bytes, int]

#: A command that changes no store by itself.
StoreControl = Handshake | Heartbeat | CumulativeAck | Nack | RetransmitFailed | SnapshotChunk


@dataclass(frozen=True, slots=True, order=True)
class EntityId:
    """A sender or receiver of commands: an endpoint's UUID and a number, unique in its life.

    Raises:
        OverflowError: the number has more than 64 bits.
    """

    endpoint: UUID
    object: int

    def __post_init__(self) -> None:
        if not 0 <= self.object <= NUMBER_LIMIT:
            msg = f"object number {self.object} of an entity is outside 0 to 2**64 - 1"
            raise OverflowError(msg)

    @property
    def who(self) -> Who:
        """The entity as actions carry it."""
        return self.endpoint.bytes, self.object

    def __bool__(self) -> bool:
        return self != NIL

    def __str__(self) -> str:
        return f"{self.object}@{self.endpoint}" if self else "none"


#: Nobody in particular: a command with this receiver is for all.
NIL: Final = EntityId(UUID(int=0), 0)


@dataclass(frozen=True, slots=True)
class CommandRun:
    """The content of one message: actions one after the other, or one control."""

    sender: EntityId
    receiver: EntityId = NIL
    first: int = 0
    actions: Sequence[Action] = field(default=())
    control: StoreControl | None = None


# ------------------------------------------------------------------------------- writing


def encode_run(run: CommandRun) -> list[bytes]:
    """Return the CBOR of a run: one item, or several where it is long."""
    sender, receiver = (one.who if one else None for one in (run.sender, run.receiver))
    if run.control is not None:
        return [cbor2.dumps([sender, receiver, 0, _plain_control(run.control)])]
    return [*_encode_actions([sender, receiver], run.first, run.actions)]


def _encode_actions(head: list[Any], first: int, actions: Sequence[Action]) -> Iterator[bytes]:
    """Encode actions in runs that are short and small enough."""
    for start in range(0, len(actions), RUN_LENGTH_LIMIT):
        part = actions[start : start + RUN_LENGTH_LIMIT]
        made = cbor2.dumps([*head, first + start, *part])
        if len(made) <= RUN_SIZE_LIMIT or len(part) == 1:
            yield made
        else:
            middle = len(part) // 2
            yield from _encode_actions(head, first + start, part[:middle])
            yield from _encode_actions(head, first + start + middle, part[middle:])


def _plain_control(control: StoreControl) -> list[Any]:
    """Return a control as it is encoded."""
    match control:
        case SnapshotChunk(offset, interval, index, is_last, entries):
            return [Command.ACK_CLONE, offset, interval, index, is_last, *entries]
        case Handshake(first, interval):
            return [Command.ATTACH_WRITER, first - 1, interval]
        case Heartbeat(seq):
            return [Command.KEEPALIVE, seq]
        case CumulativeAck(seq):
            return [Command.CUMULATIVE_ACK, seq]
        case Nack(seqs):
            return [Command.NACK, seqs]
        case RetransmitFailed(seq):
            return [Command.RETRANSMIT_FAILED, seq]


# ------------------------------------------------------------------------------- reading

_HEAD: Final = 3
_CHUNK_HEAD: Final = 4
_PUT_LENGTH: Final = 4
_PLAIN: Final = frozenset((str, float, bool, type(None)))
_UUID_BYTES: Final = 16
_NS_LIMIT: Final = 2**63 - 1


def read_run(content: Any) -> CommandRun:
    """Return the run that a node sent, after cbor2 has read it (arrays as tuples).

    Raises:
        InvalidData: it is not a run.
    """
    if type(content) is not tuple or len(content) <= _HEAD:
        _refuse("a run of commands is an array of sender, receiver, number and commands")
    sender, receiver, first = _entity(content[0]), _entity(content[1]), content[2]
    if not is_natural(first):
        _refuse(f"{first!r:.40} is not a number of a command")
    if first:
        return CommandRun(sender, receiver, first, _actions(content[_HEAD:]))
    if len(content) != _HEAD + 1:
        _refuse("a control command stands alone")
    return CommandRun(sender, receiver, control=_control(content[_HEAD]))


def _actions(parts: tuple[Any, ...]) -> list[Action]:
    """Return what a peer sent as actions."""
    actions: list[Action] = []
    keep = actions.append
    plain, put = _PLAIN, Command.PUT
    for part in parts:
        # Nearly all are puts of plain values under text, and are right as they came.
        if type(part) is tuple and len(part) == _PUT_LENGTH and part[0] == put:
            _, token, value, expiry = part
            kind = type(value)
            is_plain = kind in plain or (kind is int and -_NS_LIMIT <= value <= _NS_LIMIT)
            if is_plain and type(token) is str and expiry is None:
                keep(part)
                continue
        keep(_fields(part, range(Command.ATTACH_WRITER)))
    return actions


def _control(part: Any) -> StoreControl:
    """Return what a peer sent as a control."""
    if type(part) is tuple and part and type(part[0]) is int and part[0] == Command.ACK_CLONE:
        return _chunk(part[1:])
    number, *fields = _fields(part, range(Command.ATTACH_WRITER, len(FIELDS)))
    if number == Command.ATTACH_WRITER:
        return Handshake(fields[0] + 1, fields[1])
    return _CONTROLS[number](*fields)


def _fields(part: Any, numbers: range) -> Action:
    """Return a command whose fields are those of its number."""
    if type(part) is not tuple or not part or type(part[0]) is not int:
        _refuse("a command is an array of its number and fields")
    number = part[0]
    if number not in numbers or len(part) != len(FIELDS[number]) + 1:
        _refuse(f"there is no such command with the number {number!r:.20} here")
    checks = zip(_CHECKS_OF[number], part[1:], strict=True)
    return number, *[check(field) for check, field in checks]


def _chunk(fields: tuple[Any, ...]) -> SnapshotChunk:
    """Return fields as a chunk of a snapshot."""
    entries = fields[_CHUNK_HEAD:]
    if len(fields) < _CHUNK_HEAD or len(entries) % 2:
        _refuse("a chunk has offset, interval, index, whether it is the last, keys and values")
    offset, interval, index, is_last = fields[:_CHUNK_HEAD]
    numbers = _natural(offset), _natural(interval, INTERVAL_LIMIT), _natural(index)
    checks = zip(cycle((checked_token, checked_stored)), entries, strict=False)
    checked = tuple(check(part) for check, part in checks)
    return SnapshotChunk(*numbers, _flag(is_last), checked)


def _refuse(message: str) -> NoReturn:
    """Refuse what a peer sent."""
    raise InvalidData(message)


def _entity(part: Any) -> EntityId:
    """Return an entity, or nil for None."""
    if part is None:
        return NIL
    endpoint, number = _who(part)
    return EntityId(UUID(bytes=endpoint), number)


def _who(part: Any) -> Who:
    """Return an entity as actions carry it."""
    match part:
        case (bytes() as endpoint, int() as number) if len(endpoint) == _UUID_BYTES:
            return endpoint, _natural(number)
    _refuse(f"{part!r:.60} is not an entity: 16 bytes and a number")


def _expiry(part: Any) -> int | None:
    """Return nanoseconds or None."""
    if part is None or (type(part) is int and -_NS_LIMIT <= part <= _NS_LIMIT):
        return part
    _refuse(f"{part!r:.60} is not an expiry in nanoseconds")


def _natural(part: Any, limit: int = NUMBER_LIMIT) -> int:
    """Return an integer from 0 to a limit."""
    if is_natural(part, limit + 1):
        return int(part)
    _refuse(f"{part!r:.40} is not an integer from 0 to {limit:,}")


def _flag(part: Any) -> bool:
    """Return a bool."""
    if type(part) is bool:
        return part
    _refuse(f"{part!r:.60} is neither true nor false")


def _seqs(part: Any) -> tuple[int, ...]:
    """Return numbers of commands."""
    if type(part) is tuple and len(part) <= SEQS_LIMIT:
        return tuple(map(_natural, part))
    _refuse(f"{part!r:.40} is not an array of at most {SEQS_LIMIT:,} numbers")


_CHECKS: Final[dict[CommandField, Callable[[Any], Any]]] = {
    CommandField.KEY: checked_token,
    CommandField.VALUE: checked_stored,
    CommandField.EXPIRY: _expiry,
    CommandField.ENTITY: _who,
    CommandField.NUMBER: _natural,
    CommandField.INTERVAL: lambda part: _natural(part, INTERVAL_LIMIT),
    CommandField.FLAG: _flag,
    CommandField.TYPE: lambda part: _natural(part, len(DataType) - 1),
    CommandField.SEQS: _seqs,
}
#: The checks of each command's fields; a snapshot has its own form.
_CHECKS_OF: Final = tuple(
    tuple(_CHECKS[kind] for kind in fields if kind in _CHECKS) for fields in FIELDS
)
_CONTROLS: Final[dict[int, Callable[[Any], StoreControl]]] = {
    Command.KEEPALIVE: Heartbeat,
    Command.CUMULATIVE_ACK: CumulativeAck,
    Command.NACK: Nack,
    Command.RETRANSMIT_FAILED: RetransmitFailed,
}
