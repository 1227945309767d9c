"""Notifies adapters of the topics to subscribe to outside, on every change."""

from collections.abc import Callable
from dataclasses import field
from typing import Any, Final

from callboard.support.dataclass import dataclass
from callboard.topics.machine.core import Core

#: Seconds for which changes are collected: filters change in bursts.
COLLECT_SECONDS: Final = 0.02

#: Called with the shortest prefixes of the topics, sorted.
InterestListener = Callable[[tuple[str, ...]], object]


@dataclass(eq=False, slots=True)
class _Watch:
    """An adapter, its listener, and the prefixes in its last call."""

    origin: object
    on_change: InterestListener
    last: tuple[str, ...] | None = None


@dataclass(eq=False, repr=False)
class Interest:
    """The adapters that subscribe to topics outside of the network.

    Runs on the node's thread.
    """

    _core: Core
    #: Calls a function in a turn of the hub, after a time in seconds.
    _later: Callable[[float, Callable[[], object]], Any]
    _watches: list[_Watch] = field(default_factory=list)
    _is_due: bool = False

    def begin(self, origin: object, on_change: InterestListener) -> None:
        """Notify an adapter now and on every change."""
        self._core.reports_interest = True
        self._watches.append(_Watch(origin, on_change))
        self._notify()

    def end(self, origin: object) -> None:
        """Stop notifying an adapter."""
        self._watches = [watch for watch in self._watches if watch.origin is not origin]
        self._core.reports_interest = bool(self._watches)

    def changed(self) -> None:
        """Schedule a check of all adapters."""
        if not self._is_due:
            self._is_due = True
            self._later(COLLECT_SECONDS, self._notify)

    def _notify(self) -> None:
        """Notify the adapters whose topics have changed."""
        self._is_due = False
        for watch in list(self._watches):
            topics = self._core.interest(watch.origin)
            if topics != watch.last:
                watch.last = topics
                watch.on_change(topics)
