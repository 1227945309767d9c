"""What happens to a node's actors: counted, logged, and told to who looks on."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors.answers import Sender
from actors.envelope import Envelope
from actors.events import ActorFailed, DeadLetter, Expired, SlowHandler, Unexpected
from actors.monitors import Monitored
from actors.reference import ActorRef

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.runner import Runner

log = logging.getLogger("callboard.actors")


@dataclass(slots=True)
class Counters:
    """What happened on this node since it started, in messages."""

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
    ends: dict[str, int] = field(default_factory=dict)


class Accounting:
    """The part of a runtime that counts and tells."""

    runner: "Runner"
    cells: "dict[int, Cell]"
    _lock: threading.Lock

    def __init__(self) -> None:
        self.counters = Counters()
        self.on_dead_letter: list[Callable[[ActorRef[Any], Any, Sender | None], None]] = []
        self._subscribers: list[Callable[[object], None]] = []

    def dead_letter(self, ref: ActorRef[Any], message: Any, sender: Sender | None) -> None:
        """Count a message that nobody will handle."""
        self.counters.dead_letters += 1
        if isinstance(message, Envelope):
            message = message.message
        for told in self.on_dead_letter:
            told(ref, message, sender)
        if self._subscribers:
            self.emit(DeadLetter(ref, message))

    def note_unexpected(self, cell: Monitored, message: Any) -> None:
        """Count a message that its receiver has no handler for."""
        self.counters.unexpected += 1
        if self._subscribers:
            self.emit(Unexpected(cell.ref, message))

    def note_expired(self, cell: Monitored, message: Any) -> None:
        """Count a message whose time was over before it was handled."""
        self.counters.expired += 1
        if self._subscribers:
            self.emit(Expired(cell.ref, message))

    def note_failure(self, cell: Monitored, text: str, error: BaseException) -> None:
        """Count and log an exception that ends an actor."""
        self.counters.failures += 1
        log.error(
            "%s (%s) failed: %s", type(cell.actor).__name__, cell.ref, text, exc_info=error
        )
        if self._subscribers:
            self.emit(ActorFailed(cell.ref, text))

    def _note_slow(self, cell: "Cell", handler: str, seconds: float) -> None:
        """Count and log a handler that holds its thread for long; it goes on."""
        self.counters.slow_handlers += 1
        log.warning(
            "%s of %s (%s) has run for %.1f s; await instead of blocking, or detach the actor",
            handler,
            type(cell.actor).__name__,
            cell.ref,
            seconds,
        )
        if self._subscribers:
            self.emit(SlowHandler(cell.ref, handler, seconds))

    def emit(self, event: object) -> None:
        """Hand an event to all subscribers."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:  # noqa: BLE001  # who only looks on must not break what is seen
                log.exception("a subscriber failed at %r", event)

    @contextlib.contextmanager
    def subscribed(self, subscriber: Callable[[object], None]) -> Iterator[None]:
        """Call `subscriber(event)` for each event while the block runs; from any thread."""
        self._subscribers = [*self._subscribers, subscriber]
        try:
            yield
        finally:
            self._subscribers = [
                known for known in self._subscribers if known is not subscriber
            ]

    @property
    def handled(self) -> int:
        """Messages that handlers were called for."""
        with self._lock:
            return self.counters.handled_by_ended + sum(c.handled for c in self.cells.values())

    @property
    def handler_seconds(self) -> dict[str, float]:
        """Seconds in handlers by name of the actors' class, as sampled."""
        return dict(self.runner.times.seconds)
