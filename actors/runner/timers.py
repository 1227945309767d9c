"""Timers of a runner, in a heap.

A cancelled timer stays in the heap at first. When more than half of the timers are cancelled,
the heap is rebuilt without them. So a timer for each message is cheap, even though nearly all
of them are cancelled, as is usual for timeouts.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterator
from typing import Final

from callboard import locks
from callboard.arguments import seconds
from callboard.support.calls import Arguments, Callback
from callboard.support.dataclass import dataclass

#: Minimum number of cancelled timers for which the heap is rebuilt.
COMPACT_FROM: Final = 64

#: Limit for the times of timers, on the runner's clock; such a timer never fires.
LATEST: Final = 1e15


@dataclass(slots=True, eq=False)
class Timer:
    """A delayed call; `cancel()` prevents it."""

    timers: "Timers"
    callback: Callback | None
    args: Arguments

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled, or taken out of the heap to be called."""
        return self.callback is None

    def cancel(self) -> None:
        """Prevent the call; no effect after it."""
        if self.callback is not None:
            self.callback = None
            self.args = ()
            self.timers.one_cancelled()


class Timers:
    """A heap of timers; any thread adds and cancels them, one thread fires them."""

    def __init__(self) -> None:
        #: The next timer first; other threads may add to it while it is read.
        self.heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._cancelled = 0
        #: Held while the heap changes.
        self._lock = locks.lock("timers of a runner", 950)

        #: Timers added by a nested call of the thread that changes the heap.
        self._late: deque[tuple[float, int, Timer]] = deque()

    def __len__(self) -> int:
        return len(self.heap) + len(self._late)

    @property
    def next_at(self) -> float | None:
        """The time of the first timer; None if there is none."""
        heap = self.heap
        try:
            return heap[0][0]
        except IndexError:
            return None

    def add(self, when: float, callback: Callback, args: Arguments) -> Timer:
        """Add a call at a time of the runner's clock.

        Raises:
            InvalidSeconds: the time is NaN, which has no place in the order of the heap.
        """
        if when.__class__ is not float or not -LATEST <= when <= LATEST:
            seconds(when, "when")
            when = float(max(-LATEST, min(LATEST, when)))
        timer = Timer(self, callback, args)
        entry = when, next(self._numbers), timer
        # A nested call, such as one in a finalizer, while the heap changes.
        if locks.is_owned(self._lock):
            self._late.append(entry)
            return timer
        with self._lock:
            heapq.heappush(self.heap, entry)
        if self._late:
            self._add_late()
        return timer

    def _add_late(self) -> None:
        """Add the timers of nested calls to the heap."""
        late = self._late
        while late:
            with self._lock:
                try:
                    entry = late.popleft()
                except IndexError:  # another thread popped the last one
                    return
                heapq.heappush(self.heap, entry)

    def due(self, now: float) -> Iterator[tuple[Callback, Arguments]]:
        """Pop the timers that are due, in order, and yield their calls."""
        while True:
            if self._late:
                self._add_late()
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
        """Count a cancelled timer; rebuild the heap if most of its timers are cancelled."""
        self._cancelled += 1
        if self._cancelled < COMPACT_FROM or 2 * self._cancelled <= len(self.heap):
            return
        if locks.is_owned(self._lock):  # a nested call: a later cancellation will rebuild it
            return
        with self._lock:
            self.heap[:] = [entry for entry in self.heap if entry[2].callback is not None]
            heapq.heapify(self.heap)
            self._cancelled = 0
        if self._late:
            self._add_late()
