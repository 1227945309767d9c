"""How long the oldest message of a mailbox has waited, at least.

Messages carry no time: to read a clock for each would cost as much as to handle it. But whoever
looks twice knows something. A look finds so many messages handled and so many waiting; their
sum is the place of the last one in line, and as long as fewer than that were handled, the first
in line was there at that look. So looks give a lower bound, and a better one the more often one
looks: `callboard node top` does once a second.

Messages of high priority and stashed ones are handled out of line: then the bound is lower, and
still true. Mailboxes that drop their oldest messages tell nothing.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.cell import Cell

LOOKS: Final = 64
"""Looks that are remembered for one mailbox; of more, every second one."""


class Waited:
    """What the looks at the mailboxes of one node told. To be used on the node's thread."""

    def __init__(self) -> None:
        #: Cell → looks: the time, and the place in line of the last message that waited then.
        self._looks: dict[Cell, deque[tuple[float, int]]] = {}

    def look(self, cells: "Iterable[Cell]", now: float) -> None:
        """Look at mailboxes; those that are empty or gone are forgotten."""
        looks: dict[Cell, deque[tuple[float, int]]] = {}
        for cell in cells:
            depth, handled = cell.depth, cell.handled
            if depth and cell.keeps_order:
                seen = self._looks.get(cell, deque())
                while seen and seen[0][1] <= handled:
                    seen.popleft()
                if len(seen) == LOOKS:
                    seen = deque(list(seen)[::2])
                seen.append((now, handled + depth))
                looks[cell] = seen
        self._looks = looks

    def seconds(self, cell: "Cell", now: float) -> float:
        """Return how long the first in line has waited at least; 0 where nothing is known."""
        seen = self._looks.get(cell)
        return now - seen[0][0] if seen else 0.0
