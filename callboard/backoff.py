"""Repeated attempts, and the pauses between them.

A timer or a coroutine takes its pauses from a `Backoff`. A thread sleeps for them in
`retrying`, which drives a loop whose body is the attempt:

    for _ in retrying(Backoff(0.1, 5.0), stop=closing):
        try:
            return open_file()
        except OSError as error:
            _log.warning("%s; trying again", error)

`retried` is the same loop for one call, and `is_reached` for a condition.
"""

import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Self, TypeVar

T = TypeVar("T")

#: Maximum jitter, as a fraction of the pause, so that many nodes do not retry at once.
JITTER: Final = 0.5

_LONGEST_STREAK: Final = 30  # doublings; more would overflow


class Backoff:
    """The pauses between attempts of one operation: each twice as long, up to a limit.

    Attributes:
        first: seconds of the first pause, without jitter.
        longest: seconds of the longest pause, without jitter.
        attempts: number of pauses since the last success.
    """

    __slots__ = ("attempts", "first", "longest")

    def __init__(self, first: float, longest: float) -> None:
        """Start with the first pause."""
        self.first, self.longest, self.attempts = first, longest, 0

    @classmethod
    def fixed(cls, pause: float) -> Self:
        """Return a back-off whose pauses are all of the same length."""
        return cls(pause, pause)

    @property
    def pause(self) -> float:
        """Seconds of the next pause, without jitter."""
        return min(self.longest, self.first * 2.0 ** min(self.attempts, _LONGEST_STREAK))

    def next_pause(self, rng: random.Random | None = None) -> float:
        """Return the seconds to wait before the next attempt, and count the attempt.

        Args:
            rng: random source of the jitter; None for no jitter.
        """
        pause = self.pause
        self.attempts += 1
        return pause if rng is None else pause * (1.0 + JITTER * rng.random())

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self.attempts = 0


def retrying(
    backoff: Backoff, seconds: float = math.inf, *, stop: threading.Event | None = None
) -> Iterator[None]:
    """Yield once for each attempt, and pause between two attempts.

    The first attempt is always made. The last pause ends with the time limit, and one more
    attempt follows it, so that the limit is neither missed nor exceeded by a pause.

    Args:
        backoff: the pauses, without jitter; the loop may reset it after a success.
        seconds: time limit for the start of an attempt.
        stop: ends the pause and the loop when it is set.
    """
    deadline = time.monotonic() + seconds
    while True:
        yield
        left = deadline - time.monotonic()
        if left <= 0.0:
            return
        pause = min(backoff.next_pause(), left)
        if stop is None:
            time.sleep(pause)
        elif stop.wait(pause):
            return


def retried(
    attempt: Callable[[], T],
    errors: type[Exception] | tuple[type[Exception], ...],
    backoff: Backoff,
    seconds: float,
) -> T:
    """Call a function until it succeeds, and return its result.

    Args:
        attempt: the function.
        errors: errors after which it is called again; the last one is raised when the time is
            up. Other errors are raised at once.
        backoff: the pauses.
        seconds: time limit for the start of an attempt.
    """
    attempts = retrying(backoff, seconds)
    next(attempts)
    while True:
        try:
            return attempt()
        except errors:
            if next(attempts, attempts) is attempts:
                raise


def is_reached(
    condition: Callable[[], bool],
    pause: float,
    seconds: float = math.inf,
    *,
    stop: threading.Event | None = None,
) -> bool:
    """Wait for a condition; return False if the time is up or `stop` is set first.

    For a state that no future or event announces, such as a change by another process.

    Args:
        condition: checked at once, and after each pause.
        pause: seconds between two checks.
        seconds: time limit.
        stop: ends the wait when it is set.
    """
    return any(condition() for _ in retrying(Backoff.fixed(pause), seconds, stop=stop))
