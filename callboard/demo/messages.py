"""The messages that travel between the nodes of the demo, and the topics of its metrics.

A sensor publishes `[number, level, {part: figure}]` under `/metrics/NODE/SUBJECT`: its number
counts from 1, so a gap is a lost reading; the level is percent, or bytes per second; the parts
are each core, each direction, each busy process.
"""

from dataclasses import dataclass
from typing import Any, Final

from callboard import ActorRef, Query, message

METRICS: Final = "/metrics/"
"""How the topics of all sensors begin."""


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
class Reading(Query[Receipt]):
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
