"""A backend in a SQLite file, off the node's thread.

One thread writes. It takes everything that waits, puts it into one transaction, and says so
when the commit has returned: the more is written, the more shares one commit.

What a commit promises:

| synchronous | kill of the process | loss of power |
|---|---|---|
| `OFF` | kept | may be lost, the file may be damaged |
| `NORMAL` with `WAL` | kept | the latest may be lost |
| `NORMAL` with `DELETE` | kept | the latest may be lost in rare cases |
| `FULL`, `EXTRA` | kept | kept |

The file is locked while it is open: two masters cannot have the same one. Options have Broker's
names, and may have the form in which Broker wants them: an enum value or text such as
`Broker::SQLITE_SYNCHRONOUS_FULL`.
"""

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import cbor2

from callboard.model.errors import EndpointError, InvalidData
from callboard.model.scalar import Enum
from callboard.store.backend.interface import Contents
from callboard.store.errors import BackendFailure
from callboard.store.machine.command import Who
from callboard.store.machine.step import ERASED, Persist, Row, WriterRow
from callboard.store.machine.stored import Token, checked_stored, checked_token

Done = Callable[[BackendFailure | None], object]

#: Of the tables, as `user_version` in the file.
_VERSION: Final = 1

_SCHEMA: Final = """
CREATE TABLE store (
  key PRIMARY KEY NOT NULL, value BLOB NOT NULL, expiry INTEGER
) WITHOUT ROWID;
CREATE TABLE writers (
  endpoint BLOB NOT NULL, object TEXT NOT NULL, seq TEXT NOT NULL, answers BLOB NOT NULL,
  PRIMARY KEY (endpoint, object)
) WITHOUT ROWID;
"""
_NS: Final = 10**9
_FILES: Final = ("", "-wal", "-shm", "-journal")


_CHOICES: Final = {
    "synchronous": ("OFF", "NORMAL", "FULL", "EXTRA"),
    "journal_mode": ("WAL", "DELETE"),
    "failure_mode": ("FAIL", "DELETE"),
}


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """Checked options."""

    path: str
    synchronous: str = "FULL"
    journal_mode: str = "WAL"
    failure_mode: str = "FAIL"
    integrity_check: bool = False

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """Check what a user gave.

        Raises:
            InvalidData: an option is missing, unknown, or has no such value.
        """
        known = dict(options)
        path = known.pop("path", None)
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            msg = 'a SQLite backend needs a file: options={"path": "things.db"}'
            raise InvalidData(msg)
        check = known.pop("integrity_check", False)
        if not isinstance(check, bool):
            msg = f"integrity_check is True or False, not {check!r:.60}"
            raise InvalidData(msg)
        chosen = {name: _choice(name, value) for name, value in known.items()}
        return cls(os.fspath(path), integrity_check=check, **chosen)


def _choice(name: str, value: Any) -> str:
    """Return the value of an option without Broker's prefixes."""
    if name not in _CHOICES:
        names = ", ".join(("path", *_CHOICES, "integrity_check"))
        msg = f"the SQLite backend has no option {name!r:.60}; it has {names}"
        raise InvalidData(msg)
    text = value.name if isinstance(value, Enum) else str(value)
    text = text.removeprefix("Broker::").removeprefix(f"SQLITE_{name.upper()}_")
    if text not in _CHOICES[name]:
        msg = f"{name} is one of {', '.join(_CHOICES[name])}, not {text!r:.60}"
        raise InvalidData(msg)
    return text


class SqliteBackend:
    """Keeps a master's rows in a file."""

    is_durable = True

    def __init__(self, options: SqliteOptions) -> None:
        """Make a backend; `open` opens the file."""
        self.options = options
        self._wall_offset = 0.0
        self._connection: sqlite3.Connection | None = None
        self._waiting: deque[tuple[Persist, Done]] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        #: Transactions so far; with the number of writes it tells how many share one.
        self.commits = 0

    def open(self, wall_offset: float) -> Contents:
        """Open or make the file and read it.

        Raises:
            BackendFailure: it cannot be opened, is in use, or is damaged.
        """
        self._wall_offset = wall_offset
        try:
            contents = self._open_and_read()
        except (sqlite3.Error, EndpointError) as cause:
            self._close_connection()
            if self.options.failure_mode != "DELETE" or _is_in_use(cause):
                raise self._failure(cause, "cannot be opened") from cause
            contents = self._start_over()
        name = f"callboard-sqlite-{Path(self.options.path).name}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        return contents

    def write(self, changes: Persist, done: Done) -> None:
        """Let the thread write changes."""
        with self._wake:
            self._waiting.append((changes, done))
            self._wake.notify()

    def close(self) -> None:
        """Write what waits, and close the file."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._close_connection()

    # --- opening ---

    def _open_and_read(self) -> Contents:
        """Open or make the file, lock it, and read all of it."""
        options = self.options
        connection = self._connection = sqlite3.connect(
            options.path, check_same_thread=False, isolation_level=None, timeout=1.0
        )
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute(f"PRAGMA journal_mode = {options.journal_mode}")
        connection.execute(f"PRAGMA synchronous = {options.synchronous}")
        connection.execute("BEGIN EXCLUSIVE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        elif version != _VERSION:
            msg = f"it has version {version}, and this release knows {_VERSION}"
            raise sqlite3.DatabaseError(msg)
        connection.execute("COMMIT")
        if options.integrity_check:
            (found,) = connection.execute("PRAGMA integrity_check").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        return Contents(dict(self._read_rows(connection)), dict(_read_writers(connection)))

    def _read_rows(self, connection: sqlite3.Connection) -> list[tuple[Token, Row]]:
        """Read keys, values and deadlines."""
        offset = self._wall_offset
        found = connection.execute("SELECT key, value, expiry FROM store")
        rows: list[tuple[Token, Row]] = []
        for key, value, expiry in found:
            deadline = None if expiry is None else expiry / _NS - offset
            stored = checked_stored(cbor2.loads(value, immutable=True))
            rows.append((checked_token(key), (stored, deadline)))
        return rows

    def _start_over(self) -> Contents:
        """Begin with an empty file in place of a damaged one."""
        try:
            for ending in _FILES:
                Path(self.options.path + ending).unlink(missing_ok=True)
            return self._open_and_read()
        except (sqlite3.Error, OSError) as cause:
            self._close_connection()
            raise self._failure(cause, "cannot be replaced") from cause

    def _close_connection(self) -> None:
        """Close the file, whatever its state is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _failure(self, cause: BaseException, what: str) -> BackendFailure:
        """Return an error that names the file."""
        return BackendFailure(f"the SQLite file {self.options.path} {what}: {cause}")

    # --- the writing thread ---

    def _work(self) -> None:
        """Write group after group until the backend is closed."""
        failure: BackendFailure | None = None
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting or self._is_closing)
                group, self._waiting = self._waiting, deque()
            if not group:
                return
            if failure is None:
                try:
                    self._commit([changes for changes, _ in group])
                except sqlite3.Error as cause:
                    failure = self._failure(cause, "cannot be written")
            for _, done in group:
                done(failure)

    def _commit(self, group: list[Persist]) -> None:
        """Write a group of changes as one transaction."""
        merged = group[0] if len(group) == 1 else _merge(group)
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            if merged.is_cleared:
                connection.execute("DELETE FROM store")
            connection.executemany("REPLACE INTO store VALUES (?, ?, ?)", self._rows(merged))
            gone = [(token,) for token, row in merged.rows.items() if row is ERASED]
            connection.executemany("DELETE FROM store WHERE key = ?", gone)
            _write_writers(connection, merged)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        self.commits += 1

    def _rows(self, changes: Persist) -> list[tuple[Token, bytes, int | None]]:
        """Return the rows to replace, as SQLite holds them."""
        offset, encode = self._wall_offset, cbor2.dumps
        return [
            (token, encode(row[0]), None if row[1] is None else int((row[1] + offset) * _NS))
            for token, row in changes.rows.items()
            if row is not ERASED
        ]


def _merge(group: list[Persist]) -> Persist:
    """Return several changes as one; later ones win."""
    merged = Persist()
    for changes in group:
        if changes.is_cleared:
            merged.is_cleared = True
            merged.rows.clear()
        merged.rows.update(changes.rows)
        merged.writers.update(changes.writers)
    return merged


def _is_in_use(cause: BaseException) -> bool:
    """Return whether a failure is no damage: another process has the file."""
    code = getattr(cause, "sqlite_errorcode", None)
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN)


def _read_writers(connection: sqlite3.Connection) -> list[tuple[Who, WriterRow]]:
    """Read how far writers were."""
    found = connection.execute("SELECT endpoint, object, seq, answers FROM writers")
    return [
        ((endpoint, int(number)), WriterRow(int(seq), dict(cbor2.loads(answers))))
        for endpoint, number, seq, answers in found
    ]


def _write_writers(connection: sqlite3.Connection, changes: Persist) -> None:
    """Write how far writers are; numbers as text, SQLite has no room for 64 unsigned bits."""
    for (endpoint, number), row in changes.writers.items():
        who = endpoint, str(number)
        if row is ERASED:
            connection.execute("DELETE FROM writers WHERE endpoint = ? AND object = ?", who)
            continue
        values = *who, str(row[0]), cbor2.dumps(row[1])
        connection.execute("REPLACE INTO writers VALUES (?, ?, ?, ?)", values)
