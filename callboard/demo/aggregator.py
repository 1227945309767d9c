"""The aggregator: rolling statistics of the readings of all sensors.

A sensor publishes `[number, level, {part: figure}]` under `/metrics/NODE/SUBJECT`. The number
counts from 1, so a gap is a lost reading; the level is in percent or bytes per second; the
parts are cores, directions, or busy processes.
"""

import math
import time
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from callboard.kernel.actors import Actor, ActorRef, Down, Query, handler, message
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item

#: Prefix of the topics of all sensors.
METRICS: Final = "/metrics/"

#: Maximum levels of a subject; the oldest are dropped. Twelve seconds with 340 a second fit.
LEVELS_LIMIT: Final = 4096
#: Seconds of the rolling window.
WINDOW: Final = 10.0
#: Seconds of one point of a sparkline, and number of its points.
BIN: Final = 0.5
BINS: Final = 24


def topic_of(sensor: str) -> str:
    """Return the topic of a sensor: `/metrics/A/cpu` for `A.cpu`."""
    return METRICS + sensor.replace(".", "/", 1)


def sensor_of(topic: str) -> str:
    """Return the sensor that publishes under a topic."""
    return topic.removeprefix(METRICS).replace("/", ".", 1)


@message("demo.Receipt")
@dataclass(frozen=True)
class Receipt:
    """The aggregator's answer to a reading that was sent as an ask.

    Attributes:
        handled_ns: `time.monotonic_ns()` when the aggregator handled it; all processes of one
            machine share that clock.
    """

    handled_ns: int


@message("demo.Reading")
@dataclass(frozen=True)
class SensorReading(Query[Receipt]):
    """A traced reading, `number` of a sensor such as `A.cpu`; it is published, too."""

    sensor: str
    number: int


@message("demo.UseAggregator")
@dataclass(frozen=True)
class UseAggregator:
    """Notifies a sensor of the current aggregator and overseer, both of which it monitors."""

    aggregator: ActorRef
    overseer: ActorRef


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Asks the aggregator for its figures; sent only within a node, so it is not counted."""


@dataclass(frozen=True, slots=True)
class ReadingsArrived:
    """Topic messages, passed from the node's hub to the aggregator on it."""

    items: list[Item]


class Subject:
    """The statistics of one subject over all its sensors; times must not decrease."""

    def __init__(self) -> None:
        self._levels: deque[tuple[float, float]] = deque(maxlen=LEVELS_LIMIT)
        self._parts: dict[str, float] = {}

    def add(self, now: float, level: float, parts: dict[str, float]) -> None:
        """Add a level, and its parts."""
        self._levels.append((now, level))
        self._parts = parts

    def figures(self, now: float) -> dict[str, Any]:
        """Return mean, 95th percentile and maximum of the window, and means of short bins."""
        levels = [entry for entry in self._levels if entry[0] > now - BIN * BINS]
        window = sorted(level for second, level in levels if second > now - WINDOW) or [0.0]
        bins = groupby(levels, key=lambda entry: math.floor(entry[0] / BIN))
        means = [_mean([level for _, level in entries]) for _, entries in bins]
        return {
            "mean": _mean(window),
            "p95": window[math.ceil(0.95 * len(window)) - 1],  # nearest rank: one of the levels
            "max": window[-1],
            "history": [round(mean, 2) for mean in means[-BINS:]],
            "parts": self._parts,
        }


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


class Tally:
    """The statistics of subjects, and the received and missed readings of sensors."""

    def __init__(self) -> None:
        self.handled = 0
        self.first_handled_ns = 0
        # Readings of one sensor, and the numbers of the first and the last.
        self._sensors: dict[str, tuple[int, int, int]] = {}
        self._subjects: dict[str, Subject] = {}

    def add(
        self, sensor: str, number: int, level: float, parts: dict[str, float], now_ns: int
    ) -> None:
        """Add a reading that was handled at `now_ns`; numbers of one sensor increase."""
        self.handled += 1
        self.first_handled_ns = self.first_handled_ns or now_ns
        received, first, _ = self._sensors.get(sensor, (0, number, number))
        self._sensors[sensor] = received + 1, first, number
        subject = self._subjects.setdefault(sensor.rpartition(".")[2], Subject())
        subject.add(now_ns / 1e9, level, parts)

    def snapshot(self, now_ns: int) -> dict[str, Any]:
        """Return all figures as JSON-compatible values."""
        return {
            "handled": self.handled,
            "first_handled_ns": self.first_handled_ns,
            "sensors": {
                name: {"received": received, "missed": last - first + 1 - received}
                for name, (received, first, last) in self._sensors.items()
            },
            "subjects": {
                name: subject.figures(now_ns / 1e9) for name, subject in self._subjects.items()
            },
        }


class SensorFeed:
    """A subscriber that passes messages to an actor."""

    def __init__(self, ref: ActorRef) -> None:
        self._ref = ref

    def take(self, items: list[Item]) -> None:
        """Receive messages, on the node's thread."""
        self._ref.tell(ReadingsArrived(items))


class Aggregator(Actor):
    """Counts and summarizes readings.

    It subscribes to the metrics of all nodes, so sensors need not know its node. It ends when
    the overseer that spawned it is unreachable. The overseer then spawns another one, so two
    aggregators exist only for a short time.
    """

    def __init__(self, overseer: ActorRef) -> None:
        self._tally = Tally()
        self._hub = Hub.of(self.node)
        self._feed = SensorFeed(self.me)
        # `sees_own`: sensors on its own node publish, too.
        self._hub.add_receiver(self._feed, [METRICS], sees_own=True)
        self.monitor(overseer)

    @handler
    def on_published(self, run: ReadingsArrived) -> None:
        """Add readings to the statistics."""
        now_ns = time.monotonic_ns()
        for topic, (number, level, parts) in run.items:
            self._tally.add(sensor_of(topic), number, level, dict(parts), now_ns)

    @handler
    def on_reading(self, _: SensorReading) -> Receipt:
        """Answer with the current time; the reading itself arrives as a topic message."""
        return Receipt(time.monotonic_ns())

    @handler
    def on_take_snapshot(self, _: TakeSnapshot) -> dict[str, Any]:
        """Return the figures as plain values."""
        return self._tally.snapshot(time.monotonic_ns())

    @handler
    def on_down(self, _: Down) -> None:
        """Stop without an overseer: no sensor would be directed here."""
        self._hub.remove_receiver(self._feed)
        self.me.stop()
