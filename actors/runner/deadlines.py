"""The deadlines of asks.

Nearly every ask is answered long before its deadline, so a new ask costs one append. A sweep
looks at the asks made since the last sweep, drops those that were answered, and appends each of
the others to one of several lists, the lines. In each line the deadlines ascend. A few lines
are enough, because most asks have one of a few timeouts, and of two asks with the same timeout
the later one is due later. An ask is appended to the first line whose last deadline is not
later, as in patience sorting. An ask that is due before the last deadlines of all lines is put
into a heap.
"""

import heapq
import itertools
import math
from collections import deque
from typing import Final

from callboard.actors.errors import NodeClosed
from callboard.actors.future import Future

#: Seconds between sweeps while there are new asks: the precision of an ask's timeout.
SWEEP_INTERVAL: Final = 0.01

#: New asks that cause an early sweep, which bounds the memory for answered ones.
SWEEP_SIZE: Final = 4096


#: Maximum number of lines.
LINES: Final = 4

#: The deadline of an ask, its number in the order of placement, and the ask.
Entry = tuple[float, int, Future]


class Deadlines:
    """Fails asks whose deadline has passed."""

    def __init__(self) -> None:
        #: Asks made since the last sweep; any thread appends to it.
        self.fresh: deque[Future] = deque()
        #: Unanswered asks of earlier sweeps; in each line the deadlines ascend.
        self.lines: list[deque[Entry]] = []
        #: Unanswered asks that were due before the end of all lines.
        self.heap: list[Entry] = []
        self._numbers = itertools.count()
        self._next_sweep = 0.0
        self._compact_at = 1024

    def sweep(self, now: float) -> float:
        """Fail overdue asks; return the time of the next sweep, infinity if none is pending."""
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
                self.lines = [other for other in self.lines if other is not line]
            elif line[0][0] < until:
                until = line[0][0]
        if until <= now:
            until = self._expire(now)
        return self._next_sweep if fresh else until

    def _place_fresh(self) -> None:
        """Place the unanswered asks made since the last sweep."""
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
        """Remove all answered asks from the lines and the heap."""
        pending = [
            deque(entry for entry in line if not entry[2].is_done) for line in self.lines
        ]
        self.lines = [line for line in pending if line]
        self.heap[:] = [entry for entry in self.heap if not entry[2].is_done]
        heapq.heapify(self.heap)
        self._compact_at = max(1024, 2 * (len(self.heap) + sum(map(len, self.lines))))

    def _expire(self, now: float) -> float:
        """Fail overdue asks in the order of their deadlines; return the next deadline."""
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

    def unanswered(self) -> list[Future]:
        """Return the asks without an outcome."""
        asks = [*self.fresh, *(entry[2] for entry in itertools.chain(*self.lines, self.heap))]
        return [future for future in asks if not future.is_done]

    def close(self) -> None:
        """Fail all pending asks, because the node is closing."""
        for future in self.unanswered():
            future.set_exception(NodeClosed(f"closed before {future.asked} answered"))
        self.fresh.clear()
        self.lines.clear()
        self.heap.clear()
