"""Virtual time: it moves only when the simulation moves it."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Clock:
    """The time of a simulation, in seconds since its start, and the events that are due.

    Events of the same moment happen in the order in which they were planned, so a run depends
    on nothing but its seed.
    """

    def __init__(self) -> None:
        """Begin at zero."""
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        """Return the time, as `time.monotonic` does for real nodes."""
        return self.now

    def plan(self, delay: float, event: Callable[..., object], *args: Any) -> None:
        """Let `event(*args)` happen in `delay` seconds."""
        self.plan_at(self.now + max(delay, 0.0), event, *args)

    def plan_at(self, when: float, event: Callable[..., object], *args: Any) -> None:
        """Let `event(*args)` happen at a time; equal times keep the order of planning."""
        heapq.heappush(self._events, (when, next(self._numbers), event, args))

    @property
    def next_event_at(self) -> float | None:
        """When the next planned event happens; None when nothing is planned."""
        return self._events[0][0] if self._events else None

    def run_due(self) -> bool:
        """Let everything happen that is due by now; False when there was nothing."""
        happened = False
        while self._events and self._events[0][0] <= self.now:
            _, _, event, args = heapq.heappop(self._events)
            event(*args)
            happened = True
        return happened
