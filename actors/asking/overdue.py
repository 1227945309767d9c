"""When the asker of a promise has given up, so that the actor that made it may forget it.

An asker of this node knows by itself when its time is over. One on another node may be gone, or
its cancellation may be lost: without a rule an actor would keep some hundred bytes for each ask
that it never answers. So a promise to another node is forgotten when the deadline of the ask
has passed, and when that node is out of reach: its asks have failed there.

The deadline travels with an ask that was given a time of its own; an ask without one has
`ASK_SECONDS`. An ask without any limit says so by a deadline in `UNLIMITED_SECONDS`.

To forget is all that happens. The promise still sends an answer, which the asker drops, or
takes where its clock runs slower. Only the end of the actor is not told to that asker.
"""

import math
from collections.abc import Callable
from typing import Any, Final, Protocol

#: Seconds that an ask may take which was given no time: what `ask` itself takes as default.
ASK_SECONDS: Final = 60.0

#: Seconds to the deadline that an ask without a limit tells: 40 days, as milliseconds still fit
#: into the four bytes of a deadline.
UNLIMITED_SECONDS: Final = 40 * 86_400.0

#: Seconds beyond the deadline until a promise is forgotten: an answer may be on its way, and
#: the clocks of two machines do not run alike.
MARGIN_SECONDS: Final = 1.0

#: Seconds between two looks at the promises of an actor, and for how many promises: looks
#: cost the same share of the time however many there are.
LOOK_SECONDS: Final = 5.0
LOOK_PROMISES: Final = 100_000


class Promised(Protocol):
    """An asker that was promised an answer."""

    @property
    def deadline(self) -> float | None:
        """When its time is over, if it said so."""


def due_of(asker: Promised, arrived: float) -> float:
    """Return when an asker has given up for certain; infinity for one of this node."""
    if not _node_of(asker):
        return math.inf
    deadline = asker.deadline
    return (arrived + ASK_SECONDS if deadline is None else deadline) + MARGIN_SECONDS


def has_given_up(
    asker: Any, due: float, now: float, is_reachable: Callable[[bytes], bool]
) -> bool:
    """Return whether an asker on another node waits for no answer any more."""
    return due <= now or (due < math.inf and not is_reachable(_node_of(asker)))


def _node_of(asker: Any) -> bytes:
    """Return the node that an asker is on; empty for this one."""
    node: bytes = asker.node
    return node
