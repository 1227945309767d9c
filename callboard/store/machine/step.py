"""What goes into the machines of masters and clones, and what comes out, in order."""

from dataclasses import field
from enum import Enum, auto
from typing import Any, Final

from callboard.store.machine.change import Change
from callboard.store.machine.command import CommandRun, EntityId, Who
from callboard.store.machine.stored import Stored, Token
from callboard.support.dataclass import dataclass


class StoreSignal(Enum):
    """Rare events of a store; commands come in runs, see `local` and `receive`."""

    #: One tick is over.
    TICK = auto()
    #: Somebody waits until all is acknowledged: ask for it.
    HASTEN = auto()
    #: An endpoint came into reach: it may have a master or clones.
    ENDPOINT_FOUND = auto()
    #: The time of `next_expiry` has come.
    KEY_EXPIRES = auto()
    #: The store ends here: tell the others.
    LEAVE = auto()


@dataclass(frozen=True, slots=True)
class EndpointLost:
    """No path leads to an endpoint any more."""

    endpoint: bytes


StoreInput = StoreSignal | EndpointLost

#: Stands for the row of a key that is gone.
ERASED: Final[Any] = object()

#: A value, and when it expires in the seconds of the machine's clock (None: never).
Row = tuple[Stored, float | None]


@dataclass(slots=True)
class WriterRow:
    """How far the commands of one writer were carried out.

    Attributes:
        seq: the number of the last one.
        answers: what was answered to its latest requests.
    """

    seq: int = 0
    answers: dict[int, bool] = field(default_factory=dict)


@dataclass(slots=True)
class Persist:
    """Write to the backend, all or nothing; the effects behind it wait until it is durable.

    Attributes:
        is_cleared: remove all rows first.
        rows: new rows by key, `ERASED` for those to remove.
        writers: how far writers are, by entity: the number of the last command and pairs of
            request and answer; `ERASED` for those to forget.
    """

    is_cleared: bool = False
    rows: dict[Token, Any] = field(default_factory=dict)
    writers: dict[Who, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.is_cleared or self.rows or self.writers)


@dataclass(slots=True)
class SendRun:
    """Send commands: to one receiver, or (nil) to all masters or clones of the store."""

    run: CommandRun
    to_master: bool


@dataclass(slots=True)
class Answer:
    """Answer a request of a frontend here."""

    request: int
    value: Any


@dataclass(slots=True)
class ReportChanges:
    """Tell watchers and the topic of store events what changed."""

    changes: list[Change]


@dataclass(slots=True)
class ReportRefused:
    """Report commands that were not carried out, whose senders do not wait for an answer."""

    count: int
    reason: str


@dataclass(slots=True)
class Resign:
    """End this master: after a partition it has met another one, which stays."""

    rival: EntityId


StoreEffect = Persist | SendRun | Answer | ReportChanges | ReportRefused | Resign
