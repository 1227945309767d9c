"""What the aggregator knows: statistics of each subject and counts of each sensor. Pure."""

from dataclasses import dataclass, field
from typing import Any, Final

from callboard.demo.window import History, RollingWindow

SHORT: Final = 2.0
LONG: Final = 10.0
"""Seconds of the two windows."""

BIN: Final = 0.5
BINS: Final = 24
"""Seconds and number of the points of a sparkline."""


@dataclass(slots=True)
class SensorCount:
    """How many readings of one sensor arrived, and how many did not."""

    received: int = 0
    first: int = 0
    last: int = 0

    def add(self, number: int) -> None:
        """Count a reading by its number; numbers of one sensor rise."""
        if not self.received:
            self.first = number
        self.received += 1
        self.last = number

    @property
    def missed(self) -> int:
        """Readings between the first and the last that never arrived."""
        return self.last - self.first + 1 - self.received if self.received else 0


@dataclass(slots=True)
class Subject:
    """The statistics of one subject over all its sensors."""

    short: RollingWindow = field(default_factory=lambda: RollingWindow(SHORT))
    long: RollingWindow = field(default_factory=lambda: RollingWindow(LONG))
    history: History = field(default_factory=lambda: History(BIN, BINS))
    parts: dict[str, float] = field(default_factory=dict)


class Tally:
    """Takes readings in and tells what they come to."""

    def __init__(self) -> None:
        self.handled = 0
        self.first_handled_ns = 0
        self._sensors: dict[str, SensorCount] = {}
        self._subjects: dict[str, Subject] = {}

    def add(
        self, sensor: str, number: int, level: float, parts: dict[str, float], now_ns: int
    ) -> None:
        """Take one reading in, handled at `now_ns`."""
        self.handled += 1
        self.first_handled_ns = self.first_handled_ns or now_ns
        self._sensors.setdefault(sensor, SensorCount()).add(number)
        subject = self._subjects.setdefault(sensor.rpartition(".")[2], Subject())
        now = now_ns / 1e9
        subject.short.add(now, level)
        subject.long.add(now, level)
        subject.history.add(now, level)
        subject.parts = parts

    def snapshot(self, now_ns: int) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
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
                    "recent": subject.short.summary(now).mean,
                    "mean": (figures := subject.long.summary(now)).mean,
                    "p95": figures.p95,
                    "max": figures.max,
                    "history": [round(mean, 2) for mean in subject.history.means()],
                    "parts": subject.parts,
                }
                for name, subject in self._subjects.items()
            },
        }
