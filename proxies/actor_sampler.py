"""What a node learns by looking at its actors now and then, so that no message pays for it."""

from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import Final

from callboard.actors.cell import Cell
from callboard.actors.runner.activity import handler_under_way
from callboard.actors.runner.sampling import Sampler

#: Looks that are remembered for one mailbox; of more, every second one.
LOOKS: Final = 64

#: Mailboxes whose last message is followed at each look.
MARKED: Final = 16

#: Actors that are looked at in a second: a node with more of them looks less often.
ACTORS_A_SECOND: Final = 20_000

#: Seconds between two counts at least, and after which one is too old to tell a rate.
COUNT_INTERVAL: Final = 0.5
COUNTS_KEPT: Final = 30.0


class ActorSampler:
    """What the looks at the actors of one node told. To be used on the node's thread."""

    def __init__(self) -> None:
        #: Cell → looks: the time, and the place in line of the last message that waited then.
        self._lines: dict[Cell, deque[tuple[float, int]]] = {}
        #: Cell → the handler that it is in, and the look that found it so first.
        self._handlers: dict[Cell, tuple[object, float]] = {}
        self._next = 0.0
        self._looked_at = -1e9
        #: Number of an actor → messages that it had handled at the latest count, and its rate.
        self._counts: dict[int, tuple[int, float]] = {}
        self._counted_at = 0.0

    def pass_by(self, cells: Collection[Cell], now: float, sampler: Sampler) -> None:
        """Look if it is time to; to be called every second or so.

        The sampler follows the last message in mailboxes of actors that may seldom run.
        """
        if now >= self._next:
            self._next = now + len(cells) / ACTORS_A_SECOND
            self.look(list(cells), now)
            for cell in islice(self._lines, MARKED):
                sampler.follow(cell, now)

    def glance(self, cells: Collection[Cell], now: float) -> None:
        """Look, unless the latest look is not yet over by the number of actors."""
        if not 0.0 <= now - self._looked_at < len(cells) / ACTORS_A_SECOND:
            self.look(cells, now)

    def look(self, cells: Collection[Cell], now: float) -> None:
        """Look at actors; empty mailboxes, and handlers that are over, are forgotten."""
        self._looked_at = now
        lines: dict[Cell, deque[tuple[float, int]]] = {}
        handlers: dict[Cell, tuple[object, float]] = {}
        for cell in cells:
            depth = cell.depth
            if depth and cell.keeps_order:
                lines[cell] = self._line(cell, depth, now)
            if cell.running or cell.task is not None or cell.rare is not None:
                doing = handler_under_way(cell)
                if doing is not None:
                    known = self._handlers.get(cell)
                    is_same = known is not None and known[0] == doing
                    handlers[cell] = known if known and is_same else (doing, now)
        self._lines, self._handlers = lines, handlers

    def _line(self, cell: Cell, depth: int, now: float) -> deque[tuple[float, int]]:
        taken = cell.taken
        seen = self._lines.get(cell, deque())
        while seen and seen[0][1] <= taken:
            seen.popleft()
        if len(seen) == LOOKS:
            seen = deque(list(seen)[::2])
        seen.append((now, taken + depth))
        return seen

    def waited(self, cell: Cell, now: float) -> float:
        """Return how long the first in line has waited at least; 0 where nothing is known."""
        seen = self._lines.get(cell)
        return now - seen[0][0] if seen else 0.0

    def count(self, cells: Collection[Cell], now: float) -> None:
        """Count what actors have handled, for their rates; done only for who asks for rates."""
        passed = now - self._counted_at
        if passed < COUNT_INTERVAL:
            return
        before, known = self._counts, passed < COUNTS_KEPT
        counts = {}
        for cell in cells:
            handled, last = cell.handled, before.get(cell.number)
            rate = (handled - last[0]) / passed if known and last is not None else 0.0
            counts[cell.number] = handled, rate
        self._counts, self._counted_at = counts, now

    def rate(self, cell: Cell) -> float:
        """Return the messages a second that an actor handled between the latest two counts."""
        found = self._counts.get(cell.number)
        return 0.0 if found is None else found[1]

    def busy(self, cell: Cell, now: float) -> float:
        """Return how long an actor has been in its handler at least; 0 while it is in none."""
        since = [found[1]] if (found := self._handlers.get(cell)) is not None else []
        stuck = list(cell.runner.times.stuck.values())
        since += [
            each.since for each in stuck if each.runnable is cell and not each.has_moved()
        ]
        return now - min(since, default=now)
