"""The aggregator: keeps rolling statistics of what the sensors tell, on whichever node."""

import time
from dataclasses import dataclass
from typing import Any

from callboard import Actor, ActorRef, Down, handler
from callboard.demo.messages import Reading, Receipt
from callboard.demo.tally import Tally


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Asks the aggregator for its figures; stays on its node, so nothing of it is counted."""


class Aggregator(Actor):
    """Counts and sums up readings.

    It ends when the overseer that spawned it is out of reach: that one spawns another, and
    there are never two for long.
    """

    def __init__(self, overseer: ActorRef[Any]) -> None:
        self._tally = Tally()
        self.monitor(overseer)

    @handler
    def on_reading(self, reading: Reading) -> Receipt:
        """Take a reading in; who asked gets the time."""
        now_ns = time.monotonic_ns()
        self._tally.add(reading.sensor, reading.number, reading.level, reading.parts, now_ns)
        return Receipt(now_ns)

    @handler
    def on_take_snapshot(self, _: TakeSnapshot) -> dict[str, Any]:
        """Return the figures as plain values."""
        return self._tally.snapshot(time.monotonic_ns())

    @handler
    def on_down(self, _: Down) -> None:
        """Without an overseer there is nobody to send anybody here."""
        self.me.stop()
