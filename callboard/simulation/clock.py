"""Virtual time: only the simulation advances it, and each node has two clocks.

The monotonic clock counts seconds like `time.monotonic`; it may be fast or slow but never
jumps. The wall clock shows the date like `time.time` and can be set forward and back.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any, Final

#: `time.time` at the start of a simulation: 2026-01-01, 00:00 UTC.
EPOCH: Final = 1_767_225_600


class Clock:
    """The time of a simulation, in seconds since its start, and its planned events.

    Events with the same time run in the order in which they were planned, so a run depends
    only on its seed.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = itertools.count()

    def plan(self, delay: float, event: Callable[..., object], *args: Any) -> None:
        """Schedule `event(*args)` in `delay` seconds."""
        self.plan_at(self.now + max(delay, 0.0), event, *args)

    def plan_at(self, when: float, event: Callable[..., object], *args: Any) -> None:
        """Schedule `event(*args)` at a time; equal times keep the order of planning."""
        heapq.heappush(self._events, (when, next(self._numbers), event, args))

    @property
    def next_event_at(self) -> float | None:
        """The time of the next planned event; None without one."""
        return self._events[0][0] if self._events else None

    def run_due(self) -> bool:
        """Run all events that are due; return False if there were none."""
        events, now = self._events, self.now
        if not events or events[0][0] > now:
            return False
        while events and events[0][0] <= now:
            _, _, event, args = heapq.heappop(events)
            event(*args)
            now = self.now  # the event may have advanced the time
        return True


class NodeClock:
    """The clocks of one node; they may run faster or slower than the simulation's."""

    def __init__(self, clock: Clock, rate: float = 1.0) -> None:
        """Start at the time of the simulation.

        Raises:
            ValueError: the rate is not a positive number.
        """
        self._clock = clock
        self._since = self._shown = clock.now
        self.rate = _checked(rate)
        #: Seconds by which the wall clock is ahead of the correct time.
        self.step = 0.0
        #: Simulation time until which the node is blocked, for example by its disk.
        self.busy_until = 0.0

    def time(self) -> float:
        """Return the node's monotonic time, in its own seconds."""
        now = self._clock.now
        if now < self.busy_until:
            now = self.busy_until
        return self._shown + (now - self._since) * self.rate

    def wall_ns(self) -> int:
        """Return the node's wall clock, in nanoseconds since 1970."""
        return EPOCH * 1_000_000_000 + round((self.time() + self.step) * 1e9)

    def set_rate(self, rate: float) -> None:
        """Set how many seconds pass here per second of the simulation, without a jump.

        Raises:
            ValueError: the rate is not a positive number.
        """
        self._shown, self._since = self.time(), self._clock.now
        self.rate = _checked(rate)

    def outside(self, when: float) -> float:
        """Return the earliest simulation time at which this clock shows at least `when`."""
        outside_time = self._since + (when - self._shown) / self.rate
        while self._shown + (outside_time - self._since) * self.rate < when:  # rounding
            outside_time = math.nextafter(outside_time, math.inf)
        return outside_time


class CurrentClock:
    """The clock of the node whose turn it is, used for dates; None outside of turns."""

    clock: NodeClock | None = None


def _checked(rate: float) -> float:
    """Return a rate; raise `ValueError` unless it is a positive number."""
    if not 0.0 < rate < math.inf:
        msg = f"a clock's rate must be a positive number, not {rate!r}; 1.05 runs 5 % fast"
        raise ValueError(msg)
    return rate
