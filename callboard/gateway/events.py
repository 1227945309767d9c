"""Events of a gateway: callbacks run in order, on one separate thread."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from callboard import locks
from callboard.gateway.handle import DeadLetter, ModuleCounters
from callboard.support.text import logged

_log = logging.getLogger("callboard.gateway")

EventKind = Literal[
    "created",
    "started",
    "module_list_changed",
    "module_failed",
    "update_failed",
    "dead_letter",
    "outage",
    "recovered",
    "destroyed",
]

EVENTS: Final[tuple[EventKind, ...]] = get_args(EventKind)

#: Events about dead letters that may wait for their callbacks; all are counted anyway.
DEAD_LETTER_LIMIT: Final = 10_000

#: Seconds that the end waits for running callbacks.
CLOSE_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class ModuleStatus:
    """A snapshot of one module.

    Attributes:
        name: the module's name in the gateway.
        sources: names of the modules that are linked to it; `*` for all others.
        waiting: messages that wait for it.
        counters: the counters of all other messages.
        is_started: whether its `start` was called.
        outage: the error of its target or source; empty while it works.
    """

    name: str
    sources: tuple[str, ...]
    waiting: int
    counters: ModuleCounters
    is_started: bool
    outage: str = ""


@dataclass(frozen=True, slots=True)
class GatewayEvent:
    """An event of a gateway.

    Attributes:
        kind: one of `EVENTS`.
        modules: a snapshot of all modules; empty for `dead_letter`.
        module: the module of a `module_failed`, `outage`, `recovered` or `dead_letter`.
        detail: the reason.
        dead_letter: the lost message.
    """

    kind: EventKind
    modules: tuple[ModuleStatus, ...] = ()
    module: str = ""
    detail: str = ""
    dead_letter: DeadLetter | None = None


class EventDispatcher:
    """Runs callbacks on one thread, in the order of events, and of registration."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._callbacks: dict[EventKind, list[tuple[Callable[..., object], tuple[Any, ...]]]]
        self._callbacks = {kind: [] for kind in EVENTS}
        self._events: queue.SimpleQueue[GatewayEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = locks.lock("events of a gateway", 230)
        self._is_closed = False

    def on(self, kind: EventKind, callback: Any, *args: Any) -> None:
        """Call `callback(event, *args)` for each event of a kind from now on.

        Raises:
            TypeError: the callback is not callable.
            ValueError: there is no such kind.
        """
        if kind not in self._callbacks:
            msg = f"there is no event {kind!r}; there are {', '.join(EVENTS)}"
            raise ValueError(msg)
        if not callable(callback):
            msg = f"{callback!r} is not callable; pass a function of an event"
            raise TypeError(msg)
        with self._lock:
            self._callbacks[kind] = [*self._callbacks[kind], (callback, args)]
            if self._thread is None and not self._is_closed:
                name = f"callboard-{self._name}-events"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def off(self, kind: EventKind, callback: Callable[..., object]) -> None:
        """Remove a callback."""
        with self._lock:
            entries = [entry for entry in self._callbacks[kind] if entry[0] != callback]
            self._callbacks[kind] = entries

    def wants(self, kind: EventKind) -> bool:
        """Return whether an event of a kind has a callback, and fits into the backlog."""
        if not self._callbacks[kind]:
            return False
        return kind != "dead_letter" or self._events.qsize() < DEAD_LETTER_LIMIT

    def emit(self, event: GatewayEvent) -> None:
        """Queue an event for its callbacks. Can be called from any thread; never waits."""
        if self._callbacks[event.kind]:
            self._events.put(event)

    def close(self) -> None:
        """Run the remaining callbacks, then end; in a callback it does not wait for itself."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._events.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        """Run callbacks for each event, and for the remaining ones at the end."""
        while (event := self._events.get()) is not None:
            self._notify(event)
        with contextlib.suppress(queue.Empty):
            while (event := self._events.get_nowait()) is not None:
                self._notify(event)

    def _notify(self, event: GatewayEvent) -> None:
        """Run the callbacks of one event; log their errors."""
        for callback, args in self._callbacks[event.kind]:
            try:
                callback(event, *args)
            except BaseException as error:  # noqa: BLE001  # the next callback must still run
                text = "a callback for %r of gateway %s failed"
                logged(_log, text, event.kind, self._name, error=error)
