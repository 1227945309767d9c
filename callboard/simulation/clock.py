"""Virtual time: it moves only when the simulation moves it, and each node has its own clocks.

One counts seconds, as `time.monotonic` does; it may be fast or slow, and never jumps. The
other shows the date, as `time.time` does, and can be set forwards and back.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any, Final

#: What `time.time` shows at the begin of a simulation: 2026-01-01, 00:00 UTC.
EPOCH: Final = 1_767_225_600


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
        events, now = self._events, self.now
        if not events or events[0][0] > now:
            return False
        while events and events[0][0] <= now:
            _, _, event, args = heapq.heappop(events)
            event(*args)
            now = self.now  # an event may have let time pass
        return True


class NodeClock:
    """The clocks of one node: they may run faster or slower than that of the simulation."""

    def __init__(self, clock: Clock, rate: float = 1.0) -> None:
        """Begin with the time of the simulation.

        Raises:
            ValueError: the rate is not a positive number.
        """
        self._clock = clock
        self._since = self._shown = clock.now
        self.rate = _checked(rate)
        #: Seconds by which the date is ahead of the right one.
        self.step = 0.0
        #: When the node is done with what it waits for, in the time of the simulation.
        self.busy_until = 0.0

    def time(self) -> float:
        """Return what this clock shows, in its own seconds."""
        now = self._clock.now
        if now < self.busy_until:
            now = self.busy_until
        return self._shown + (now - self._since) * self.rate

    def wall_ns(self) -> int:
        """Return the date as this node has it, in nanoseconds since 1970."""
        return EPOCH * 1_000_000_000 + round((self.time() + self.step) * 1e9)

    def set_rate(self, rate: float) -> None:
        """Let `rate` seconds pass here while one passes outside; it never jumps.

        Raises:
            ValueError: the rate is not a positive number.
        """
        self._shown, self._since = self.time(), self._clock.now
        self.rate = _checked(rate)

    def outside(self, when: float) -> float:
        """Return the first time of the simulation at which this clock shows `when` or more."""
        found = self._since + (when - self._shown) / self.rate
        while self._shown + (found - self._since) * self.rate < when:  # rounding
            found = math.nextafter(found, math.inf)
        return found


class Shown:
    """The clock that dates come from: of the node that has its turn; None outside of turns."""

    clock: NodeClock | None = None


def _checked(rate: float) -> float:
    """Return a rate; raise `ValueError` unless it is a positive number."""
    if not 0.0 < rate < math.inf:
        msg = f"a clock's rate is a positive number, not {rate!r}; 1.05 runs 5 % fast"
        raise ValueError(msg)
    return rate
