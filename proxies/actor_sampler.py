"""Samples of a node's actors.

Statistics are estimated from a sample every second or so, so that handling a message costs no
time for them.
"""

from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import Final

from callboard.actors.cell import Cell
from callboard.actors.runner.activity import handler_under_way
from callboard.actors.runner.sampling import Sampler

#: Samples that are kept for one mailbox; beyond that, every second one is dropped.
SAMPLES_LIMIT: Final = 64

#: Mailboxes whose last message is followed after each sample.
MARKED: Final = 16

#: Actors that are sampled per second: a node with more of them samples less often.
ACTORS_A_SECOND: Final = 20_000

#: Shortest interval between two counts in seconds, and the longest that still gives a rate.
COUNT_INTERVAL: Final = 0.5
COUNTS_KEPT: Final = 30.0


class ActorSampler:
    """The samples of one node's actors. Call it on the node's thread."""

    def __init__(self) -> None:
        #: For each cell its samples: the time, and the position of the last message in the
        #: mailbox at that time.
        self._lines: dict[Cell, deque[tuple[float, int]]] = {}
        #: For each cell the handler that runs, and the time of the first sample that found the
        #: handler.
        self._handlers: dict[Cell, tuple[object, float]] = {}
        self._next = 0.0
        self._sampled_at = -1e9
        #: Number of an actor → messages handled by the latest count, and its rate.
        self._counts: dict[int, tuple[int, float]] = {}
        self._counted_at = 0.0

    def pass_by(self, cells: Collection[Cell], now: float, sampler: Sampler) -> None:
        """Sample the actors if it is time to do so.

        The node calls this every second or so. `sampler` also measures the waiting time of the
        last message in some mailboxes, because actors that rarely run are rarely in a sample.
        """
        if now >= self._next:
            self._next = now + len(cells) / ACTORS_A_SECOND
            self.sample(list(cells), now)
            for cell in islice(self._lines, MARKED):
                sampler.follow(cell, now)

    def glance(self, cells: Collection[Cell], now: float) -> None:
        """Take a sample, unless the latest one is recent for the number of actors."""
        if not 0.0 <= now - self._sampled_at < len(cells) / ACTORS_A_SECOND:
            self.sample(cells, now)

    def sample(self, cells: Collection[Cell], now: float) -> None:
        """Sample the actors, and remove the samples of empty mailboxes and ended handlers."""
        self._sampled_at = now
        lines: dict[Cell, deque[tuple[float, int]]] = {}
        handlers: dict[Cell, tuple[object, float]] = {}
        for cell in cells:
            depth = cell.depth
            if depth and cell.keeps_order:
                lines[cell] = self._line(cell, depth, now)
            if cell.running or cell.task is not None or cell.rare is not None:
                doing = handler_under_way(cell)
                if doing is not None:
                    former = self._handlers.get(cell)
                    is_same = former is not None and former[0] == doing
                    handlers[cell] = former if former and is_same else (doing, now)
        self._lines, self._handlers = lines, handlers

    def _line(self, cell: Cell, depth: int, now: float) -> deque[tuple[float, int]]:
        """Add a sample of a mailbox, and drop the samples whose messages were handled."""
        removed = cell.taken
        samples = self._lines.get(cell, deque())
        while samples and samples[0][1] <= removed:
            samples.popleft()
        if len(samples) == SAMPLES_LIMIT:
            samples = deque(list(samples)[::2])
        samples.append((now, removed + depth))
        return samples

    def waited(self, cell: Cell, now: float) -> float:
        """Return how long the oldest message has waited, at least; 0 if unknown."""
        samples = self._lines.get(cell)
        return now - samples[0][0] if samples else 0.0

    def longest_wait(self, now: float) -> float:
        """Return how long the oldest waiting message of all actors has waited, at least."""
        oldest = min((samples[0][0] for samples in self._lines.values()), default=now)
        return max(0.0, now - oldest)

    def hanging(self, now: float, seconds: float) -> int:
        """Return the number of actors that have been in one handler for some seconds."""
        return sum(now - since >= seconds for _, since in self._handlers.values())

    def count(self, cells: Collection[Cell], now: float) -> None:
        """Count the handled messages of all actors, from which rates are computed.

        Only a question that requests rates causes a count.
        """
        passed = now - self._counted_at
        if passed < COUNT_INTERVAL:
            return
        former, is_recent = self._counts, passed < COUNTS_KEPT
        counts = {}
        for cell in cells:
            handled, last = cell.handled, former.get(cell.number)
            rate = (handled - last[0]) / passed if is_recent and last is not None else 0.0
            counts[cell.number] = handled, rate
        self._counts, self._counted_at = counts, now

    def rate(self, cell: Cell) -> float:
        """Return the messages per second of an actor between the latest two counts."""
        latest = self._counts.get(cell.number)
        return 0.0 if latest is None else latest[1]

    def busy(self, cell: Cell, now: float) -> float:
        """Return how long an actor has been in its handler, at least; 0 if it is in none."""
        since = [entry[1]] if (entry := self._handlers.get(cell)) is not None else []
        stuck = list(cell.runner.times.stuck.values())
        since += [
            stuck_call.since
            for stuck_call in stuck
            if stuck_call.runnable is cell and not stuck_call.has_moved()
        ]
        return now - min(since, default=now)
