"""The deadlines of asks.

Nearly every ask is answered long before its deadline, so an ask costs one append when it is
made. A sweep looks at the asks made since the last one, drops those that are answered, and
gives the rest a place in a line: most asks have one of a few times, and of those that have the
same the last one made is the last one due. An ask goes to the first line that ends no later, as
in patience sorting; one that is due before the end of all lines goes into a heap.
"""

import heapq
import itertools
import math
from collections import deque
from typing import Any, Final

from callboard.actors.errors import NodeClosed
from callboard.actors.future import Future

#: Seconds between sweeps while there are asks to look at: the precision of an ask's timeout.
SWEEP_INTERVAL: Final = 0.01

#: Asks made since the last sweep that bring the next one forward, which bounds memory.
SWEEP_SIZE: Final = 4096


#: How many lines there are at most.
LINES: Final = 4

#: When an ask is due, its place among those made before and after it, and the ask.
Entry = tuple[float, int, Future[Any]]


class Deadlines:
    """Fails asks whose time is over."""

    def __init__(self) -> None:
        #: Asks made since the last sweep; any thread appends those that have a deadline.
        self.fresh: deque[Future[Any]] = deque()
        #: Asks that a sweep found unanswered, in a line each due no sooner than the one before.
        self.lines: list[deque[Entry]] = []
        #: Those that were due before the end of all lines.
        self.heap: list[Entry] = []
        self._numbers = itertools.count()
        self._next_sweep = 0.0
        self._compact_at = 1024

    def sweep(self, now: float) -> float:
        """Fail what is overdue; returns when to come again, infinity while nothing waits."""
        fresh, heap = self.fresh, self.heap
        while fresh and fresh[0].is_done:
            fresh.popleft()
        if fresh and (now >= self._next_sweep or len(fresh) >= SWEEP_SIZE):
            self._next_sweep = now + SWEEP_INTERVAL
            self._place_fresh()
        while heap and heap[0][2].is_done:
            heapq.heappop(heap)
        until = heap[0][0] if heap else math.inf
        for line in self.lines:
            while line and line[0][2].is_done:
                line.popleft()
            if not line:
                self.lines = [each for each in self.lines if each is not line]
            elif line[0][0] < until:
                until = line[0][0]
        if until <= now:
            until = self._expire(now)
        return self._next_sweep if fresh else until

    def _place_fresh(self) -> None:
        """Give the asks made since the last sweep their places, those without an answer."""
        take, lines, heap = self.fresh.popleft, self.lines, self.heap
        for _ in range(len(self.fresh)):
            future = take()
            deadline = future.deadline
            if future.is_done or deadline is None:
                continue
            entry = (deadline, next(self._numbers), future)
            for line in lines:
                if line[-1][0] <= deadline:
                    line.append(entry)
                    break
            else:
                if len(lines) < LINES:
                    lines.append(deque((entry,)))
                else:
                    heapq.heappush(heap, entry)
        if len(heap) + sum(map(len, lines)) >= self._compact_at:
            self._compact()

    def _compact(self) -> None:
        """Forget all asks that are answered, wherever they stand."""
        kept = [deque(each for each in line if not each[2].is_done) for line in self.lines]
        self.lines = [line for line in kept if line]
        self.heap[:] = [entry for entry in self.heap if not entry[2].is_done]
        heapq.heapify(self.heap)
        self._compact_at = max(1024, 2 * (len(self.heap) + sum(map(len, self.lines))))

    def _expire(self, now: float) -> float:
        """Fail what is overdue, in the order of the deadlines; returns the next of them."""
        while self.lines or self.heap:
            first = min((line[0] for line in self.lines), default=None)
            if first is None or (self.heap and self.heap[0] < first):
                first = self.heap[0]
            deadline, _, future = first
            if deadline > now and not future.is_done:
                return deadline
            if self.heap and self.heap[0] is first:
                heapq.heappop(self.heap)
            else:
                for line in self.lines:
                    if line[0] is first:
                        line.popleft()
                self.lines = [line for line in self.lines if line]
            if not future.is_done:
                future.expire()
        return math.inf

    def unanswered(self) -> list[Future[Any]]:
        """Return the asks that have no outcome yet."""
        asks = [*self.fresh, *(entry[2] for entry in itertools.chain(*self.lines, self.heap))]
        return [future for future in asks if not future.is_done]

    def close(self) -> None:
        """Fail what still waits: the node is closing."""
        for future in self.unanswered():
            future.set_exception(NodeClosed(f"closed before {future.asked} answered"))
        self.fresh.clear()
        self.lines.clear()
        self.heap.clear()
