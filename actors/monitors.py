"""Monitors and links: who is told when an actor ends.

The lowest layer of a cell: an actor as others know it, by ref, alive or ended, watched and
linked. `actors.answers` and `actors.life` build on it, `actors.cell` completes it.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from actors.exit_reason import ExitReason
from actors.signals import Down, LinkExit

if TYPE_CHECKING:
    from actors.answers import Sender
    from actors.reference import ActorRef
    from actors.runtime import Runtime

Watcher = Callable[[Down], object]

LIFE: Final = threading.Lock()
"""Guards the tables of watchers while actors end; held for a few operations."""


class Monitored:
    """An actor that others can refer to, watch and link to."""

    __slots__ = (
        "__weakref__",
        "_links",
        "_monitors",
        "_ref",
        "_watchers",
        "actor",
        "detail",
        "number",
        "reason",
        "runtime",
    )

    runtime: "Runtime"
    number: int
    actor: Any
    #: Why the actor ended; None while it lives.
    reason: ExitReason | None
    detail: str
    _ref: "ActorRef[Any] | None"
    _watchers: dict[object, Watcher] | None
    _links: "dict[ActorRef[Any], Callable[[], None]] | None"
    _monitors: "dict[Monitor, None] | None"

    def post(self, message: Any, sender: "Sender | None") -> None:
        """Append a message to the mailbox; from any thread, never blocks."""
        raise NotImplementedError

    @property
    def ref(self) -> "ActorRef[Any]":
        """The ref of this actor, made on first use."""
        ref = self._ref
        if ref is None:
            ref = self._ref = self.runtime.make_ref(self)
        return ref

    @property
    def alive(self) -> bool:
        """False once the actor ended."""
        return self.reason is None

    def reference(self, _: "Runtime") -> "ActorRef[Any]":
        """As the sender of a message: its ref."""
        return self.ref

    def __repr__(self) -> str:
        return f"<{type(self.actor).__name__} {self.number}>"

    # --- watched by others ---

    def monitor(self, key: object, watcher: Watcher) -> None:
        """Call `watcher(Down(…))` once when the actor ends; at once, `not_found`, if it has."""
        with LIFE:
            if self.reason is None:
                if self._watchers is None:
                    self._watchers = {}
                self._watchers[key] = watcher
                return
        watcher(Down(self.ref, ExitReason.NOT_FOUND, f"it had ended ({self.reason})"))

    def demonitor(self, key: object) -> None:
        """Forget a watcher; no effect when it was called or never known."""
        with LIFE:
            if self._watchers is not None:
                self._watchers.pop(key, None)

    # --- watching others ---

    def watch(self, other: "ActorRef[Any]") -> "Monitor":
        """Let a `Down` message arrive when `other` ends."""
        monitor = Monitor(self, other)
        if self._monitors is None:
            self._monitors = {}
        self._monitors[monitor] = None
        other.target.monitor(monitor, monitor.fire)
        return monitor

    def unwatch(self, monitor: "Monitor") -> None:
        """Forget a monitor that fired or was cancelled."""
        if self._monitors is not None:
            self._monitors.pop(monitor, None)

    def link(self, other: "ActorRef[Any]") -> None:
        """Be told with a `LinkExit` when `other` ends; its side does the same for this one."""
        if self._links is None:
            self._links = {}
        if other in self._links:
            return
        key = ("link", self)
        target = other.target
        self._links[other] = lambda: target.demonitor(key)
        target.monitor(
            key,
            lambda down: self.post(LinkExit(other, ExitReason(down.reason), down.detail), None),
        )

    def unlink(self, other: "ActorRef[Any]") -> None:
        """Undo `link`."""
        forget = (self._links or {}).pop(other, None)
        if forget is not None:
            forget()


class Monitor:
    """One actor's monitor of another: `cancel()` ends it without a `Down`."""

    __slots__ = ("_cell", "ref")

    def __init__(self, cell: Monitored, ref: "ActorRef[Any]") -> None:
        self._cell = cell
        self.ref = ref

    def cancel(self) -> None:
        """Take the monitor back; no effect once the `Down` is on its way."""
        self._cell.unwatch(self)
        self.ref.target.demonitor(self)

    def fire(self, down: Down) -> None:
        """Deliver the `Down`."""
        self._cell.unwatch(self)
        self._cell.post(down, None)
