"""A histogram of times: how many took at most so long, and how long all took together."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from callboard import locks

#: Upper bounds of its classes, in seconds; the last class has none.
BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class Histogram:
    """Counts times by classes; from any thread."""

    def __init__(self) -> None:
        """Begin empty."""
        self._lock = locks.lock("histogram", 980)
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a time."""
        with self._lock:
            self._counts[bisect_left(BOUNDS, seconds)] += 1
            self._sum += seconds

    @property
    def count(self) -> int:
        """How many times were counted."""
        return sum(self._counts)

    def samples(self) -> Iterator[tuple[tuple[tuple[str, str], ...], float]]:
        """Yield what Prometheus wants of it: the ending of each name as a label without one."""
        with self._lock:
            counts, total = list(accumulate(self._counts)), self._sum
        for bound, count in zip((*map("{:g}".format, BOUNDS), "+Inf"), counts, strict=True):
            yield (("", "_bucket"), ("le", bound)), float(count)
        yield (("", "_sum"),), round(total, 6)
        yield (("", "_count"),), float(counts[-1])
