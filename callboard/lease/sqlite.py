"""SQLite files shared by several processes of one machine, and leases in such a file.

Leases have a separate file beside the state, so that renewing one never waits for a commit.
Each life of a process holds an exclusive `flock` on its own file. The system releases the lock
when the process ends, for whatever reason. A process that acquires the lock has proof of that.
"""

import fcntl
import os
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from callboard import locks
from callboard.backoff import Backoff, retrying
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
from callboard.lease.leases import LeaseValue, Versioned
from callboard.support import after_fork
from callboard.support.database.sqlite_file import (
    Problem,
    SqliteFile,
    open_file,
    open_read_only,
    problem_of,
)
from callboard.support.files.file_place import FilePlaces, replaced
from callboard.support.files.private_file import folder_mode, make_folder
from callboard.support.platform import system

T = TypeVar("T")

#: Seconds that a call waits for the write lock of another process.
BUSY_TIMEOUT: Final = 2.0

#: Seconds between attempts to acquire that lock.
_RETRY: Final = 0.0005

#: Syncs the contents of a file; `fdatasync` does not exist on every system.
_sync: Final[Callable[[int], None]] = getattr(os, "fdatasync", os.fsync)

#: File systems on which SQLite's locks or memory maps do not work between machines.
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
    """Open a database in WAL mode, with durable commits; a new file gets `mode`.

    Raises:
        UnsafeDatabase: the file is on a network file system.
        StorageError: the database cannot be opened.
    """
    _refuse_inherited(path)
    kind = system.file_system_of(str(path.resolve()))
    if kind in _NETWORKED:
        message = (
            f"{path} is on a network file system ({kind}), where SQLite's locks do not work;"
            " use a local disk, or PostgreSQL for several machines"
        )
        raise UnsafeDatabase(message)
    try:
        connection = open_file(path, BUSY_TIMEOUT, mode)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
    except sqlite3.Error as error:
        raise storage_error(error, path) from error
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open an existing database read-only.

    Raises:
        StateUnavailable: the file does not exist.
        StorageError: the database cannot be opened.
    """
    if not path.is_file():
        message = f"there is no file {path}; pass the state that the nodes use"
        raise StateUnavailable(message)
    _refuse_inherited(path)
    try:
        return open_read_only(path, BUSY_TIMEOUT)
    except sqlite3.Error as error:
        raise storage_error(error, path) from error


def _refuse_inherited(path: Path) -> None:
    """Raise `StateUnavailable` if the parent of this forked process had the file open."""
    if after_fork.inherited_database(path):
        remedy = "fork before it is opened"
        raise StateUnavailable(after_fork.refusal(f"the database {path}", remedy))


def storage_error(error: sqlite3.Error, path: Path) -> StorageError:
    """Convert an error from SQLite; the text names the file and a remedy."""
    problem = problem_of(error)
    if problem is Problem.BUSY:
        holder = lock_holder(path) or "another process"
        return StateBusy(
            f"{path} has been locked for writing by {holder} for {BUSY_TIMEOUT:g} s"
        )
    if problem is Problem.FULL:
        return StateFull(f"the disk of {path} is full: free space and retry ({error})")
    if problem in (Problem.DAMAGED, Problem.CONFLICT):
        return StateCorrupt(f"{path}: {error}")
    return StateUnavailable(f"{path}: {error}")


def lock_holder(path: Path) -> str:
    """Describe the process that holds the lock of a database; empty if it is unknown."""
    try:
        holder = system.lock_holder(Path(f"{path}-shm").stat().st_ino)
    except OSError:
        return ""
    return "" if holder is None else "process {} ({})".format(*holder)


class SharedFile(SqliteFile):
    """A file that several processes write, used by one thread of this process at a time."""

    def __init__(
        self, path: Path, opener: Callable[[Path], sqlite3.Connection] = connect
    ) -> None:
        """Open the database."""
        remedy = "put it back, and start the node again"
        super().__init__(path, opener(path), StateReplaced, remedy)
        self.path = path
        self._lock = locks.lock("lease register in SQLite", 563)
        #: Whether a statement has been executed.
        self._is_used = False
        after_fork.register(self, SharedFile._drop_copy)
        #: Whether SQLite waits for locks of other processes; else `begin` waits for them.
        self._waits = True
        #: Descriptor of the write-ahead log, opened by the first `sync`; -1 before.
        self._log = -1
        #: Whether a sync has failed: the system may have dropped data and yet report it as
        #: written at the next sync.
        self._is_doubtful = False

    def sync_late(self) -> None:
        """Stop SQLite from syncing each commit; writers call `sync` afterwards.

        SQLite still syncs the log before it copies it into the database, and the database
        before it reuses the log, so only commits in the log can be lost.
        """
        self.connection.execute("PRAGMA synchronous=NORMAL")

    def run(self, work: Callable[[sqlite3.Connection], T], *, is_write: bool = False) -> T:
        """Call `work` with the connection; a write runs in one transaction with the lock.

        Raises:
            StateReplaced: the file, or its write-ahead log, was removed or replaced.
            StorageError: nothing was written.
        """
        with self._lock:
            try:
                self.check()
                if is_write:
                    answer = self.transaction(work)
                else:
                    self._set_waiting(waits=True)
                    answer = work(self.connection)
            except sqlite3.Error as error:
                raise storage_error(error, self.path) from error
            except UnicodeEncodeError as error:  # lone surrogates
                message = f"{self.path}: {error}"
                raise ValueRefused(message) from error
            if not self._is_used:
                self._is_used = True
                self.watch("-wal", "-shm")  # created or opened by the first statement
            return answer

    def _drop_copy(self) -> None:
        """In a forked process, replace the inherited connection by one that refuses calls."""
        log, self._log = self._log, -1
        after_fork.drop(log)
        remedy = "create a Node with another one here"
        self.leave(after_fork.Refusing(StateUnavailable, f"the database {self.path}", remedy))

    def sync(self) -> None:
        """Make durable all commits of any process so far.

        With `synchronous=FULL`, syncing takes most of the time of a commit, while the write
        lock is held. A sync after the commit does not block other writers, and the
        syncs of several processes run at the same time.

        Raises:
            OutcomeUnknown: the commits may be durable or not.
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
        """Open the log and make its name durable; return -1 if it does not exist."""
        try:
            log = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # all commits were copied into the database and synced
            return -1
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return log

    def _empty_log(self) -> None:
        """Copy the whole log into the database, which SQLite syncs.

        After a failed sync, a successful one does not mean that the earlier data was written,
        and recovery ends at the first gap in the log. The system's cache still has the whole
        log, so copying it saves all commits.

        Raises:
            OSError: the log could not be copied.
        """
        with self._lock:
            try:
                sql = "PRAGMA wal_checkpoint(RESTART)"
                busy, size, copied = self.connection.execute(sql).fetchone()
            except sqlite3.Error as error:
                raise OSError(str(error)) from error
        if busy or size != copied:
            message = "an earlier sync failed, and the log cannot be copied at the moment"
            raise OSError(message)
        self._is_doubtful = False

    def begin(self) -> None:
        """Start a write transaction as soon as the lock is free.

        SQLite retries after 1, 2, 5, 10 and up to 100 ms. Between two attempts, processes that
        write without pause would get the lock each time, and everything that waits for
        a commit of this process would be delayed. Therefore this retries every `_RETRY`.
        """
        execute, failure = self.connection.execute, sqlite3.OperationalError()
        self._set_waiting(waits=False)
        for _ in retrying(Backoff.fixed(_RETRY), BUSY_TIMEOUT):
            try:
                execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if problem_of(error) is not Problem.BUSY:
                    raise
                failure = error
            else:
                return
        raise failure

    def _set_waiting(self, *, waits: bool) -> None:
        """Set whether SQLite waits for locks; do nothing if that does not change."""
        if waits is not self._waits:
            seconds = BUSY_TIMEOUT if waits else 0
            self.connection.execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")
            self._waits = waits

    def close(self) -> None:
        """Close the connection."""
        if after_fork.is_copy(self):
            return
        with self._lock:
            super().close()
            if self._log >= 0:
                os.close(self._log)
                self._log = -1


class Lives:
    """The lives of all processes that use a database: a folder with a locked file for each."""

    def __init__(self, folder: Path, writer: str, mode: int | None = None) -> None:
        """Start a life; a new folder gets `mode`.

        The file is locked before it gets its name, so the life never looks dead.
        """
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
        """Check that the file is in place; else other processes would treat this one as dead.

        Raises:
            StateReplaced: the file was removed or replaced.
        """
        if path := self._places.misplaced():
            raise StateReplaced(replaced(path, "start the node again"))

    def is_gone(self, writer: str) -> bool:
        """Return whether a life has certainly ended."""
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
        """Open the register; start the life of the writer unless `life` is given.

        A new file gets `mode`; processes that may use it can also read the folder of lives.
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
        """Replace a value if it has the expected version; return whether it was replaced."""
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
        """Return whether a writer's process has certainly ended."""
        return self._lives.is_gone(writer)

    def again(self) -> "SqliteLeases":
        """Return the register with a new connection, for the same life."""
        return SqliteLeases(self._file.path, self._writer, self._lives)

    def close(self) -> None:
        """Close the file, and end the life of the writer if this object started it."""
        if self._is_first:
            self._lives.close()
        self._file.close()
