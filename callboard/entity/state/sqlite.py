"""A state in a file of SQLite, for the processes of one machine.

A transaction that writes holds the file's only lock for writing from its first statement on
(`BEGIN IMMEDIATE`), so the fences that it checks stay as they are until it is committed. It is
synced behind that, and nobody is told of it before: while one process syncs, another one
writes. What a process reads and hands on as durable, as a journal, it syncs itself; a claim is
synced with all that was committed before it.

Each statement lets go of the interpreter, and may wait for the node's thread to have it back,
with the file locked. So a transaction has few of them, and takes what was handed over while it
waited for the lock.

**The index by key lags behind.** Events lie in the order of their positions, so many of them
are written to few pages. In an index by key each event of a busy file has a page of its own,
which every process reads again behind the commits of the others. So where many events come, the
index, a table of ours, is not written with each commit but for thousands of events at once, in
order. Whoever reads the events of a key looks through those that are not in it yet.
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
#: The position up to which the events of a type, the second parameter, are in the index.
_INDEXED = "coalesce((SELECT position FROM callboard_indexed WHERE type = ?2), 0)"
_ADVANCE = (
    "UPDATE callboard_types SET last = last + ?1 WHERE type = ?2"  # noqa: S608 - our own text
    f" RETURNING last, {_INDEXED}"
)
#: The same, and the fences of a writer in one text.
_ADVANCE_FENCED = (
    f"{_ADVANCE}, (SELECT group_concat(slot || ' ' || epoch) FROM callboard_fences"  # noqa: S608
    " WHERE type = ?2 AND writer = ?3)"
)
_KIND = "INSERT INTO callboard_kinds VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_SNAPSHOT = "INSERT OR REPLACE INTO callboard_snapshots VALUES (?, ?, ?, ?, ?, ?)"
_OLD_SNAPSHOTS = """DELETE FROM callboard_snapshots WHERE type = ?1 AND key = ?2 AND number <
    (SELECT min(number) FROM (SELECT number FROM callboard_snapshots
     WHERE type = ?1 AND key = ?2 ORDER BY number DESC LIMIT 2))"""
#: Enters the events of a type between two positions into the index.
_INDEX = """INSERT INTO callboard_events_of_key
    SELECT type, key, number, position FROM callboard_events
    WHERE type = ? AND position > ? AND position <= ? ORDER BY key, number"""
_NOW_INDEXED = "INSERT OR REPLACE INTO callboard_indexed VALUES (?, ?)"
_LAG = """SELECT last, coalesce((SELECT position FROM callboard_indexed WHERE type = ?1), 0)
    FROM callboard_types WHERE type = ?1"""
_LAGGING = """SELECT t.type, t.last - coalesce(i.position, 0) FROM callboard_types t
    LEFT JOIN callboard_indexed i USING (type) WHERE t.last > coalesce(i.position, 0)"""

#: Of a type and key, the events that are not in the index yet.
_NEWEST = """callboard_events WHERE type = ?1 AND key = ?2 AND position >
    coalesce((SELECT position FROM callboard_indexed WHERE type = ?1), 0)"""


def _events_of_key(columns: str) -> str:
    """Return the query for columns of the events of a key behind a number."""
    own = {"key": "k.key", "number": "k.number AS number"}
    indexed = ", ".join(own.get(name, f"e.{name}") for name in columns.split(", "))
    return f"""SELECT {indexed} FROM callboard_events_of_key k
        CROSS JOIN callboard_events e ON e.type = k.type AND e.position = k.position
        WHERE k.type = ?1 AND k.key = ?2 AND k.number > ?3
        UNION ALL SELECT {columns} FROM {_NEWEST} AND number > ?3
        ORDER BY number LIMIT ?4"""  # noqa: S608 - names of columns


#: Queries of one statement each, so that nothing enters the index between two parts.
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


#: Slots of a commit from which on their fences are read together.
_MANY_SLOTS = 8

#: Events of a commit that enter the index with it, if it is not behind before.
INDEXED_AT_ONCE: Final = 32

#: Events that are not in the index, from which on they enter it: where nobody has read the
#: events of a key since the last time, and else. Who reads them looks through so many.
INDEXED_TOGETHER: Final = 8192
INDEXED_FOR_READERS: Final = 512

#: Numbers of events that one statement inserts, besides any below the last of these.
_SIZES = 256, 192, 128, 96, 64, 48, 32, 0


#: Parameters of each event: its epoch, and what a `NewEvent` has.
_FIELDS = 1 + len(NewEvent._fields)


@cache
def _insert(count: int) -> str:
    """Return what inserts so many events.

    `OR ROLLBACK`: what fails ends the transaction anyway, so SQLite need not keep each page as
    it was before the statement, which it does in a temporary file from the 16th on.
    """
    rows = (
        f"(?1, ?3 + {row + 1}, ?{5 + 6 * row}, ?{6 + 6 * row}, ?2, ?{4 + 6 * row},"
        f" ?{7 + 6 * row}, ?{8 + 6 * row}, ?{9 + 6 * row})"
        for row in range(count)
    )
    values = ", ".join(rows)
    return f"INSERT OR ROLLBACK INTO callboard_events VALUES {values}"  # noqa: S608 - our numbers


class _FileView(SqlView):
    """What is read of a file, by a connection of its own."""

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
        """Return the durable events of all keys behind a position, in order of commits."""
        found = super().journal(type_name, after, limit)
        if found:
            self._reading.sync()
        return found

    def clock(self) -> int:
        """Return the machine's clock, in milliseconds since 1970."""
        return time.time_ns() // 1_000_000


class SqliteState(_FileView, SqlState):
    """The state of a writer in a file; all processes of the machine may have it open."""

    def __init__(self, path: Path, writer: str, mode: int | None = None) -> None:
        """Open the file, make or migrate its tables; `mode` is that of a new file.

        Raises:
            UnsafeDatabase: it lies on a network file system.
            StateVersion: a newer callboard wrote it.
            StorageError: it cannot be opened.
        """
        self.path, self.writer = path.absolute(), writer
        self._number = 0
        #: Kinds of events that are in their table already, and those of the commit under way.
        self._kinds: set[tuple[str, str, int]] = set()
        self._new_kinds: set[tuple[str, str, int]] = set()
        #: By type, the text of the fences that were this writer's, and what it says.
        self._known_fences: dict[str, tuple[str | None, dict[int, int]]] = {}
        #: By type, how many events are not in the index, as far as is known.
        self._lags: dict[str, int] = {}
        self._new_lags: dict[str, int] = {}
        #: Types of which some events cannot enter the index.
        self._unfit: set[str] = set()
        #: Whether events of a key were read since events entered the index.
        self._is_read = False
        self._writing = SharedFile(self.path, partial(connect, mode=mode))
        try:
            self._id = self._writing.run(partial(_migrate, self.path), is_write=True)
            self._writing.sync_late()
            self._reading = SharedFile(self.path)
            self._lags.update(self.rows(_LAGGING))
            #: Of the node's thread: it waits for nobody.
            self._looking = SharedFile(self.path)
        except BaseException:
            self._writing.close()
            raise
        self._looking.connection.execute("PRAGMA busy_timeout=0")
        self._seen: tuple[int, dict[str, dict[int, int]]] = -1, {}
        #: Tells whether anything was committed; None before the first look.
        self._index: WalIndex | None = None
        self._mark = b""

    def own_fences(self, type_name: str) -> Mapping[int, int] | None:
        """Return the slots whose fences are this writer's, with their epochs.

        Readers wait for no writer here, so the node's thread may ask: a look costs it less
        than handing it to another thread would. None where the file is locked all the same.
        """
        index = self._index
        mark = b"" if index is None else index.mark()
        if mark and mark == self._mark and (known := self._seen[1].get(type_name)) is not None:
            return known  # nobody has committed anything since it was read
        try:
            found = self._looking.run(partial(self._look, type_name))
        except StorageError:
            return None
        self._mark = mark  # from before the look: what was committed meanwhile makes another
        return found

    def _look(self, type_name: str, connection: sqlite3.Connection) -> Mapping[int, int]:
        """Look which fences of a type are this writer's; they are read if anything changed."""
        # It rises with each commit of another connection; what is read may be newer.
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        if version != self._seen[0]:
            self._seen = version, {}
        if self._index is None:
            self._index = WalIndex(self.path)  # SQLite has mapped it by now
        found = self._seen[1].get(type_name)
        if found is None:
            row = connection.execute(_OWN_FENCES, (type_name, self.writer)).fetchone()
            found = self._seen[1][type_name] = _epochs(row[0])
        return found

    def write_row(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return what one statement that writes returns, once it is durable."""
        return self._write_durably(
            lambda connection: connection.execute(sql, parameters).fetchall()
        )

    def _write_durably(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what a transaction returns, once it is durable."""
        answer = self._writing.run(work, is_write=True)
        self._writing.sync()
        return answer

    def identity(self) -> Identity:
        """Return which state this is: a file that only this boot of this machine may use."""
        boot_id = Path("/proc/sys/kernel/random/boot_id")
        boot = boot_id.read_text().strip() if boot_id.exists() else gethostname()
        return Identity(self._id, f"{self.path} on {gethostname()}", boot)

    def claim(self, type_name: str, slots: Mapping[int, int]) -> Mapping[int, Fence]:
        """Raise the fences of slots; returns those that another claim holds."""
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
        """Return what is applied of the events of a key behind a number."""
        self._is_read = True
        return super().past_events(type_name, key, after, limit)

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        """Write the batches of several slots in one transaction."""
        done = self.commit_waiting(lambda: batches)
        self.settle()
        return done

    def commit_waiting(self, take: Callable[[], Sequence[SlotBatch]]) -> Committed:
        """Write what there is to commit once no other process writes.

        `take` is called then, or not at all if that does not come to be: what is handed over
        meanwhile goes along.
        """
        taken: list[SlotBatch] = []

        def write(connection: sqlite3.Connection) -> Committed:
            taken.extend(sorted(take(), key=attrgetter("slot")))
            return self._write(taken, connection)

        try:
            return self._commit(write)
        except (StateUnavailable, OutcomeUnknown, StateReplaced):
            raise
        except StorageError as error:
            if len(taken) == 1:
                return Committed({}, {taken[0].slot: error}, {})
            return self._commit_singly(taken)

    def settle(self, *, is_idle: bool = False) -> bool:
        """Enter events into the index if there are many that are not in it; all, if idle.

        Returns:
            Whether none are left out, as far as is known here.
        """
        most = INDEXED_FOR_READERS if self._is_read else INDEXED_TOGETHER
        for type_name, lag in list(self._lags.items()):
            if lag and (is_idle or lag >= most):
                with suppress(StorageError):  # later, then
                    self._lags[type_name] = self._enter(type_name, 1 if is_idle else most)
                    self._is_read = False
        return not any(self._lags.values())

    def _enter(self, type_name: str, least: int) -> int:
        """Enter the first events that are not in the index; return how many are left out.

        Nothing is done where another process has by now. A long lag, which an older callboard
        can leave, is worked off in parts, so that no other process waits for long.
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
            text = "two events of a %s have one number, all newer ones are found slowly: %s"
            _log.error(text, type_name, error)
            self._unfit.add(type_name)
            return 0

    def _commit_singly(self, batches: Sequence[SlotBatch]) -> Committed:
        """Try each slot by itself: what one cannot write does not hinder the others."""
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
        """Write in one transaction; find out what became of a failed one."""
        self._number += 1
        try:
            done = self._writing.run(write, is_write=True)
        except StateUnavailable as error:
            # A COMMIT whose sync failed may have left a whole transaction in the log.
            number = self._number
            try:
                found = self.rows(_COUNTED, self.writer)
            except StorageError:
                message = f"{error}; and it cannot be read what became of the commit"
                raise OutcomeUnknown(message) from error
            if found and found[0][0] == number:
                message = f"{error}; the commit stands all the same: recover what it wrote"
                raise OutcomeUnknown(message) from error
            raise
        self._kinds |= self._new_kinds
        self._lags |= self._new_lags
        self._writing.sync()
        return done

    def _write(self, batches: Sequence[SlotBatch], connection: sqlite3.Connection) -> Committed:
        """Write what is not fenced; positions come last, as with other engines."""
        execute, now = connection.execute, time.time_ns() // 1_000_000
        self._new_kinds, self._new_lags = set(), {}
        fenced: dict[Slot, Fence] = {}
        positions: dict[str, int] = {}
        kept: dict[str, list[SlotBatch]] = {}
        ends = self._advance_fenced(batches, connection)
        if ends is not None:  # as nearly always where there are many
            kept[batches[0].slot[0]] = list(batches)
        else:
            for batch in batches:
                fence = Fence(*(execute(_FENCE, batch.slot).fetchone() or NO_FENCE))
                if fence == (batch.epoch, self.writer):
                    kept.setdefault(batch.slot[0], []).append(batch)
                else:
                    fenced[batch.slot] = fence
        for type_name, of_type in kept.items():
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
        """Return the last position of many batches, and that of the index, if none is fenced.

        None, and nothing is written, where a fence is another's, and where there are few
        batches, or some of several types: each slot is looked at then.
        """
        name = batches[0].slot[0] if batches else ""
        if len(batches) < _MANY_SLOTS or batches[-1].slot[0] != name:  # they are in order
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
        """Write the events of a type behind a position."""
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
        """Write snapshots, reminders and jobs, and forget events."""
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
        self.settle(is_idle=True)
        self._looking.close()  # first: no look begins to read the index from here on
        if self._index is not None:
            self._index.close()  # before the last connection ends, and with it the index
        self._writing.close()
        self._reading.close()


def _events_in(batches: Sequence[SlotBatch]) -> int:
    """Return how many events some batches have."""
    return sum([len(batch.events) for batch in batches])


def _epochs(text: str | None) -> dict[int, int]:
    """Return the slots and epochs of a text of fences."""
    pairs = (each.split(" ") for each in text.split(",")) if text else ()
    return {int(slot): int(epoch) for slot, epoch in pairs}


def _change_rows(
    slot: Slot, rows: RowChanges, connection: sqlite3.Connection, now: int
) -> None:
    """Write reminders and jobs of a slot."""
    type_name, slot_number = slot
    many = connection.executemany
    if rows.reminders:
        kept = [
            (type_name, key, name, slot_number, each.due_ms, each.every_ms, each.body)
            for (key, name), each in rows.reminders.items()
            if each is not None
        ]
        gone = [(type_name, *place) for place, each in rows.reminders.items() if each is None]
        many(_REMINDER, kept)
        many(_NO_REMINDER, gone)
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
    """The state in a file as it is, for those that only read: nothing is made or migrated."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            StateVersion: a newer callboard wrote it.
            StateCorrupt: it holds no state.
            StorageError: it cannot be opened.
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
        """Return which state this is."""
        return Identity(
            self.rows("SELECT id FROM callboard_state")[0][0], str(self._reading.path)
        )

    def close(self) -> None:
        """Close the file."""
        self._reading.close()


def _check_tables(path: Path, connection: sqlite3.Connection) -> int:
    """Return the version of a file's tables, if this callboard can read them."""
    sql = "SELECT count(*) FROM sqlite_master WHERE name = 'callboard_state'"
    is_there = connection.execute(sql).fetchone()[0]
    row = is_there and connection.execute("SELECT schema_version FROM callboard_state")
    found = row.fetchone() if row else None
    if not found:
        message = f"{path} holds no state of entities; give the file that nodes host with"
        raise StateCorrupt(message)
    check_version(found[0], str(path))
    return int(found[0])


def _migrate(path: Path, connection: sqlite3.Connection) -> str:
    """Make the tables, or bring them up to date; returns the state's id."""
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
