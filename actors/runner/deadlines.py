"""The deadlines of asks.

Nearly every ask is answered long before its deadline, so an ask costs one append when it is
made. A sweep looks at the asks made since the last one, drops those that are answered, and
gives the rest a place in a heap.
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


class Deadlines:
    """Fails asks whose time is over."""

    def __init__(self) -> None:
        #: Asks made since the last sweep; any thread appends those that have a deadline.
        self.fresh: deque[Future[Any]] = deque()
        #: Asks that a sweep found unanswered.
        self.heap: list[tuple[float, int, Future[Any]]] = []
        self._numbers = itertools.count()
        self._next_sweep = 0.0
        self._compact_at = 1024

    def sweep(self, now: float) -> float:
        """Fail what is overdue; returns when to come again, infinity while nothing waits."""
        fresh, heap = self.fresh, self.heap
        while fresh and fresh[0].done_:
            fresh.popleft()
        if fresh and (now >= self._next_sweep or len(fresh) >= SWEEP_SIZE):
            self._next_sweep = now + SWEEP_INTERVAL
            for _ in range(len(fresh)):
                future = fresh.popleft()
                if not future.done_ and future.deadline is not None:
                    heapq.heappush(heap, (future.deadline, next(self._numbers), future))
            if len(heap) >= self._compact_at:
                heap[:] = [entry for entry in heap if not entry[2].done_]
                heapq.heapify(heap)
                self._compact_at = max(1024, 2 * len(heap))
        while heap and (heap[0][0] <= now or heap[0][2].done_):
            future = heapq.heappop(heap)[2]
            if not future.done_:
                future.expire()
        if fresh:
            return self._next_sweep
        return heap[0][0] if heap else math.inf

    def close(self) -> None:
        """Fail what still waits: the node is closing."""
        for future in [*self.fresh, *(entry[2] for entry in self.heap)]:
            if not future.done_:
                future.set_exception(NodeClosed(f"closed before {future.asked} answered"))
        self.fresh.clear()
        self.heap.clear()
