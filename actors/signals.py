"""Messages about the life of actors, and the base class of questions."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from actors.envelope import Envelope
from actors.exit_reason import ExitReason

if TYPE_CHECKING:
    from actors.reference import ActorRef

R = TypeVar("R")


class Query(Generic[R]):
    """Base class for messages that are questions.

    `class Total(Query[int])` is answered by an int. The class carries no behavior;
    checkers take the type of `ref.ask(Total())` from it.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Down:
    """A monitored actor ended. Sent exactly once for each monitor.

    Attributes:
        ref: the actor that ended.
        reason: why, an `ExitReason` (equal to its text).
        detail: the text of the error, for people.
    """

    ref: "ActorRef[Any]"
    reason: ExitReason | str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """A linked actor ended; delivered only to actors with `trap_exit = True`."""

    ref: "ActorRef[Any]"
    reason: ExitReason | str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ChildDown:
    """A child of a supervisor ended, with the reason."""

    ref: "ActorRef[Any]"
    reason: ExitReason | str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A supervisor started this actor in the place of one that ended.

    It is the first message of an actor that has a handler for it.

    Attributes:
        reason: why the incarnation before ended, an `ExitReason` (equal to its text);
            `shutdown` when it was ended because another child of the group failed.
        detail: the text of the error, for people.
        count: how often the child was started again, this time included.
    """

    reason: ExitReason | str
    detail: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Call:
    """A method call on its way to an actor: what `ref.call` and `ref.proxy()` send."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the receiver normally, behind all earlier messages of its mailbox."""


@dataclass(frozen=True, slots=True)
class Urgent:
    """Stands at the front of a mailbox for the next message with high priority."""


@dataclass(frozen=True, slots=True)
class LinkExit:
    """A linked actor ended: becomes an `Exit` message, or the end of the receiver."""

    ref: "ActorRef[Any]"
    reason: ExitReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """Stands at the front of a mailbox for a concurrent handler that can go on."""


RUNTIMES_OWN: Final = (Call, Stop, LinkExit, Urgent, Envelope, Resume)
"""Classes of messages that the runtime handles itself, whatever handlers an actor has."""
