"""A backend in a SQLite file, written by a thread of its own.

The thread collects all waiting changes in one transaction, and reports them as durable after
its commit: the higher the load, the more changes share one commit.

Durability of a commit:

| synchronous | kill of the process | loss of power |
|---|---|---|
| `OFF` | kept | may be lost, the file may be damaged |
| `NORMAL` with `WAL` | kept | the latest may be lost |
| `NORMAL` with `DELETE` | kept | the latest may be lost in rare cases |
| `FULL`, `EXTRA` | kept | kept |

Lost commits are detected: the number of commits is stored in the file and in a small file
beside it, `things.commits.db` for `things.db`, see `CommitMark`. The backend never writes a
file of another program or of a later release, and opens only regular files.

A row whose key, value or deadline cannot be read is left out, logged and counted; the other
rows are served. It stays in the file until its key is written or the store is cleared.

The file is locked while it is open, so two masters cannot share it. Options have Broker's
names, and may have Broker's values: an enum value or a text such as
`Broker::SQLITE_SYNCHRONOUS_FULL`.
"""

import logging
import os
import sqlite3
import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
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
from callboard.store.machine.command import PlainEntity
from callboard.store.machine.step import ERASED, Persist, WriterRow
from callboard.store.machine.stored import Token, checked_stored, checked_token
from callboard.support import after_fork
from callboard.support.database.group_worker import GroupWorker
from callboard.support.database.sqlite_file import (
    Problem,
    SqliteFile,
    copy_database,
    open_file,
    problem_of,
)
from callboard.support.dataclass import dataclass
from callboard.support.files.open_objects import OpenObjects
from callboard.support.files.private_file import check_file_mode, make_private_file
from callboard.support.platform.system import boot_id
from callboard.support.text import error_text, safe_repr

Done = Callable[[BackendFailure | None], object]

#: Version of the tables, `user_version` in the file. Version 1 named the table of entries
#: `store`, as Zeek Broker does, which then opened our files as its own.
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
#: The id of the file and the number of its commits. Programs that know only version 1 ignore
#: the table.
_COMMITS: Final = (
    "CREATE TABLE IF NOT EXISTS commits (file BLOB NOT NULL, number INTEGER NOT NULL)"
)
_TABLES: Final = {
    "entries": ["key", "value", "expiry"],
    "writers": ["endpoint", "object", "seq", "answers"],
}
_FIRST_NAMES: Final = {"entries": "store"}
#: Statements that convert tables of an earlier version, by that version.
_STEPS: Final = {
    0: tuple(_SCHEMA.split(";")),
    1: ("ALTER TABLE store RENAME TO entries",),
}
_NS: Final = 10**9
#: Seconds that opening waits for another owner of the file, which may be closing it.
_BUSY_SECONDS: Final = 1.0
#: Errors after which `failure_mode` DELETE keeps the file.
_NO_DAMAGE: Final = frozenset({Problem.BUSY, Problem.FULL, Problem.UNREACHABLE})
#: Values of `synchronous` with which a commit is on the disk when it returns.
_DURABLE: Final = frozenset({"FULL", "EXTRA"})
#: Exceptions of reading a row that was not written by a store, or is damaged.
_UNREADABLE: Final = (OSError, ValueError, TypeError, OverflowError, RecursionError, CBORError)

_CHOICES: Final = {
    "synchronous": ("OFF", "NORMAL", "FULL", "EXTRA"),
    "journal_mode": ("WAL", "DELETE"),
    "failure_mode": ("FAIL", "DELETE"),
}


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """Checked options of a SQLite backend."""

    path: str
    synchronous: str = "FULL"
    journal_mode: str = "WAL"
    failure_mode: str = "FAIL"
    integrity_check: bool = False
    mode: int | None = None

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """Check the options of a user.

        Raises:
            InvalidData: the path is missing, or an option or its value is not known.
        """
        choices = dict(options)
        path = choices.pop("path", None)
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            msg = 'a SQLite backend needs a file: options={"path": "things.db"}'
            raise InvalidData(msg)
        check = choices.pop("integrity_check", False)
        if not isinstance(check, bool):
            msg = f"integrity_check must be True or False, not {check!r:.60}"
            raise InvalidData(msg)
        try:
            mode = check_file_mode(choices.pop("mode", None))
        except ValueError as error:
            raise InvalidData(str(error)) from None
        checked = {name: _choice(name, value) for name, value in choices.items()}
        return cls(os.fspath(path), integrity_check=check, mode=mode, **checked)


def _choice(name: str, value: Any) -> str:
    """Return the value of an option without Broker's prefixes."""
    if name not in _CHOICES:
        names = ", ".join(("path", *_CHOICES, "integrity_check", "mode"))
        msg = f"{name!r:.60} is not an option of the SQLite backend; it has {names}"
        raise InvalidData(msg)
    text = value.name if isinstance(value, Enum) else str(value)
    text = text.removeprefix("Broker::").removeprefix(f"SQLITE_{name.upper()}_")
    if text not in _CHOICES[name]:
        msg = f"{name} must be one of {', '.join(_CHOICES[name])}, not {text!r:.60}"
        raise InvalidData(msg)
    return text


class _Refused(sqlite3.DatabaseError):
    """The file is not ours, or not damaged: `failure_mode` DELETE must not delete it."""


class CommitMark:
    """The number of commits of a database, in a file beside it, to detect lost commits.

    It detects a database that was emptied, removed, or replaced by another or an older one, and
    a missing write-ahead log. It is not part of the data: without a mark, or with a torn one,
    the database opens as it is. It is written after each commit and not synced, so it may have
    a smaller number than the database, and never a larger one. Without `FULL` or `EXTRA`, a
    loss of power may lose commits: the mark then names the boot of the machine, and a smaller
    number of commits after another boot is only logged.

    | offset | bytes | |
    |---|---|---|
    | 0 | 4 | `CBM1` |
    | 4 | 16 | id of the database |
    | 20 | 8 | number of commits |
    | 28 | 16 | boot id of the machine for which the number counts; zeros: any boot |
    | 44 | 4 | CRC-32 of these |
    """

    _LAYOUT: Final = struct.Struct("<4s16sQ16s")
    _MAGIC: Final = b"CBM1"

    def __init__(self, path: str, mode: int | None = None) -> None:
        """Name the mark of a database; `mode` is the permissions of a new mark."""
        self._mode = mode
        self.path = str(Path(path).with_suffix(f".commits{Path(path).suffix}"))
        self._descriptor: int | None = None
        self._start = os.urandom(16)
        with suppress(ValueError):
            self._start = UUID(boot_id()).bytes

    def read(self) -> tuple[bytes, int, bool] | None:
        """Return the id, the number of commits, and whether the number counts on this boot.

        None if there is no mark, or it is torn.

        Raises:
            OSError: the file cannot be read, or is not a regular file.
            _Refused: the file is not a mark.
        """
        try:
            with open(self.path, "rb", opener=open_plain) as file:
                data = file.read(self._LAYOUT.size + 5)
        except FileNotFoundError:
            return None
        if data and len(data) != self._LAYOUT.size + 4:
            msg = f"{self.path} is not a mark of a store; move it away"
            raise _Refused(msg)
        if not data or crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
            return None
        _, name, number, start = self._LAYOUT.unpack(data[:-4])
        return name, number, start in (bytes(16), self._start)

    def write(self, name: bytes, number: int, *, is_durable: bool) -> None:
        """Write the mark; a failure is only logged, as the mark is not part of the data."""
        start = bytes(16) if is_durable else self._start
        data = self._LAYOUT.pack(self._MAGIC, name, number, start)
        try:
            if self._descriptor is None:
                make_private_file(self.path, self._mode)
                self._descriptor = open_plain(self.path, os.O_WRONLY | os.O_CREAT)
            os.pwrite(self._descriptor, data + crc32(data).to_bytes(4, "little"), 0)
        except OSError as error:
            _log.warning("the mark %s could not be written: %s", self.path, error)

    def leave(self) -> None:
        """Drop the file in a forked process."""
        after_fork.drop(self._descriptor)

    def close(self) -> None:
        """Close its file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_log = logging.getLogger("callboard.store")


#: The backends whose file is open in this process, for backups.
OPEN: "Final[OpenObjects[SqliteBackend]]" = OpenObjects(locks.lock("open files of stores", 604))


class SqliteBackend:
    """A backend in a SQLite file."""

    is_durable = True

    def __init__(self, options: SqliteOptions) -> None:
        """Make a backend; `open` opens the file."""
        self.options = options
        self._wall_offset = 0.0
        self._file: SqliteFile | None = None
        #: Queue of changes for the writing thread; None until the file is open.
        self._worker: GroupWorker[tuple[Persist, Done]] | None = None
        #: The error of the first commit that failed; nothing is written after it.
        self._failed: BackendFailure | None = None
        #: Committed transactions; fewer than writes, as a group of writes shares one.
        self.commits = 0
        self._mark = CommitMark(options.path, options.mode)
        self._name, self._number = b"", 0
        self._writing = locks.lock("file of a store", 591)
        after_fork.register(self, SqliteBackend._drop_copy)

    def open(self, wall_offset: float) -> Contents:
        """Open or create the file and read it.

        Raises:
            BackendFailure: the file cannot be opened, is in use, or is damaged.
        """
        self._wall_offset = wall_offset
        try:
            contents = self._open_and_read()
        except (sqlite3.Error, EndpointError, *_UNREADABLE) as cause:
            self._close_file()
            self._mark.close()
            if self.options.failure_mode != "DELETE" or _is_no_damage(cause):
                raise self._failure(cause, "cannot be opened") from cause
            contents = self._start_over()
        name = f"callboard-sqlite-{Path(self.options.path).name}"
        self._worker = GroupWorker(name, self._write_group)
        OPEN.add(self)
        return contents

    def write(self, changes: Persist, done: Done) -> None:
        """Queue changes for the writing thread."""
        assert self._worker is not None
        self._worker.add((changes, done))

    def hold(self, seconds: float) -> bool:
        """Stop all writes until `resume`; return False if the writer does not stop in time."""
        return self._writing.acquire(timeout=seconds)

    def resume(self) -> None:
        """End a `hold`; on the same thread."""
        self._writing.release()

    def copy_to(self, path: Path) -> None:
        """Copy the database into a new file, durably; the caller holds this backend.

        Raises:
            BackendFailure: it is closed, or cannot be read.
            sqlite3.Error: the copy cannot be written.
        """
        if self._file is None:
            msg = f"the store in {self.options.path} is closed; open it again"
            raise BackendFailure(msg)
        copy_database(self._file.connection, path)

    def close(self) -> None:
        """Write all queued changes, and close the file."""
        if after_fork.is_copy(self):
            return
        OPEN.discard(self)
        if self._worker is not None:
            self._worker.close()
        is_open = self._file is not None
        with self._writing:
            self._close_file()
        if is_open:
            self._write_mark(is_durable=self.options.synchronous != "OFF")
        self._mark.close()

    def _drop_copy(self) -> None:
        """Drop the file in a forked process, in which no node closes this backend."""
        OPEN.leave(self)
        file, self._file = self._file, None
        self._mark.leave()
        if file is not None:
            file.leave(None)

    # --- opening ---

    def _open_and_read(self) -> Contents:
        """Open or create the file, lock it, and read it completely."""
        options = self.options
        if after_fork.inherited_database(options.path):
            remedy = "give the store here another file"
            raise _Refused(after_fork.refusal(f"the file {options.path}", remedy))
        mark = self._read_mark()
        remedy = "put it back, and open the store again"
        connection = open_file(options.path, _BUSY_SECONDS, options.mode)
        file = self._file = SqliteFile(options.path, connection, _Refused, remedy)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        _check_owner(connection)  # before the first statement that writes
        connection.execute(f"PRAGMA journal_mode = {options.journal_mode}")
        connection.execute(f"PRAGMA synchronous = {options.synchronous}")
        self._name, self._number = file.transaction(_migrate, file.begin_alone)
        self._check_mark(mark)
        if options.integrity_check:
            (result,) = connection.execute("PRAGMA integrity_check").fetchone()
            if result != "ok":
                raise sqlite3.DatabaseError(result)
        contents = self._read_rows(connection)
        contents.writers.update(_read_writers(connection))
        self._write_mark()
        if options.journal_mode == "WAL":  # other journals are removed by each commit
            file.watch("-wal")
        return contents

    def _write_mark(self, *, is_durable: bool = False) -> None:
        """Write the number of commits to the mark."""
        is_durable = is_durable or self.options.synchronous in _DURABLE
        self._mark.write(self._name, self._number, is_durable=is_durable)

    def _read_mark(self) -> tuple[bytes, int, bool] | None:
        """Check the files of the database before SQLite opens them, and return the mark.

        SQLite would follow a symbolic link, and would delete a write-ahead log whose database
        is missing.

        Raises:
            OSError: one of the files is not a regular file.
            sqlite3.DatabaseError: the database is missing or empty, but has had contents.
        """
        path = self.options.path
        sizes: dict[str, int] = {}
        for ending in after_fork.DATABASE_ENDINGS:
            with suppress(FileNotFoundError):
                status = os.lstat(path + ending)
                check_plain(status.st_mode, path + ending)
                sizes[ending] = status.st_size
        mark = self._mark.read()
        if not sizes.get("") and (sizes.get("-wal") or (mark and mark[1])):
            contents = f"{mark[1]:,} commits" if mark else "the contents of its -wal"
            loss = f"it is {'empty' if '' in sizes else 'missing'}, and had {contents}"
            remedy = f"remove {path}-wal and {self._mark.path} to begin without it"
            msg = f"{loss}; put a copy in its place, or {remedy}"
            raise sqlite3.DatabaseError(msg)
        return mark

    def _check_mark(self, mark: tuple[bytes, int, bool] | None) -> None:
        """Compare the id and the number of commits with the mark.

        Raises:
            sqlite3.DatabaseError: commits are missing, or the mark is of another file.
        """
        if mark is None or (mark[0] == self._name and mark[1] <= self._number):
            return
        if mark[0] == self._name and not mark[2]:
            _log.warning("the latest commits of %s were lost with power", self.options.path)
            return
        remedy = f"put the newest copy back, or remove {self._mark.path} to use this one"
        missing = f"{mark[1] - self._number:,} of its {mark[1]:,} commits are missing"
        if mark[0] != self._name:
            missing = f"another file had its place, with {mark[1]:,} commits"
        msg = f"{missing}; {remedy}"
        raise sqlite3.DatabaseError(msg)

    def _read_rows(self, connection: sqlite3.Connection) -> Contents:
        """Read keys, values and deadlines; skip rows that cannot be read."""
        offset = self._wall_offset
        contents, reason = Contents(), ""
        for key, value, expiry in connection.execute("SELECT key, value, expiry FROM entries"):
            try:
                deadline = None if expiry is None else expiry / _NS - offset
                stored = checked_stored(cbor2.loads(value, immutable=True))
                contents.rows[checked_token(key)] = (stored, deadline)
            except (EndpointError, *_UNREADABLE) as error:
                if not contents.unreadable:
                    reason = f"{safe_repr(key, 60)}: {error_text(error, 200)}"
                contents.unreadable += 1
        if contents.unreadable:
            text = "%d rows of %s cannot be read and are left out; the first has the key %s"
            _log.error(text, contents.unreadable, self.options.path, reason)
        return contents

    def _start_over(self) -> Contents:
        """Replace a damaged file by an empty one."""
        try:
            for path in (
                *(self.options.path + ending for ending in after_fork.DATABASE_ENDINGS),
                self._mark.path,
            ):
                Path(path).unlink(missing_ok=True)
            return self._open_and_read()
        except (sqlite3.Error, OSError) as cause:
            self._close_file()
            raise self._failure(cause, "cannot be replaced") from cause

    def _close_file(self) -> None:
        """Close the file; an error from SQLite is ignored, as a damaged file may raise one."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(sqlite3.Error):
                file.close()

    def _failure(self, cause: BaseException, problem: str) -> BackendFailure:
        """Return an error that names the file."""
        return BackendFailure(f"the SQLite file {self.options.path} {problem}: {cause}")

    # --- the writing thread ---

    def _write_group(self, group: deque[tuple[Persist, Done]]) -> None:
        """Commit a group of changes, and report each of them."""
        if self._failed is None:
            try:
                with self._writing:
                    self._commit([changes for changes, _ in group])
            except (sqlite3.Error, *_UNREADABLE) as cause:
                self._failed = self._failure(cause, "cannot be written")
        for _, done in group:
            done(self._failed)

    def _commit(self, group: list[Persist]) -> None:
        """Write a group of changes as one transaction."""
        merged = group[0] if len(group) == 1 else _merge(group)
        assert self._file is not None
        self._file.transaction(partial(self._write_rows, merged))
        self.commits += 1
        self._number += 1
        self._write_mark()

    def _write_rows(self, changes: Persist, connection: sqlite3.Connection) -> None:
        """Write changes in a transaction."""
        if changes.is_cleared:
            connection.execute("DELETE FROM entries")
        connection.executemany("REPLACE INTO entries VALUES (?, ?, ?)", self._rows(changes))
        erased = [(token,) for token, row in changes.rows.items() if row is ERASED]
        connection.executemany("DELETE FROM entries WHERE key = ?", erased)
        _write_writers(connection, changes)
        connection.execute("UPDATE commits SET number = number + 1")

    def _rows(self, changes: Persist) -> list[tuple[Token, bytes, int | None]]:
        """Return the new rows in the form of the table."""
        offset, encode = self._wall_offset, cbor2.dumps
        return [
            (token, encode(row[0]), None if row[1] is None else int((row[1] + offset) * _NS))
            for token, row in changes.rows.items()
            if row is not ERASED
        ]


def _merge(group: list[Persist]) -> Persist:
    """Merge changes in their order."""
    merged = Persist()
    for changes in group:
        if changes.is_cleared:
            merged.is_cleared = True
            merged.rows.clear()
        merged.rows.update(changes.rows)
        merged.writers.update(changes.writers)
    return merged


def _migrate(connection: sqlite3.Connection) -> tuple[bytes, int]:
    """Create or convert the tables; return the id of the file and its number of commits."""
    version = _check_owner(connection)
    if version < _VERSION:
        for statement in _STEPS[version]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute(_COMMITS)
    row = connection.execute("SELECT file, number FROM commits").fetchone()
    if row is None:
        row = os.urandom(16), 0
        connection.execute("INSERT INTO commits VALUES (?, ?)", row)
    return bytes(row[0]), int(row[1])


def is_store(tables: set[str]) -> bool:
    """Return whether a database with these tables holds a store."""
    return _TABLES.keys() <= tables or {*_FIRST_NAMES.values(), "writers"} <= tables


def facts_of(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the version of a file, and the number of its entries."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    name = _FIRST_NAMES["entries"] if version == 1 else "entries"
    (entries,) = connection.execute(f"SELECT count(*) FROM {name}").fetchone()  # noqa: S608
    return {"version": version, "entries": entries}


def rename_file(connection: sqlite3.Connection) -> None:
    """Give a restored file a new id, so that a mark of the former file does not fit to it."""
    with suppress(sqlite3.OperationalError):  # files of the first release have no id
        connection.execute("UPDATE commits SET file = ?", (os.urandom(16),))


def _check_owner(connection: sqlite3.Connection) -> int:
    """Return the version of our tables in a file; 0 for an empty file.

    Raises:
        _Refused: the file is of another program, or of a later release.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not version and not tables:
        return 0
    if version > _VERSION and (not tables or _TABLES.keys() <= tables):
        msg = (
            f"the file has version {version}, and this release reads {_VERSION}; use a later "
            "release"
        )
        raise _Refused(msg)
    if broker := zeek_broker_version(connection):
        remedy = "give this store another path, and copy the entries with"
        msg = f"the file is a store of Zeek Broker {broker}; {remedy} callboard store import"
        raise _Refused(msg)
    for name, columns in _TABLES.items():
        name = _FIRST_NAMES.get(name, name) if version == 1 else name
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        if not 0 < version <= _VERSION or names != columns:
            msg = "the file is a database of another program; give this store another path"
            raise _Refused(msg)
    return int(version)


def zeek_broker_version(connection: sqlite3.Connection) -> str | None:
    """Return the version of the Zeek Broker that made a file; None for other files.

    Source: files of Broker 1.4.0, tables `meta(key, value)` and `store(key, value, expiry)`.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not {"meta", "store"} <= tables:
        return None
    rows = connection.execute("SELECT * FROM meta").fetchall()
    return next((str(row[1]) for row in rows if row[0] == "broker_version"), "1 or 2")


def _is_no_damage(cause: BaseException) -> bool:
    """Return whether the file may be intact: in use, out of reach, or of another program."""
    return problem_of(cause) in _NO_DAMAGE or isinstance(cause, _Refused | OSError)


def _read_writers(connection: sqlite3.Connection) -> list[tuple[PlainEntity, WriterRow]]:
    """Read the progress of writers.

    A row that cannot be read fails the whole store: without it the commands of that writer
    would be executed twice.
    """
    rows = connection.execute("SELECT endpoint, object, seq, answers FROM writers")
    return [
        ((endpoint, int(number)), WriterRow(int(seq), dict(cbor2.loads(answers))))
        for endpoint, number, seq, answers in rows
    ]


def _write_writers(connection: sqlite3.Connection, changes: Persist) -> None:
    """Write the progress of writers; numbers as text, as SQLite's integers have a sign."""
    for (endpoint, number), row in changes.writers.items():
        key = endpoint, str(number)
        if row is ERASED:
            connection.execute("DELETE FROM writers WHERE endpoint = ? AND object = ?", key)
            continue
        values = *key, str(row[0]), cbor2.dumps(row[1])
        connection.execute("REPLACE INTO writers VALUES (?, ?, ?, ?)", values)
