"""The daily peaks of sensors, as entities that survive the loss of their node.

B and C host them, with one SQLite file. Sensors on A and D send their levels to the entity of
their name and day. A reports when all entities of a lost node answer again.
"""

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from callboard.backoff import Backoff, retrying
from callboard.entity.entity import Entity, event
from callboard.kernel.actors import Query, handler, message
from callboard.kernel.errors import CallboardError
from callboard.kernel.reply import Future
from callboard.node import Node

#: The hosts of the entities; the story kills one of them.
HOSTS: Final = ("B", "C")

#: Timeout of an ask, and pause between attempts, in seconds.
ASK_LIMIT: Final = 2.0
PAUSE: Final = 0.01

#: Seconds after which the watch for the entities of a lost node gives up.
WATCH_LIMIT: Final = 20.0

#: A change of owner within this many seconds before the report of a lost node is a result of
#: that loss.
TAKEN_WITHIN: Final = 2.0

Note = Callable[..., object]


@message("demo.Level")
@dataclass(frozen=True)
class Level:
    """A level of a sensor."""

    value: float


@message("demo.AskPeak")
@dataclass(frozen=True)
class AskPeak(Query[float]):
    """Asks for the peak."""


class DailyPeak(Entity):
    """The highest level of a sensor on a day; the key is `SENSOR/DAY/PART`."""

    name = "demo.DailyPeak"

    def __init__(self) -> None:
        self.peak = 0.0

    @handler
    def on_level(self, level: Level) -> float:
        """Persist a level that is higher than all before."""
        if level.value > self.peak:
            self.persist(level)
        return self.peak

    @event
    def on_risen(self, event: Level) -> None:
        """Set a higher peak."""
        self.peak = event.value

    @handler(read_only=True)
    def on_ask(self, _: AskPeak) -> float:
        """Return the peak."""
        return self.peak


def host_peaks(node: Node, path: str, note: Note) -> None:
    """Host peaks, from a separate thread because opening the file takes a moment."""

    def host() -> None:
        try:
            node.host(DailyPeak, state=f"sqlite:{path}")
        except CallboardError as error:  # the node may have been closed in the meantime
            note("failed", actor="the host of daily peaks", reason=str(error))

    threading.Thread(target=host, daemon=True).start()


class PeakWriter:
    """Sends levels to entities: one ask per entity at a time, with the highest level since."""

    def __init__(self, node: Node) -> None:
        """Start without sensors."""
        self._node = node
        self._waiting: dict[str, float] = {}
        self._asking: set[str] = set()
        self.keys: dict[str, float] = {}
        #: The node of each entity, and its former node with the time of the change. A takeover
        #: is often known before the loss of the former node is.
        self._owners: dict[str, bytes] = {}
        self._former: dict[str, tuple[bytes, float]] = {}
        self.is_resting = False

    def keep(self, sensor: str, level: float) -> None:
        """Send a level to its entities; on the node's thread."""
        now = datetime.datetime.now(datetime.UTC)
        half = "morning" if now.hour < 12 else "afternoon"
        for part in ("day", half):
            key = f"{sensor}/{now:%Y-%m-%d}/{part}"
            self._waiting[key] = max(level, self._waiting.get(key, level))
            self._update_owner(key)
            self._send(key)

    def _update_owner(self, key: str) -> None:
        """Update the node of an entity."""
        owner, old_owner = self._node.entity(DailyPeak, key).node_id, self._owners.get(key, b"")
        if owner != old_owner:
            self._former[key] = old_owner, time.monotonic()
            self._owners[key] = owner

    def lived_on(self, node: bytes) -> dict[str, float]:
        """Return the peaks of the entities that a lost node had."""
        recent = time.monotonic() - TAKEN_WITHIN
        peaks = {}
        for key, peak in self.keys.items():
            self._update_owner(key)
            former, changed = self._former.get(key, (b"", 0.0))
            if self._owners[key] == node or (former == node and changed > recent):
                peaks[key] = peak
        return peaks

    def _send(self, key: str) -> None:
        """Send the highest level to an entity, unless an ask is pending."""
        level = self._waiting.get(key)
        if key in self._asking or level is None or self.is_resting:
            return
        if level <= self.keys.get(key, -1.0):  # not a new peak
            return
        self._asking.add(key)
        future = self._node.entity(DailyPeak, key).ask(Level(level), timeout=ASK_LIMIT)
        future.add_done_callback(partial(self._node.context.post, self._answered, key))

    def _answered(self, key: str, answer: Future[float]) -> None:
        """Store the peak from an answer; after a failure, the next level is sent instead."""
        self._asking.discard(key)
        if answer.exception() is None:
            self.keys[key] = answer.result()
            self._send(key)


class PeakWatch:
    """Reports when the entities of a lost node answer again."""

    def __init__(self, node: Node, writer: PeakWriter, note: Note) -> None:
        """Watch the peaks that this node's writer knows."""
        self._node, self._writer, self._note = node, writer, note

    def lost(self, node_id: bytes, name: str) -> None:
        """Start asking for the peaks of a lost host; on the node's thread."""
        if name not in HOSTS or self._writer.is_resting:
            return
        peaks = self._writer.lived_on(node_id)
        work = threading.Thread(target=self._until_back, args=(name, peaks), daemon=True)
        work.start()

    def _until_back(self, name: str, peaks: dict[str, float]) -> None:
        """Ask until all entities have answered, then report how many lost a peak."""
        missing, lower = dict(peaks), 0
        for _ in retrying(Backoff.fixed(PAUSE), WATCH_LIMIT):
            if not missing or self._writer.is_resting:
                break
            futures = [
                (key, self._node.entity(DailyPeak, key).ask(AskPeak(), timeout=ASK_LIMIT))
                for key in missing
            ]
            for key, future in futures:
                try:
                    lower += future.result(ASK_LIMIT) < missing[key]
                    del missing[key]
                except (CallboardError, TimeoutError):
                    continue
        if not missing:
            self._note("peaks_back", name=name, count=len(peaks), lower=lower)
