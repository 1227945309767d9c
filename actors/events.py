"""Events of a node about its actors, and its counters."""

from dataclasses import field

from callboard.actors.reference import ActorRef
from callboard.actors.values import Message
from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ActorStarted:
    """An actor was spawned."""

    ref: ActorRef
    class_name: str


@dataclass(frozen=True, slots=True)
class ActorStopped:
    """An actor ended."""

    ref: ActorRef
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class ActorFailed:
    """A handler raised; the actor ends."""

    ref: ActorRef
    detail: str


@dataclass(frozen=True, slots=True)
class ActorRestarted:
    """A supervisor restarted a child; `ref` is the new incarnation.

    Attributes:
        detail: text of the error that ended the previous incarnation.
    """

    ref: ActorRef
    child: str
    restarts: int
    reason: str
    detail: str = field(default="", compare=False)
    supervisor: ActorRef | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RestartsExhausted:
    """A supervisor gave up: more restarts within the period than its intensity allows.

    Attributes:
        is_top: whether no other supervisor restarts it, so that its work is no longer done.
    """

    supervisor: ActorRef
    child: str
    restarts: int
    seconds: float
    is_top: bool = True


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message arrived at an actor that had ended."""

    ref: ActorRef
    message: Message


@dataclass(frozen=True, slots=True)
class Unexpected:
    """A message arrived at an actor that does not handle its type."""

    ref: ActorRef
    message: Message


@dataclass(frozen=True, slots=True)
class Expired:
    """An ask expired in the mailbox, so its message was not handled."""

    ref: ActorRef
    message: Message


@dataclass(frozen=True, slots=True)
class SlowHandler:
    """A handler has occupied its thread for long; the other actors continue.

    Attributes:
        handler: the function, with its class.
        seconds: seconds that it had run at the time of the event.
    """

    ref: ActorRef
    handler: str
    seconds: float


@dataclass(frozen=True, slots=True)
class MailboxOverflow:
    """Messages did not fit into an actor's mailbox and were dropped or refused.

    Attributes:
        policy: `on_full` of the mailbox.
        count: number of messages since the last such event of this actor.
    """

    ref: ActorRef
    policy: str
    count: int


@dataclass(slots=True)
class Counters:
    """Counters of this node since its start."""

    spawned: int = 0
    dead_letters: int = 0
    unexpected: int = 0
    failures: int = 0
    late_answers: int = 0
    overflows: int = 0
    expired: int = 0
    slow_handlers: int = 0
    handled_by_ended: int = 0
    refused_spawns: int = 0
    restarts: int = 0
    exhausted: int = 0
    handed_over: int = 0
    ends: dict[str, int] = field(default_factory=dict)
