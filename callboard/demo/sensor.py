"""The sensor: an actor that looks at the machine ten times a second and publishes it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from actors.monitors import Monitor
from callboard import Actor, ActorRef, Down, handler
from callboard.demo.messages import Reading, Receipt, UseAggregator, topic_of
from callboard.demo.sampling import Sampler

INTERVAL: Final = 0.1
"""Seconds between two samples."""

FOLLOWED: Final = 10
"""One reading of so many is also asked for, so that its way can be followed."""

ANSWER_LIMIT: Final = 5.0
"""Seconds that a followed reading may take."""

Publish = Callable[[str, Any], None]
"""Publishes a value under a topic."""

Keep = Callable[[str, float], None]
"""Keeps the level of a sensor, by its name."""

Note = Callable[..., None]
"""Takes a kind and fields; from any thread. What it is told goes to the screen."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time for the next sample."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Ends the sampling: the demo is about to settle its accounts."""


class Sensor(Actor):
    """Samples one subject of the machine.

    It publishes while there is an aggregator: at once when the overseer names one, until its
    monitor says that it is gone. It watches the overseer too. The store gets each reading.
    """

    def __init__(
        self,
        name: str,
        sample: Sampler,
        publish: Publish,
        keep: Keep,
        note: Note,
        *,
        is_followed: bool = False,
    ) -> None:
        self.name = name
        self._topic = topic_of(name)
        self._publish = publish
        self._keep = keep
        self._sample = sample
        self._note = note
        self._is_followed = is_followed
        self._number = 0
        self._next_tick = time.monotonic()
        self._is_resting = False
        self._aggregator: ActorRef[Any] | None = None
        self._overseer: ActorRef[Any] | None = None
        self._monitors: list[Monitor] = []
        self.on_tick(Tick())

    @handler
    def on_tick(self, _: Tick) -> None:
        """Sample, publish, and wake again at the next tenth of a second."""
        if self._is_resting:
            return
        now = time.monotonic()
        # Ticks that a busy or frozen machine missed are left out, not made up for.
        self._next_tick = max(self._next_tick + INTERVAL, now)
        self.after(self._next_tick - now, Tick())
        self._send()

    @handler
    def on_use_aggregator(self, order: UseAggregator) -> None:
        """Watch the aggregator and the overseer, and publish at once."""
        for monitor in self._monitors:
            monitor.cancel()
        self._aggregator, self._overseer = order.aggregator, order.overseer
        self._monitors = [self.monitor(order.aggregator), self.monitor(order.overseer)]
        self._send()

    @handler
    def on_down(self, down: Down) -> None:
        """Pause without an aggregator; report a lost overseer."""
        if down.ref == self._aggregator:
            self._aggregator = None
        if down.ref == self._overseer:
            self._overseer = None
            self._note("overseer_down", sensor=self.name, reason=str(down.reason))

    @handler
    def on_rest(self, _: Rest) -> None:
        """Publish nothing more."""
        self._is_resting = True

    def _send(self) -> None:
        sample = self._sample()
        aggregator = self._aggregator
        if self._is_resting:
            return
        self._keep(self.name, sample.level)
        if aggregator is None:
            return
        self._number += 1
        self._publish(self._topic, [self._number, sample.level, sample.parts])
        if self._is_followed and self._number % FOLLOWED == 0:
            self._ask(aggregator, Reading(self.name, self._number))

    def _ask(self, aggregator: ActorRef[Any], reading: Reading) -> None:
        sent_ns = time.monotonic_ns()
        future = aggregator.ask(reading, timeout=ANSWER_LIMIT)
        note, host = self._note, aggregator.node_id.hex()

        def answered(_: object) -> None:
            now_ns = time.monotonic_ns()
            if future.exception() is not None:
                return  # whatever went wrong shows up as a down
            receipt: Receipt = future.result()
            note(
                "answered",
                host=host,
                message_id=getattr(future, "message_id", 0),  # a local ask has none
                number=reading.number,
                sent_ns=sent_ns,
                handled_ns=receipt.handled_ns,
                answered_ns=now_ns,
            )

        future.add_done_callback(answered)
