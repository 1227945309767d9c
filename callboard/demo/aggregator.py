"""The aggregator: rolling statistics of the readings of all sensors.

A sensor publishes `[number, level, {part: figure}]` under `/metrics/NODE/SUBJECT`. The number
counts from 1, so a gap is a lost reading; the level is in percent or bytes per second; the
parts are cores, directions, or busy processes.
"""

import time
from dataclasses import dataclass
from typing import Any, Final

from callboard.demo.dashboard import Tally
from callboard.kernel.actors import Actor, ActorRef, Down, Query, handler, message
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item

#: Prefix of the topics of all sensors.
METRICS: Final = "/metrics/"


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
    """A traced reading; the sensor published the same reading under its topic.

    Attributes:
        sensor: node and subject, for instance `A.cpu`.
        number: number of the reading of this sensor, from 1.
    """

    sensor: str
    number: int


@message("demo.UseAggregator")
@dataclass(frozen=True)
class UseAggregator:
    """Notifies a sensor of the current aggregator and overseer.

    Attributes:
        aggregator: the subscriber of the readings; the sensor monitors it.
        overseer: the overseer; it and the sensor monitor each other.
    """

    aggregator: ActorRef[Any]
    overseer: ActorRef[Any]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Asks the aggregator for its figures; sent only within a node, so it is not counted."""


@dataclass(frozen=True, slots=True)
class ReadingsArrived:
    """Topic messages, passed from the node's hub to the aggregator on it."""

    items: list[Item]


class SensorFeed:
    """A subscriber that passes messages to an actor."""

    def __init__(self, ref: ActorRef[Any]) -> None:
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

    def __init__(self, overseer: ActorRef[Any]) -> None:
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
