"""A log played again into topics, at the pace of its records' times."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import Event
from typing import Any, Final

from callboard.commitlog import LogCorrupt, Record
from callboard.model.errors import EndpointError
from callboard.pipeline.outlet import Outlet, is_publishable
from callboard.pipeline.pace import EventPace, event_time

#: Records that are published at once if they are due.
_RUN: Final = 1000

_Due = tuple[float, Record, Any]


@dataclass(slots=True)
class Replay:
    """Plays records again; one thread calls `run`, any other may set `stop`.

    Attributes:
        pace: When each is due.
        outlet: Where they go; it counts them.
        field: The field of payloads that has their time; "" takes that of the record.
        stop: Ends it before the next records.
        next: The offset of the next record.
        played: Records that were published or found unheard.
        unfit: Records that can be no message, with the damaged ones.
        damaged: Records whose payload cannot be read.
        untimed: Records without a time in that field: due with the one before.
        late: By how many seconds the latest was published too late.
        clock: Returns seconds.
        pause: Waits so many seconds, or until `stop`.
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
        """Play records in their order; returns whether all were, none was stopped.

        The first one goes when it has a subscriber; the others count from there.
        """
        run: list[_Due] = []
        for each in self._due(records):
            if self._begun is not None and not self._wait(each[0], run):
                return False
            run.append(each)
            if self._begun is None:
                if self.stop.is_set() or not self._publish(run):
                    return False
                self._begun = self.clock() - each[0]
        return not run or self._publish(run)

    def _wait(self, due: float, run: list[_Due]) -> bool:
        """Wait until a record is due, publishing those before it; False to stop."""
        if run and (self._ahead(due) > 0 or len(run) >= _RUN) and not self._publish(run):
            return False
        ahead = self._ahead(due)
        if ahead > 0:
            (self.pause or self.stop.wait)(ahead)
        return not self.stop.is_set()

    def _ahead(self, due: float) -> float:
        """Return the seconds until something is due."""
        return (self._begun or 0.0) + due - self.clock()

    def _due(self, records: Iterable[Record]) -> Iterator[_Due]:
        """Iterate over what can be read: when it is due, the record, and its payload."""
        latest: int | None = None
        for record in records:
            try:
                payload = record.payload
            except LogCorrupt:
                self.unfit += 1
                self.damaged += 1
                continue
            at: int | None = record.time
            if self.field:
                at = event_time(payload, self.field)
                self.untimed += at is None
            at = latest if at is None else at
            if at is None:  # none has a time so far
                yield 0.0, record, payload
                continue
            latest = at
            yield self.pace.due(at), record, payload

    def _publish(self, run: list[_Due]) -> bool:
        """Publish records that are due, and forget them; False if they are to stay."""
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
