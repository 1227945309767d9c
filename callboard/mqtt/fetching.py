"""Shelved messages are read back from the journal between two turns.

A connection that comes to a segment which is not in memory is paused (Fetching), and the turn
says what it wants. The driver reads it and calls `arrived`, which lets the connection go on.
The segments that were fetched last stay in memory, since a reader takes one window at a time.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from callboard.mqtt.connection import Connection
from callboard.mqtt.datalog import DataLog
from callboard.mqtt.message import Run
from callboard.mqtt.segment import Segment, Shelf
from callboard.mqtt.tracker import Cause

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

MOST_FETCHED: Final = 32 << 20
"""Bytes of fetched segments in memory: 32 readers catch up and read no segment twice."""


class Fetch(NamedTuple):
    """What somebody wants of the journal."""

    log: DataLog
    segment: Segment


class Fetches:
    """What is being fetched, and for whom."""

    def __init__(self, machine: "RouterMachine") -> None:
        self._machine = machine
        self._waiting: dict[Segment, dict[Connection, None]] = {}
        self._here: deque[tuple[Segment, int]] = deque()
        self._weight = 0

    def want(self, log: DataLog, segment: Segment, connection: Connection) -> None:
        """Let a connection wait for a segment."""
        waiting = self._waiting.get(segment)
        if waiting is None:
            waiting = self._waiting[segment] = {}
            self._machine.wanted.append(Fetch(log, segment))
        waiting[connection] = None

    def arrived(self, segment: Segment, runs: list[Run]) -> None:
        """Take the messages of a segment; none if they could not be read, so they are lost."""
        if runs:
            segment.runs = runs
            self._here.append((segment, sum(run.weight for run in runs)))
            self._weight += self._here[-1][1]
            while self._weight > MOST_FETCHED and len(self._here) > 1:
                gone, weight = self._here.popleft()
                gone.runs = []
                self._weight -= weight
        else:
            segment.put_on_shelf((), Shelf((), (), ()))
        machine = self._machine
        for connection in self._waiting.pop(segment):
            if connection.session.connection is connection:
                machine.schedule(connection.session, Cause.FETCHED)
                if connection.session.has_shared:
                    machine.wake_groups(connection.session)
