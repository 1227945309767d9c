"""SQLite files that several processes of one machine share: how they are opened, and leases.

Leases lie in a file of their own beside the state's, so that raising them never waits for a
commit. Each life of a process holds an exclusive `flock` on a file of its own: the system lets
go of it when the process is gone, however it ended. Who gets the lock has proof of death.
"""

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from callboard import locks
from callboard.lease.errors import (
    OutcomeUnknown,
    StateBusy,
    StateCorrupt,
    StateFull,
    StateReplaced,
    StateUnavailable,
    StorageError,
    UnsafeDatabase,
    ValueRefused,
)
from callboard.lease.register import LeaseValue, Versioned
from callboard.support import after_fork
from callboard.support.file_place import FilePlaces, replaced
from callboard.support.private_file import folder_mode, make_folder, make_private_file

T = TypeVar("T")

#: Seconds that a call waits for another process' write lock.
BUSY_TIMEOUT: Final = 2.0

#: Seconds between looks whether that lock is free.
_LOOK: Final = 0.0005

#: Syncs the content of a file; `fdatasync` is not everywhere.
_sync: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)

#: File systems on which locks or memory maps of SQLite's do not hold between machines.
_NETWORKED: Final = {
    "afs", "beegfs", "ceph", "cifs", "fuse.glusterfs", "fuse.s3fs", "fuse.sshfs", "gfs2",
    "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "smb3", "smbfs",
}  # fmt: skip

_LEASES: Final = """
CREATE TABLE IF NOT EXISTS callboard_leases (
    name TEXT PRIMARY KEY, writer TEXT NOT NULL, number INTEGER NOT NULL,
    text TEXT NOT NULL, version INTEGER NOT NULL
) WITHOUT ROWID
"""


def connect(path: Path, mode: int | None = None) -> sqlite3.Connection:
    """Open a database in WAL mode that makes each commit durable; `mode` is that of a new one.

    Raises:
        UnsafeDatabase: it lies on a network file system.
        StorageError: it cannot be opened.
    """
    _refuse_inherited(path)
    kind = file_system_of(path)
    if kind in _NETWORKED:
        message = (
            f"{path} lies on a network file system ({kind}), where SQLite's locks do not hold;"
            " use a local disk, or PostgreSQL for several machines"
        )
        raise UnsafeDatabase(message)
    make_private_file(path, mode)
    try:
        connection = sqlite3.connect(
            path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error as error:
        raise storage_error(error, path) from error
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a database of which nothing is changed; none is made.

    Raises:
        StateUnavailable: there is no such file.
        StorageError: it cannot be opened.
    """
    if not path.is_file():
        message = f"there is no file {path}; give the state that nodes host with"
        raise StateUnavailable(message)
    _refuse_inherited(path)
    try:
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro",
            timeout=BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
    except sqlite3.Error as error:
        raise storage_error(error, path) from error


def _refuse_inherited(path: Path) -> None:
    """Raise `StateUnavailable` if the process that this one was forked from had a file open."""
    if after_fork.inherited_database(path):
        remedy = "fork before it is opened"
        raise StateUnavailable(after_fork.refusal(f"the database {path}", remedy))


def file_system_of(path: Path) -> str:
    """Return the kind of file system a path lies on; empty where that cannot be told."""
    best, kind = "", ""
    with suppress(OSError):
        place = str(path.resolve())
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, rest = line.partition(" - ")
            point = fields.split()[4].encode().decode("unicode_escape")
            is_above = place == point or place.startswith(point.rstrip("/") + "/")
            if is_above and len(point) >= len(best):
                best, kind = point, rest.split()[0]
    return kind


def storage_error(error: sqlite3.Error, path: Path) -> StorageError:
    """Return an error of SQLite's as ours, with the file and the next step."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        holder = lock_holder(path) or "another process"
        return StateBusy(f"{path} is locked for writing by {holder} for {BUSY_TIMEOUT:g} s")
    if primary == sqlite3.SQLITE_FULL:
        return StateFull(f"no room for {path}: free space on its disk and repeat ({error})")
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT}:
        return StateCorrupt(f"{path}: {error}")
    return StateUnavailable(f"{path}: {error}")


def lock_holder(path: Path) -> str:
    """Return which process holds locks on a database, as text; empty where nobody knows."""
    with suppress(OSError):
        inode = str(Path(f"{path}-shm").stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if "WRITE" in fields and fields[-3].split(":")[-1] == inode:
                pid = fields[fields.index("WRITE") + 1]
                if pid != str(os.getpid()):
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    return f"process {pid} ({name})"
    return ""


class SharedFile:
    """One connection to a database, for one thread at a time."""

    def __init__(
        self, path: Path, opener: Callable[[Path], sqlite3.Connection] = connect
    ) -> None:
        """Open the database."""
        self.path, self._place = path, path.absolute()
        self.connection = opener(path)
        self._lock = locks.lock("lease register in SQLite", 563)
        self._places = FilePlaces()
        self._places.add(path)
        #: Whether a statement was executed.
        self._is_used = False
        after_fork.register(self, SharedFile._leave)
        #: Whether SQLite itself waits for other processes.
        self._waits = True
        #: The log that commits are appended to, where `sync` makes them durable.
        self._log = -1
        #: Whether a sync has failed: the system may take what was lost for written.
        self._is_doubtful = False

    def sync_late(self) -> None:
        """Let SQLite no longer sync each commit: who writes calls `sync` behind it.

        Before SQLite copies the log into the database it syncs both all the same, so the log
        holds all that may be lost.
        """
        self.connection.execute("PRAGMA synchronous=NORMAL")

    def run(self, work: Callable[[sqlite3.Connection], T], *, is_write: bool = False) -> T:
        """Call `work` with the connection; a write is one transaction that holds the lock.

        Raises:
            StateReplaced: the file, or its write-ahead log, was removed or replaced.
            StorageError: nothing was written.
        """
        with self._lock:
            connection = self.connection
            try:
                self._check_places()
                if not is_write:
                    self._let_wait(waits=True)
                    answer = work(connection)
                else:
                    self._begin()
                    answer = work(connection)
                    self._check_places()
                    connection.execute("COMMIT")
                if not self._is_used:
                    self._is_used = True
                    for ending in (
                        "-wal",
                        "-shm",
                    ):  # only a statement makes them, or finds them
                        self._places.add(f"{self.path}{ending}")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise storage_error(error, self.path) from error
                if isinstance(error, UnicodeEncodeError):  # lone surrogates
                    message = f"{self.path}: {error}"
                    raise ValueRefused(message) from error
                raise
            return answer

    def _check_places(self) -> None:
        """Raise `StateReplaced` if a file of the database is no longer at its path.

        SQLite removes the log and its index with the last connection only, and this one is
        open.
        """
        if path := self._places.misplaced():
            remedy = "put it back, and start the node again"
            raise StateReplaced(replaced(path, remedy))

    def _leave(self) -> None:
        """Refuse what this copy is asked in a forked process."""
        connection, log = self.connection, self._log
        gone: Any = after_fork.Refusing(
            StateUnavailable, f"the database {self.path}", "make a Node with another one here"
        )
        self.connection, self._log = gone, -1
        after_fork.drop(log)
        after_fork.leave_database(connection, self._place)

    def sync(self) -> None:
        """Make durable what any process has committed until now.

        The sync of `synchronous=FULL` takes most of the time of a commit, and the lock is held
        meanwhile. Behind the commit it keeps nobody from writing, and the syncs of several
        processes take place together.

        Raises:
            OutcomeUnknown: perhaps it is not durable.
        """
        try:
            if self._log < 0:
                self._log = self._open_log()
            if self._log >= 0:
                if self._is_doubtful:
                    self._empty_log()
                _sync(self._log)
        except OSError as error:
            self._is_doubtful = True
            message = f"{self.path}-wal could not be synced ({error}): recover what was written"
            raise OutcomeUnknown(message) from error

    def _open_log(self) -> int:
        """Return the log's descriptor, -1 where there is none; its name is durable then."""
        try:
            log = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # all was copied into the database, and synced
            return -1
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return log

    def _empty_log(self) -> None:
        """Copy the whole log into the database, which SQLite syncs.

        A sync that succeeds behind one that failed says nothing of what that one was to write,
        and behind a gap in the log nothing is found again. In memory the log is whole.

        Raises:
            OSError: it could not be copied.
        """
        with self._lock:
            try:
                sql = "PRAGMA wal_checkpoint(RESTART)"
                busy, size, copied = self.connection.execute(sql).fetchone()
            except sqlite3.Error as error:
                raise OSError(str(error)) from error
        if busy or size != copied:
            message = "an earlier sync failed, and the log cannot be copied just now"
            raise OSError(message)
        self._is_doubtful = False

    def _begin(self) -> None:
        """Begin to write, soon after no other process does.

        SQLite itself looks for the lock after 1, 2, 5, 10 and up to 100 ms. Processes that
        write one transaction after the other would take it all that time, and all that waits
        for the commits of this one would wait with it.
        """
        execute, last = self.connection.execute, time.monotonic() + BUSY_TIMEOUT
        self._let_wait(waits=False)
        while True:
            try:
                execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() >= last:
                    raise
                time.sleep(_LOOK)
            else:
                return

    def _let_wait(self, *, waits: bool) -> None:
        """Let SQLite wait, or not; who only writes, or only reads, says so once."""
        if waits is not self._waits:
            seconds = BUSY_TIMEOUT if waits else 0
            self.connection.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")
            self._waits = waits

    def close(self) -> None:
        """Close the connection."""
        if after_fork.is_copy(self):
            return
        with self._lock:
            self.connection.close()
            if self._log >= 0:
                os.close(self._log)
                self._log = -1


class Lives:
    """The lives of the processes at a database: a folder with a locked file for each."""

    def __init__(self, folder: Path, writer: str, mode: int | None = None) -> None:
        """Begin a life: its file is locked before it has its name; `mode` is of the folder."""
        make_folder(folder, mode)
        self._folder = folder
        self._own = folder / writer
        new = folder / f".{writer}.{os.getpid()}"
        self._descriptor = os.open(new, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        new.rename(self._own)
        self._places = FilePlaces()
        self._places.add(self._own)
        after_fork.register(self, after_fork.drop)

    def fileno(self) -> int:
        """Return the descriptor of the locked file; -1 after `close`."""
        return self._descriptor

    def check(self) -> None:
        """Raise if the file is gone: the others would take this process for dead.

        Raises:
            StateReplaced: it was removed or replaced.
        """
        if path := self._places.misplaced():
            raise StateReplaced(replaced(path, "start the node again"))

    def is_gone(self, writer: str) -> bool:
        """Return whether a life has ended for certain."""
        path = self._folder / writer
        if path == self._own:
            return False
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        path.unlink(missing_ok=True)
        return True

    def close(self) -> None:
        """End the life."""
        if after_fork.is_copy(self):
            return
        self._own.unlink(missing_ok=True)
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


class SqliteLeases:
    """A register in a file, for the processes of one machine."""

    def __init__(
        self, path: Path, writer: str, life: Lives | None = None, mode: int | None = None
    ) -> None:
        """Open the register, and begin the life of a writer unless that was begun.

        `mode` is that of a new file; those who may use it may also find lives.
        """
        self._file = SharedFile(path, partial(connect, mode=mode))
        self._file.run(lambda connection: connection.execute(_LEASES), is_write=True)
        self._writer, self._is_first = writer, life is None
        if life is None:
            life = Lives(Path(f"{path}-lives"), writer, folder_mode(mode))
        self._lives = life

    def read(self, name: str) -> Versioned:
        """Return the value of a name and its version."""
        sql = "SELECT writer, number, text, version FROM callboard_leases WHERE name = ?"
        row = self._file.run(lambda connection: connection.execute(sql, (name,)).fetchone())
        return (LeaseValue(*row[:3]), row[3]) if row else (None, 0)

    def write(self, name: str, value: LeaseValue, expected_version: int) -> bool:
        """Replace a value if its version is the expected one; return whether it was."""
        self._lives.check()

        def work(connection: sqlite3.Connection) -> bool:
            if not expected_version:
                sql = (
                    "INSERT INTO callboard_leases VALUES (?, ?, ?, ?, 1) ON CONFLICT DO NOTHING"
                )
                return connection.execute(sql, (name, *value)).rowcount == 1
            sql = (
                "UPDATE callboard_leases SET writer = ?, number = ?, text = ?,"
                " version = version + 1 WHERE name = ? AND version = ?"
            )
            changed = connection.execute(sql, (*value, name, expected_version))
            return changed.rowcount == 1

        return self._file.run(work, is_write=True)

    def is_gone(self, writer: str) -> bool:
        """Return whether a writer's process has ended for certain."""
        return self._lives.is_gone(writer)

    def again(self) -> "SqliteLeases":
        """Return the register by a connection of its own, in the same life."""
        return SqliteLeases(self._file.path, self._writer, self._lives)

    def close(self) -> None:
        """Close the file, and end the life of the writer if it began here."""
        if self._is_first:
            self._lives.close()
        self._file.close()
