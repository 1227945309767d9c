"""The handle of a module, opaque to programs that add, link and publish."""

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
from callboard.support.files.private_file import check_mode
from callboard.support.text import describe

_log = logging.getLogger("callboard.gateway")

#: Bytes of a topic, which is the number of the source; so names may have any length.
TOPIC_SIZE: Final = 8

#: Reason of a loss: the bytes are not a message.
CORRUPT: Final = "corrupt"

OnError = Literal["continue", "crash"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that a module should have received, but did not.

    Attributes:
        module: the name of that module.
        source: the name of the module that published it; empty if it was removed.
        message: the lost message; None if its bytes were not a message.
        reason: `overflow`, `failed`, `ended`, `corrupt`, or `unconfirmed` (it may have been
            received on a node that was lost).
        detail: details of the reason.
    """

    module: str
    source: str
    message: Message | None
    reason: str
    detail: str = ""

    def as_frame(self) -> bytes:
        """Return the letter as a frame: the lost message, with properties about the loss.

        `dead.module` should have received it, `dead.source` published it; `dead.reason` and
        `dead.detail` describe the loss. The source of the frame is the gateway itself.
        """
        lost, about = self.message or Message(), {}
        for name in ("module", "source", "reason", "detail"):
            text: str = getattr(self, name).replace("\0", " ")
            about[f"dead.{name}"] = text.encode(errors="replace").decode()
        return bytes(TOPIC_SIZE) + Message(lost.content, {**lost.properties, **about}).data


@dataclass(slots=True)
class ModuleCounters:
    """Counts of the messages for one module.

    Attributes:
        received: `receive` returned.
        failed: `receive` raised.
        lost: the number of all other messages that are no longer waiting, by reason.
        restarts: how often the module's actor was restarted.
        unlinked: messages that it published while it had no sinks.
    """

    received: int = 0
    failed: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    unlinked: int = 0


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """The options of a module.

    Attributes:
        queue: the bounds of the queue, and the policy for messages that do not fit.
        restart: when its actor is restarted after it ended: `permanent` always, `transient`
            unless it ended normally, `temporary` never.
        on_error: the effect of an exception in `receive`: `continue` logs and counts it,
            `crash` ends the module's actor, so that `restart` decides.
        detached: run on a separate thread, for modules that block for long.
        hold: queue messages until the module is started.
        intensity: number of restarts and seconds; more restarts in that time end the module.
        store: the folder of its queue, see `callboard.gateway.spool`; messages wait there while
            `receive` raises an `OSError`. None for a queue in memory.
        store_mode: mode of that folder if it is new, such as 0o750; by default 0o700. Its files
            are as open as the folder.

    Raises:
        ValueError: `store_mode` is not a mode with which this user can use a folder.
    """

    queue: Mailbox = DEFAULT_QUEUE
    restart: Restart = "permanent"
    on_error: OnError = "continue"
    detached: bool = False
    hold: bool = False
    intensity: tuple[int, float] = (3, 5.0)
    store: Path | None = None
    store_mode: int | None = None

    def __post_init__(self) -> None:
        check_mode(self.store_mode)


@dataclass(frozen=True, slots=True)
class RemotePlace:
    """The place of a module on another node.

    Attributes:
        address: the address of the node.
        module_name: under which the node offers the class of the module.
    """

    address: str
    module_name: str


#: The place of a module: its node's thread, a separate thread, another node.
Where = Literal["thread"] | RemotePlace | None


def message_in(frame: bytes) -> Message | None:
    """Return the message in a frame; None if the frame is malformed."""
    try:
        return Message.of_frame(frame, TOPIC_SIZE)
    except MalformedMessage:
        return None


class ModuleAppendBatcher(Protocol):
    """The broker of a module, as its handle and its actor see it."""

    #: Called for each lost message, on the thread that lost it: must be quick.
    on_dead_letter: Callable[[DeadLetter], None] | None
    #: Called when the target or source of a module fails, with the error, or works again.
    on_outage: Callable[[str, str], None] | None

    @property
    def url(self) -> str:
        """The globally unique name of the broker."""

    def publish(self, source: Any, message: Any, timeout: float | None = None) -> None:
        """Send a message to every module that is linked to its source."""

    def name_of(self, frame: bytes) -> str:
        """Return the name of the module that published a frame; empty if it was removed."""


@dataclass(slots=True, eq=False, repr=False)
class ModuleHandle:
    """One module of one broker; made by the broker."""

    broker: ModuleAppendBatcher
    #: The number of the module, which precedes its messages.
    topic: bytes
    name: str
    #: The object that the user passed: it cannot be added twice.
    given: Any
    args: Mapping[str, Any]
    options: ModuleOptions
    where: Where
    #: The queues of all modules that receive messages of this one.
    sinks: tuple[Inbox, ...] = ()
    module: Module | None = None
    ref: ActorRef | None = None
    supervisor: ActorRef | None = None
    is_started: bool = False
    #: The reason of the last end of its actor.
    last_end: str = ""
    #: The error of the module's target or source; empty while it works.
    outage: str = ""
    #: Done when the module has ended for good.
    removed: Future[None] = field(default_factory=Future)
    #: The current counts; `counters` is a copy.
    counted: ModuleCounters = field(default_factory=ModuleCounters)
    inbox: Inbox = field(init=False)
    _lock: locks.Lock = field(
        default_factory=lambda: locks.lock("counters of a gateway module", 245)
    )
    #: Reasons of losses that are not counted yet; empty for messages without sinks. Appending
    #: is atomic, because a message may be lost inside another count.
    _uncounted: deque[str] = field(default_factory=deque)

    def __post_init__(self) -> None:
        queue, store, mode = self.options.queue, self.options.store, self.options.store_mode
        if store is None:
            self.inbox = Inbox(self.name, queue, self.lose)
        else:
            url = self.broker.url
            self.inbox = SpooledInbox(self.name, queue, self.lose, store, url, mode)

    @property
    def is_open(self) -> bool:
        """Whether the module accepts messages: it is not being removed, and has not ended."""
        return self.inbox.is_open

    @property
    def waiting(self) -> int:
        """The number of messages that wait for the module."""
        return len(self.inbox.items)

    @property
    def counters(self) -> ModuleCounters:
        """A copy of the counts of messages for this module."""
        self._count()
        with self._lock:
            return replace(self.counted, lost=dict(self.counted.lost))

    def lose(self, frame: bytes, reason: str, detail: str = "") -> None:
        """Count a frame that was not received, and report it as a dead letter."""
        if reason == FAILED:
            self.counted.failed += 1
        else:
            self._uncounted.append(reason)
            self._count()
        if (report := self.broker.on_dead_letter) is None:
            return
        source, message = self.broker.name_of(frame), message_in(frame)
        report(DeadLetter(self.name, source, message, reason, detail))

    def report_outage(self, error: BaseException | None) -> None:
        """Log and report, once, that the module's target fails; None: it works again."""
        text = "" if error is None else describe(error)
        if bool(text) == bool(self.outage):
            return
        self.outage = text
        if text:
            store = self.options.store
            action = f"messages wait in {store}" if store else "it is tried again"
            _log.warning("module %r: %s; %s", self.name, text, action)
        else:
            _log.warning("module %r: its connection works again", self.name)
        if self.broker.on_outage is not None:
            self.broker.on_outage(self.name, text)

    def count_unlinked(self) -> None:
        """Count a message that was published while the module had no sinks."""
        self._uncounted.append("")
        self._count()

    def _count(self) -> None:
        """Add losses to the counters, unless this is called inside another count."""
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
