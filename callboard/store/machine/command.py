"""The commands between masters and clones of a store: their numbers, fields and CBOR.

| number | command | fields |
|---|---|---|
| 0 | put | key, value, expiry |
| 1 | put unique | key, value, expiry, asking entity, request |
| 2 | put unique result | whether the value was inserted, asking entity, request |
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
| 13 | retransmit failed | number of a command that is no longer buffered |

Names and numbers are those of Broker's developer guide, section 7.5. An action of our own is
numbered from `FIRST_OWN` on: it needs a number in `Command`, its fields in `ACTIONS` (and
`WRITES`, if clones send it), a handler in `master` and a method of `Store`.

*Actions*, 0 to 7, change a store and travel as events of a channel. A store handles thousands
of them in one turn, so they are never converted: they are plain tuples `(number, field, …)`,
as they travel, with keys and values in the forms of `stored`, expiries in nanoseconds or None,
and entities as `(16 bytes, integer)`.

An action that this node cannot read (its number is of a later release, or a value is damaged)
becomes `(Command.UNREADABLE, number, token, reason)`. It keeps its place in the run: without
it the receiver would request the same run again and again, and never get past it. A master
refuses it, a clone removes its key.

*Controls*, 8 to 13, are the messages of the channels themselves: `Handshake`, `Heartbeat`,
`CumulativeAck`, `Nack`, `RetransmitFailed`; the handshake of a clone carries a snapshot, in
chunks. An unknown control is refused: its sender and its receiver have different channels.

Between our own nodes a *run* of commands is one CBOR array:

    [sender, receiver, number, command, command …]

Sender and receiver are null or `[16 bytes, integer]`. Actions have consecutive numbers, the
first is `number`; a control must be alone and has the number 0. A chunk of a snapshot contains
offset, interval, index of the chunk, whether it is the last, and then key, value, key,
value …
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from enum import Enum, auto
from typing import Any, Final, NoReturn
from uuid import UUID

import cbor2

from callboard.cbor.plain import is_natural
from callboard.channel.message import (
    CumulativeAck,
    Handshake,
    Heartbeat,
    Nack,
    RetransmitFailed,
)
from callboard.model.data import DataType
from callboard.model.errors import InvalidData
from callboard.store.machine.snapshot import SnapshotChunk
from callboard.store.machine.stored import checked_stored, checked_token
from callboard.support.dataclass import dataclass
from callboard.support.text import safe_repr


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
    #: Never sent: an action that was received and cannot be read.
    UNREADABLE: Final = -1


#: The first number of our own actions; lower ones are Broker's, which may add some.
FIRST_OWN: Final = 32

NUMBER_LIMIT: Final = 2**64 - 1
#: A heartbeat interval has 16 bits.
INTERVAL_LIMIT: Final = 2**16 - 1

#: Numbers in one nack; more than our consumers request, few enough to cost little memory.
SEQS_LIMIT: Final = 65_536

#: Bytes of one run; a longer one is split. A large frame delays others on the same link.
RUN_SIZE_LIMIT: Final = 256 * 1024

#: Commands of one run, so that the turn of its receiver stays short.
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

_Fields = dict[int, tuple[CommandField, ...]]

#: The fields of each action, by its number on every wire.
ACTIONS: Final[_Fields] = {
    Command.PUT: (_KEY, _VALUE, _EXPIRY),
    Command.PUT_UNIQUE: (_KEY, _VALUE, _EXPIRY, _ENTITY, _NUMBER),
    Command.RESULT: (CommandField.FLAG, _ENTITY, _NUMBER),
    Command.ERASE: (_KEY,),
    Command.EXPIRE: (_KEY,),
    Command.ADD: (_KEY, _VALUE, CommandField.TYPE, _EXPIRY),
    Command.SUBTRACT: (_KEY, _VALUE, _EXPIRY),
    Command.CLEAR: (),
}

#: The fields of each control.
CONTROLS: Final[_Fields] = {
    Command.ATTACH_WRITER: (_NUMBER, CommandField.INTERVAL),
    Command.KEEPALIVE: (_NUMBER,),
    Command.CUMULATIVE_ACK: (_NUMBER,),
    Command.NACK: (CommandField.SEQS,),
    Command.ACK_CLONE: (_NUMBER, CommandField.INTERVAL, CommandField.STATE),
    Command.RETRANSMIT_FAILED: (_NUMBER,),
}

FIELDS: Final[_Fields] = {**ACTIONS, **CONTROLS}

#: Actions that clones send to their master. Masters send only put, put unique result, erase,
#: expire and clear, which every release can apply.
WRITES: Final = frozenset(
    {Command.PUT, Command.PUT_UNIQUE, Command.ERASE, Command.ADD, Command.SUBTRACT}
    | {Command.CLEAR, Command.UNREADABLE}
)

#: A command that changes a store; see the table above.
Action = tuple[Any, ...]

#: An entity as actions carry it.
PlainEntity = tuple[bytes, int]

#: A command of the channels, which does not change the store.
StoreControl = Handshake | Heartbeat | CumulativeAck | Nack | RetransmitFailed | SnapshotChunk


@dataclass(frozen=True, slots=True, order=True)
class EntityId:
    """A sender or receiver of commands: an endpoint's UUID, and a number unique within it.

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
    def plain(self) -> PlainEntity:
        """The entity as actions carry it."""
        return self.endpoint.bytes, self.object

    def __bool__(self) -> bool:
        return self != NIL

    def __str__(self) -> str:
        return f"{self.object}@{self.endpoint}" if self else "none"


#: No entity: a command with this receiver is for all masters or all clones.
NIL: Final = EntityId(UUID(int=0), 0)


@dataclass(frozen=True, slots=True)
class CommandRun:
    """The content of one message: actions with consecutive numbers, or one control."""

    sender: EntityId
    receiver: EntityId = NIL
    first: int = 0
    actions: Sequence[Action] = field(default=())
    control: StoreControl | None = None


# ------------------------------------------------------------------------------- writing


def encode_run(run: CommandRun) -> list[bytes]:
    """Return the CBOR of a run: one item, or several if it is long."""
    entities = (run.sender, run.receiver)
    sender, receiver = (entity.plain if entity else None for entity in entities)
    if run.control is not None:
        return [cbor2.dumps([sender, receiver, 0, _plain_control(run.control)])]
    return [*_encode_actions([sender, receiver], run.first, run.actions)]


def _encode_actions(head: list[Any], first: int, actions: Sequence[Action]) -> Iterator[bytes]:
    """Encode actions in runs that are short and small enough."""
    for start in range(0, len(actions), RUN_LENGTH_LIMIT):
        part = actions[start : start + RUN_LENGTH_LIMIT]
        encoded = cbor2.dumps([*head, first + start, *part])
        if len(encoded) <= RUN_SIZE_LIMIT or len(part) == 1:
            yield encoded
        else:
            middle = len(part) // 2
            yield from _encode_actions(head, first + start, part[:middle])
            yield from _encode_actions(head, first + start + middle, part[middle:])


def _plain_control(control: StoreControl) -> list[Any]:
    """Return a control as an array of its number and fields."""
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
    """Return the run that a node sent, from its decoded CBOR (arrays as tuples).

    Raises:
        InvalidData: the array is not a run.
    """
    if type(content) is not tuple or len(content) <= _HEAD:
        _refuse("a run of commands is an array of sender, receiver, number and commands")
    sender, receiver, first = _entity(content[0]), _entity(content[1]), content[2]
    if not is_natural(first):
        _refuse(f"{safe_repr(first, 40)} is not a number of a command")
    if first:
        return CommandRun(sender, receiver, first, _actions(content[_HEAD:]))
    if len(content) != _HEAD + 1:
        _refuse("a control command must be alone in its run")
    return CommandRun(sender, receiver, control=_control(content[_HEAD]))


def _actions(parts: tuple[Any, ...]) -> list[Action]:
    """Check actions that a peer sent.

    Raises:
        InvalidData: an element is not an action, readable or not.
    """
    actions: list[Action] = []
    keep = actions.append
    plain, put = _PLAIN, Command.PUT
    for part in parts:
        # Nearly all actions put a plain value under a text key, and need no conversion.
        if type(part) is tuple and len(part) == _PUT_LENGTH and part[0] == put:
            _, token, value, expiry = part
            kind = type(value)
            is_plain = kind in plain or (kind is int and -_NS_LIMIT <= value <= _NS_LIMIT)
            if is_plain and type(token) is str and expiry is None:
                keep(part)
                continue
        if (number := _number(part)) in CONTROLS:
            _refuse(f"command {number} is not an action")
        try:
            keep(_fields(part, ACTIONS))
        except InvalidData as error:
            keep(_unreadable(part, error))
    return actions


def _unreadable(part: tuple[Any, ...], error: InvalidData) -> Action:
    """Return the substitute of an action that cannot be read, with its key if it has one."""
    token = None
    if _KEY in ACTIONS.get(part[0], ()) and len(part) > 1:
        with suppress(InvalidData):
            token = checked_token(part[1])
    key = "" if token is None else f" for the key {token!r:.60}"
    reason = f"command {part[0]}{key} cannot be read: {error}"
    return Command.UNREADABLE, part[0], token, reason


def _control(part: Any) -> StoreControl:
    """Check a control that a peer sent."""
    if _number(part) == Command.ACK_CLONE:
        return _chunk(part[1:])
    number, *fields = _fields(part, CONTROLS)
    if number == Command.ATTACH_WRITER:
        return Handshake(fields[0] + 1, fields[1])
    return _CONTROLS[number](*fields)


def _number(part: Any) -> int:
    """Return the number of a command."""
    if type(part) is not tuple or not part:
        _refuse("a command is an array of its number and fields")
    return _natural(part[0])


def _fields(part: tuple[Any, ...], table: _Fields) -> Action:
    """Return a command with its fields checked by a table.

    Raises:
        InvalidData: the table does not have the number, or a field is wrong.
    """
    number = part[0]
    if number not in table:
        _refuse("this release does not know its number; update this node")
    if len(part) != len(table[number]) + 1:
        _refuse(f"it has {len(table[number])} fields, not {len(part) - 1}")
    checks = zip(_CHECKS_OF[number], part[1:], strict=True)
    return number, *[check(field) for check, field in checks]


def _chunk(fields: tuple[Any, ...]) -> SnapshotChunk:
    """Check a chunk of a snapshot; entries that cannot be read are left out and listed."""
    entries = fields[_CHUNK_HEAD:]
    if len(fields) < _CHUNK_HEAD or len(entries) % 2:
        _refuse("a chunk has offset, interval, index, whether it is the last, keys and values")
    offset, interval, index, is_last = fields[:_CHUNK_HEAD]
    numbers = _natural(offset), _natural(interval, INTERVAL_LIMIT), _natural(index)
    checked: list[object] = []
    unreadable = []
    for key, value in zip(entries[::2], entries[1::2], strict=True):
        try:
            checked += checked_token(key), checked_stored(value)
        except InvalidData as error:
            unreadable.append(f"the entry {safe_repr(key, 60)} cannot be read: {error}")
    return SnapshotChunk(*numbers, _flag(is_last), tuple(checked), tuple(unreadable))


def _refuse(message: str) -> NoReturn:
    """Refuse what a peer sent."""
    raise InvalidData(message)


def _entity(part: Any) -> EntityId:
    """Return an entity, or nil for None."""
    if part is None:
        return NIL
    endpoint, number = _plain_entity(part)
    return EntityId(UUID(bytes=endpoint), number)


def _plain_entity(part: Any) -> PlainEntity:
    """Check an entity as actions carry it."""
    match part:
        case (bytes() as endpoint, int() as number) if len(endpoint) == _UUID_BYTES:
            return endpoint, _natural(number)
    _refuse(f"{safe_repr(part, 60)} is not an entity: 16 bytes and a number")


def _expiry(part: Any) -> int | None:
    """Check an expiry: nanoseconds or None."""
    if part is None or (type(part) is int and -_NS_LIMIT <= part <= _NS_LIMIT):
        return part
    _refuse(f"{safe_repr(part, 60)} is not an expiry in nanoseconds")


def _natural(part: Any, limit: int = NUMBER_LIMIT) -> int:
    """Check an integer from 0 to a limit."""
    if is_natural(part, limit + 1):
        return int(part)
    _refuse(f"{safe_repr(part, 40)} is not an integer from 0 to {limit:,}")


def _flag(part: Any) -> bool:
    """Check a bool."""
    if type(part) is bool:
        return part
    _refuse(f"{safe_repr(part, 60)} is neither true nor false")


def _seqs(part: Any) -> tuple[int, ...]:
    """Check an array of numbers of commands."""
    if type(part) is tuple and len(part) <= SEQS_LIMIT:
        return tuple(map(_natural, part))
    _refuse(f"{safe_repr(part, 40)} is not an array of at most {SEQS_LIMIT:,} numbers")


_CHECKS: Final[dict[CommandField, Callable[[Any], Any]]] = {
    CommandField.KEY: checked_token,
    CommandField.VALUE: checked_stored,
    CommandField.EXPIRY: _expiry,
    CommandField.ENTITY: _plain_entity,
    CommandField.NUMBER: _natural,
    CommandField.INTERVAL: lambda part: _natural(part, INTERVAL_LIMIT),
    CommandField.FLAG: _flag,
    CommandField.TYPE: lambda part: _natural(part, len(DataType) - 1),
    CommandField.SEQS: _seqs,
}
#: The checks of the fields of each command, except those of a snapshot: see `_chunk`.
_CHECKS_OF: Final = {
    number: tuple(_CHECKS[kind] for kind in fields if kind in _CHECKS)
    for number, fields in FIELDS.items()
}
_CONTROLS: Final[dict[int, Callable[[Any], StoreControl]]] = {
    Command.KEEPALIVE: Heartbeat,
    Command.CUMULATIVE_ACK: CumulativeAck,
    Command.NACK: Nack,
    Command.RETRANSMIT_FAILED: RetransmitFailed,
}
