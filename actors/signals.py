"""Signals: messages of the runtime about the lifecycle of actors."""

from typing import Final

from callboard.actors.envelope import Envelope
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import Call, Ended
from callboard.actors.streams.messages import (
    CheckStreams,
    CloseStream,
    PullItems,
    StreamRequest,
)
from callboard.support.dataclass import dataclass


class Exit(Ended):
    """A linked actor ended; delivered only to actors with `trap_exit = True`."""

    __slots__ = ()


class ChildDown(Ended):
    """A child of a supervisor ended, with the reason."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Restarted:
    """A supervisor restarted this actor.

    This is the first message of a restarted actor that has a handler for it.

    Attributes:
        reason: the end of the previous incarnation, an `ExitReason` (equal to its text);
            `shutdown` if it was stopped because another child of the group failed.
        detail: text of the error, for people.
        count: number of restarts of the child, including this one.
    """

    reason: ExitReason | str
    detail: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the receiver normally, after all earlier messages in its mailbox."""


@dataclass(frozen=True, slots=True)
class Urgent:
    """Marks, at the front of a mailbox, that a high-priority message is next."""


class LinkExit(Ended):
    """A linked actor ended; becomes an `Exit` message, or ends the receiver."""

    __slots__ = ()
    reason: ExitReason


@dataclass(frozen=True, slots=True)
class Resume:
    """Marks, at the front of a mailbox, that a concurrent handler can resume."""


#: Messages to the open streams of an actor.
STREAM_SIGNALS: Final = (PullItems, CloseStream, CheckStreams)

#: Message classes that the runtime handles itself, regardless of the handlers of an actor.
RUNTIMES_OWN: Final = (
    Call,
    Stop,
    LinkExit,
    Urgent,
    Envelope,
    Resume,
    StreamRequest,
    *STREAM_SIGNALS,
)
