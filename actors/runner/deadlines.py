"""The deadlines of asks.

Nearly every ask is answered long before its deadline, so an ask costs one append when it is
made. A sweep looks at the asks made since the last one, drops those that are answered, and
gives the rest a place in a line: nearly all asks have the same time, so that the last one made
is the last one due. An ask that is due before the end of the line goes into a heap.
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


#: When an ask is due, its place among those made before and after it, and the ask.
Entry = tuple[float, int, Future[Any]]


class Deadlines:
    """Fails asks whose time is over."""

    def __init__(self) -> None:
        #: Asks made since the last sweep; any thread appends those that have a deadline.
        self.fresh: deque[Future[Any]] = deque()
        #: Asks that a sweep found unanswered, each due no sooner than the one before it.
        self.line: deque[Entry] = deque()
        #: Those that were due before the end of the line.
        self.heap: list[Entry] = []
        self._numbers = itertools.count()
        self._next_sweep = 0.0
        self._compact_at = 1024

    def sweep(self, now: float) -> float:
        """Fail what is overdue; returns when to come again, infinity while nothing waits."""
        fresh, line, heap = self.fresh, self.line, self.heap
        while fresh and fresh[0].done_:
            fresh.popleft()
        while line and line[0][2].done_:
            line.popleft()
        if fresh and (now >= self._next_sweep or len(fresh) >= SWEEP_SIZE):
            self._next_sweep = now + SWEEP_INTERVAL
            self._place_fresh()
        until = line[0][0] if line else math.inf
        if heap and heap[0][0] < until:
            until = heap[0][0]
        if until <= now or (heap and heap[0][2].done_):
            until = self._expire(now)
        return self._next_sweep if fresh else until

    def _place_fresh(self) -> None:
        """Give the asks made since the last sweep their places, those without an answer."""
        take, line, heap = self.fresh.popleft, self.line, self.heap
        last = line[-1][0] if line else -math.inf
        for _ in range(len(self.fresh)):
            future = take()
            deadline = future.deadline
            if future.done_ or deadline is None:
                continue
            entry = (deadline, next(self._numbers), future)
            if deadline >= last:
                line.append(entry)
                last = deadline
            else:
                heapq.heappush(heap, entry)
        if len(line) + len(heap) >= self._compact_at:
            waiting = [entry for entry in line if not entry[2].done_]
            line.clear()
            line.extend(waiting)
            heap[:] = [entry for entry in heap if not entry[2].done_]
            heapq.heapify(heap)
            self._compact_at = max(1024, 2 * (len(line) + len(heap)))

    def _expire(self, now: float) -> float:
        """Fail what is overdue, in the order of the deadlines; returns the next of them."""
        line, heap = self.line, self.heap
        while line or heap:
            is_in_line = not heap or (bool(line) and line[0] < heap[0])
            deadline, _, future = line[0] if is_in_line else heap[0]
            if deadline > now and not future.done_:
                return deadline
            if is_in_line:
                line.popleft()
            else:
                heapq.heappop(heap)
            if not future.done_:
                future.expire()
        return math.inf

    def unanswered(self) -> list[Future[Any]]:
        """Return the asks that have no outcome yet."""
        asks = [*self.fresh, *(entry[2] for entry in itertools.chain(self.line, self.heap))]
        return [future for future in asks if not future.done_]

    def close(self) -> None:
        """Fail what still waits: the node is closing."""
        for future in self.unanswered():
            future.set_exception(NodeClosed(f"closed before {future.asked} answered"))
        self.fresh.clear()
        self.line.clear()
        self.heap.clear()
