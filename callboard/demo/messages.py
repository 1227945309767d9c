"""The messages that travel between the nodes of the demo."""

from dataclasses import dataclass
from typing import Any

from callboard import ActorRef, Query, message


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
    """What one sensor saw at one moment.

    Attributes:
        sensor: node and subject, for instance `D.cpu`.
        number: counts the readings that this sensor sent, from 1; a gap is a lost one.
        sampled_ns: `time.monotonic_ns()` of the sample.
        level: the figure that stands for it: percent, or bytes per second.
        parts: what the figure is made of: each core, each direction, each busy process.
    """

    sensor: str
    number: int
    sampled_ns: int
    level: float
    parts: dict[str, float]


@message("demo.UseAggregator")
@dataclass(frozen=True)
class UseAggregator:
    """Tells a sensor where its readings go, and who decides that.

    Attributes:
        aggregator: gets the readings from this moment on.
        overseer: the sensor watches it, as it watches the sensor.
    """

    aggregator: ActorRef[Any]
    overseer: ActorRef[Any]
