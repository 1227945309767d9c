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

What is missing of a file is told: the number of its commits stands in it, and beside it in a
small file, `things.commits.db` for `things.db`, see `CommitMark`. A file of another program or
of a later release is never written, nor is anything that is no plain file opened.

The file is locked while it is open: two masters cannot have the same one. Options have Broker's
names, and may have the form in which Broker wants them: an enum value or text such as
`Broker::SQLITE_SYNCHRONOUS_FULL`.
"""

import logging
import os
import sqlite3
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self
from uuid import UUID
from zlib import crc32

import cbor2
from cbor2 import CBORError

from callboard import locks
from callboard.commitlog.disk import check_plain, open_plain
from callboard.model.errors import EndpointError, InvalidData
from callboard.model.scalar import Enum
from callboard.store.backend.interface import Contents
from callboard.store.errors import BackendFailure
from callboard.store.machine.command import Who
from callboard.store.machine.step import ERASED, Persist, Row, WriterRow
from callboard.store.machine.stored import Token, checked_stored, checked_token
from callboard.support import after_fork
from callboard.support.dataclass import dataclass
from callboard.support.file_place import FilePlaces, replaced
from callboard.support.private_file import check_file_mode, make_private_file

Done = Callable[[BackendFailure | None], object]

#: Of the tables, as `user_version` in the file. In version 1 the entries were in a table
#: `store`, as they are in files of Zeek Broker, which then took ours for its own.
_VERSION: Final = 2

_SCHEMA: Final = """
CREATE TABLE entries (
  key PRIMARY KEY NOT NULL, value BLOB NOT NULL, expiry INTEGER
) WITHOUT ROWID;
CREATE TABLE writers (
  endpoint BLOB NOT NULL, object TEXT NOT NULL, seq TEXT NOT NULL, answers BLOB NOT NULL,
  PRIMARY KEY (endpoint, object)
) WITHOUT ROWID;
"""
#: How many transactions were committed, and what tells this file from others. It came later
#: than version 1, whose programs leave it alone.
_COMMITS: Final = (
    "CREATE TABLE IF NOT EXISTS commits (file BLOB NOT NULL, number INTEGER NOT NULL)"
)
_TABLES: Final = {
    "entries": ["key", "value", "expiry"],
    "writers": ["endpoint", "object", "seq", "answers"],
}
_FIRST_NAMES: Final = {"entries": "store"}
#: What makes the tables of this version out of those of an earlier one, by that.
_STEPS: Final = {
    0: tuple(_SCHEMA.split(";")),
    1: ("ALTER TABLE store RENAME TO entries",),
}
_NS: Final = 10**9
_FILES: Final = ("", "-wal", "-shm", "-journal")
#: With these a commit is on the disk when it returns.
_DURABLE: Final = frozenset({"FULL", "EXTRA"})
#: What rows raise whose contents are not what we write.
_UNREADABLE: Final = (OSError, ValueError, TypeError, OverflowError, RecursionError, CBORError)

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
    mode: int | None = None

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
        try:
            mode = check_file_mode(known.pop("mode", None))
        except ValueError as error:
            raise InvalidData(str(error)) from None
        chosen = {name: _choice(name, value) for name, value in known.items()}
        return cls(os.fspath(path), integrity_check=check, mode=mode, **chosen)


def _choice(name: str, value: Any) -> str:
    """Return the value of an option without Broker's prefixes."""
    if name not in _CHOICES:
        names = ", ".join(("path", *_CHOICES, "integrity_check", "mode"))
        msg = f"the SQLite backend has no option {name!r:.60}; it has {names}"
        raise InvalidData(msg)
    text = value.name if isinstance(value, Enum) else str(value)
    text = text.removeprefix("Broker::").removeprefix(f"SQLITE_{name.upper()}_")
    if text not in _CHOICES[name]:
        msg = f"{name} is one of {', '.join(_CHOICES[name])}, not {text!r:.60}"
        raise InvalidData(msg)
    return text


class _Refused(sqlite3.DatabaseError):
    """The file is no damaged one of ours, and is left as it is whatever `failure_mode` says."""


class CommitMark:
    """The number of commits, kept beside a file: so what is missing of the file is told.

    It guards against a file that was emptied, removed, or replaced by another or an older one,
    and against a write-ahead log that is gone. It is no part of the data: without it, or where
    it is torn, a file opens as it is. It is written behind each commit, never before, and not
    synced by itself: it may be behind, and never ahead of what is durable. What a loss of power
    may take counts only until the next start of the machine.

    `CBM1`, what tells the file from others (16 bytes), number of commits (8), the start of the
    machine until which they count (16; 0 is for ever), CRC-32 of these.
    """

    _LAYOUT: Final = struct.Struct("<4s16sQ16s")
    _MAGIC: Final = b"CBM1"

    def __init__(self, path: str, mode: int | None = None) -> None:
        """Name the mark of a file; `mode` is that of a new one."""
        self._mode = mode
        self.path = str(Path(path).with_suffix(f".commits{Path(path).suffix}"))
        self._descriptor: int | None = None
        self._start = os.urandom(16)
        with suppress(OSError, ValueError):
            self._start = UUID(
                Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            ).bytes

    def read(self) -> tuple[bytes, int, bool] | None:
        """Return what the mark says, and whether it still counts; None if there is none.

        Raises:
            OSError: it cannot be read, or is no plain file.
            _Refused: it is something else.
        """
        try:
            with open(self.path, "rb", opener=open_plain) as file:
                data = file.read(self._LAYOUT.size + 5)
        except FileNotFoundError:
            return None
        if data and len(data) != self._LAYOUT.size + 4:
            msg = f"{self.path} is no mark of a store; move it away"
            raise _Refused(msg)
        if not data or crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return None
        _, name, number, start = self._LAYOUT.unpack(data[:-4])
        return name, number, start in (bytes(16), self._start)

    def write(self, name: bytes, number: int, *, is_durable: bool) -> None:
        """Write it; one that cannot be written guards less, and that is all."""
        start = bytes(16) if is_durable else self._start
        data = self._LAYOUT.pack(self._MAGIC, name, number, start)
        try:
            if self._descriptor is None:
                make_private_file(self.path, self._mode)
                self._descriptor = open_plain(self.path, os.O_WRONLY | os.O_CREAT)
            os.pwrite(self._descriptor, data + crc32(data).to_bytes(4, "little"), 0)
        except OSError as error:
            _log.warning("the mark %s is not written: %s", self.path, error)

    def leave(self) -> None:
        """Drop the file in a forked process."""
        after_fork.drop(self._descriptor)

    def close(self) -> None:
        """Close its file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_log = logging.getLogger("callboard.store")


class SqliteBackend:
    """Keeps a master's rows in a file."""

    is_durable = True

    def __init__(self, options: SqliteOptions) -> None:
        """Make a backend; `open` opens the file."""
        self.options = options
        self._wall_offset = 0.0
        self._connection: sqlite3.Connection | None = None
        self._waiting: deque[tuple[Persist, Done]] = deque()
        self._wake = locks.condition("commits of a SQLite store", 570)
        self._is_closing = False
        self._thread: threading.Thread | None = None
        #: Transactions so far; with the number of writes it tells how many share one.
        self.commits = 0
        self._mark = CommitMark(options.path, options.mode)
        self._name, self._number = b"", 0
        self._places, self._place = FilePlaces(), Path(options.path).absolute()
        after_fork.register(self, SqliteBackend._leave)

    def open(self, wall_offset: float) -> Contents:
        """Open or make the file and read it.

        Raises:
            BackendFailure: it cannot be opened, is in use, or is damaged.
        """
        self._wall_offset = wall_offset
        try:
            contents = self._open_and_read()
        except (sqlite3.Error, EndpointError, *_UNREADABLE) as cause:
            self._close_connection()
            self._mark.close()
            if self.options.failure_mode != "DELETE" or _is_no_damage(cause):
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
        if after_fork.is_copy(self):
            return
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        is_open = self._connection is not None
        self._close_connection()
        if is_open:
            self._write_mark(is_durable=self.options.synchronous != "OFF")
        self._mark.close()

    def _leave(self) -> None:
        """Drop the file of this copy in a forked process, where no node would call it."""
        connection, self._connection = self._connection, None
        self._mark.leave()
        if connection is not None:
            after_fork.leave_database(connection, self._place)

    # --- opening ---

    def _open_and_read(self) -> Contents:
        """Open or make the file, lock it, and read all of it."""
        options = self.options
        if after_fork.inherited_database(options.path):
            remedy = "give the store here another file"
            raise _Refused(after_fork.refusal(f"the file {options.path}", remedy))
        mark = self._look_beside()
        if not options.path.startswith((":", "file:")):  # which SQLite keeps elsewhere
            make_private_file(options.path, options.mode)
        connection = self._connection = sqlite3.connect(
            options.path, check_same_thread=False, isolation_level=None, timeout=1.0
        )
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _check_owner(connection)  # before anything that writes
        connection.execute(f"PRAGMA journal_mode = {options.journal_mode}")
        connection.execute(f"PRAGMA synchronous = {options.synchronous}")
        connection.execute("BEGIN EXCLUSIVE")
        version = _check_owner(connection)
        if version < _VERSION:
            for statement in _STEPS[version]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute(_COMMITS)
        if not (counted := connection.execute("SELECT file, number FROM commits").fetchall()):
            counted = [(os.urandom(16), 0)]
            connection.execute("INSERT INTO commits VALUES (?, ?)", counted[0])
        self._name, self._number = bytes(counted[0][0]), int(counted[0][1])
        connection.execute("COMMIT")
        self._check_mark(mark)
        if options.integrity_check:
            (found,) = connection.execute("PRAGMA integrity_check").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
        contents = Contents(dict(self._read_rows(connection)), dict(_read_writers(connection)))
        self._write_mark()
        self._places = FilePlaces()
        self._places.add(options.path)
        if options.journal_mode == "WAL":  # other journals come and go with each commit
            self._places.add(f"{options.path}-wal")
        return contents

    def _write_mark(self, *, is_durable: bool = False) -> None:
        """Note how many commits there are."""
        is_durable = is_durable or self.options.synchronous in _DURABLE
        self._mark.write(self._name, self._number, is_durable=is_durable)

    def _look_beside(self) -> tuple[bytes, int, bool] | None:
        """Return the mark, if there is one; SQLite would follow links, and drop its log.

        Raises:
            OSError: what is there is no plain file.
            sqlite3.DatabaseError: the file is missing or empty, and was not.
        """
        path = self.options.path
        sizes: dict[str, int] = {}
        for ending in _FILES:
            with suppress(FileNotFoundError):
                found = os.lstat(path + ending)
                check_plain(found.st_mode, path + ending)
                sizes[ending] = found.st_size
        mark = self._mark.read()
        if not sizes.get("") and (sizes.get("-wal") or (mark and mark[1])):
            known = f"{mark[1]:,} commits" if mark else "what its -wal belongs to"
            gone = f"it is {'empty' if '' in sizes else 'missing'}, and had {known}"
            step = f"remove {path}-wal and {self._mark.path} to begin without it"
            msg = f"{gone}; put a copy in its place, or {step}"
            raise sqlite3.DatabaseError(msg)
        return mark

    def _check_mark(self, mark: tuple[bytes, int, bool] | None) -> None:
        """Compare the number of commits with that of the mark.

        Raises:
            sqlite3.DatabaseError: some are missing, or it is another file.
        """
        if mark is None or (mark[0] == self._name and mark[1] <= self._number):
            return
        if mark[0] == self._name and not mark[2]:
            _log.warning("the latest commits of %s were lost with power", self.options.path)
            return
        step = f"put the newest copy back, or remove {self._mark.path} to go on with this one"
        missing = f"{mark[1] - self._number:,} of its {mark[1]:,} commits are missing"
        if mark[0] != self._name:
            missing = f"another file had its place, with {mark[1]:,} commits"
        msg = f"{missing}; {step}"
        raise sqlite3.DatabaseError(msg)

    def _read_rows(self, connection: sqlite3.Connection) -> list[tuple[Token, Row]]:
        """Read keys, values and deadlines."""
        offset = self._wall_offset
        found = connection.execute("SELECT key, value, expiry FROM entries")
        rows: list[tuple[Token, Row]] = []
        for key, value, expiry in found:
            deadline = None if expiry is None else expiry / _NS - offset
            stored = checked_stored(cbor2.loads(value, immutable=True))
            rows.append((checked_token(key), (stored, deadline)))
        return rows

    def _start_over(self) -> Contents:
        """Begin with an empty file in place of a damaged one."""
        try:
            for path in (*(self.options.path + ending for ending in _FILES), self._mark.path):
                Path(path).unlink(missing_ok=True)
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
                except (sqlite3.Error, *_UNREADABLE) as cause:
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
                connection.execute("DELETE FROM entries")
            connection.executemany("REPLACE INTO entries VALUES (?, ?, ?)", self._rows(merged))
            gone = [(token,) for token, row in merged.rows.items() if row is ERASED]
            connection.executemany("DELETE FROM entries WHERE key = ?", gone)
            _write_writers(connection, merged)
            connection.execute("UPDATE commits SET number = number + 1")
            if path := self._places.misplaced():
                raise _Refused(replaced(path, "put it back, and open the store again"))
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise
        self.commits += 1
        self._number += 1
        self._write_mark()

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


def _check_owner(connection: sqlite3.Connection) -> int:
    """Return the version of our tables in a file, 0 where it has none yet.

    Raises:
        _Refused: it is of another program, or of a later release.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not version and not tables:
        return 0
    if version > _VERSION and (not tables or _TABLES.keys() <= tables):
        msg = (
            f"it has version {version}, and this release knows {_VERSION}; use a later release"
        )
        raise _Refused(msg)
    if broker := zeek_broker_version(connection):
        step = "give ours a path of its own, and take its entries over with"
        msg = f"it is a store of Zeek Broker {broker}; {step} callboard store import"
        raise _Refused(msg)
    for name, columns in _TABLES.items():
        name = _FIRST_NAMES.get(name, name) if version == 1 else name
        found = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        if not 0 < version <= _VERSION or found != columns:
            msg = "it is a database of another program; give the store a path of its own"
            raise _Refused(msg)
    return int(version)


def zeek_broker_version(connection: sqlite3.Connection) -> str | None:
    """Return the version of the Zeek Broker that made a file; None if none did.

    Source: files of Broker 1.4.0, tables `meta(key, value)` and `store(key, value, expiry)`.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not {"meta", "store"} <= tables:
        return None
    found = connection.execute("SELECT * FROM meta").fetchall()
    return next((str(value[1]) for value in found if value[0] == "broker_version"), "1 or 2")


def _is_no_damage(cause: BaseException) -> bool:
    """Return whether a failure is no damage: another process, or program, has the file."""
    code = getattr(cause, "sqlite_errorcode", None)
    is_in_use = code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN)
    return is_in_use or isinstance(cause, _Refused | OSError)


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
