"""A histogram of durations: cumulative counts by upper bound, and the sum."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from callboard import locks

#: Upper bounds of the buckets, in seconds; the last bucket has none.
BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class Histogram:
    """Counts durations in buckets; thread-safe."""

    def __init__(self) -> None:
        """Create an empty histogram."""
        self._lock = locks.lock("histogram", 980)
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        with self._lock:
            self._counts[bisect_left(BOUNDS, seconds)] += 1
            self._sum += seconds

    @property
    def count(self) -> int:
        """Number of counted durations."""
        return sum(self._counts)

    def samples(self) -> Iterator[tuple[tuple[tuple[str, str], ...], float]]:
        """Yield the samples for Prometheus; a label without a name is a suffix of the name."""
        with self._lock:
            counts, total = list(accumulate(self._counts)), self._sum
        for bound, count in zip((*map("{:g}".format, BOUNDS), "+Inf"), counts, strict=True):
            yield (("", "_bucket"), ("le", bound)), float(count)
        yield (("", "_sum"),), round(total, 6)
        yield (("", "_count"),), float(counts[-1])
