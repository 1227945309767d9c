"""A state in PostgreSQL, for several machines. A group commit is one round trip.

The fence rows of its slots are locked FOR SHARE, in slot order, before anything is written: a
claim that updates one waits until the commit is durable, and a commit behind a claim reads the
fence as the claim left it. Everything after joins with these rows, so that what is fenced is
left out by the server. The row of the type, which gives positions, is locked by the last
statement before COMMIT: positions rise in the order of commits.

**An answer that is lost.** Each commit counts the row of its writer from n - 1 to n, or fails.
So a new connection that locks this row waits for the commit under way, and then knows: n, it is
committed; n - 1, it is not, and the row is counted on to n + 1, so that a late one fails. If
that answer is lost, too, the row says n + 1, which no commit under way could have written. Only
the thread of commits asks while one is under way. A question that it had to leave open is
answered before anything else is read or written, by one thread.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg

from callboard import locks
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

#: Seconds for which a commit whose answer was lost is asked for.
SETTLING: Final = 6.0

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

_FENCES = """SELECT f.type, f.slot, f.epoch, f.writer FROM callboard_fences f
    JOIN json_to_recordset(%s) AS w(type text, slot int) ON f.type = w.type AND f.slot = w.slot
    ORDER BY f.type, f.slot FOR SHARE OF f"""

#: Fails with a division by zero unless the row was at n - 1 and the server is the same.
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

#: A claim waits so long for locks until it looks whether who holds them is a stopped client.
_LOCK_AT_ONCE = "SELECT set_config('lock_timeout', '150', true)"

_CLAIM = """INSERT INTO callboard_fences VALUES (%s, %s, %s, %s) ON CONFLICT (type, slot)
    DO UPDATE SET epoch = excluded.epoch, writer = excluded.writer
    WHERE callboard_fences.epoch < excluded.epoch"""


class PostgresqlState(SqlState):
    """The state of a writer in a database: one connection for commits, one for the rest."""

    def __init__(self, url: str, writer: str) -> None:
        """Connect, look whether the server is safe, make or migrate the tables.

        Raises:
            UnsafeDatabase: the server could lose what it acknowledges.
            StateVersion: a newer callboard wrote the tables.
            StorageError: the server cannot be reached.
        """
        self.url, self.writer = url, writer
        self._id = self._timeline = ""
        self._number = 0
        #: False after a commit of which nobody could find out whether it took place.
        self._is_settled = True
        #: Held where that is found out, and where another server is greeted.
        self._settling = locks.lock("settling with PostgreSQL", 556)
        self._greeting = locks.lock("greeting of PostgreSQL", 581)
        self._kinds: set[tuple[str, str, int]] = set()
        self._writing = Connected(url, self._greet)
        self._reading = Connected(url, self._greet)
        self._id = self._writing.transaction(self._prepare)

    def _greet(self, connection: "psycopg.Connection[Any]") -> None:
        """Look at a new connection: the server is safe, and the one that was there before."""
        check_safety(connection)
        if self._id:
            self._check_server(connection)

    def _check_server(self, connection: "psycopg.Connection[Any]") -> None:
        """Raise `DatabaseReplaced` once if another server answers, or one that failed over."""
        row = connection.execute(WHICH_SERVER).fetchone()
        assert row is not None, "a query of one row"
        with self._greeting:
            before = self._timeline
            if row[1] == before:
                return
            with connection.transaction():
                self._id = self._prepare(connection)
            self._is_settled = True
            message = (
                f"PostgreSQL failed over (timeline {before}, now {row[1]}): what it had"
                " acknowledged may be lost, so all slots have to be claimed again"
            )
            raise DatabaseReplaced(message)

    def _prepare(self, connection: "psycopg.Connection[Any]") -> str:
        """Make, migrate and check the tables; raise all fences on another server."""
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
        """Return the rows of a query; a commit of unknown outcome is settled before."""
        self._settle_open()
        return self._reading.read(sql.replace("?", "%s"), parameters)

    def clock(self) -> int:
        """Return the server's clock, in milliseconds since 1970."""
        return int(self.rows(f"SELECT {_NOW}")[0][0])

    def write_row(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return what one statement that writes returns, once it is durable."""
        return self._reading.query(sql.replace("?", "%s"), parameters)

    def identity(self) -> Identity:
        """Return which state this is."""
        parts = urlsplit(self.url)
        return Identity(
            self._id, f"database {parts.path[1:]} on {parts.hostname or 'this machine'}"
        )

    def claim(self, type_name: str, slots: Mapping[int, int]) -> Mapping[int, Fence]:
        """Raise the fences of slots; returns those that another claim holds."""

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
        except StateBusy:  # a client that was stopped inside a commit has been ended by now
            rows = self._reading.transaction(work)
        found = {slot: Fence(epoch, by) for slot, epoch, by in rows}
        return {
            slot: found[slot]
            for slot, epoch in slots.items()
            if found[slot] != (epoch, self.writer)
        }

    def commit(self, batches: Sequence[SlotBatch]) -> Committed:
        """Write the batches of several slots in one transaction of one round trip."""
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
        """Try each slot by itself: what one cannot write does not hinder the others."""
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
        """Write batches; a lost answer is settled, and what did not happen is repeated once."""
        for is_last in (False, True):
            try:
                done = self._writing.run(partial(self._write, batches))
            except BaseException as error:
                # A division by zero: another server. Behind other errors, too, it may be there.
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
        """Send one transaction whole, COMMIT included, and read all answers after."""
        types: dict[str, list[SlotBatch]] = {}
        for batch in batches:
            types.setdefault(batch.slot[0], []).append(batch)
        wanted = json.dumps([{"type": t, "slot": s} for t, s in (b.slot for b in batches)])
        count = (self._number + 1, self.writer, self._number, self._timeline)
        with pipelined(connection), connection.transaction():
            connection.execute(LIMITS)
            fences = connection.execute(_FENCES, (wanted,))
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
        found = {(t, s): Fence(e, w) for t, s, e, w in fences.fetchall()}
        fenced = {
            batch.slot: found.get(batch.slot, NO_FENCE)
            for batch in batches
            if found.get(batch.slot) != (batch.epoch, self.writer)
        }
        positions = {}
        for type_name, cursor in advanced:
            row = cursor.fetchone()
            if row is not None and row[1]:
                positions[type_name] = row[0]
        return Committed(fenced, {}, positions)

    def _event_rows(self, type_name: str, batches: Sequence[SlotBatch]) -> tuple[object, ...]:
        """Return the parameters that write the events of a type: an array for each column."""
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
        """Write snapshots and rows, and forget events, of a slot that is not fenced."""
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

    # --- an answer that is lost ---

    def _settle_open(self) -> None:
        """Find out first what became of a commit of which that could not be found out."""
        if not self._is_settled:
            with self._settling:
                if not self._is_settled:  # another thread may have been faster
                    self._settle()

    def _settle(self) -> bool:
        """Find out whether the last commit took place; if not, it never will.

        Raises:
            OutcomeUnknown: the database cannot be asked.
            DatabaseReplaced: it is another one.
        """
        try:
            found = self._ask_what_became()
        except DatabaseReplaced:
            raise  # it was counted on there, or is refused from here on
        except BaseException:
            self._is_settled = False
            raise
        is_committed = found == self._number + 1
        self._number = found
        self._is_settled = True
        return is_committed

    def _ask_what_became(self) -> int:
        """Return the number that the writer's row has once no commit is under way."""
        deadline = time.monotonic() + SETTLING
        while True:
            try:
                return self._writing.transaction(self._count_on)
            except StateUnavailable as error:
                if time.monotonic() > deadline:
                    message = f"perhaps it is committed: no answer for {SETTLING:g} s ({error})"
                    raise OutcomeUnknown(message) from error
                time.sleep(0.05)  # the server restarts, or the commit under way has its locks

    def _count_on(self, connection: "psycopg.Connection[Any]") -> int:
        """Wait for the commit under way; count on where it is not there. Returns the number."""
        self._check_server(connection)
        sql = "SELECT number FROM callboard_writers WHERE writer = %s FOR UPDATE"
        row = connection.execute(sql, (self.writer,)).fetchone()
        found, before = row[0] if row else -1, self._number
        if found == before:
            found = before + 2
            sql = "UPDATE callboard_writers SET number = %s WHERE writer = %s"
            connection.execute(sql, (found, self.writer))
        elif found not in (before + 1, before + 2):
            message = (
                f"the row of writer {self.writer} says {found}, and {before} commits were"
                " acknowledged: the database was put back, or the writer's id is used twice"
            )
            raise DatabaseReplaced(message)
        return int(found)

    def _committed_before(self, batches: Sequence[SlotBatch]) -> Committed:
        """Return what became of a commit whose answer was lost and that took place.

        Raises:
            OutcomeUnknown: the database cannot be asked. Never `StateUnavailable`, after which
                callers repeat what is stored.
        """
        deadline = time.monotonic() + SETTLING
        while True:
            try:
                return self._what_was_committed(batches)
            except StateUnavailable as error:
                if time.monotonic() > deadline:
                    message = f"perhaps it is committed: no answer for {SETTLING:g} s ({error})"
                    raise OutcomeUnknown(message) from error
                time.sleep(0.05)  # the other connection has yet to be made again

    def _what_was_committed(self, batches: Sequence[SlotBatch]) -> Committed:
        """Look up what a commit wrote."""
        fences = self.fences([batch.slot for batch in batches])
        fenced: dict[Slot, Fence] = {}
        failed: dict[Slot, Exception] = {}
        positions: dict[str, int] = {}
        for batch in batches:
            type_name = batch.slot[0]
            if batch.events:
                last = batch.events[-1]
                found = self.events(type_name, last.key, last.number - 1, 1)
                if found and (found[0].number, found[0].epoch) == (last.number, batch.epoch):
                    position = max(positions.get(type_name, 0), found[0].position)
                    positions[type_name] = position
                else:
                    fenced[batch.slot] = fences[batch.slot]
            elif fences[batch.slot] != (batch.epoch, self.writer):
                message = "the answer was lost, and another owner has the slot since"
                failed[batch.slot] = OutcomeUnknown(message)
        return Committed(fenced, failed, positions)

    def close(self) -> None:
        """Take the writer's row away, and close the connections."""
        with suppress(StorageError):
            sql = "DELETE FROM callboard_writers WHERE writer = %s RETURNING 1"
            self._writing.query(sql, (self.writer,))
        self._writing.close()
        self._reading.close()


def _kinds_of(batches: Sequence[SlotBatch]) -> set[tuple[str, str, int]]:
    """Return the kinds of events in batches, with their types."""
    return {
        (batch.slot[0], event.kind, event.version)
        for batch in batches
        for event in batch.events
    }


def _numbers(column: Sequence[int]) -> str:
    """Return an array of integers as PostgreSQL writes it: psycopg takes 10 times as long."""
    return f"{{{','.join(map(str, column))}}}"


def _texts(column: Sequence[str]) -> str | list[str]:
    """Return an array of texts as PostgreSQL writes it.

    A text with NUL is left to psycopg, which refuses it.
    """
    joined = "\0".join(column)
    if joined.count("\0") != len(column) - 1:
        return list(column)
    quoted = joined.replace("\\", "\\\\").replace('"', '\\"').replace("\0", '","')
    return f'{{"{quoted}"}}'


def _row_columns(rows: RowChanges) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Yield the statements that write reminders and jobs, with a list for each column."""
    if kept := [each for each in rows.reminders.values() if each is not None]:
        columns = ("keys", "names", "dues", "everies", "bodies")
        yield _REMINDERS, _columns(columns, [each[: len(columns)] for each in kept])
    if gone := [place for place, each in rows.reminders.items() if each is None]:
        yield _NO_REMINDERS, _columns(("keys", "names"), gone)
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
    """Return the columns of rows by their names."""
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


class PostgresqlView(SqlView):
    """The state in a database as it is, for those that only read: nothing is made."""

    def __init__(self, url: str) -> None:
        """Connect.

        Raises:
            StateVersion: a newer callboard wrote the tables.
            StateCorrupt: there are none.
            StorageError: the server cannot be reached.
        """
        self._timeline = ""
        self._reading = Connected(url, self._greet)
        self._reading.query("SELECT 1")

    def _greet(self, connection: "psycopg.Connection[Any]") -> None:
        """Look at a new connection: there is a state, on the server that was there before."""
        there = connection.execute("SELECT to_regclass('callboard_state')").fetchone()
        row = None
        if there is not None and there[0] is not None:
            row = connection.execute("SELECT schema_version FROM callboard_state").fetchone()
        if row is None:
            message = "the database holds no state of entities; give the one nodes host with"
            raise StateCorrupt(message)
        check_version(row[0], "the database")
        server = connection.execute(WHICH_SERVER).fetchone()
        assert server is not None, "a query of one row"
        before, self._timeline = self._timeline, server[1]
        if before not in ("", server[1]):
            message = (
                f"PostgreSQL failed over (timeline {before}, now {server[1]}): what it had"
                " acknowledged may be lost"
            )
            raise DatabaseReplaced(message)

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._reading.read(sql.replace("?", "%s"), parameters)

    def clock(self) -> int:
        """Return the server's clock, in milliseconds since 1970."""
        return int(self.rows(f"SELECT {_NOW}")[0][0])

    def identity(self) -> Identity:
        """Return which state this is."""
        return Identity(self.rows("SELECT id FROM callboard_state")[0][0], "a database")

    def close(self) -> None:
        """Close the connection."""
        self._reading.close()
