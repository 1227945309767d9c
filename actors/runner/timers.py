"""Calls in the future: the heap that a runner fires them from.

A cancelled timer stays in the heap until its time comes, but not for long: when more than half
of a heap is cancelled, it is made again without them. So setting a timer for
each message and canceling nearly all of them (timeouts) holds memory only for the rest.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from callboard import locks
from callboard.actors.seconds import seconds
from callboard.support.dataclass import dataclass

#: Cancelled timers that are worth making the heap again.
COMPACT_FROM: Final = 64

#: The latest time of a runner's clock that a timer is kept for: it is never due.
LATEST: Final = 1e15


@dataclass(slots=True, eq=False)
class Timer:
    """A call in the future; `cancel()` makes it do nothing."""

    timers: "Timers"
    callback: Callable[..., object] | None
    args: tuple[Any, ...]

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled or taken out of the heap to be called."""
        return self.callback is None

    def cancel(self) -> None:
        """Do not call; no effect when it was called already."""
        if self.callback is not None:
            self.callback = None
            self.args = ()
            self.timers.one_cancelled()


class Timers:
    """A heap of timers; they are added and cancelled on any thread, and fired on one."""

    def __init__(self) -> None:
        #: The next timer first; a reader has to expect that other threads add to it.
        self.heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0
        #: Nothing may be added while the heap is made again.
        self._lock = locks.lock("timers of a runner", 950)

        #: Timers that were added inside another call, by its own thread.
        self._late: deque[tuple[float, int, Timer]] = deque()

    def __len__(self) -> int:
        return len(self.heap) + len(self._late)

    @property
    def next_at(self) -> float | None:
        """The time of the first timer; None when there is none."""
        heap = self.heap
        try:
            return heap[0][0]
        except IndexError:
            return None

    def add(self, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> Timer:
        """Enter a call for a time of the runner's clock.

        Raises:
            InvalidSeconds: it is no time, or NaN, which would put the heap out of order.
        """
        if when.__class__ is not float or not -LATEST <= when <= LATEST:
            seconds(when, "when")
            when = float(max(-LATEST, min(LATEST, when)))
        timer = Timer(self, callback, args)
        entry = when, next(self._numbers), timer
        if locks.is_owned(self._lock):  # inside another call, which has the heap in its hands
            self._late.append(entry)
            return timer
        with self._lock:
            heapq.heappush(self.heap, entry)
        if self._late:
            self._take_late()
        return timer

    def _take_late(self) -> None:
        """Add timers that came from inside other calls."""
        late = self._late
        while late:
            with self._lock:
                try:
                    entry = late.popleft()
                except IndexError:  # another thread was faster
                    return
                heapq.heappush(self.heap, entry)

    def due(self, now: float) -> Iterator[tuple[Callable[..., object], tuple[Any, ...]]]:
        """Take out what is due, in order."""
        while True:
            if self._late:
                self._take_late()
            with self._lock:
                if not self.heap or self.heap[0][0] > now:
                    return
                timer = heapq.heappop(self.heap)[2]
            callback, args = timer.callback, timer.args
            if callback is None:
                self._cancelled -= 1
            else:
                timer.callback = None
                yield callback, args

    def one_cancelled(self) -> None:
        """Count a cancelled timer, and make the heap again when most of it is."""
        self._cancelled += 1
        if self._cancelled < COMPACT_FROM or 2 * self._cancelled <= len(self.heap):
            return
        if locks.is_owned(self._lock):  # inside another call: a later one will do it
            return
        with self._lock:
            self.heap[:] = [entry for entry in self.heap if entry[2].callback is not None]
            heapq.heapify(self.heap)
            self._cancelled = 0
        if self._late:
            self._take_late()
