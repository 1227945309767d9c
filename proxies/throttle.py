"""How much one link may bring in: a token bucket for messages, and one for bytes. Pure.

What is too much is not refused: the node reads less often, so the bytes wait in TCP and
then at the sender. A read takes what half a second allows at most, so pauses stay short, and
heartbeats behind a flood are heard in time.
"""

from typing import Final

from basp.header import HEADER

LEAST_READ: Final = 64
"""Bytes of the smallest read: one frame without payload."""

_FRAME: Final = HEADER.size


class Throttle:
    """Counts what a link brings and says how long to wait before reading again."""

    def __init__(self, messages: int, octets: int, *, now: float, read_size: int) -> None:
        """Begin with the allowance of one second.

        Args:
            messages: a second; 0 for no limit.
            octets: bytes a second; 0 for no limit.
            now: monotonic seconds.
            read_size: bytes of one read where nothing is limited.
        """
        self._rates = (float(messages), float(octets))
        self._credits = list(self._rates)
        self._counted_at = now
        #: Bytes to read at once: what comes in half a second at most.
        self.read_size = read_size
        if messages:
            self.read_size = min(self.read_size, max(LEAST_READ, messages // 2 * _FRAME))
        if octets:
            self.read_size = min(self.read_size, max(LEAST_READ, octets // 2))

    def take(self, messages: int, octets: int, now: float) -> float:
        """Count what one read brought; returns the seconds to pause, 0.0 for none."""
        elapsed, self._counted_at = now - self._counted_at, now
        pause = 0.0
        for place, taken in enumerate((messages, octets)):
            rate = self._rates[place]
            if rate:
                credit = min(rate, self._credits[place] + elapsed * rate) - taken
                self._credits[place] = credit
                pause = max(pause, -credit / rate)
        return pause
