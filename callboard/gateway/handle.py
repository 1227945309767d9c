"""What the broker knows of one module: opaque to those who add, link and publish."""

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from actors.child import Restart
from actors.future import Future
from actors.mailbox import Mailbox
from callboard.gateway.errors import MalformedMessage
from callboard.gateway.inbox import DEFAULT_QUEUE, Inbox
from callboard.gateway.message import Message

if TYPE_CHECKING:
    from actors.reference import ActorRef
    from callboard.gateway.attaching import Attaching
    from callboard.gateway.module import Module, Outlet

__all__ = [
    "CORRUPT",
    "FAILED",
    "TOPIC_SIZE",
    "DeadLetter",
    "ModuleCounters",
    "ModuleHandle",
    "ModuleOptions",
    "OnError",
]

log = logging.getLogger("callboard.gateway")

TOPIC_SIZE: Final = 8
"""Bytes of a topic: a number of the source, so names may have any length."""

FAILED: Final = "failed"
"""Why a message is lost: `receive` raised."""

CORRUPT: Final = "corrupt"
"""Why a message is lost: its bytes are none."""

OnError = Literal["continue", "crash"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a module should have received and did not.

    Attributes:
        module: the name of that module.
        source: the name of the module that published it; empty if that is gone.
        message: what was lost; None if its bytes were no message.
        reason: `overflow`, `failed`, `ended`, `corrupt`, or `unconfirmed` (it may have been
            received on a node that was lost).
        detail: of the reason.
    """

    module: str
    source: str
    message: Message | None
    reason: str
    detail: str = ""


@dataclass(slots=True)
class ModuleCounters:
    """What became of the messages for one module.

    Attributes:
        received: `receive` returned.
        failed: `receive` raised.
        lost: by reason, all others that are not waiting any more.
        restarts: how often the module's actor was started again.
        unlinked: messages that it published while nobody was linked to it.
    """

    received: int = 0
    failed: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    unlinked: int = 0


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """How a module is run.

    Attributes:
        queue: how much may wait before it, and what becomes of the rest.
        restart: when its actor is started again after it ended: `permanent` always,
            `transient` unless it ended normally, `temporary` never.
        on_error: what an exception in `receive` does: `continue` logs and counts it,
            `crash` ends the module's actor, so that `restart` decides.
        detached: run on a thread of its own, for modules that block for long.
        hold: let messages wait until the module is started.
        intensity: more than so many restarts in so many seconds end the module for good.
    """

    queue: Mailbox = DEFAULT_QUEUE
    restart: Restart = "permanent"
    on_error: OnError = "continue"
    detached: bool = False
    hold: bool = False
    intensity: tuple[int, float] = (3, 5.0)


class ModuleHandle:
    """One module of one broker."""

    __slots__ = (
        "_lock",
        "_lost",
        "_starts",
        "_unlinked",
        "broker",
        "failed",
        "given",
        "inbox",
        "is_started",
        "last_end",
        "make",
        "module",
        "name",
        "options",
        "ref",
        "received",
        "removed",
        "sinks",
        "supervisor",
        "topic",
    )

    def __init__(
        self,
        broker: "Attaching",
        number: int,
        name: str,
        given: object,
        make: "Callable[[Outlet], Module]",
        options: ModuleOptions,
    ) -> None:
        """Made by the broker."""
        self.broker = broker
        self.name = name
        self.topic = number.to_bytes(TOPIC_SIZE)
        #: What the user gave: the same object cannot be added twice.
        self.given = given
        self.make = make
        self.options = options
        # Known by identity, and shorter than any frame: nothing that is published equals it.
        self.inbox = Inbox(name, options.queue, uuid.uuid4().bytes, self.lose)
        #: The queues of all that receive what this module publishes.
        self.sinks: tuple[Inbox, ...] = ()
        self.module: Module | None = None
        self.ref: ActorRef[Any] | None = None
        self.supervisor: ActorRef[Any] | None = None
        self.is_started = False
        #: Why its actor ended last.
        self.last_end = ""
        #: Done when the module has ended for good.
        self.removed: Future[None] = Future()
        self.received = 0
        self.failed = 0
        self._unlinked = 0
        self._lost: dict[str, int] = {}
        self._starts = 0
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """False once it is being removed, or has ended for good."""
        return self.inbox.is_open

    @property
    def waiting(self) -> int:
        """Messages that wait for the module."""
        return len(self.inbox.items)

    @property
    def counters(self) -> ModuleCounters:
        """What became of the messages for this module."""
        with self._lock:
            lost, unlinked = dict(self._lost), self._unlinked
        restarts = max(0, self._starts - 1)
        return ModuleCounters(self.received, self.failed, lost, restarts, unlinked)

    def lose(self, frame: bytes, reason: str, detail: str = "") -> None:
        """Count a frame that is not received, and tell who wants to know."""
        if reason == FAILED:
            self.failed += 1
        else:
            with self._lock:
                self._lost[reason] = self._lost.get(reason, 0) + 1
        told = self.broker.on_dead_letter
        if told is None:
            return
        try:
            message: Message | None = Message.of_frame(frame, TOPIC_SIZE)
        except MalformedMessage:
            message = None
        told(DeadLetter(self.name, self.broker.name_of(frame), message, reason, detail))

    def note_unlinked(self) -> None:
        """Count a message that was published while nobody was linked."""
        with self._lock:
            self._unlinked += 1

    def began(self, module: "Module", ref: "ActorRef[Any]") -> None:
        """Take note of an incarnation that was created."""
        self.module, self.ref = module, ref
        self._starts += 1

    def __repr__(self) -> str:
        return f"<ModuleHandle {self.name!r} of {self.broker.url}>"
