"""The common part of states in SQL databases: everything that only reads, and single rows."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from callboard.entity.state.interface import (
    NO_FENCE,
    PAGE,
    PARKED_FROM,
    DueReminders,
    EntitySnapshot,
    Fence,
    Identity,
    JobState,
    JobStatus,
    PastEvent,
    ReaderPosition,
    Recovered,
    Slot,
    StoredEvent,
    StoredJob,
    StoredReminder,
    recovered,
)

#: The columns of an event, in the order of `StoredEvent`.
EVENT: Final = "position, key, number, time_ms, epoch, kind, version, body"
_JOURNAL = (
    f"SELECT {EVENT} FROM callboard_events"  # noqa: S608
    " WHERE type = ? AND position > ? ORDER BY position LIMIT ?"
)
_SNAPSHOTS = (
    "SELECT key, number, version, body FROM callboard_snapshots"
    " WHERE type = ? AND key = ? ORDER BY number DESC"
)
_OPEN_READER = """INSERT INTO callboard_readers VALUES (?, ?, 0, 1, ?)
    ON CONFLICT (type, reader) DO UPDATE SET epoch = callboard_readers.epoch + 1
    RETURNING position, epoch"""
_MOVE_READER = """UPDATE callboard_readers SET position = ?, time_ms = ?
    WHERE type = ? AND reader = ? AND epoch = ? RETURNING 1"""

_REMINDER = (
    "SELECT key, name, due_ms, every_ms, body, attempts FROM callboard_reminders WHERE type = ?"
)
_START_REMINDERS = (
    "UPDATE callboard_reminders SET attempts = 0, due_ms = ? WHERE type = ? AND key = ?"
    " AND attempts >= ?"
)
#: Reminders whose attempts one statement stores.
_ATTEMPTS_AT_ONCE = 100
_COUNTS = (
    "SELECT status, count(*) FROM callboard_jobs WHERE type = ? AND key = ? GROUP BY status"
)
_JOBS = (
    "SELECT number, status, due_ms, attempt, taker, visible_ms, reason, time_ms, body"
    " FROM callboard_jobs WHERE type = ? AND key = ? AND status = ?"
    " AND (due_ms, number) > (?, ?) ORDER BY due_ms, number LIMIT ?"
)

_FENCES: Final = "SELECT slot, epoch, writer FROM callboard_fences WHERE type = ?"

#: Makes a `PastEvent` in a third of the time of `_make`.
_past_event: Final[Callable[[tuple[Any, ...]], PastEvent]] = partial(tuple.__new__, PastEvent)

#: With more slots it is faster to read the fences of all slots.
_FEW_SLOTS: Final = 64


class KeyQueries(NamedTuple):
    """Queries that find events by their key."""

    #: Parameters: type, key, number, limit; returns events after the number.
    events: str
    past_events: str
    #: Parameters: type and key, twice.
    last_number: str
    #: Parameters: type and key, twice, limit; returns keys after the key.
    keys: str


#: The queries for a table of events with an index by key.
BY_INDEX: Final = KeyQueries(
    f"SELECT {EVENT} FROM callboard_events"  # noqa: S608 - names of columns
    " WHERE type = ? AND key = ? AND number > ? ORDER BY number LIMIT ?",
    "SELECT number, kind, version, body FROM callboard_events"
    " WHERE type = ? AND key = ? AND number > ? ORDER BY number LIMIT ?",
    "SELECT max(number) FROM (SELECT max(number) AS number FROM callboard_events"
    " WHERE type = ? AND key = ? UNION ALL SELECT max(number) FROM callboard_snapshots"
    " WHERE type = ? AND key = ?) AS found",
    "SELECT key FROM callboard_events WHERE type = ? AND key > ?"
    " UNION SELECT key FROM callboard_snapshots WHERE type = ? AND key > ?"
    " ORDER BY key LIMIT ?",
)


class SqlView(ABC):
    """A state in tables, for reading only."""

    _by_key: KeyQueries = BY_INDEX

    @abstractmethod
    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a single query; `?` stands for each parameter."""

    @abstractmethod
    def clock(self) -> int:
        """Return the database's clock, in milliseconds since 1970."""

    def recover(
        self, type_name: str, key: str, version: int | None, limit: int = PAGE
    ) -> Recovered:
        """Return the newest snapshot of a version, or of any, and the events after it."""
        snapshots = [EntitySnapshot(*row) for row in self.rows(_SNAPSHOTS, type_name, key)]
        readable = (snapshot for snapshot in snapshots if version in (None, snapshot.version))
        newest = next(readable, None)
        after = newest.number if newest else 0
        events = self.past_events(type_name, key, after, limit + 1)
        return recovered(type_name, key, newest, events, limit, has_others=bool(snapshots))

    def events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a key after a number."""
        rows = self.rows(self._by_key.events, type_name, key, after, limit)
        return list(map(StoredEvent._make, rows))

    def past_events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[PastEvent]:
        """Return the replayed part of a key's events after a number."""
        rows = self.rows(self._by_key.past_events, type_name, key, after, limit)
        return list(map(_past_event, rows))

    def journal(
        self, type_name: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a type after a position."""
        return list(map(StoredEvent._make, self.rows(_JOURNAL, type_name, after, limit)))

    def fences(self, slots: Collection[Slot]) -> Mapping[Slot, Fence]:
        """Return the fences of slots."""
        fences: dict[Slot, Fence] = dict.fromkeys(slots, NO_FENCE)
        for type_name in sorted({name for name, _ in slots}):
            numbers = [slot for name, slot in fences if name == type_name]
            for slot, epoch, writer in self._fences_of(type_name, numbers):
                if (type_name, slot) in fences:
                    fences[type_name, slot] = Fence(epoch, writer)
        return fences

    def _fences_of(self, type_name: str, slots: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the rows of some fences, or of all if that is faster.

        Reads of entities wait for this query, so it reads no more rows than needed. The number
        of parameters is a power of two, so few different statements are compiled.
        """
        if len(slots) > _FEW_SLOTS:
            return self.rows(_FENCES, type_name)
        length = 1 << (len(slots) - 1).bit_length()
        padded = [*slots, *[slots[-1]] * (length - len(slots))]
        marks = ", ".join("?" * length)
        return self.rows(f"{_FENCES} AND slot IN ({marks})", type_name, *padded)

    def last_position(self, type_name: str) -> int:
        """Return the position of the last event of a type."""
        rows = self.rows("SELECT last FROM callboard_types WHERE type = ?", type_name)
        return int(rows[0][0]) if rows else 0

    def kinds(self, type_name: str) -> Collection[tuple[str, int]]:
        """Return the kinds and versions of all events that a type has ever stored."""
        sql = "SELECT kind, version FROM callboard_kinds WHERE type = ?"
        return {(kind, version) for kind, version in self.rows(sql, type_name)}

    def keys(self, type_name: str, after: str = "", limit: int = PAGE) -> Sequence[str]:
        """Return the keys of a type, in order, after a key."""
        rows = self.rows(self._by_key.keys, type_name, after, type_name, after, limit)
        return [row[0] for row in rows]

    def types(self) -> Sequence[str]:
        """Return the names of the types with events or fences."""
        return [row[0] for row in self.rows("SELECT type FROM callboard_types ORDER BY type")]

    def reminders(
        self, type_name: str, slots: Collection[int], within_ms: int, limit: int = PAGE
    ) -> DueReminders:
        """Return the first reminders of slots that are due within a time."""
        now_ms = self.clock()
        if not slots:
            return DueReminders(now_ms, ())
        marks = ", ".join("?" * len(slots))
        sql = (
            f"{_REMINDER} AND slot IN ({marks}) AND due_ms <= ? AND attempts < ?"
            " ORDER BY due_ms, key, name LIMIT ?"
        )
        until = now_ms + within_ms
        rows = self.rows(sql, type_name, *sorted(slots), until, PARKED_FROM, limit)
        return DueReminders(now_ms, [StoredReminder(*row) for row in rows])

    def parked_reminders(self, type_name: str, limit: int = PAGE) -> Sequence[StoredReminder]:
        """Return the parked reminders of a type."""
        sql = f"{_REMINDER} AND attempts >= ? ORDER BY key, name LIMIT ?"
        return [StoredReminder(*row) for row in self.rows(sql, type_name, PARKED_FROM, limit)]

    def job_counts(self, type_name: str, key: str) -> Mapping[JobStatus, int]:
        """Return the number of a queue's jobs by status."""
        rows = self.rows(_COUNTS, type_name, key)
        return {JobStatus(status): count for status, count in rows}

    def jobs(
        self,
        type_name: str,
        key: str,
        status: JobStatus,
        after: tuple[int, int] = (-1, 0),
        limit: int = PAGE,
    ) -> Sequence[StoredJob]:
        """Return jobs of a status after a pair (due_ms, number), in that order."""
        rows = self.rows(_JOBS, type_name, key, int(status), *after, limit)
        return [
            StoredJob(key, number, JobState(JobStatus(stored), *state), time_ms, body)
            for number, stored, *state, time_ms, body in rows
        ]

    def last_number(self, type_name: str, key: str) -> int:
        """Return the number of the last event or snapshot of a key; 0 if there is none."""
        rows = self.rows(self._by_key.last_number, type_name, key, type_name, key)
        return int(rows[0][0] or 0)

    def snapshot_at(
        self, type_name: str, key: str, number: int, version: int | None
    ) -> EntitySnapshot | None:
        """Return the newest snapshot of a key up to a number, of one version or of any."""
        rows = self.rows(_SNAPSHOTS, type_name, key)
        snapshots = [EntitySnapshot(*row) for row in rows]
        readable = (s for s in snapshots if s.number <= number and version in (None, s.version))
        return next(readable, None)

    @abstractmethod
    def identity(self) -> Identity:
        """Return the identity of this state."""

    @abstractmethod
    def close(self) -> None:
        """Release its connections."""


class SqlState(SqlView):
    """A state in tables; engines differ in how they write."""

    @abstractmethod
    def write_row(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement that writes; returns its rows after they are durable."""

    def open_reader(self, type_name: str, reader: str) -> ReaderPosition:
        """Open a reader of a journal."""
        row = self.write_row(_OPEN_READER, type_name, reader, _now_ms())[0]
        return ReaderPosition(*row)

    def set_attempts(
        self, type_name: str, reminders: Sequence[StoredReminder], attempts: int
    ) -> None:
        """Store the attempt count of reminders that were neither replaced nor forgotten."""
        for start in range(0, len(reminders), _ATTEMPTS_AT_ONCE):
            chunk = reminders[start : start + _ATTEMPTS_AT_ONCE]
            places = " OR ".join(["(key = ? AND name = ? AND due_ms = ?)"] * len(chunk))
            sql = (
                "UPDATE callboard_reminders SET attempts = ?"  # noqa: S608 - only marks
                f" WHERE type = ? AND ({places}) RETURNING 1"
            )
            values = [value for row in chunk for value in (row.key, row.name, row.due_ms)]
            self.write_row(sql, attempts, type_name, *values)

    def start_reminders(self, type_name: str, key: str, name: str | None) -> int:
        """Make parked reminders of an entity due now."""
        values: tuple[object, ...] = (self.clock(), type_name, key, PARKED_FROM)
        if name is None:
            return len(self.write_row(f"{_START_REMINDERS} RETURNING 1", *values))
        sql = f"{_START_REMINDERS} AND name = ? RETURNING 1"
        return len(self.write_row(sql, *values, name))

    def move_reader(self, type_name: str, reader: str, epoch: int, position: int) -> bool:
        """Store the position of a reader; return False if it was opened again."""
        row = (position, _now_ms(), type_name, reader, epoch)
        return bool(self.write_row(_MOVE_READER, *row))


def _now_ms() -> int:
    """Return the wall-clock time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
