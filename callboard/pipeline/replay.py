"""Replay of a log into topics, at the pace of its records' times."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

from callboard.commitlog import LogCorrupt, Record
from callboard.model.errors import EndpointError
from callboard.pipeline.pace import EventPace, event_time
from callboard.pipeline.result_publisher import Outlet, is_publishable

#: Due records that are published together.
_RUN: Final = 1000

_Due = tuple[float, Record, Any]


@dataclass(slots=True)
class Replay:
    """Replays records; one thread calls `run`, any other thread may set `stop`.

    Attributes:
        pace: Computes when each record is due.
        outlet: Publishes and counts the messages.
        field: The payload's field with the time; "" for the time of the record.
        stop: Ends the replay before the next records.
        next: Offset of the next record.
        played: Records that were published or had no subscriber.
        unfit: Records that cannot be a message, including damaged ones.
        damaged: Records whose payload cannot be read.
        untimed: Records without a time in that field; they are due with the previous one.
        late: Longest delay of a publication, in seconds.
        clock: Returns seconds.
        pause: Waits for a number of seconds, or until `stop`.
    """

    pace: EventPace
    outlet: Outlet
    field: str
    stop: Event
    next: int = 0
    played: int = 0
    unfit: int = 0
    damaged: int = 0
    untimed: int = 0
    late: float = 0.0
    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] | None = None
    _begun: float | None = None

    def run(self, records: Iterable[Record]) -> bool:
        """Replay records in order; return False if it was stopped before the end.

        The first record waits for a subscriber; the times of the others are relative to it.
        """
        run: list[_Due] = []
        for due_record in self._due(records):
            if self._begun is not None and not self._wait(due_record[0], run):
                return False
            run.append(due_record)
            if self._begun is None:
                if self.stop.is_set() or not self._publish(run):
                    return False
                self._begun = self.clock() - due_record[0]
        return not run or self._publish(run)

    def _wait(self, due: float, run: list[_Due]) -> bool:
        """Publish the earlier records, then wait until a record is due.

        Return False if the replay must stop.
        """
        if run and (self._ahead(due) > 0 or len(run) >= _RUN) and not self._publish(run):
            return False
        ahead = self._ahead(due)
        if ahead > 0:
            (self.pause or self.stop.wait)(ahead)
        return not self.stop.is_set()

    def _ahead(self, due: float) -> float:
        """Return the seconds until a time of the replay."""
        return (self._begun or 0.0) + due - self.clock()

    def _due(self, records: Iterable[Record]) -> Iterator[_Due]:
        """Yield each readable record with its due time and payload."""
        latest: int | None = None
        for record in records:
            try:
                payload = record.payload
            except LogCorrupt:
                self.unfit += 1
                self.damaged += 1
                continue
            timestamp: int | None = record.time
            if self.field:
                timestamp = event_time(payload, self.field)
                self.untimed += timestamp is None
            timestamp = latest if timestamp is None else timestamp
            if timestamp is None:  # no record has had a time yet
                yield 0.0, record, payload
                continue
            latest = timestamp
            yield self.pace.due(timestamp), record, payload

    def _publish(self, run: list[_Due]) -> bool:
        """Publish due records and clear the list; return False if they could not be sent."""
        if self._begun is not None:
            self.late = max(self.late, -self._ahead(run[0][0]))
        messages = [(record.topic, payload) for _, record, payload in run]
        try:
            is_done = self.outlet.publish(messages)
        except EndpointError:
            fit = list(filter(is_publishable, messages))
            self.unfit += len(messages) - len(fit)
            is_done = self.outlet.publish(fit)
        if is_done:
            self.next = run[-1][1].offset + 1
            self.played += len(run)
            run.clear()
        return is_done
