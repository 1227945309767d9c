"""A state in a SQLite file, for the processes of one machine.

A transaction that writes holds the file's only write lock from its first statement on
(`BEGIN IMMEDIATE`), so the fences that it checks cannot change before its commit. The file is
synced after the transaction, and the commit is reported only after that; while one process
syncs, another can write. A journal is synced by the process that reads it, before its events
count as durable. A claim is synced together with everything committed before it.

Each statement releases the interpreter's lock, and may wait for the node's thread to get it
back, while the file is locked. So a transaction has few statements, and takes the batches that
were submitted while it waited for the file.

**The index by key lags behind.** Events are stored in the order of their positions, so a commit
writes few pages. In an index by key, each event of a busy file would change a page of its own,
which every process would read again after the commits of the others. So under load the index, a
table of ours, is not written with each commit, but for thousands of events together, in order.
A query for the events of a key also scans the events that are not in the index yet.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from socket import gethostname
from typing import Any, Final, TypeVar
from uuid import uuid4

from callboard import locks
from callboard.entity.state.interface import (
    NO_FENCE,
    PAGE,
    Committed,
    Fence,
    Identity,
    NewEvent,
    PastEvent,
    RowChanges,
    Slot,
    SlotBatch,
    StoredEvent,
    StoredJob,
)
from callboard.entity.state.schema import (
    INDEX_TABLE_VERSION,
    SQLITE_TYPES,
    STATE_TABLE,
    STEPS,
    check_version,
    steps_from,
)
from callboard.entity.state.sql import BY_INDEX, EVENT, KeyQueries, SqlState, SqlView
from callboard.entity.state.wal_index import WalIndex
from callboard.lease.errors import (
    OutcomeUnknown,
    StateCorrupt,
    StateReplaced,
    StateUnavailable,
    StorageError,
)
from callboard.lease.sqlite import SharedFile, connect, connect_to_read
from callboard.support import after_fork
from callboard.support.files.open_objects import OpenObjects
from callboard.support.platform.system import boot_id

T = TypeVar("T")

_log: Final = logging.getLogger("callboard")

_CLAIM = """INSERT INTO callboard_fences VALUES {} ON CONFLICT (type, slot)
    DO UPDATE SET epoch = excluded.epoch, writer = excluded.writer
    WHERE callboard_fences.epoch < excluded.epoch"""
_FENCE = "SELECT epoch, writer FROM callboard_fences WHERE type = ? AND slot = ?"
_OWN_FENCES = (
    "SELECT group_concat(slot || ' ' || epoch) FROM callboard_fences"
    " WHERE type = ? AND writer = ?"
)
#: The position up to which events of a type (the second parameter) are in the index.
_INDEXED = "coalesce((SELECT position FROM callboard_indexed WHERE type = ?2), 0)"
_ADVANCE = (
    "UPDATE callboard_types SET last = last + ?1 WHERE type = ?2"  # noqa: S608 - our own text
    f" RETURNING last, {_INDEXED}"
)
#: The same, with the fences of a writer in one text.
_ADVANCE_FENCED = (
    f"{_ADVANCE}, (SELECT group_concat(slot || ' ' || epoch) FROM callboard_fences"  # noqa: S608
    " WHERE type = ?2 AND writer = ?3)"
)
_KIND = "INSERT INTO callboard_kinds VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_SNAPSHOT = "INSERT OR REPLACE INTO callboard_snapshots VALUES (?, ?, ?, ?, ?, ?)"
_OLD_SNAPSHOTS = """DELETE FROM callboard_snapshots WHERE type = ?1 AND key = ?2 AND number <
    (SELECT min(number) FROM (SELECT number FROM callboard_snapshots
     WHERE type = ?1 AND key = ?2 ORDER BY number DESC LIMIT 2))"""
#: Adds the events of a type between two positions to the index.
_INDEX = """INSERT INTO callboard_events_of_key
    SELECT type, key, number, position FROM callboard_events
    WHERE type = ? AND position > ? AND position <= ? ORDER BY key, number"""
_NOW_INDEXED = "INSERT OR REPLACE INTO callboard_indexed VALUES (?, ?)"
_LAG = """SELECT last, coalesce((SELECT position FROM callboard_indexed WHERE type = ?1), 0)
    FROM callboard_types WHERE type = ?1"""
_LAGGING = """SELECT t.type, t.last - coalesce(i.position, 0) FROM callboard_types t
    LEFT JOIN callboard_indexed i USING (type) WHERE t.last > coalesce(i.position, 0)"""

#: The events of a type and key that are not in the index yet.
_NEWEST = """callboard_events WHERE type = ?1 AND key = ?2 AND position >
    coalesce((SELECT position FROM callboard_indexed WHERE type = ?1), 0)"""


def _events_of_key(columns: str) -> str:
    """Return the query for columns of the events of a key after a number."""
    own = {"key": "k.key", "number": "k.number AS number"}
    indexed = ", ".join(own.get(name, f"e.{name}") for name in columns.split(", "))
    return f"""SELECT {indexed} FROM callboard_events_of_key k
        CROSS JOIN callboard_events e ON e.type = k.type AND e.position = k.position
        WHERE k.type = ?1 AND k.key = ?2 AND k.number > ?3
        UNION ALL SELECT {columns} FROM {_NEWEST} AND number > ?3
        ORDER BY number LIMIT ?4"""  # noqa: S608 - names of columns


#: Queries of one statement each, so that the index cannot change between two parts.
_BY_KEY: Final = KeyQueries(
    _events_of_key(EVENT),
    _events_of_key("number, kind, version, body"),
    f"""SELECT max(number) FROM (
        SELECT max(number) AS number FROM callboard_events_of_key WHERE type = ?1 AND key = ?2
        UNION ALL SELECT max(number) FROM {_NEWEST}
        UNION ALL SELECT max(number) FROM callboard_snapshots WHERE type = ?3 AND key = ?4)""",  # noqa: S608
    """SELECT key FROM callboard_events_of_key WHERE type = ?1 AND key > ?2
        UNION SELECT key FROM callboard_events WHERE type = ?1 AND key > ?2 AND position >
            coalesce((SELECT position FROM callboard_indexed WHERE type = ?1), 0)
        UNION SELECT key FROM callboard_snapshots WHERE type = ?3 AND key > ?4
        ORDER BY key LIMIT ?5""",
)
_FORGET_EVENTS = f"""DELETE FROM callboard_events WHERE type = ?1 AND position IN (
    SELECT position FROM callboard_events_of_key WHERE type = ?1 AND key = ?2 AND number <= ?3
    UNION ALL SELECT position FROM {_NEWEST} AND number <= ?3)"""  # noqa: S608
_FORGET_PLACES = """DELETE FROM callboard_events_of_key
    WHERE type = ? AND key = ? AND number <= ?"""
_REMINDER = (
    "INSERT OR REPLACE INTO callboard_reminders"
    " (type, key, name, slot, due_ms, every_ms, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_NO_REMINDER = "DELETE FROM callboard_reminders WHERE type = ? AND key = ? AND name = ?"
_JOB = "INSERT INTO callboard_jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_JOB_STATE = """UPDATE callboard_jobs SET status = ?, due_ms = ?, attempt = ?, taker = ?,
    visible_ms = ?, reason = ? WHERE type = ? AND key = ? AND number = ?"""
_NO_JOB = "DELETE FROM callboard_jobs WHERE type = ? AND key = ? AND number = ?"
_COUNT = """INSERT INTO callboard_writers VALUES (?, ?, ?) ON CONFLICT (writer)
    DO UPDATE SET number = excluded.number, time_ms = excluded.time_ms"""
_COUNTED = "SELECT number FROM callboard_writers WHERE writer = ?"


#: Slots in a commit from which their fences are read together.
_MANY_SLOTS = 8

#: Most events of a commit that are indexed with it, if the index does not lag.
INDEXED_AT_ONCE: Final = 32

#: Events missing in the index from which they are added to it: if the events of a key were not
#: read since the last time, and if they were. A reader scans up to this many events.
INDEXED_TOGETHER: Final = 8192
INDEXED_FOR_READERS: Final = 512

#: Numbers of events that one statement inserts; fewer than 32 are inserted together.
_SIZES = 256, 192, 128, 96, 64, 48, 32, 0


#: Parameters of each event: its epoch, and the fields of a `NewEvent`.
_FIELDS = 1 + len(NewEvent._fields)


@cache
def _insert(count: int) -> str:
    """Return the statement that inserts a number of events.

    `OR ROLLBACK`: a failure ends the transaction anyway. Without it SQLite keeps the former
    content of each page that the statement changes, in a temporary file from the 16th page on.
    """
    rows = (
        f"(?1, ?3 + {row + 1}, ?{5 + 6 * row}, ?{6 + 6 * row}, ?2, ?{4 + 6 * row},"
        f" ?{7 + 6 * row}, ?{8 + 6 * row}, ?{9 + 6 * row})"
        for row in range(count)
    )
    values = ", ".join(rows)
    return f"INSERT OR ROLLBACK INTO callboard_events VALUES {values}"  # noqa: S608 - our numbers


class _FileView(SqlView):
    """Queries of a file on a separate connection."""

    _reading: SharedFile
    _by_key = _BY_KEY

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._reading.run(
            lambda connection: connection.execute(sql, parameters).fetchall()
        )

    def journal(
        self, type_name: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredEvent]:
        """Return the durable events of a type after a position, in the order of commits."""
        events = super().journal(type_name, after, limit)
        if events:
            self._reading.sync()
        return events

    def clock(self) -> int:
        """Return the machine's clock, in milliseconds since 1970."""
        return time.time_ns() // 1_000_000


#: The states that this process has open, for backups.
OPEN: "Final[OpenObjects[SqliteState]]" = OpenObjects(locks.lock("open states", 605))


class SqliteState(_FileView, SqlState):
    """The state of a writer in a file that all processes of the machine may open."""

    def __init__(self, path: Path, writer: str, mode: int | None = None) -> None:
        """Open the file, and create or migrate its tables; `mode` is for a new file.

        Raises:
            UnsafeDatabase: the file is on a network file system.
            StateVersion: a newer callboard wrote it.
            StorageError: the file cannot be opened.
        """
        self.path, self.writer = path.absolute(), writer
        self._number = 0
        #: Kinds of events that are stored already, and new ones of the current commit.
        self._kinds: set[tuple[str, str, int]] = set()
        self._new_kinds: set[tuple[str, str, int]] = set()
        #: By type: the text of this writer's fences, and the parsed text.
        self._known_fences: dict[str, tuple[str | None, dict[int, int]]] = {}
        #: By type: number of events that are missing in the index, as far as this process
        #: knows.
        self._lags: dict[str, int] = {}
        self._new_lags: dict[str, int] = {}
        #: Types with events that cannot be indexed.
        self._unfit: set[str] = set()
        #: Whether events of a key were read since the index was last written.
        self._is_read = False
        self._writing = SharedFile(self.path, partial(connect, mode=mode))
        try:
            self._id = self._writing.run(partial(_migrate, self.path), is_write=True)
            self._writing.sync_late()
            self._reading = SharedFile(self.path)
            self._lags.update(self.rows(_LAGGING))
            #: The connection of the node's thread; it never waits for a lock.
            self._fence_reads = SharedFile(self.path)
        except BaseException:
            self._writing.close()
            raise
        self._fence_reads.connection.execute("PRAGMA busy_timeout=0")
        OPEN.add(self)
        after_fork.register(self, OPEN.leave)
        #: The last seen data version, and the fences read since then, by type.
        self._seen: tuple[int, dict[str, dict[int, int]]] = -1, {}
        #: Shows whether anything was committed; None before the first query.
        self._index: WalIndex | None = None
        self._mark = b""

    def own_fences(self, type_name: str) -> Mapping[int, int] | None:
        """Return the slots whose fences this writer holds, with their epochs.

        Readers of SQLite do not wait for writers, so the node's thread may query the file: that
        is cheaper than a call on another thread. None if the file is locked nevertheless.
        """
        index = self._index
        mark = b"" if index is None else index.mark()
        if mark and mark == self._mark and (known := self._seen[1].get(type_name)) is not None:
            return known  # nothing was committed since it was read
        try:
            fences = self._fence_reads.run(partial(self._read_own_fences, type_name))
        except StorageError:
            return None
        # The mark was read before the query, so a commit between the two changes the mark.
        self._mark = mark
        return fences

    def _read_own_fences(
        self, type_name: str, connection: sqlite3.Connection
    ) -> Mapping[int, int]:
        """Return this writer's fences of a type; query them only if anything was committed."""
        # The version rises with each commit of another connection; the read may be newer.
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._seen[0]:
            self._seen = version, {}
        if self._index is None:
            self._index = WalIndex(self.path)  # SQLite has mapped it by now
        fences = self._seen[1].get(type_name)
        if fences is None:
            row = connection.execute(_OWN_FENCES, (type_name, self.writer)).fetchone()
            fences = self._seen[1][type_name] = _epochs(row[0])
        return fences

    def write_row(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement that writes; returns its rows after they are durable."""
        return self._write_durably(
            lambda connection: connection.execute(sql, parameters).fetchall()
        )

    def _write_durably(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a transaction; returns its result after it is durable."""
        answer = self._writing.run(work, is_write=True)
        self._writing.sync()
        return answer

    def identity(self) -> Identity:
        """Return the identity of this state, which only this boot of the machine may use."""
        boot = boot_id() or gethostname()
        return Identity(self._id, f"{self.path} on {gethostname()}", boot)

    def claim(self, type_name: str, slots: Mapping[int, int]) -> Mapping[int, Fence]:
        """Raise the fences of slots; returns the fences that other claims hold."""
        rows = [
            field
            for slot, epoch in slots.items()
            for field in (type_name, slot, epoch, self.writer)
        ]
        claim = _CLAIM.format(", ".join(["(?, ?, ?, ?)"] * len(slots)))

        def work(connection: sqlite3.Connection) -> dict[int, Fence]:
            sql = "INSERT INTO callboard_types VALUES (?, 0) ON CONFLICT DO NOTHING"
            connection.execute(sql, (type_name,))
            connection.execute(claim, rows)
            own = connection.execute(_OWN_FENCES, (type_name, self.writer)).fetchone()[0]
            epochs = _epochs(own)
            return {
                slot: Fence(*connection.execute(_FENCE, (type_name, slot)).fetchone())
                for slot, epoch in slots.items()
                if epochs.get(slot) != epoch
            }

        return self._write_durably(work)

    def past_events(
        self, type_name: str, key: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[PastEvent]:
        """Return the replayed part of a key's events after a number."""
        self._is_read = True
        return super().past_events(type_name, key, after, limit)

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        """Write the batches of several slots in one transaction."""
        done = self.commit_waiting(lambda: batches)
        self.settle()
        return done

    def commit_waiting(self, take: Callable[[], Sequence[SlotBatch]]) -> Committed:
        """Write the waiting batches in one transaction, when no other process writes.

        `take` returns the batches. It is called after the file was locked, so batches submitted
        during the wait are included; it is not called if the lock could not be had.
        """
        batches: list[SlotBatch] = []

        def write(connection: sqlite3.Connection) -> Committed:
            batches.extend(sorted(take(), key=attrgetter("slot")))
            return self._write(batches, connection)

        try:
            return self._commit(write)
        except (StateUnavailable, OutcomeUnknown, StateReplaced):
            raise
        except StorageError as error:
            if len(batches) == 1:
                return Committed({}, {batches[0].slot: error}, {})
            return self._commit_singly(batches)

    def settle(self, *, is_idle: bool = False) -> bool:
        """Add events to the index if many are missing in it, or if the state is idle.

        Returns: Whether no event is missing, as far as this process knows.
        """
        most = INDEXED_FOR_READERS if self._is_read else INDEXED_TOGETHER
        for type_name, lag in list(self._lags.items()):
            if lag and (is_idle or lag >= most):
                with suppress(StorageError):  # tried again with the next commit
                    self._lags[type_name] = self._enter(type_name, 1 if is_idle else most)
                    self._is_read = False
        return not any(self._lags.values())

    def _enter(self, type_name: str, least: int) -> int:
        """Add the first missing events to the index; returns how many are missing after it.

        Nothing is done if another process has done it. A long lag, left by an older callboard,
        is worked off in parts, so that other processes do not wait long for the file.
        """

        def write(connection: sqlite3.Connection) -> int:
            last, indexed = connection.execute(_LAG, (type_name,)).fetchone()
            if last - indexed < least:
                return int(last - indexed)
            end = min(last, indexed + 2 * INDEXED_TOGETHER)
            connection.execute(_INDEX, (type_name, indexed, end))
            connection.execute(_NOW_INDEXED, (type_name, end))
            return int(last - end)

        try:
            return self._writing.run(write, is_write=True)
        except StateCorrupt as error:
            text = "two events of a %s have the same number; newer events are found slowly: %s"
            _log.error(text, type_name, error)
            self._unfit.add(type_name)
            return 0

    def _commit_singly(self, batches: Sequence[SlotBatch]) -> Committed:
        """Commit each slot on its own, so that invalid rows of one do not stop the others."""
        fenced: dict[Slot, Fence] = {}
        failed: dict[Slot, Exception] = {}
        positions: dict[str, int] = {}
        for batch in batches:
            try:
                done = self._commit(partial(self._write, [batch]))
            except StorageError as error:
                failed[batch.slot] = error
            else:
                fenced |= done.fenced
                positions |= done.positions
        return Committed(fenced, failed, positions)

    def _commit(self, write: Callable[[sqlite3.Connection], Committed]) -> Committed:
        """Run one transaction; after a failure, find out its outcome."""
        self._number += 1
        try:
            done = self._writing.run(write, is_write=True)
        except StateUnavailable as error:
            # A COMMIT with a failed sync may have left the whole transaction in the log.
            number = self._number
            try:
                counted = self.rows(_COUNTED, self.writer)
            except StorageError:
                message = f"{error}; and the outcome of the commit cannot be read"
                raise OutcomeUnknown(message) from error
            if counted and counted[0][0] == number:
                message = f"{error}; the commit is stored nevertheless: recover its entities"
                raise OutcomeUnknown(message) from error
            raise
        self._kinds |= self._new_kinds
        self._lags |= self._new_lags
        self._writing.sync()
        return done

    def _write(self, batches: Sequence[SlotBatch], connection: sqlite3.Connection) -> Committed:
        """Write batches that are not fenced; assign positions last, as with PostgreSQL."""
        execute, now = connection.execute, time.time_ns() // 1_000_000
        self._new_kinds, self._new_lags = set(), {}
        fenced: dict[Slot, Fence] = {}
        positions: dict[str, int] = {}
        accepted: dict[str, list[SlotBatch]] = {}
        ends = self._advance_fenced(batches, connection)
        if ends is not None:
            accepted[batches[0].slot[0]] = list(batches)
        else:
            for batch in batches:
                fence = Fence(*(execute(_FENCE, batch.slot).fetchone() or NO_FENCE))
                if fence == (batch.epoch, self.writer):
                    accepted.setdefault(batch.slot[0], []).append(batch)
                else:
                    fenced[batch.slot] = fence
        for type_name, of_type in accepted.items():
            self._write_others(type_name, of_type, connection, now)
            count = _events_in(of_type)
            if count:
                if ends is None:
                    end, indexed = execute(_ADVANCE, (count, type_name)).fetchone()
                else:
                    end, indexed = ends
                positions[type_name] = end
                self._write_events(type_name, end - count, of_type, connection, now)
                if count <= INDEXED_AT_ONCE and indexed == end - count:
                    execute(_INDEX, (type_name, indexed, end))
                    execute(_NOW_INDEXED, (type_name, end))
                    indexed = end
                if type_name not in self._unfit:
                    self._new_lags[type_name] = end - indexed
        if self._new_kinds:
            connection.executemany(_KIND, self._new_kinds)
        execute(_COUNT, (self.writer, self._number, now))
        return Committed(fenced, {}, positions)

    def _advance_fenced(
        self, batches: Sequence[SlotBatch], connection: sqlite3.Connection
    ) -> tuple[int, int] | None:
        """Advance the position for many batches of one type, and check their fences.

        Returns:
            The last position, and the position of the index. None if a fence belongs to another
            writer, or the batches are few or of several types; nothing was written then, and
            each slot must be checked.
        """
        name = batches[0].slot[0] if batches else ""
        if len(batches) < _MANY_SLOTS or batches[-1].slot[0] != name:  # sorted by type
            return None
        count = _events_in(batches)
        row = connection.execute(_ADVANCE_FENCED, (count, name, self.writer)).fetchone()
        if row is None:
            return None
        last, indexed, text = row
        known = self._known_fences.get(name)
        if known is None or known[0] != text:
            known = self._known_fences[name] = text, _epochs(text)
        own = known[1]
        for (_, slot), epoch, *_ in batches:
            if own.get(slot) != epoch:
                connection.execute(_ADVANCE, (-count, name)).fetchone()
                return None
        return last, indexed

    def _write_events(
        self,
        type_name: str,
        position: int,
        batches: Sequence[SlotBatch],
        connection: sqlite3.Connection,
        now: int,
    ) -> None:
        """Insert the events of a type after a position."""
        known, last_kind, last_version = self._kinds, "", 0
        fields: list[Any] = []
        for _, epoch, events, *_ in batches:
            for event in events:
                fields.append(epoch)
                fields += event
                if event[2] is not last_kind or event[3] is not last_version:
                    _, _, last_kind, last_version, _ = event
                    kind = type_name, last_kind, last_version
                    if kind not in known:
                        self._new_kinds.add(kind)
        done, left = 0, len(fields) // _FIELDS
        while left:
            size = next(size for size in _SIZES if size <= left) or left
            part = fields[done * _FIELDS : (done + size) * _FIELDS]
            connection.execute(_insert(size), (type_name, now, position + done, *part))
            done += size
            left -= size

    def _write_others(
        self,
        type_name: str,
        batches: Sequence[SlotBatch],
        connection: sqlite3.Connection,
        now: int,
    ) -> None:
        """Write snapshots, reminders and jobs, and delete events."""
        for batch in batches:
            if batch.rows is not None:
                _change_rows(batch.slot, batch.rows, connection, now)
            for key, number, version, body in batch.snapshots:
                connection.execute(_SNAPSHOT, (type_name, key, number, version, now, body))
                connection.execute(_OLD_SNAPSHOTS, (type_name, key))
            for key, last in batch.forget.items():
                connection.execute(_FORGET_EVENTS, (type_name, key, last))
                connection.execute(_FORGET_PLACES, (type_name, key, last))

    def close(self) -> None:
        """Close the file."""
        OPEN.discard(self)
        self.settle(is_idle=True)
        self._fence_reads.close()  # first, so that no query starts to read the index
        if self._index is not None:
            self._index.close()  # before the last connection closes and unmaps the index
        self._writing.close()
        self._reading.close()


def _events_in(batches: Sequence[SlotBatch]) -> int:
    """Return the number of events in some batches."""
    return sum([len(batch.events) for batch in batches])


def _epochs(text: str | None) -> dict[int, int]:
    """Parse a text of fences into slots and epochs."""
    pairs = (pair.split(" ") for pair in text.split(",")) if text else ()
    return {int(slot): int(epoch) for slot, epoch in pairs}


def _change_rows(
    slot: Slot, rows: RowChanges, connection: sqlite3.Connection, now: int
) -> None:
    """Write the changed reminders and jobs of a slot."""
    type_name, slot_number = slot
    many = connection.executemany
    if rows.reminders:
        changes = rows.reminders.items()
        stored = [
            (type_name, key, name, slot_number, row.due_ms, row.every_ms, row.body)
            for (key, name), row in changes
            if row is not None
        ]
        many(_REMINDER, stored)
        many(_NO_REMINDER, [(type_name, *place) for place, row in changes if row is None])
    if rows.jobs:
        put, changed, done = [], [], []
        for (key, number), change in rows.jobs.items():
            if change is None:
                done.append((type_name, key, number))
            elif isinstance(change, StoredJob):
                put.append((type_name, key, number, *change.state, now, change.body))
            else:
                changed.append((*change, type_name, key, number))
        many(_JOB, put)
        many(_JOB_STATE, changed)
        many(_NO_JOB, done)


class SqliteView(_FileView):
    """The state in a file, for reading only: no table is created or migrated."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            StateVersion: a newer callboard wrote it.
            StateCorrupt: the file does not hold a state.
            StorageError: the file cannot be opened.
        """
        self._reading = SharedFile(path.absolute(), connect_to_read)
        try:
            self._version = self._reading.run(partial(_check_tables, path))
        except BaseException:
            self.close()
            raise
        if self._version < INDEX_TABLE_VERSION:
            self._by_key = BY_INDEX

    def identity(self) -> Identity:
        """Return the identity of this state."""
        return Identity(
            self.rows("SELECT id FROM callboard_state")[0][0], str(self._reading.path)
        )

    def close(self) -> None:
        """Close the file."""
        self._reading.close()


def _check_tables(path: Path, connection: sqlite3.Connection) -> int:
    """Return the version of a file's tables, if this callboard can read them.

    Raises:
        StateCorrupt: the file does not hold a state.
        StateVersion: a newer callboard wrote it.
    """
    sql = "SELECT count(*) FROM sqlite_master WHERE name = 'callboard_state'"
    has_table = connection.execute(sql).fetchone()[0]
    rows = has_table and connection.execute("SELECT schema_version FROM callboard_state")
    row = rows.fetchone() if rows else None
    if not row:
        message = (
            f"{path} does not hold a state of entities; give the file that nodes host with"
        )
        raise StateCorrupt(message)
    check_version(row[0], str(path))
    return int(row[0])


def _migrate(path: Path, connection: sqlite3.Connection) -> str:
    """Create or migrate the tables; returns the state's id."""
    connection.execute(STATE_TABLE)
    row = connection.execute("SELECT id, schema_version FROM callboard_state").fetchone()
    identity, version = row or (uuid4().hex, 0)
    check_version(version, str(path))
    for sql in steps_from(version, SQLITE_TYPES):
        connection.execute(sql)
    sql = "INSERT OR REPLACE INTO callboard_state VALUES (1, ?, ?, '', '')"
    if version < len(STEPS):
        connection.execute(sql, (identity, len(STEPS)))
    return str(identity)
