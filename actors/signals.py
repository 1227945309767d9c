"""Signals: messages of the runtime about the life of actors."""

from typing import Final

from callboard.actors.envelope import Envelope
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import Call, Ended
from callboard.support.dataclass import dataclass


class Exit(Ended):
    """A linked actor ended; delivered only to actors with `trap_exit = True`."""

    __slots__ = ()


class ChildDown(Ended):
    """A child of a supervisor ended, with the reason."""

    __slots__ = ()


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
class Stop:
    """Ends the receiver normally, behind all earlier messages of its mailbox."""


@dataclass(frozen=True, slots=True)
class Urgent:
    """Stands at the front of a mailbox for the next message with high priority."""


class LinkExit(Ended):
    """A linked actor ended: becomes an `Exit` message, or the end of the receiver."""

    __slots__ = ()
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class Resume:
    """Stands at the front of a mailbox for a concurrent handler that can go on."""


#: Classes of messages that the runtime handles itself, whatever handlers an actor has.
RUNTIMES_OWN: Final = (Call, Stop, LinkExit, Urgent, Envelope, Resume)
