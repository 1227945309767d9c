"""Events of a gateway: callbacks run on one thread of their own, in order."""

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

#: Events about dead letters that may wait for their callbacks; counters count all of them.
DEAD_LETTER_LIMIT: Final = 10_000

#: Seconds that the end waits for callbacks which are under way.
CLOSE_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class ModuleStatus:
    """One module, at the moment when it was looked at.

    Attributes:
        name: in the gateway.
        sources: names of the modules that are linked to it; `*` for all others.
        waiting: messages that wait for it.
        counters: what became of the others.
        is_started: whether its `start` was called.
        outage: why what is behind it does not answer; empty while it does.
    """

    name: str
    sources: tuple[str, ...]
    waiting: int
    counters: ModuleCounters
    is_started: bool
    outage: str = ""


@dataclass(frozen=True, slots=True)
class GatewayEvent:
    """What happened.

    Attributes:
        kind: one of `EVENTS`.
        modules: all modules at that moment; for `dead_letter` none.
        module: whose event it is: `module_failed`, `outage`, `recovered`, `dead_letter`.
        detail: why.
        dead_letter: what was lost.
    """

    kind: EventKind
    modules: tuple[ModuleStatus, ...] = ()
    module: str = ""
    detail: str = ""
    dead_letter: DeadLetter | None = None


class EventDispatcher:
    """Calls back, on one thread, in the order of events, and of registration for each."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._callbacks: dict[EventKind, list[tuple[Callable[..., object], tuple[Any, ...]]]]
        self._callbacks = {kind: [] for kind in EVENTS}
        self._events: queue.SimpleQueue[GatewayEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = locks.lock("events of a gateway", 230)
        self._is_closed = False

    def on(self, kind: EventKind, callback: Any, *args: Any) -> None:
        """Call `callback(event, *args)` for each event of a kind from here on.

        Raises:
            TypeError: it cannot be called.
            ValueError: there is no such kind.
        """
        if kind not in self._callbacks:
            msg = f"there is no event {kind!r}; there are {', '.join(EVENTS)}"
            raise ValueError(msg)
        if not callable(callback):
            msg = f"{callback!r} cannot be called; give a function of an event"
            raise TypeError(msg)
        with self._lock:
            self._callbacks[kind] = [*self._callbacks[kind], (callback, args)]
            if self._thread is None and not self._is_closed:
                name = f"callboard-{self._name}-events"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def off(self, kind: EventKind, callback: Callable[..., object]) -> None:
        """Call it no more."""
        with self._lock:
            kept = [entry for entry in self._callbacks[kind] if entry[0] != callback]
            self._callbacks[kind] = kept

    def wants(self, kind: EventKind) -> bool:
        """Return whether a callback wants such an event, and the backlog has room for it."""
        if not self._callbacks[kind]:
            return False
        return kind != "dead_letter" or self._events.qsize() < DEAD_LETTER_LIMIT

    def emit(self, event: GatewayEvent) -> None:
        """Tell of an event; from any thread, never waits."""
        if self._callbacks[event.kind]:
            self._events.put(event)

    def close(self) -> None:
        """Tell what is left, then end; in a callback it does not wait for itself."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._events.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        """Call back for each event, and for those that are left at the end."""
        while (event := self._events.get()) is not None:
            self._tell(event)
        with contextlib.suppress(queue.Empty):
            while (event := self._events.get_nowait()) is not None:
                self._tell(event)

    def _tell(self, event: GatewayEvent) -> None:
        """Call back for one event; an error is logged."""
        for callback, args in self._callbacks[event.kind]:
            try:
                callback(event, *args)
            except BaseException as error:  # noqa: BLE001  # the next callback follows
                text = "a callback for %r of gateway %s failed"
                logged(_log, text, event.kind, self._name, error=error)
