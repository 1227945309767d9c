"""The aggregator: keeps rolling statistics of what the sensors publish, on whichever node.

A sensor publishes `[number, level, {part: figure}]` under `/metrics/NODE/SUBJECT`: its number
counts from 1, so a gap is a lost reading; the level is percent, or bytes per second; the parts
are each core, each direction, each busy process.
"""

import time
from dataclasses import dataclass
from typing import Any, Final

from callboard.demo.window import Tally
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Item
from callboard.kernel.actors import Actor, ActorRef, Down, Query, handler, message

#: How the topics of all sensors begin.
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
    """The aggregator's answer to a reading that was asked instead of told.

    Attributes:
        handled_ns: `time.monotonic_ns()` when the aggregator had it; processes of one machine
            share that clock.
    """

    handled_ns: int


@message("demo.Reading")
@dataclass(frozen=True)
class SensorReading(Query[Receipt]):
    """A reading that is followed: the same that the sensor published under its topic.

    Attributes:
        sensor: node and subject, for instance `A.cpu`.
        number: counts the readings that this sensor published, from 1.
    """

    sensor: str
    number: int


@message("demo.UseAggregator")
@dataclass(frozen=True)
class UseAggregator:
    """Tells a sensor who takes its readings, and who decides that.

    Attributes:
        aggregator: subscribes to the readings; the sensor watches it.
        overseer: the sensor watches it, as it watches the sensor.
    """

    aggregator: ActorRef[Any]
    overseer: ActorRef[Any]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Asks the aggregator for its figures; stays on its node, so nothing of it is counted."""


@dataclass(frozen=True, slots=True)
class ReadingsArrived:
    """Messages of topics, on their way from the node's hub to the aggregator there."""

    items: list[Item]


class Feed:
    """A subscriber that hands what comes to an actor."""

    def __init__(self, ref: ActorRef[Any]) -> None:
        self._ref = ref

    def take(self, items: list[Item]) -> None:
        """Take a run, on the node's thread."""
        self._ref.tell(ReadingsArrived(items))


class Aggregator(Actor):
    """Counts and sums up readings.

    It subscribes to the metrics of all nodes, so no sensor has to know where it is. It ends
    when the overseer that spawned it is out of reach: that one spawns another, and there are
    never two for long.
    """

    def __init__(self, overseer: ActorRef[Any]) -> None:
        self._tally = Tally()
        self._hub = Hub.of(self.node)
        self._feed = Feed(self.me)
        # Also what sensors on its own node publish.
        self._hub.add_receiver(self._feed, [METRICS], sees_own=True)
        self.monitor(overseer)

    @handler
    def on_published(self, run: ReadingsArrived) -> None:
        """Take readings in."""
        now_ns = time.monotonic_ns()
        for topic, (number, level, parts) in run.items:
            self._tally.add(sensor_of(topic), number, level, dict(parts), now_ns)

    @handler
    def on_reading(self, _: SensorReading) -> Receipt:
        """Tell who asked when this got here; the reading itself comes as a topic."""
        return Receipt(time.monotonic_ns())

    @handler
    def on_take_snapshot(self, _: TakeSnapshot) -> dict[str, Any]:
        """Return the figures as plain values."""
        return self._tally.snapshot(time.monotonic_ns())

    @handler
    def on_down(self, _: Down) -> None:
        """Without an overseer there is nobody to send anybody here."""
        self._hub.remove_receiver(self._feed)
        self.me.stop()
