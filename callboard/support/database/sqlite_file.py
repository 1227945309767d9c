"""Files of SQLite: opening, kinds of errors, transactions, and files that were replaced.

A store has its file alone. The processes of a machine share the files of entities and leases,
so these wait for each other's locks (`callboard.lease.sqlite`).
"""

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final, TypeVar

from callboard.support import after_fork
from callboard.support.files.file_place import FilePlaces, replaced
from callboard.support.files.private_file import make_private_file

T = TypeVar("T")


class Problem(Enum):
    """Kinds of errors of SQLite."""

    #: Another connection holds a lock; a later attempt may succeed.
    BUSY = auto()
    #: The disk is full; nothing is damaged.
    FULL = auto()
    #: The contents are damaged, or are those of another program.
    DAMAGED = auto()
    #: A row contradicts another one.
    CONFLICT = auto()
    #: The system does not open, read or write the file.
    UNREACHABLE = auto()
    #: Any other error, such as a missing table.
    OTHER = auto()


_PROBLEMS: Final = {
    sqlite3.SQLITE_BUSY: Problem.BUSY,
    sqlite3.SQLITE_LOCKED: Problem.BUSY,
    sqlite3.SQLITE_FULL: Problem.FULL,
    sqlite3.SQLITE_CORRUPT: Problem.DAMAGED,
    sqlite3.SQLITE_NOTADB: Problem.DAMAGED,
    sqlite3.SQLITE_CONSTRAINT: Problem.CONFLICT,
    sqlite3.SQLITE_CANTOPEN: Problem.UNREACHABLE,
    sqlite3.SQLITE_IOERR: Problem.UNREACHABLE,
    sqlite3.SQLITE_PERM: Problem.UNREACHABLE,
    sqlite3.SQLITE_READONLY: Problem.UNREACHABLE,
}


def problem_of(error: BaseException) -> Problem:
    """Return the kind of an error; extended codes, such as busy during recovery, are known."""
    code = getattr(error, "sqlite_errorcode", None)
    return Problem.OTHER if code is None else _PROBLEMS.get(code & 0xFF, Problem.OTHER)


def open_file(path: str | Path, seconds: float, mode: int | None = None) -> sqlite3.Connection:
    """Open or create a database for the threads of its owner; transactions begin explicitly.

    Args:
        path: path of the file.
        seconds: longest wait for a lock of another process.
        mode: permissions of a new file; private by default.
    """
    if not str(path).startswith((":", "file:")):  # these are not paths
        make_private_file(path, mode)
    return sqlite3.connect(path, timeout=seconds, isolation_level=None, check_same_thread=False)


def open_read_only(path: Path, seconds: float) -> sqlite3.Connection:
    """Open an existing database for reading only; see `open_file`."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        timeout=seconds,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )


def copy_database(connection: sqlite3.Connection, path: Path) -> None:
    """Copy the database of a connection into a new file, durably.

    The copy has the state of the transaction that the connection has open. It is one file
    without a write-ahead log.

    Raises:
        sqlite3.Error: the database cannot be read, or the copy cannot be written.
    """
    copy = open_file(path, 0)
    try:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()


class SqliteFile:
    """An open file, used by one thread at a time."""

    def __init__(
        self,
        path: str | Path,
        connection: sqlite3.Connection,
        misplaced: Callable[[str], Exception],
        remedy: str,
    ) -> None:
        """Watch the place of a file.

        Args:
            path: path of the file.
            connection: the connection, closed by `close`.
            misplaced: returns the error for a file that was removed or replaced, by its text.
            remedy: advice for this case.
        """
        self.connection = connection
        self._place = Path(path).absolute()
        self._misplaced, self._remedy = misplaced, remedy
        self._places = FilePlaces()
        self._places.add(path)

    def watch(self, *endings: str) -> None:
        """Watch more files of the database, which must exist by now; ignore missing ones."""
        for ending in endings:
            self._places.add(f"{self._place}{ending}")

    def check(self) -> None:
        """Raise an error if a file of the database is no longer at its path.

        SQLite removes the log and its index only with the last connection, and this one is
        open, so something else removed a missing one.
        """
        if path := self._places.misplaced():
            error = self._misplaced(replaced(path, self._remedy))
            raise error

    def transaction(
        self,
        work: Callable[[sqlite3.Connection], T],
        begin: Callable[[], object] | None = None,
    ) -> T:
        """Call `work` with the connection in a transaction, and commit it.

        The transaction is rolled back if anything fails, or if a file was replaced: its commit
        would be acknowledged, and lost.

        Args:
            work: reads and writes; its result is returned after the commit.
            begin: starts the transaction; by default the method of this name.
        """
        connection = self.connection
        try:
            (begin or self.begin)()
            answer = work(connection)
            self.check()
            connection.execute("COMMIT")
        except BaseException:
            self.roll_back()
            raise
        return answer

    def begin(self) -> None:
        """Start a transaction with the only lock for writing."""
        self.connection.execute("BEGIN IMMEDIATE")

    def begin_alone(self) -> None:
        """Start a transaction during which no other process may even read the file.

        With `locking_mode = EXCLUSIVE` that lock is kept until the file is closed.
        """
        self.connection.execute("BEGIN EXCLUSIVE")

    def roll_back(self) -> None:
        """End an open transaction without effect."""
        with suppress(sqlite3.Error):
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def leave(self, substitute: Any) -> None:
        """Drop the file in a forked process; later calls get another connection."""
        connection, self.connection = self.connection, substitute
        after_fork.leave_database(connection, self._place)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
