"""Inputs of the machines of masters and clones, and the ordered effects of a step."""

from dataclasses import field
from enum import Enum, auto
from typing import Any, Final

from callboard.store.machine.change import Change
from callboard.store.machine.command import CommandRun, EntityId, PlainEntity
from callboard.store.machine.stored import Stored, Token
from callboard.support.dataclass import dataclass


class StoreSignal(Enum):
    """Rare events of a store; commands arrive in runs, see `local` and `receive`."""

    #: One tick has passed.
    TICK = auto()
    #: A caller awaits all acknowledgements: request them now.
    HASTEN = auto()
    #: An endpoint became reachable; it may have a master or clones of the store.
    ENDPOINT_FOUND = auto()
    #: The time `next_expiry` has been reached.
    KEY_EXPIRES = auto()
    #: This replica ends: notify its master or its clones.
    LEAVE = auto()


@dataclass(frozen=True, slots=True)
class EndpointLost:
    """An endpoint is no longer reachable."""

    endpoint: bytes


StoreInput = StoreSignal | EndpointLost

#: Marks the row of a removed key.
ERASED: Final[Any] = object()

#: A value and its deadline, in seconds of the machine's clock (None: it never expires).
Row = tuple[Stored, float | None]


@dataclass(slots=True)
class WriterRow:
    """Progress of one writer's commands.

    Attributes:
        seq: number of the last executed command.
        answers: answers to the writer's latest requests, by request.
    """

    seq: int = 0
    answers: dict[int, bool] = field(default_factory=dict)


@dataclass(slots=True)
class Persist:
    """Write to the backend, all or nothing; later effects wait until it is durable.

    Attributes:
        is_cleared: remove all rows first.
        rows: new rows by key; `ERASED` removes a row.
        writers: progress of writers by entity: the number of the last command, and pairs of
            request and answer; `ERASED` removes a writer.
    """

    is_cleared: bool = False
    rows: dict[Token, Any] = field(default_factory=dict)
    writers: dict[PlainEntity, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.is_cleared or self.rows or self.writers)


@dataclass(slots=True)
class SendRun:
    """Send commands to one receiver, or to all masters or clones if the receiver is nil."""

    run: CommandRun
    to_master: bool


@dataclass(slots=True)
class Answer:
    """Answer a request of a frontend on this node."""

    request: int
    value: Any


@dataclass(slots=True)
class ReportChanges:
    """Send changes to watchers and to the topic of store events."""

    changes: list[Change]


@dataclass(slots=True)
class ReportRefused:
    """Report refused commands whose senders do not wait for an answer."""

    count: int
    reason: str


@dataclass(slots=True)
class Resign:
    """End this master: after a partition it has found another master, which stays."""

    rival: EntityId


StoreEffect = Persist | SendRun | Answer | ReportChanges | ReportRefused | Resign
