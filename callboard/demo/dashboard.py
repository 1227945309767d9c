"""Rolling statistics of the aggregator: figures of subjects, and counts of sensors.

Pure: the time of each value is an argument, in seconds of any monotonic clock.
"""

import math
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any, Final

#: Maximum values in a window; the oldest are dropped. Ten seconds with 400 per second fit.
VALUES_LIMIT: Final = 4096


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one window."""

    count: int
    mean: float
    p95: float
    max: float


EMPTY: Final = Summary(0, 0.0, 0.0, 0.0)


class RollingWindow:
    """Mean, 95th percentile and maximum of the values of the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: deque[tuple[float, float]] = deque(maxlen=VALUES_LIMIT)

    def add(self, at: float, value: float) -> None:
        """Add a value; times must not decrease."""
        self._values.append((at, value))
        self._forget(at)

    def summary(self, now: float) -> Summary:
        """Return the figures at `now`. This sorts the window, so call it only occasionally."""
        self._forget(now)
        if not self._values:
            return EMPTY
        ordered = sorted(value for _, value in self._values)
        rank = max(
            math.ceil(0.95 * len(ordered)), 1
        )  # nearest rank, so the result is one of the values
        return Summary(
            len(ordered), math.fsum(ordered) / len(ordered), ordered[rank - 1], ordered[-1]
        )

    def _forget(self, now: float) -> None:
        oldest = now - self._seconds
        while self._values and self._values[0][0] <= oldest:
            self._values.popleft()


class Peak:
    """The highest value of the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # Decreasing values with their times; a value before a higher one can never be the peak.
        self._candidates: deque[tuple[float, float]] = deque()
        #: The peak after the last `add`.
        self.value = -math.inf

    def add(self, at: float, value: float) -> bool:
        """Add a value; times must not decrease. Return whether the peak changed."""
        candidates, old_peak = self._candidates, self.value
        while candidates and candidates[-1][1] <= value:
            candidates.pop()
        candidates.append((at, value))
        while candidates[0][0] <= at - self._seconds:
            candidates.popleft()
        self.value = candidates[0][1]
        return self.value != old_peak


class DemoHistory:
    """Means over short time bins; the newest `bins` are kept."""

    def __init__(self, bin_seconds: float, bins: int) -> None:
        self._bin_seconds = bin_seconds
        self._sums: deque[tuple[int, float, int]] = deque(maxlen=bins)

    def add(self, at: float, value: float) -> None:
        """Add a value; times must not decrease."""
        number = math.floor(at / self._bin_seconds)
        if self._sums and self._sums[-1][0] == number:
            _, total, count = self._sums.pop()
            self._sums.append((number, total + value, count + 1))
        else:
            self._sums.append((number, value, 1))

    def means(self) -> list[float]:
        """Return the mean of each bin, oldest first; bins without values are left out."""
        return [total / count for _, total, count in self._sums]


class Rate:
    """The rate of a counter per second, smoothed over about a second."""

    def __init__(self) -> None:
        self.per_second = 0.0
        self._last: tuple[float, float] | None = None

    def update(self, at: float, count: float) -> float:
        """Update with the counter's value; return the rate. A lower value is a restart."""
        if self._last is not None:
            elapsed, risen = at - self._last[0], count - self._last[1]
            if elapsed <= 0.0:
                return self.per_second
            if risen < 0:
                self.per_second = 0.0
            else:
                weight = 1.0 - math.exp(-elapsed)
                self.per_second += weight * (risen / elapsed - self.per_second)
        self._last = (at, count)
        return self.per_second


#: Seconds of the rolling window.
LONG: Final = 10.0

#: Seconds of one point of a sparkline, and number of its points.
BIN: Final = 0.5
BINS: Final = 24


@dataclass(slots=True)
class SensorCount:
    """The numbers of received and missed readings of one sensor."""

    received: int = 0
    first: int = 0
    last: int = 0

    def add(self, number: int) -> None:
        """Count a reading by its number; numbers of one sensor increase."""
        if not self.received:
            self.first = number
        self.received += 1
        self.last = number

    @property
    def missed(self) -> int:
        """The number of readings between the first and the last that did not arrive."""
        return self.last - self.first + 1 - self.received if self.received else 0


@dataclass(slots=True)
class Subject:
    """The statistics of one subject over all its sensors."""

    long: RollingWindow = field(default_factory=lambda: RollingWindow(LONG))
    history: DemoHistory = field(default_factory=lambda: DemoHistory(BIN, BINS))
    parts: dict[str, float] = field(default_factory=dict)


class Tally:
    """Accumulates readings into statistics."""

    def __init__(self) -> None:
        self.handled = 0
        self.first_handled_ns = 0
        self._sensors: dict[str, SensorCount] = {}
        self._subjects: dict[str, Subject] = {}

    def add(
        self, sensor: str, number: int, level: float, parts: dict[str, float], now_ns: int
    ) -> None:
        """Add a reading that was handled at `now_ns`."""
        self.handled += 1
        self.first_handled_ns = self.first_handled_ns or now_ns
        self._sensors.setdefault(sensor, SensorCount()).add(number)
        subject = self._subjects.setdefault(sensor.rpartition(".")[2], Subject())
        now = now_ns / 1e9
        subject.long.add(now, level)
        subject.history.add(now, level)
        subject.parts = parts

    def snapshot(self, now_ns: int) -> dict[str, Any]:
        """Return all figures as JSON-compatible values."""
        now = now_ns / 1e9
        return {
            "handled": self.handled,
            "first_handled_ns": self.first_handled_ns,
            "sensors": {
                name: {"received": count.received, "missed": count.missed}
                for name, count in self._sensors.items()
            },
            "subjects": {
                name: {
                    **asdict(subject.long.summary(now)),
                    "history": [round(mean, 2) for mean in subject.history.means()],
                    "parts": subject.parts,
                }
                for name, subject in self._subjects.items()
            },
        }
