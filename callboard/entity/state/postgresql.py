"""A state in PostgreSQL, for several machines. A group commit is one round trip.

A commit first locks the fence rows of its slots FOR SHARE, in slot order. A claim that updates
such a row waits until the commit is durable; a commit after a claim reads the raised fence. All
later statements join with these rows, so the server leaves out fenced slots. The last statement
before COMMIT locks the row of the type, which assigns positions: so positions rise in the order
of commits.

**Lost answers.** Each commit raises the number in its writer's row from n - 1 to n, or fails.
If the answer to a commit is lost, a new connection locks this row, which waits until the commit
has ended. If the number is n, the commit is stored. If it is n - 1, the commit is not stored,
and the number is raised to n + 1, so that the commit fails if it arrives late. If the answer to
this query is lost as well, the number n + 1 shows that the commit was not stored. Only the
thread of commits queries the outcome of a commit in progress. If it does not succeed, another
thread does so before anything else is read or written.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg

from callboard import locks
from callboard.backoff import Backoff, retried
from callboard.entity.state.interface import (
    NO_FENCE,
    Committed,
    Fence,
    Identity,
    RowChanges,
    Slot,
    SlotBatch,
    StoredJob,
)
from callboard.entity.state.schema import (
    POSTGRESQL_TYPES,
    STATE_TABLE,
    STEPS,
    check_version,
    steps_from,
)
from callboard.entity.state.sql import SqlState, SqlView
from callboard.lease.errors import (
    DatabaseReplaced,
    OutcomeUnknown,
    StateBusy,
    StateCorrupt,
    StateUnavailable,
    StorageError,
)
from callboard.lease.postgresql import (
    LIMITS,
    SCHEMA_LOCK,
    WHICH_SERVER,
    Connected,
    check_safety,
    pipelined,
)
from callboard.support.files.open_objects import OpenObjects

#: Seconds of attempts to read the outcome of a commit whose answer was lost.
SETTLE_SECONDS: Final = 6.0

T = TypeVar("T")

#: Seconds between two attempts to read that outcome.
_SETTLE_PAUSE: Final = 0.05

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

_FENCES = """SELECT f.type, f.slot, f.epoch, f.writer FROM callboard_fences f
    JOIN json_to_recordset(%s) AS w(type text, slot int) ON f.type = w.type AND f.slot = w.slot
    ORDER BY f.type, f.slot FOR SHARE OF f"""

#: Fails with a division by zero unless the row has n - 1 and the server is the same.
_COUNT = f"""WITH counted AS (
      UPDATE callboard_writers SET number = %s, time_ms = {_NOW}
      WHERE writer = %s AND number = %s
        AND left(pg_walfile_name(pg_current_wal_lsn()), 8) = %s RETURNING 1)
    SELECT 1 / count(*) FROM counted"""  # noqa: S608 - an expression of ours

_EVENTS = f"""WITH wanted AS (
      SELECT w.*, row_number() OVER (ORDER BY w.place) AS rank
      FROM unnest(%s::int[], %s::bigint[], %s::text[], %s::bigint[], %s::text[], %s::int[],
          %s::text[]) WITH ORDINALITY
        AS w(slot, epoch, key, number, kind, version, body, place)
      JOIN callboard_fences f
        ON f.type = %s AND f.slot = w.slot AND f.epoch = w.epoch AND f.writer = %s),
    advanced AS (
      UPDATE callboard_types SET last = last + (SELECT count(*) FROM wanted)
      WHERE type = %s RETURNING last, {_NOW} AS now),
    written AS (
      INSERT INTO callboard_events
      SELECT %s, a.last - (SELECT count(*) FROM wanted) + w.rank, w.key, w.number, a.now,
          w.epoch, w.kind, w.version, w.body::json FROM wanted w, advanced a)
    SELECT last, (SELECT count(*) FROM wanted) FROM advanced"""  # noqa: S608

_IF_OWN = """ FROM callboard_fences f
    WHERE f.type = %(type)s AND f.slot = %(slot)s AND f.epoch = %(epoch)s
      AND f.writer = %(writer)s"""

_SNAPSHOT = f"""INSERT INTO callboard_snapshots
    SELECT %(type)s, %(key)s, %(number)s, %(version)s, {_NOW}, %(body)s::json {_IF_OWN}
    ON CONFLICT (type, key, number) DO UPDATE SET version = excluded.version,
      time_ms = excluded.time_ms, body = excluded.body"""

_OLD_SNAPSHOTS = f"""DELETE FROM callboard_snapshots s WHERE s.type = %(type)s
    AND s.key = %(key)s AND s.number < (SELECT min(number) FROM (
      SELECT number FROM callboard_snapshots WHERE type = %(type)s AND key = %(key)s
      ORDER BY number DESC LIMIT 2) AS kept) AND EXISTS (SELECT 1 {_IF_OWN})"""  # noqa: S608

_FORGET = f"""DELETE FROM callboard_events e WHERE e.type = %(type)s AND e.key = %(key)s
    AND e.number <= %(number)s AND EXISTS (SELECT 1 {_IF_OWN})"""  # noqa: S608

_REMINDERS = f"""INSERT INTO callboard_reminders
      (type, key, name, slot, due_ms, every_ms, body)
    SELECT %(type)s, w.key, w.name, %(slot)s, w.due_ms, w.every_ms, w.body::json
    FROM unnest(%(keys)s::text[], %(names)s::text[], %(dues)s::bigint[], %(everies)s::bigint[],
      %(bodies)s::text[]) AS w(key, name, due_ms, every_ms, body)
    WHERE EXISTS (SELECT 1 {_IF_OWN})
    ON CONFLICT (type, key, name) DO UPDATE SET due_ms = excluded.due_ms,
      every_ms = excluded.every_ms, body = excluded.body, attempts = 0"""  # noqa: S608

_NO_REMINDERS = f"""DELETE FROM callboard_reminders r
    USING unnest(%(keys)s::text[], %(names)s::text[]) AS w(key, name)
    WHERE r.type = %(type)s AND r.key = w.key AND r.name = w.name
      AND EXISTS (SELECT 1 {_IF_OWN})"""  # noqa: S608

_JOBS = f"""INSERT INTO callboard_jobs
    SELECT %(type)s, w.key, w.number, w.status, w.due_ms, w.attempt, w.taker, w.visible_ms,
      w.reason, {_NOW}, w.body::json
    FROM unnest(%(keys)s::text[], %(numbers)s::bigint[], %(statuses)s::int[],
      %(dues)s::bigint[], %(attempts)s::int[], %(takers)s::text[], %(visibles)s::bigint[],
      %(reasons)s::text[], %(bodies)s::text[])
      AS w(key, number, status, due_ms, attempt, taker, visible_ms, reason, body)
    WHERE EXISTS (SELECT 1 {_IF_OWN})"""  # noqa: S608

_JOB_STATES = f"""UPDATE callboard_jobs j SET status = w.status, due_ms = w.due_ms,
      attempt = w.attempt, taker = w.taker, visible_ms = w.visible_ms, reason = w.reason
    FROM unnest(%(keys)s::text[], %(numbers)s::bigint[], %(statuses)s::int[],
      %(dues)s::bigint[], %(attempts)s::int[], %(takers)s::text[], %(visibles)s::bigint[],
      %(reasons)s::text[])
      AS w(key, number, status, due_ms, attempt, taker, visible_ms, reason)
    WHERE j.type = %(type)s AND j.key = w.key AND j.number = w.number
      AND EXISTS (SELECT 1 {_IF_OWN})"""  # noqa: S608

_NO_JOBS = f"""DELETE FROM callboard_jobs j
    USING unnest(%(keys)s::text[], %(numbers)s::bigint[]) AS w(key, number)
    WHERE j.type = %(type)s AND j.key = w.key AND j.number = w.number
      AND EXISTS (SELECT 1 {_IF_OWN})"""  # noqa: S608

_STATE_COLUMNS = (
    "keys", "numbers", "statuses", "dues", "attempts", "takers", "visibles", "reasons"
)  # fmt: skip

_KIND = "INSERT INTO callboard_kinds VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"

#: A claim first waits 150 ms for locks; then a stopped client that holds them has been ended.
_LOCK_AT_ONCE = "SELECT set_config('lock_timeout', '150', true)"

_CLAIM = """INSERT INTO callboard_fences VALUES (%s, %s, %s, %s) ON CONFLICT (type, slot)
    DO UPDATE SET epoch = excluded.epoch, writer = excluded.writer
    WHERE callboard_fences.epoch < excluded.epoch"""


#: The states that this process has open; backups name them as left out.
OPEN: "Final[OpenObjects[PostgresqlState]]" = OpenObjects(
    locks.lock("open states in PostgreSQL", 603)
)


class PostgresqlState(SqlState):
    """The state of a writer in a database: a connection for commits, and one for the rest."""

    def __init__(self, url: str, writer: str) -> None:
        """Connect, check that the server is safe, and create or migrate the tables.

        Raises:
            UnsafeDatabase: the server could lose acknowledged commits.
            StateVersion: a newer callboard wrote the tables.
            StorageError: the server cannot be reached.
        """
        self.url, self.writer = url, writer
        self._id = self._timeline = ""
        self._number = 0
        #: False while the outcome of a commit is unknown.
        self._is_settled = True
        #: Held while an outcome is queried, and while a new server is prepared.
        self._settling = locks.lock("settling with PostgreSQL", 556)
        self._greeting = locks.lock("greeting of PostgreSQL", 581)
        self._kinds: set[tuple[str, str, int]] = set()
        self._writing = Connected(url, self._greet)
        self._reading = Connected(url, self._greet)
        self._id = self._writing.transaction(self._prepare)
        OPEN.add(self)

    def _greet(self, connection: "psycopg.Connection[Any]") -> None:
        """Check a new connection: the server must be safe, and the same as before."""
        check_safety(connection)
        if self._id:
            self._check_server(connection)

    def _check_server(self, connection: "psycopg.Connection[Any]") -> None:
        """Raise `DatabaseReplaced` once if another server answers, or one after a failover."""
        row = connection.execute(WHICH_SERVER).fetchone()
        assert row is not None, "a query of one row"
        with self._greeting:
            known = self._timeline
            if row[1] == known:
                return
            with connection.transaction():
                self._id = self._prepare(connection)
            self._is_settled = True
            message = (
                f"PostgreSQL failed over (timeline {known}, now {row[1]}): acknowledged commits"
                " may be lost, so all slots must be claimed again"
            )
            raise DatabaseReplaced(message)

    def _prepare(self, connection: "psycopg.Connection[Any]") -> str:
        """Create, migrate and check the tables; raise all fences on another server."""
        execute = connection.execute
        execute(SCHEMA_LOCK)
        execute(STATE_TABLE)
        sql = "SELECT id, schema_version, system_id, timeline FROM callboard_state"
        server = execute(WHICH_SERVER).fetchone()
        assert server is not None, "a query of one row"
        row = execute(sql).fetchone() or (uuid4().hex, 0, *server)
        identity, version = str(row[0]), row[1]
        check_version(version, "the database")
        for step in steps_from(version, POSTGRESQL_TYPES):
            execute(step)
        if server != (row[2], row[3]):
            execute("UPDATE callboard_fences SET epoch = epoch + 1, writer = ''")
        sql = (
            "INSERT INTO callboard_state VALUES (1, %s, %s, %s, %s) ON CONFLICT (one) DO UPDATE"
            " SET schema_version = excluded.schema_version, system_id = excluded.system_id,"
            " timeline = excluded.timeline"
        )
        execute(sql, (identity, len(STEPS), *server))
        sql = (
            f"INSERT INTO callboard_writers VALUES (%s, 0, {_NOW}) ON CONFLICT (writer)"  # noqa: S608
            " DO UPDATE SET number = callboard_writers.number + 1 RETURNING number"
        )
        counted = execute(sql, (self.writer,)).fetchone()
        assert counted is not None, "the row was written"
        self._number, self._timeline = counted[0], server[1]
        return identity

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query; an unknown outcome of a commit is found out first."""
        self._settle_open()
        return self._reading.read(sql.replace("?", "%s"), parameters)

    def clock(self) -> int:
        """Return the server's clock, in milliseconds since 1970."""
        return int(self.rows(f"SELECT {_NOW}")[0][0])

    def write_row(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement that writes; returns its rows after they are durable."""
        return self._reading.query(sql.replace("?", "%s"), parameters)

    def identity(self) -> Identity:
        """Return the identity of this state."""
        parts = urlsplit(self.url)
        return Identity(
            self._id, f"database {parts.path[1:]} on {parts.hostname or 'this machine'}"
        )

    def claim(self, type_name: str, slots: Mapping[int, int]) -> Mapping[int, Fence]:
        """Raise the fences of slots; returns the fences that other claims hold."""

        def work(connection: "psycopg.Connection[Any]") -> list[tuple[Any, ...]]:
            sql = "INSERT INTO callboard_types VALUES (%s, 0) ON CONFLICT DO NOTHING"
            connection.execute(sql, (type_name,))
            rows = [(type_name, slot, slots[slot], self.writer) for slot in sorted(slots)]
            with connection.cursor() as cursor:
                cursor.executemany(_CLAIM, rows)
            sql = "SELECT slot, epoch, writer FROM callboard_fences WHERE type = %s"
            return list(connection.execute(sql, (type_name,)).fetchall())

        def work_at_once(connection: "psycopg.Connection[Any]") -> list[tuple[Any, ...]]:
            connection.execute(_LOCK_AT_ONCE)
            return work(connection)

        try:
            rows = self._reading.transaction(work_at_once)
        # The server has ended the client that was stopped inside a commit, so try again.
        except StateBusy:
            rows = self._reading.transaction(work)
        fences = {slot: Fence(epoch, by) for slot, epoch, by in rows}
        return {
            slot: fences[slot]
            for slot, epoch in slots.items()
            if fences[slot] != (epoch, self.writer)
        }

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        """Write the batches of several slots in one transaction and one round trip."""
        ordered = sorted(batches, key=attrgetter("slot"))
        self._settle_open()
        try:
            return self._commit(ordered)
        except (StateUnavailable, OutcomeUnknown, DatabaseReplaced):
            raise
        except StorageError as error:
            if len(ordered) == 1:
                return Committed({}, {ordered[0].slot: error}, {})
            return self._commit_singly(ordered)

    def _commit_singly(self, batches: Sequence[SlotBatch]) -> Committed:
        """Commit each slot on its own, so that invalid rows of one do not stop the others."""
        fenced: dict[Slot, Fence] = {}
        failed: dict[Slot, Exception] = {}
        positions: dict[str, int] = {}
        for batch in batches:
            try:
                done = self._commit([batch])
            except StorageError as error:
                failed[batch.slot] = error
            else:
                fenced |= done.fenced
                positions |= done.positions
        return Committed(fenced, failed, positions)

    def _commit(self, batches: Sequence[SlotBatch]) -> Committed:
        """Write batches. After an error, query the outcome, and retry if nothing was stored."""
        for is_last in (False, True):
            try:
                done = self._writing.run(partial(self._write, batches))
            except BaseException as error:
                # A division by zero means another server. After any other error, the commit may
                # be stored.
                if self._settle():
                    return self._committed_before(batches)
                if is_last or not isinstance(error, StateUnavailable):
                    raise
            else:
                self._number += 1
                self._kinds |= _kinds_of(batches)
                return done
        raise AssertionError

    def _write(
        self, batches: Sequence[SlotBatch], connection: "psycopg.Connection[Any]"
    ) -> Committed:
        """Send one transaction including COMMIT, then read all answers."""
        types: dict[str, list[SlotBatch]] = {}
        for batch in batches:
            types.setdefault(batch.slot[0], []).append(batch)
        slots = json.dumps([{"type": t, "slot": s} for t, s in (b.slot for b in batches)])
        count = (self._number + 1, self.writer, self._number, self._timeline)
        with pipelined(connection), connection.transaction():
            connection.execute(LIMITS)
            fences = connection.execute(_FENCES, (slots,))
            connection.execute(_COUNT, count)
            for kind in sorted(_kinds_of(batches) - self._kinds):
                connection.execute(_KIND, kind)
            for batch in batches:
                self._write_others(batch, connection)
            advanced = [
                (type_name, connection.execute(_EVENTS, self._event_rows(type_name, of_type)))
                for type_name, of_type in sorted(types.items())
                if any(batch.events for batch in of_type)
            ]
        current = {(t, s): Fence(e, w) for t, s, e, w in fences.fetchall()}
        fenced = {
            batch.slot: current.get(batch.slot, NO_FENCE)
            for batch in batches
            if current.get(batch.slot) != (batch.epoch, self.writer)
        }
        positions = {}
        for type_name, cursor in advanced:
            row = cursor.fetchone()
            if row is not None and row[1]:
                positions[type_name] = row[0]
        return Committed(fenced, {}, positions)

    def _event_rows(self, type_name: str, batches: Sequence[SlotBatch]) -> tuple[object, ...]:
        """Return the parameters that insert the events of a type: an array for each column."""
        places = [
            (batch.slot[1], batch.epoch) for batch in batches for _ in range(len(batch.events))
        ]
        slots, epochs = zip(*places, strict=True)
        keys, numbers, kinds, versions, bodies = zip(
            *[event for batch in batches for event in batch.events], strict=True
        )
        return (
            _numbers(slots),
            _numbers(epochs),
            _texts(keys),
            _numbers(numbers),
            _texts(kinds),
            _numbers(versions),
            _texts(bodies),
            type_name,
            self.writer,
            type_name,
            type_name,
        )

    def _write_others(self, batch: SlotBatch, connection: "psycopg.Connection[Any]") -> None:
        """Write snapshots and rows, and delete events, unless the slot is fenced."""
        type_name, slot = batch.slot
        own = {"type": type_name, "slot": slot, "epoch": batch.epoch, "writer": self.writer}
        for snapshot in batch.snapshots:
            row = own | snapshot._asdict()
            connection.execute(_SNAPSHOT, row)
            connection.execute(_OLD_SNAPSHOTS, row)
        for key, number in batch.forget.items():
            connection.execute(_FORGET, own | {"key": key, "number": number})
        if batch.rows is not None:
            for sql, columns in _row_columns(batch.rows):
                connection.execute(sql, own | columns)

    # --- lost answers ---

    def _settle_open(self) -> None:
        """Query the outcome of a commit if an earlier query has failed."""
        if not self._is_settled:
            with self._settling:
                if not self._is_settled:  # unless another thread has done it
                    self._settle()

    def _settle(self) -> bool:
        """Find out whether the last commit took place; if it has not, it never will.

        Raises:
            OutcomeUnknown: the database cannot be asked.
            DatabaseReplaced: another database answers.
        """
        try:
            number = self._read_number()
        except DatabaseReplaced:
            raise  # the server has set the number, or refuses commits from now on
        except BaseException:
            self._is_settled = False
            raise
        is_committed = number == self._number + 1
        self._number = number
        self._is_settled = True
        return is_committed

    def _read_number(self) -> int:
        """Return the number in the writer's row when no commit is in flight."""
        # While it fails, the server restarts, or the commit in flight holds its locks.
        return _settled(lambda: self._writing.transaction(self._count_on))

    def _count_on(self, connection: "psycopg.Connection[Any]") -> int:
        """Wait for the unanswered commit; prevent it if it did not take place.

        Return the number.
        """
        self._check_server(connection)
        sql = "SELECT number FROM callboard_writers WHERE writer = %s FOR UPDATE"
        row = connection.execute(sql, (self.writer,)).fetchone()
        number, known = row[0] if row else -1, self._number
        if number == known:
            number = known + 2
            sql = "UPDATE callboard_writers SET number = %s WHERE writer = %s"
            connection.execute(sql, (number, self.writer))
        elif number not in (known + 1, known + 2):
            message = (
                f"the row of writer {self.writer} has number {number} after {known}"
                " acknowledged commits: the database was restored, or two processes use the id"
            )
            raise DatabaseReplaced(message)
        return int(number)

    def _committed_before(self, batches: Sequence[SlotBatch]) -> Committed:
        """Return the outcome of a commit that took place although its answer was lost.

        Raises:
            OutcomeUnknown: the database cannot be asked. Not `StateUnavailable`: callers repeat
                a commit after it, and this one is stored.
        """
        # A read that fails did not use the writing connection, which may still be closed.
        return _settled(lambda: self._read_outcome(batches))

    def _read_outcome(self, batches: Sequence[SlotBatch]) -> Committed:
        """Read which batches of a commit are stored."""
        fences = self.fences([batch.slot for batch in batches])
        fenced: dict[Slot, Fence] = {}
        failed: dict[Slot, Exception] = {}
        positions: dict[str, int] = {}
        for batch in batches:
            type_name = batch.slot[0]
            if batch.events:
                last = batch.events[-1]
                events = self.events(type_name, last.key, last.number - 1, 1)
                if events and (events[0].number, events[0].epoch) == (last.number, batch.epoch):
                    position = max(positions.get(type_name, 0), events[0].position)
                    positions[type_name] = position
                else:
                    fenced[batch.slot] = fences[batch.slot]
            elif fences[batch.slot] != (batch.epoch, self.writer):
                message = "the answer was lost, and another owner has claimed the slot since"
                failed[batch.slot] = OutcomeUnknown(message)
        return Committed(fenced, failed, positions)

    def close(self) -> None:
        """Delete the writer's row, and close the connections."""
        OPEN.discard(self)
        with suppress(StorageError):
            sql = "DELETE FROM callboard_writers WHERE writer = %s RETURNING 1"
            self._writing.query(sql, (self.writer,))
        self._writing.close()
        self._reading.close()


def _settled(read: Callable[[], T]) -> T:
    """Read the outcome of a commit, again and again while the database is unavailable.

    Raises:
        OutcomeUnknown: the database does not answer for some seconds.
    """
    try:
        return retried(read, StateUnavailable, Backoff.fixed(_SETTLE_PAUSE), SETTLE_SECONDS)
    except StateUnavailable as error:
        message = (
            f"the commit may be stored: the database did not answer for {SETTLE_SECONDS:g} s "
            f"({error})"
        )
        raise OutcomeUnknown(message) from error


def _kinds_of(batches: Sequence[SlotBatch]) -> set[tuple[str, str, int]]:
    """Return the kinds of events in batches, with their types."""
    return {
        (batch.slot[0], event.kind, event.version)
        for batch in batches
        for event in batch.events
    }


def _numbers(column: Sequence[int]) -> str:
    """Return an array of integers in PostgreSQL's syntax; psycopg takes 10 times as long."""
    return f"{{{','.join(map(str, column))}}}"


def _texts(column: Sequence[str]) -> str | list[str]:
    """Return an array of texts in PostgreSQL's syntax.

    A text with NUL is left to psycopg, which refuses it.
    """
    joined = "\0".join(column)
    if joined.count("\0") != len(column) - 1:
        return list(column)
    quoted = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{quoted}"}}'


def _row_columns(rows: RowChanges) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Yield the statements that write reminders and jobs, with a list for each column."""
    if stored := [row for row in rows.reminders.values() if row is not None]:
        columns = ("keys", "names", "dues", "everies", "bodies")
        yield _REMINDERS, _columns(columns, [row[: len(columns)] for row in stored])
    if deleted := [place for place, row in rows.reminders.items() if row is None]:
        yield _NO_REMINDERS, _columns(("keys", "names"), deleted)
    put: list[tuple[object, ...]] = []
    changed: list[tuple[object, ...]] = []
    done: list[tuple[object, ...]] = []
    for place, change in rows.jobs.items():
        if change is None:
            done.append(place)
        elif isinstance(change, StoredJob):
            put.append((*place, *change.state, change.body))
        else:
            changed.append((*place, *change))
    if put:
        yield _JOBS, _columns((*_STATE_COLUMNS, "bodies"), put)
    if changed:
        yield _JOB_STATES, _columns(_STATE_COLUMNS, changed)
    if done:
        yield _NO_JOBS, _columns(("keys", "numbers"), done)


def _columns(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> dict[str, list[Any]]:
    """Return the columns of rows by name."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


class PostgresqlView(SqlView):
    """The state in a database, for reading only: no table is created or migrated."""

    def __init__(self, url: str) -> None:
        """Connect.

        Raises:
            StateVersion: a newer callboard wrote the tables.
            StateCorrupt: the database does not hold a state.
            StorageError: the server cannot be reached.
        """
        self._timeline = ""
        self._reading = Connected(url, self._greet)
        self._reading.query("SELECT 1")

    def _greet(self, connection: "psycopg.Connection[Any]") -> None:
        """Check a new connection: it must have a state, on the same server as before."""
        table = connection.execute("SELECT to_regclass('callboard_state')").fetchone()
        row = None
        if table is not None and table[0] is not None:
            row = connection.execute("SELECT schema_version FROM callboard_state").fetchone()
        if row is None:
            message = (
                "the database does not hold a state of entities; give the one of the hosts"
            )
            raise StateCorrupt(message)
        check_version(row[0], "the database")
        server = connection.execute(WHICH_SERVER).fetchone()
        assert server is not None, "a query of one row"
        known, self._timeline = self._timeline, server[1]
        if known not in ("", server[1]):
            message = (
                f"PostgreSQL failed over (timeline {known}, now {server[1]}): acknowledged"
                " commits may be lost"
            )
            raise DatabaseReplaced(message)

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._reading.read(sql.replace("?", "%s"), parameters)

    def clock(self) -> int:
        """Return the server's clock, in milliseconds since 1970."""
        return int(self.rows(f"SELECT {_NOW}")[0][0])

    def identity(self) -> Identity:
        """Return the identity of this state."""
        return Identity(self.rows("SELECT id FROM callboard_state")[0][0], "a database")

    def close(self) -> None:
        """Close the connection."""
        self._reading.close()
