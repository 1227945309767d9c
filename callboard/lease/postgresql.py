"""PostgreSQL through psycopg: connections with timeouts, error mapping, and leases.

All settings are local to a transaction (`set_config(…, true)`), so that a pooler such as
pgbouncer may be used; statements are prepared only without one. Every wait has a limit.
PostgreSQL sets none by default, and a client that was stopped inside a transaction would hold
its locks forever.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import psycopg
from psycopg.types.string import TextLoader

from callboard import locks
from callboard.lease.errors import (
    DatabaseReplaced,
    OutcomeUnknown,
    StateBusy,
    StateCorrupt,
    StateFull,
    StateUnavailable,
    StorageError,
    UnsafeDatabase,
    ValueRefused,
)
from callboard.lease.leases import LeaseValue, Versioned
from callboard.support import after_fork
from callboard.support.redaction import redacted_error

T = TypeVar("T")

#: Milliseconds that the server waits for a statement, a lock, or a client in a transaction.
SERVER_WAITS_MS: Final = 1000

#: First statement of every transaction; the settings end with the transaction.
LIMITS: Final = (
    f"SELECT set_config('lock_timeout', '{SERVER_WAITS_MS}', true),"
    f" set_config('statement_timeout', '{SERVER_WAITS_MS}', true),"
    f" set_config('idle_in_transaction_session_timeout', '{SERVER_WAITS_MS}', true),"
    " set_config('client_connection_check_interval', '500', true)"
)

#: Terminates our connections that have been in a transaction for too long while the server
#: waits for the client. A client stopped between two statements of a pipeline does not count as
#: idle, so before PostgreSQL 17 the limits of the server do not apply to it.
_END_STOPPED: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    " AND usename = current_user AND application_name = 'callboard'"
    " AND pid <> pg_backend_pid() AND wait_event = 'ClientRead'"
    " AND xact_start < clock_timestamp() - interval '1 s'"
)

#: Identifies the server and its timeline, which changes with each failover.
WHICH_SERVER: Final = (
    "SELECT system_identifier::text, left(pg_walfile_name(pg_current_wal_lsn()), 8)"
    " FROM pg_control_system()"
)

#: Executions of a statement before it is prepared. Parsing and planning the statements of a
#: commit takes the server longer than writing thirty events.
_PREPARED_FROM: Final = 3

_CONNECT: Final[dict[str, Any]] = {
    "connect_timeout": 3,
    "tcp_user_timeout": 2000,
    "keepalives": 1,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 2,
    "application_name": "callboard",
}

_LEASES: Final = """CREATE TABLE IF NOT EXISTS callboard_leases (
    name TEXT COLLATE "C" PRIMARY KEY, writer TEXT NOT NULL, number BIGINT NOT NULL,
    text TEXT NOT NULL, version BIGINT NOT NULL)"""

#: Serializes the creation of tables: it fails if two processes create one at the same time.
SCHEMA_LOCK: Final = "SELECT pg_advisory_xact_lock(7236850772135469)"

_SAFE: Final = {
    "server_encoding": ("UTF8",),  # first: with another encoding, texts arrive as bytes
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}


#: SQLSTATEs of a value that is too long, out of range, or an invalid text or JSON.
_REFUSED: Final = frozenset({"22001", "22003", "22021", "22032", "22P02", "22P05"})


def check_safety(connection: "psycopg.Connection[Any]") -> None:
    """Check that the server does not lose acknowledged commits.

    Raises:
        UnsafeDatabase: a setting could lose commits, or the server is a standby.
    """
    if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
        message = "this PostgreSQL is a standby: use the address of the primary"
        raise UnsafeDatabase(message)
    for name, allowed in _SAFE.items():
        row = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
        value = row[0] if row else None
        value = value.decode() if isinstance(value, bytes) else value
        if value not in allowed:
            message = (
                f"PostgreSQL's setting {name} is {value}, so acknowledged"
                f" commits could be lost or changed; set it to {allowed[0]}"
            )
            if name == "server_encoding":
                message = (
                    f"this database has the encoding {value}, which cannot store every text and"
                    " cannot be changed: create another database with CREATE DATABASE …"
                    " ENCODING 'UTF8' TEMPLATE template0"
                )
            raise UnsafeDatabase(message)


def storage_error(error: "psycopg.Error", url: str) -> StorageError:
    """Convert an error from psycopg, without the secrets in the address."""
    state = error.sqlstate or ""
    text = " ".join(redacted_error(error, url).split())
    if state in {"55P03", "57014", "40P01", "40001"}:
        return StateBusy(
            f"PostgreSQL: {text}: another connection holds a lock, or the server is slow"
        )
    if state in {"53100", "53200", "54000"}:
        return StateFull(f"PostgreSQL: {text}: free space on its disk and retry")
    # The driver's own errors lack a state, such as the one for a text with NUL.
    if state in _REFUSED or (not state and isinstance(error, psycopg.DataError)):
        return ValueRefused(f"PostgreSQL: {text}")
    if state[:2] in {"22", "23", "XX"} or state == "58P01":
        return StateCorrupt(f"PostgreSQL: {text}")
    return StateUnavailable(f"PostgreSQL: {text}")


@contextmanager
def pipelined(connection: "psycopg.Connection[Any]") -> Iterator[None]:
    """Send the statements inside without waiting for each result.

    Like `connection.pipeline()`, but without logging the error that it raises.
    """
    pipeline = connection.pipeline()
    pipeline.__enter__()
    try:
        yield
    except BaseException:
        with suppress(psycopg.Error):
            pipeline.__exit__(None, None, None)
        raise
    pipeline.__exit__(None, None, None)


def _is_direct(connection: "psycopg.Connection[Any]") -> bool:
    """Return whether the connection leads to the server itself, not to a pooler.

    A pooler uses several server processes, so the process id that it reports is made up.
    Statements prepared through a pooler could be missing in the next process.
    """
    row = connection.execute("SELECT pg_backend_pid()").fetchone()
    return row is not None and bool(row[0] == connection.info.backend_pid)


class Connected:
    """A lazily opened connection, used by one thread at a time."""

    def __init__(self, url: str, greet: "Callable[[psycopg.Connection[Any]], None]") -> None:
        """Store the address; `greet` checks each new connection before it is used."""
        self.url = url
        self._greet = greet
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = locks.lock("lease register in PostgreSQL", 561)
        after_fork.register(self, Connected._drop_copy)

    def run(self, work: "Callable[[psycopg.Connection[Any]], T]") -> T:
        """Call `work` with the connection, which is closed after an error.

        Raises:
            StorageError: see `storage_error`. If the connection was lost, earlier statements
                may have taken effect or not.
        """
        if after_fork.is_copy(self):
            remedy = "create another node here"
            raise StateUnavailable(after_fork.refusal("this connection", remedy))
        with self._lock:
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect()
                return work(self._connection)
            except BaseException as error:
                was_connected = self._connection is not None
                self._drop()
                if isinstance(error, psycopg.Error):
                    converted = storage_error(error, self.url)
                    if isinstance(converted, StateBusy):
                        self._end_stopped()
                    if not was_connected:  # psycopg's text may contain a password
                        raise converted from None
                    raise converted from error
                if isinstance(error, UnicodeEncodeError):  # lone surrogates
                    message = f"PostgreSQL: {error}"
                    raise ValueRefused(message) from error
                raise

    def _drop_copy(self) -> None:
        """Drop the inherited connection in a forked process.

        Closing it would close the parent's connection, too.
        """
        connection, self._connection = self._connection, None
        if connection is not None and not connection.closed:
            after_fork.keep_for_ever(connection)
            after_fork.drop(connection)

    def _end_stopped(self) -> None:
        """Terminate connections of clients that were stopped inside a transaction."""
        with suppress(psycopg.Error, StorageError):
            self._connection = self._connect()
            self._connection.execute(_END_STOPPED)

    def _connect(self) -> "psycopg.Connection[Any]":
        """Connect, and check the server."""
        connection = psycopg.connect(
            self.url,
            autocommit=True,
            prepare_threshold=None,
            **_CONNECT,
        )
        connection.adapters.register_loader("json", TextLoader)  # JSON stays text
        try:
            self._greet(connection)
            if _is_direct(connection):
                connection.prepare_threshold = _PREPARED_FROM
        except BaseException:
            connection.close()
            raise
        return connection

    def transaction(self, work: "Callable[[psycopg.Connection[Any]], T]") -> T:
        """Call `work` inside a new transaction."""

        def run(connection: "psycopg.Connection[Any]") -> T:
            with connection.transaction():
                connection.execute(LIMITS)
                return work(connection)

        return self.run(run)

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, in a transaction that takes one round trip."""

        def run(connection: "psycopg.Connection[Any]") -> list[tuple[Any, ...]]:
            with pipelined(connection), connection.transaction():
                connection.execute(LIMITS)
                cursor = connection.execute(sql, parameters)
            return list(cursor.fetchall())

        return self.run(run)

    def read(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a read-only statement.

        The server may have restarted since the connection was last used. If the connection
        turns out to be lost, the statement is repeated once on a new one.
        """
        is_fresh = self._connection is None
        try:
            return self.query(sql, parameters)
        except StateUnavailable:
            if is_fresh:
                raise
            return self.query(sql, parameters)

    def _drop(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._drop()


class PostgresqlLeases:
    """A register in a PostgreSQL database, for several machines."""

    def __init__(self, url: str) -> None:
        """Connect, and create the table if it is missing.

        Raises:
            StorageError: the server cannot be reached, or is unsafe.
        """
        self._url = url
        self._connected = Connected(url, check_safety)
        self._connected.transaction(_make_leases)
        self._server = self._connected.query(WHICH_SERVER)[0]

    def read(self, name: str) -> Versioned:
        """Return the value of a name and its version."""
        sql = (
            "SELECT writer, number, text, version,"
            " left(pg_walfile_name(pg_current_wal_lsn()), 8) = %s"
            " FROM callboard_leases WHERE name = %s"
        )
        rows = self._connected.query(sql, (self._server[1], name))
        if not rows:
            return None, 0
        *value, version, is_same = rows[0]
        if not is_same:
            self._server = self._connected.query(WHICH_SERVER)[0]
            message = f"PostgreSQL failed over (timeline {self._server[1]}): leases start anew"
            raise DatabaseReplaced(message)
        return LeaseValue(*value), version

    def write(self, name: str, value: LeaseValue, expected_version: int) -> bool:
        """Replace a value if it has the expected version; return whether it was replaced."""
        if expected_version:
            sql = (
                "UPDATE callboard_leases SET writer = %s, number = %s, text = %s,"
                " version = version + 1 WHERE name = %s AND version = %s RETURNING 1"
            )
            return self._write(sql, (*value, name, expected_version))
        sql = (
            "INSERT INTO callboard_leases VALUES (%s, %s, %s, %s, 1)"
            " ON CONFLICT DO NOTHING RETURNING 1"
        )
        return self._write(sql, (name, *value))

    def _write(self, sql: str, parameters: Sequence[object]) -> bool:
        """Write a row; if the connection is lost, the outcome is unknown."""
        try:
            return bool(self._connected.query(sql, parameters))
        except (StateBusy, StateFull):
            raise  # the server refused: nothing was written
        except StateUnavailable as error:
            message = f"{error}; the value may have been written"
            raise OutcomeUnknown(message) from error

    def is_gone(self, writer: str) -> bool:
        """Return False: a database cannot tell whether a process on another machine ended."""
        return False

    def again(self) -> "PostgresqlLeases":
        """Return the register with a new connection."""
        return PostgresqlLeases(self._url)

    def close(self) -> None:
        """Close the connection."""
        self._connected.close()


def _make_leases(connection: "psycopg.Connection[Any]") -> None:
    """Create the table of leases."""
    connection.execute(SCHEMA_LOCK)
    connection.execute(_LEASES)
