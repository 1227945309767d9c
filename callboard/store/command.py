"""What masters and clones of a store tell each other: fourteen kinds of commands.

Names and order are those of Broker's developer guide, section 7.5; the numbers on the wire
are places in `COMMANDS`. Actions change the store and travel as events of a channel; the rest
are messages of the channels themselves.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from callboard.endpoint.container import Table
from callboard.endpoint.data import Data, DataType
from callboard.endpoint.timespan import Timespan
from callboard.store.entity_id import NIL, EntityId

__all__ = [
    "COMMANDS",
    "AckClone",
    "Add",
    "AttachWriter",
    "Clear",
    "Command",
    "CommandTag",
    "CumulativeAckCommand",
    "Erase",
    "Expire",
    "InternalCommand",
    "Keepalive",
    "NackCommand",
    "Put",
    "PutUnique",
    "PutUniqueResult",
    "RetransmitFailedCommand",
    "Subtract",
    "tag_of",
]


class CommandTag(Enum):
    """What a command is for."""

    ACTION = auto()
    """It changes the store."""
    PRODUCER_CONTROL = auto()
    """The producer of a channel sends it to consumers."""
    CONSUMER_CONTROL = auto()
    """A consumer of a channel sends it to the producer."""


@dataclass(frozen=True, slots=True)
class Put:
    """Set the value of a key; `expiry` counts from here."""

    key: Data
    value: Data
    expiry: Timespan | None = None


@dataclass(frozen=True, slots=True)
class PutUnique:
    """Set the value of a key that has none, and answer `who` under `request`."""

    key: Data
    value: Data
    expiry: Timespan | None
    who: EntityId
    request: int


@dataclass(frozen=True, slots=True)
class PutUniqueResult:
    """The answer: whether the key had no value."""

    inserted: bool
    who: EntityId
    request: int


@dataclass(frozen=True, slots=True)
class Erase:
    """Remove a key."""

    key: Data


@dataclass(frozen=True, slots=True)
class Expire:
    """Remove a key because its time was over; clones tell it from an erasure."""

    key: Data


@dataclass(frozen=True, slots=True)
class Add:
    """Add to the value of a key; without one, start from the empty value of `initial`."""

    key: Data
    value: Data
    initial: DataType
    expiry: Timespan | None = None


@dataclass(frozen=True, slots=True)
class Subtract:
    """Take away from the value of a key."""

    key: Data
    value: Data
    expiry: Timespan | None = None


@dataclass(frozen=True, slots=True)
class Clear:
    """Remove all keys."""


@dataclass(frozen=True, slots=True)
class AttachWriter:
    """A clone begins to write: the handshake of its channel to the master.

    `offset` is the number before that of its first event.
    """

    offset: int
    heartbeat_interval: int


@dataclass(frozen=True, slots=True)
class Keepalive:
    """A heartbeat: `seq` is the number of the last event."""

    seq: int


@dataclass(frozen=True, slots=True)
class CumulativeAckCommand:
    """Everything up to `seq` was processed."""

    seq: int


@dataclass(frozen=True, slots=True)
class NackCommand:
    """Events that did not arrive."""

    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AckClone:
    """The master takes a clone in: the handshake of its channel, with all that it holds."""

    offset: int
    heartbeat_interval: int
    state: Table


@dataclass(frozen=True, slots=True)
class RetransmitFailedCommand:
    """An event that somebody asked for is gone."""

    seq: int


Command = (
    Put
    | PutUnique
    | PutUniqueResult
    | Erase
    | Expire
    | Add
    | Subtract
    | Clear
    | AttachWriter
    | Keepalive
    | CumulativeAckCommand
    | NackCommand
    | AckClone
    | RetransmitFailedCommand
)

#: All kinds, in the order of their numbers on the wire.
COMMANDS: Final[tuple[type[Command], ...]] = (
    Put,
    PutUnique,
    PutUniqueResult,
    Erase,
    Expire,
    Add,
    Subtract,
    Clear,
    AttachWriter,
    Keepalive,
    CumulativeAckCommand,
    NackCommand,
    AckClone,
    RetransmitFailedCommand,
)

_CONTROL: Final[dict[type, CommandTag]] = {
    AttachWriter: CommandTag.PRODUCER_CONTROL,
    Keepalive: CommandTag.PRODUCER_CONTROL,
    AckClone: CommandTag.PRODUCER_CONTROL,
    RetransmitFailedCommand: CommandTag.PRODUCER_CONTROL,
    CumulativeAckCommand: CommandTag.CONSUMER_CONTROL,
    NackCommand: CommandTag.CONSUMER_CONTROL,
}


@dataclass(frozen=True, slots=True)
class InternalCommand:
    """A command on its way: its number in the channel (0 for controls), from whom, to whom."""

    seq: int
    sender: EntityId
    content: Command
    receiver: EntityId = NIL


def tag_of(command: InternalCommand) -> CommandTag:
    """Return what a command is for."""
    return _CONTROL.get(type(command.content), CommandTag.ACTION)
