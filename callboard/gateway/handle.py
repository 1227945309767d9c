"""The handle of a module: opaque to programs that add, link and publish."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from callboard import locks
from callboard.gateway.errors import MalformedMessage
from callboard.gateway.inbox import DEFAULT_QUEUE, FAILED, Inbox
from callboard.gateway.module import Module
from callboard.gateway.spool import SpooledInbox
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import ActorRef, Restart
from callboard.kernel.queue import Mailbox
from callboard.kernel.reply import Future
from callboard.support import reentry
from callboard.support.text import describe

_log = logging.getLogger("callboard.gateway")

#: Bytes of a topic: a number of the source, so names may have any length.
TOPIC_SIZE: Final = 8

#: Why a message is lost: its bytes are not a message.
CORRUPT: Final = "corrupt"

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

    def as_frame(self) -> bytes:
        """Return the letter as a frame: the lost message, with properties that say why.

        `dead.module` should have received it, `dead.source` published it, `dead.reason` and
        `dead.detail` tell why it was lost. The gateway itself is the source of the frame.
        """
        lost, about = self.message or Message(), {}
        for name in ("module", "source", "reason", "detail"):
            text: str = getattr(self, name).replace("\0", " ")
            about[f"dead.{name}"] = text.encode(errors="replace").decode()
        return bytes(TOPIC_SIZE) + Message(lost.content, {**lost.properties, **about}).data


@dataclass(slots=True)
class ModuleCounters:
    """What became of the messages for one module.

    Attributes:
        received: `receive` returned.
        failed: `receive` raised.
        lost: by reason, all others that are not waiting any more.
        restarts: how often the module's actor was started again.
        unlinked: messages that it published while it had no sinks.
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
        store: a folder that its queue is in, see `callboard.gateway.spool`: while `receive`
            raises an `OSError`, messages wait there; None for a queue in memory.
    """

    queue: Mailbox = DEFAULT_QUEUE
    restart: Restart = "permanent"
    on_error: OnError = "continue"
    detached: bool = False
    hold: bool = False
    intensity: tuple[int, float] = (3, 5.0)
    store: Path | None = None


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """Another node, as the place of a module.

    Attributes:
        address: of the node.
        module_name: under which the node offers the class of the module.
    """

    address: str
    module_name: str


#: Where a module lives: on its node's thread, on a thread of its own, on another node.
Where = Literal["thread"] | RemotePlace | None


def message_in(frame: bytes) -> Message | None:
    """Return the message that a frame holds, if it holds one."""
    try:
        return Message.of_frame(frame, TOPIC_SIZE)
    except MalformedMessage:
        return None


class ModuleCarrier(Protocol):
    """The broker of a module, as its handle and its actor see it."""

    #: Told of each message that is lost, on the thread that lost it: must be quick.
    on_dead_letter: Callable[[DeadLetter], None] | None
    #: Told of a module whose target or source does not answer (and why), or does again.
    on_outage: Callable[[str, str], None] | None

    @property
    def url(self) -> str:
        """The name of the broker, unique in the world."""

    def publish(self, source: Any, message: Any, timeout: float | None = None) -> None:
        """Hand a message to every module that is linked to its source."""

    def name_of(self, frame: bytes) -> str:
        """Return the name of the module that published a frame; empty if that is gone."""


@dataclass(slots=True, eq=False, repr=False)
class ModuleHandle:
    """One module of one broker; made by the broker."""

    broker: ModuleCarrier
    #: The number of the module, as it stands before its messages.
    topic: bytes
    name: str
    #: What the user gave: the same object cannot be added twice.
    given: Any
    args: Mapping[str, Any]
    options: ModuleOptions
    where: Where
    #: The queues of all that receive what this module publishes.
    sinks: tuple[Inbox, ...] = ()
    module: Module | None = None
    ref: ActorRef[Any] | None = None
    supervisor: ActorRef[Any] | None = None
    is_started: bool = False
    #: Why its actor ended last.
    last_end: str = ""
    #: Why what is behind the module does not answer; empty while it does.
    outage: str = ""
    #: Done when the module has ended for good.
    removed: Future[None] = field(default_factory=Future)
    #: What is counted so far; `counters` is a copy.
    counted: ModuleCounters = field(default_factory=ModuleCounters)
    inbox: Inbox = field(init=False)
    _lock: locks.Lock = field(
        default_factory=lambda: locks.lock("counters of a gateway module", 245)
    )
    #: Reasons of losses that are not in the counters yet, empty for what was unlinked: appended
    #: in one step, as a message may be lost inside another count.
    _uncounted: deque[str] = field(default_factory=deque)

    def __post_init__(self) -> None:
        queue, store = self.options.queue, self.options.store
        if store is None:
            self.inbox = Inbox(self.name, queue, self.lose)
        else:
            self.inbox = SpooledInbox(self.name, queue, self.lose, store, self.broker.url)

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
        self._count()
        with self._lock:
            return replace(self.counted, lost=dict(self.counted.lost))

    def lose(self, frame: bytes, reason: str, detail: str = "") -> None:
        """Count a frame that is not received, and report it as a dead letter."""
        if reason == FAILED:
            self.counted.failed += 1
        else:
            self._uncounted.append(reason)
            self._count()
        if (report := self.broker.on_dead_letter) is None:
            return
        source, message = self.broker.name_of(frame), message_in(frame)
        report(DeadLetter(self.name, source, message, reason, detail))

    def note_outage(self, error: BaseException | None) -> None:
        """Log and tell, once, that what is behind the module fails; None: it is back."""
        text = "" if error is None else describe(error)
        if bool(text) == bool(self.outage):
            return
        self.outage = text
        if text:
            store = self.options.store
            what = f"messages wait in {store}" if store else "it is tried again"
            _log.warning("module %r: %s; %s", self.name, text, what)
        else:
            _log.warning("module %r: what it is connected to answers again", self.name)
        if self.broker.on_outage is not None:
            self.broker.on_outage(self.name, text)

    def note_unlinked(self) -> None:
        """Count a message that was published while the module had no sinks."""
        self._uncounted.append("")
        self._count()

    def _count(self) -> None:
        """Enter losses into the counters, unless this is inside another count."""
        counted = self.counted
        while self._uncounted and reentry.take(self._lock):
            try:
                while self._uncounted:
                    if reason := self._uncounted.popleft():
                        counted.lost[reason] = counted.lost.get(reason, 0) + 1
                    else:
                        counted.unlinked += 1
            finally:
                self._lock.release()

    def __repr__(self) -> str:
        return f"<ModuleHandle {self.name!r} of {self.broker.url}>"
