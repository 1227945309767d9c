"""The daily peaks of sensors, as entities: the node that has one may be killed.

B and C host them, in one file. Sensors on A and D tell their levels to the entity of their name
and day; A watches, and notes when all those that lived on a lost node answer again.
"""

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from callboard.entity.entity import Entity, event
from callboard.kernel.actors import Query, handler, message
from callboard.kernel.errors import CallboardError
from callboard.kernel.reply import Future
from callboard.node import Node

#: Who hosts them: the node that the story kills is one.
HOSTS: Final = ("B", "C")

#: Seconds that an ask may take, and between attempts.
ASK_LIMIT: Final = 2.0
PAUSE: Final = 0.01

#: Seconds after which nobody waits for peaks of a lost node any more.
WATCH_LIMIT: Final = 20.0

#: Seconds within which a new owner was named because the former one is lost.
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
    """What is the peak?"""


class DailyPeak(Entity):
    """The highest level of a sensor on a day; the key is `SENSOR/DAY/PART`."""

    name = "demo.DailyPeak"

    def __init__(self) -> None:
        self.peak = 0.0

    @handler
    def on_level(self, level: Level) -> float:
        """Keep a level that is higher than all before."""
        if level.value > self.peak:
            self.persist(level)
        return self.peak

    @event
    def on_risen(self, event: Level) -> None:
        """Take a higher peak."""
        self.peak = event.value

    @handler(read_only=True)
    def on_ask(self, _: AskPeak) -> float:
        """Tell the peak."""
        return self.peak


def host_peaks(node: Node, path: str, note: Note) -> None:
    """Host peaks from a thread of its own: opening the file takes a moment."""

    def host() -> None:
        try:
            node.host(DailyPeak, state=f"sqlite:{path}")
        except CallboardError as error:  # or the node was closed meanwhile
            note("failed", actor="the host of daily peaks", reason=str(error))

    threading.Thread(target=host, daemon=True).start()


class PeakWriter:
    """Tells levels to entities: one ask of each sensor at a time, with the highest since."""

    def __init__(self, node: Node) -> None:
        """Begin without sensors."""
        self._node = node
        self._waiting: dict[str, float] = {}
        self._asking: set[str] = set()
        self.keys: dict[str, float] = {}
        #: The node that each lives on, and the one before with the time of the change: who
        #: takes over is known before everybody knows that the former node is lost.
        self._owners: dict[str, bytes] = {}
        self._former: dict[str, tuple[bytes, float]] = {}
        self.is_resting = False

    def keep(self, sensor: str, level: float) -> None:
        """Keep a level; on the node's thread."""
        now = datetime.datetime.now(datetime.UTC)
        half = "morning" if now.hour < 12 else "afternoon"
        for part in ("day", half):
            key = f"{sensor}/{now:%Y-%m-%d}/{part}"
            self._waiting[key] = max(level, self._waiting.get(key, level))
            self._look(key)
            self._send(key)

    def _look(self, key: str) -> None:
        """Look which node an entity lives on."""
        owner, before = self._node.entity(DailyPeak, key).node_id, self._owners.get(key, b"")
        if owner != before:
            self._former[key] = before, time.monotonic()
            self._owners[key] = owner

    def lived_on(self, node: bytes) -> dict[str, float]:
        """Return the peaks of entities that lived on a node until it was lost just now."""
        recent = time.monotonic() - TAKEN_WITHIN
        found = {}
        for key, peak in self.keys.items():
            self._look(key)
            former, changed = self._former.get(key, (b"", 0.0))
            if self._owners[key] == node or (former == node and changed > recent):
                found[key] = peak
        return found

    def _send(self, key: str) -> None:
        """Ask, unless an answer is awaited."""
        level = self._waiting.get(key)
        if key in self._asking or level is None or self.is_resting:
            return
        if level <= self.keys.get(key, -1.0):  # it is no peak
            return
        self._asking.add(key)
        asked = self._node.entity(DailyPeak, key).ask(Level(level), timeout=ASK_LIMIT)
        asked.add_done_callback(partial(self._node.context.post, self._answered, key))

    def _answered(self, key: str, answer: Future[float]) -> None:
        """Take the peak that the entity has; what failed is told with the next level."""
        self._asking.discard(key)
        if answer.exception() is None:
            self.keys[key] = answer.result()
            self._send(key)


class PeakWatch:
    """Notes when the peaks that lived on a lost node answer again."""

    def __init__(self, node: Node, writer: PeakWriter, note: Note) -> None:
        """Watch the peaks of the sensors of this node."""
        self._node, self._writer, self._note = node, writer, note

    def lost(self, node_id: bytes, name: str) -> None:
        """Ask for the peaks of a host that is lost; on the node's thread."""
        if name not in HOSTS or self._writer.is_resting:
            return
        known = self._writer.lived_on(node_id)
        work = threading.Thread(target=self._until_back, args=(name, known), daemon=True)
        work.start()

    def _until_back(self, name: str, known: dict[str, float]) -> None:
        """Ask until each has answered with what it had acknowledged; note when that was."""
        limit, missing, lower = time.monotonic() + WATCH_LIMIT, dict(known), 0
        while missing and time.monotonic() < limit and not self._writer.is_resting:
            asked = [
                (key, self._node.entity(DailyPeak, key).ask(AskPeak(), timeout=ASK_LIMIT))
                for key in missing
            ]
            for key, future in asked:
                try:
                    lower += future.result(ASK_LIMIT) < missing[key]
                    del missing[key]
                except (CallboardError, TimeoutError):
                    continue
            if missing:
                time.sleep(PAUSE)
        if not missing:
            self._note("peaks_back", name=name, count=len(known), lower=lower)
