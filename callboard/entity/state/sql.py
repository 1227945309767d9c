"""What states in SQL databases have in common: everything that only reads."""

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

#: The columns of an event; their order is that of `StoredEvent`.
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
#: Reminders of which one statement stores the attempts.
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

#: As `PastEvent._make`, in a third of the time.
_past_event: Final[Callable[[tuple[Any, ...]], PastEvent]] = partial(tuple.__new__, PastEvent)

#: With more it is faster to read the fences of all slots.
_FEW_SLOTS: Final = 64


class KeyQueries(NamedTuple):
    """What finds events by their key."""

    #: Of a type and key behind a number, so many.
    events: str
    past_events: str
    #: Of a type and key, twice.
    last_number: str
    #: Of a type behind a key, twice, so many.
    keys: str


#: Where the table of events has an index.
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
    """A state in tables, for those that only read it."""

    _by_key: KeyQueries = BY_INDEX

    @abstractmethod
    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query that stands by itself; `?` are its parameters."""

    @abstractmethod
    def clock(self) -> int:
        """Return the database's clock, in milliseconds since 1970."""

    def recover(
        self, type_name: str, key: str, version: int | None, limit: int = PAGE
    ) -> Recovered:
        """Return the newest snapshot of a version, or of any, and the events behind it."""
        found = [EntitySnapshot(*row) for row in self.rows(_SNAPSHOTS, type_name, key)]
        fitting = next((each for each in found if version in (None, each.version)), None)
        after = fitting.number if fitting else 0
        events = self.past_events(type_name, key, after, limit + 1)
        return recovered(type_name, key, fitting, events, limit, has_others=bool(found))

    def events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a key behind a number."""
        rows = self.rows(self._by_key.events, type_name, key, after, limit)
        return list(map(StoredEvent._make, rows))

    def past_events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[PastEvent]:
        """Return what is applied of the events of a key behind a number."""
        rows = self.rows(self._by_key.past_events, type_name, key, after, limit)
        return list(map(_past_event, rows))

    def journal(
        self, type_name: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the events of a type behind a position."""
        return list(map(StoredEvent._make, self.rows(_JOURNAL, type_name, after, limit)))

    def fences(self, slots: Collection[Slot]) -> Mapping[Slot, Fence]:
        """Return the fences of slots."""
        found: dict[Slot, Fence] = dict.fromkeys(slots, NO_FENCE)
        for type_name in sorted({name for name, _ in slots}):
            numbers = [slot for name, slot in found if name == type_name]
            for slot, epoch, writer in self._fences_of(type_name, numbers):
                if (type_name, slot) in found:
                    found[type_name, slot] = Fence(epoch, writer)
        return found

    def _fences_of(self, type_name: str, slots: Sequence[int]) -> list[tuple[Any, ...]]:
        """Return the rows of fences: of a few slots, or of all where that is faster.

        Reads of entities wait for this, so the rest of 256 rows is worth leaving out. There are
        few lengths of the list, since each is a statement that is compiled once.
        """
        if len(slots) > _FEW_SLOTS:
            return self.rows(_FENCES, type_name)
        length = 1 << (len(slots) - 1).bit_length()
        asked = [*slots, *[slots[-1]] * (length - len(slots))]
        marks = ", ".join("?" * length)
        return self.rows(f"{_FENCES} AND slot IN ({marks})", type_name, *asked)

    def last_position(self, type_name: str) -> int:
        """Return the position of the last event of a type."""
        found = self.rows("SELECT last FROM callboard_types WHERE type = ?", type_name)
        return int(found[0][0]) if found else 0

    def kinds(self, type_name: str) -> Collection[tuple[str, int]]:
        """Return the kinds and versions of all events that a type ever had."""
        sql = "SELECT kind, version FROM callboard_kinds WHERE type = ?"
        return {(kind, version) for kind, version in self.rows(sql, type_name)}

    def keys(self, type_name: str, after: str = "", limit: int = PAGE) -> Sequence[str]:
        """Return the keys of a type, in order, behind one."""
        found = self.rows(self._by_key.keys, type_name, after, type_name, after, limit)
        return [row[0] for row in found]

    def types(self) -> Sequence[str]:
        """Return the names of the types that have events or fences."""
        return [row[0] for row in self.rows("SELECT type FROM callboard_types ORDER BY type")]

    def reminders(
        self, type_name: str, slots: Collection[int], within_ms: int, limit: int = PAGE
    ) -> DueReminders:
        """Return the first reminders of slots that are due within a time."""
        now_ms = self.clock()
        if not slots:
            return DueReminders(now_ms, ())
        places = ", ".join("?" * len(slots))
        sql = (
            f"{_REMINDER} AND slot IN ({places}) AND due_ms <= ? AND attempts < ?"
            " ORDER BY due_ms, key, name LIMIT ?"
        )
        until = now_ms + within_ms
        rows = self.rows(sql, type_name, *sorted(slots), until, PARKED_FROM, limit)
        return DueReminders(now_ms, [StoredReminder(*row) for row in rows])

    def reminders_of(self, type_name: str, key: str) -> Sequence[StoredReminder]:
        """Return the reminders of an entity."""
        rows = self.rows(f"{_REMINDER} AND key = ? ORDER BY name", type_name, key)
        return [StoredReminder(*row) for row in rows]

    def parked_reminders(self, type_name: str, limit: int = PAGE) -> Sequence[StoredReminder]:
        """Return the reminders of a type that are parked."""
        sql = f"{_REMINDER} AND attempts >= ? ORDER BY key, name LIMIT ?"
        return [StoredReminder(*row) for row in self.rows(sql, type_name, PARKED_FROM, limit)]

    def job_counts(self, type_name: str, key: str) -> Mapping[JobStatus, int]:
        """Return how many jobs of a queue there are of each status."""
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
        """Return jobs of a status in the order of (due_ms, number), behind such a pair."""
        rows = self.rows(_JOBS, type_name, key, int(status), *after, limit)
        return [
            StoredJob(key, number, JobState(JobStatus(found), *state), time_ms, body)
            for number, found, *state, time_ms, body in rows
        ]

    def last_number(self, type_name: str, key: str) -> int:
        """Return the number of the last event or snapshot of a key; 0 where there is none."""
        found = self.rows(self._by_key.last_number, type_name, key, type_name, key)
        return int(found[0][0] or 0)

    def snapshot_at(
        self, type_name: str, key: str, number: int, version: int | None
    ) -> EntitySnapshot | None:
        """Return the newest snapshot of a key up to a number, of one version or of any."""
        rows = self.rows(_SNAPSHOTS, type_name, key)
        found = [EntitySnapshot(*row) for row in rows]
        fitting = (s for s in found if s.number <= number and version in (None, s.version))
        return next(fitting, None)

    @abstractmethod
    def identity(self) -> Identity:
        """Return which state this is."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""


class SqlState(SqlView):
    """A state in tables; the engines differ in how they write."""

    @abstractmethod
    def write_row(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return what one statement that writes returns, once it is durable."""

    def open_reader(self, type_name: str, reader: str) -> ReaderPosition:
        """Open a reader of a journal."""
        row = self.write_row(_OPEN_READER, type_name, reader, _now_ms())[0]
        return ReaderPosition(*row)

    def set_attempts(
        self, type_name: str, reminders: Sequence[StoredReminder], attempts: int
    ) -> None:
        """Store an attempt count of reminders, where these still stand."""
        for start in range(0, len(reminders), _ATTEMPTS_AT_ONCE):
            some = reminders[start : start + _ATTEMPTS_AT_ONCE]
            places = " OR ".join(["(key = ? AND name = ? AND due_ms = ?)"] * len(some))
            sql = (
                "UPDATE callboard_reminders SET attempts = ?"  # noqa: S608 - only marks
                f" WHERE type = ? AND ({places}) RETURNING 1"
            )
            given = [part for each in some for part in (each.key, each.name, each.due_ms)]
            self.write_row(sql, attempts, type_name, *given)

    def start_reminders(self, type_name: str, key: str, name: str | None) -> int:
        """Let parked reminders of an entity be due now."""
        given: tuple[object, ...] = (self.clock(), type_name, key, PARKED_FROM)
        if name is None:
            return len(self.write_row(f"{_START_REMINDERS} RETURNING 1", *given))
        return len(self.write_row(f"{_START_REMINDERS} AND name = ? RETURNING 1", *given, name))

    def move_reader(self, type_name: str, reader: str, epoch: int, position: int) -> bool:
        """Store how far a reader is; returns False if it was opened again."""
        row = (position, _now_ms(), type_name, reader, epoch)
        return bool(self.write_row(_MOVE_READER, *row))


def _now_ms() -> int:
    """Return the time for people, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
