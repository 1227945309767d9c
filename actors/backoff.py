"""Exponential back-off with jitter, for repeated attempts. Pure."""

import random
from typing import Final

from callboard.support.dataclass import dataclass

#: Maximum jitter, as a fraction of the pause, so that many nodes do not retry at once.
JITTER: Final = 0.5

_LONGEST_STREAK: Final = 30  # doublings; more would overflow


@dataclass(slots=True, eq=False)
class Backoff:
    """The pauses between attempts of one operation: each twice as long, up to a limit."""

    #: Seconds of the first pause, without jitter.
    first: float
    #: Seconds of the longest pause, without jitter.
    longest: float
    #: Number of pauses since the last success.
    attempts: int = 0

    def next_pause(self, rng: random.Random | None) -> float:
        """Return the seconds to wait before the next attempt, and count the attempt.

        Args:
            rng: random source of the jitter; None for no jitter.
        """
        pause = min(self.longest, self.first * 2.0 ** min(self.attempts, _LONGEST_STREAK))
        self.attempts += 1
        return pause if rng is None else pause * (1.0 + JITTER * rng.random())

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self.attempts = 0
