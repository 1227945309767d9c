"""The nodes' side of the analysis: A replays flights, and publishes results; D counts those."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from callboard.broker.recording import Recording
from callboard.commitlog import CommitLog, LogError, LogReader
from callboard.demo.flights.day import FLIGHTS, load_flights
from callboard.demo.outcome import KINDS
from callboard.demo.sensor import INTERVAL, Rest
from callboard.kernel.actors import Actor, handler
from callboard.pipeline.bridge import Bridge, Entries
from callboard.pipeline.pace import EventPace
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item
from callboard.topics.message_queue import MessageQueue

#: File with the seconds in which the day is replayed.
SECONDS_FILE: Final = "seconds"


@dataclass(frozen=True, slots=True)
class FlightsDue:
    """Timer of the next flights."""


class FlightReplay(Actor):
    """Publishes the flights in their order, and at their pace, many times faster."""

    def __init__(self, hub: Hub, first: int, length: float) -> None:
        """Begin with the flight `first`; the whole day takes `length` seconds."""
        self._hub = hub
        self._waiting = list(load_flights()[first:])
        day = (
            load_flights()[-2].time - load_flights()[0].time
        )  # without the flight of the next day
        self._pace = EventPace(day / length, longest_pause=INTERVAL)
        self._start = time.monotonic()
        self.on_tick(FlightsDue())

    @handler
    def on_tick(self, _: FlightsDue) -> None:
        """Publish the flights that are due."""
        passed = time.monotonic() - self._start
        while self._waiting and self._pace.due(round(self._waiting[0].time * 1e9)) <= passed:
            flight = self._waiting.pop(0)
            self._hub.publish(flight.topic, flight.payload)
        if self._waiting:
            self.after(INTERVAL, FlightsDue())

    @handler
    def on_rest(self, _: Rest) -> None:
        """Stop publishing."""
        self._waiting.clear()


class ResultForwarder:
    """Records the flights, and publishes results as messages and store entries."""

    def __init__(self, hub: Hub, folder: Path, store: Entries) -> None:
        log = folder / "flights"
        self._recording = Recording(hub, (FLIGHTS,), lambda: CommitLog(log, sync="none"))
        self._bridge = Bridge(folder / "results", endpoint=hub, store=store)
        try:
            first = LogReader(
                log
            ).end  # after those that an earlier process of this node recorded
        except LogError:
            first = 0
        #: Arguments of the `FlightReplay`.
        self.replay = hub, first, float((folder / SECONDS_FILE).read_text())

    def close(self) -> None:
        """Publish the remaining results, and close."""
        self._bridge.close()
        self._recording.close()


class Counting:
    """Counts the results that arrive as messages."""

    def __init__(self, hub: Hub) -> None:
        self._queue: MessageQueue[Item] = MessageQueue()
        hub.add_receiver(self._queue, KINDS)
        self._counts = dict.fromkeys(KINDS, 0)

    def counts(self) -> dict[str, int]:
        """Return the number of results by the prefix of their topic."""
        for topic, _ in self._queue.poll():
            self._counts["/" + topic.split("/")[1]] += 1
        return self._counts
