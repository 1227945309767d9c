"""Expiry of promises: an actor may forget an asker that has given up.

A local asker ends its own ask when the time limit has passed. A remote asker may have ended, or
its cancellation may be lost. Then the actor would store some hundred bytes for ever for each
ask that it does not answer. Therefore the actor forgets a promise to a remote asker when the
deadline of the ask has passed, or when the asker's node is unreachable. In both cases the ask
has failed on that node.

An ask with its own timeout carries its deadline. An ask without one has `ASK_SECONDS`. An ask
without any limit carries a deadline of `UNLIMITED_SECONDS`.

After that, the asker is not notified if the actor ends. The promise can still send an answer.
The asker drops the answer, unless its clock runs slower and its ask has not expired yet.
"""

import math
from collections.abc import Callable
from typing import Final, Protocol

#: Default timeout of `ask` in seconds.
ASK_SECONDS: Final = 60.0

#: Deadline in seconds that an ask without a limit carries: 40 days, which as milliseconds fit
#: into the four bytes of a deadline on the wire.
UNLIMITED_SECONDS: Final = 40 * 86_400.0

#: Seconds between the deadline and the end of a promise: an answer may be in transit, and the
#: clocks of two machines run at different speeds.
MARGIN_SECONDS: Final = 1.0

#: Seconds between two checks of the promises of an actor, and the number of promises for this
#: interval. It grows with the number, so checks cost a constant share of the time.
POLL_SECONDS: Final = 5.0
POLL_PROMISES: Final = 100_000


class Promised(Protocol):
    """An asker that was promised an answer."""

    @property
    def node(self) -> bytes:
        """The node of the asker; empty for this one."""

    @property
    def deadline(self) -> float | None:
        """When the asker gives up, if its message says so."""


def due_of(asker: Promised, arrived: float) -> float:
    """Return the time after which an asker no longer waits; infinity for a local asker."""
    if not asker.node:
        return math.inf
    deadline = asker.deadline
    return (arrived + ASK_SECONDS if deadline is None else deadline) + MARGIN_SECONDS


def has_given_up(
    asker: Promised, due: float, now: float, is_reachable: Callable[[bytes], bool]
) -> bool:
    """Return whether an asker on another node no longer waits for the answer."""
    return due <= now or (due < math.inf and not is_reachable(asker.node))
