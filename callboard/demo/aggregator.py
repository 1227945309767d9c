"""The aggregator: keeps rolling statistics of what the sensors publish, on whichever node."""

import time
from dataclasses import dataclass
from typing import Any

from callboard import Actor, ActorRef, Down, handler
from callboard.demo.messages import METRICS, Reading, Receipt, sensor_of
from callboard.demo.tally import Tally
from callboard.endpoint.core_effect import Item
from callboard.endpoint.hub import Hub


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Asks the aggregator for its figures; stays on its node, so nothing of it is counted."""


@dataclass(frozen=True, slots=True)
class Published:
    """Messages of topics, on their way from the node's hub to the aggregator there."""

    items: list[Item]


class Feed:
    """A subscriber that hands what comes to an actor."""

    def __init__(self, ref: ActorRef[Any]) -> None:
        self._ref = ref

    def take(self, items: list[Item]) -> None:
        """Take a run, on the node's thread."""
        self._ref.tell(Published(items))


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
    def on_published(self, run: Published) -> None:
        """Take readings in."""
        now_ns = time.monotonic_ns()
        for topic, (number, level, parts) in run.items:
            self._tally.add(sensor_of(topic), number, level, dict(parts), now_ns)

    @handler
    def on_reading(self, _: Reading) -> Receipt:
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
