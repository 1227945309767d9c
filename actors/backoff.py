"""Back-off: longer and longer pauses between attempts that fail, with jitter. Pure."""

import random
from typing import Final

from callboard.support.dataclass import dataclass

#: Share of a pause that chance may add, so that not all return at once.
JITTER: Final = 0.5

_LONGEST_STREAK: Final = 30  # doublings; more would only overflow


@dataclass(slots=True, eq=False)
class Backoff:
    """The pauses of one thing that is tried again: each twice as long, up to a limit."""

    #: Seconds of the first pause, without jitter.
    first: float
    #: Seconds of the longest pause, without jitter.
    longest: float
    #: Pauses that were given since the last success.
    attempts: int = 0

    def next_pause(self, rng: random.Random | None) -> float:
        """Return the seconds to wait before the next attempt, and count it.

        Args:
            rng: the source of the jitter; None for pauses without it.
        """
        pause = min(self.longest, self.first * 2.0 ** min(self.attempts, _LONGEST_STREAK))
        self.attempts += 1
        return pause if rng is None else pause * (1.0 + JITTER * rng.random())

    def reset(self) -> None:
        """Begin with the first pause again: an attempt succeeded."""
        self.attempts = 0
