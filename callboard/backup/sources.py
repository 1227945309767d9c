"""The files that a backup copies: logs, states of entities, stores.

A source is held, pinned, released and copied, in this order:

- `hold` waits until nothing is being written to it, and keeps it so;
- `pin` decides which data is copied. All sources are pinned while all are held, so the pinned
  data of all of them is that of one moment;
- `release` lets its owner write again. A log and a state are released before they are copied;
- `copy` copies the pinned data, and `close` ends the backup of this source.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from callboard.backup.copying import copy_file, sum_file
from callboard.backup.errors import BackupError
from callboard.backup.manifest import ENTITIES, LOG, STORE, CopiedFile, Part
from callboard.commitlog import CommitLog, LogError
from callboard.commitlog.disk import RealDisk, read_plain
from callboard.commitlog.errors import LogLocked
from callboard.commitlog.folder import (
    COLUMNS,
    CUT,
    EPOCHS,
    FIELDS,
    IDENTITY,
    INDEX,
    MARKS,
    PUBLISHED,
    SEGMENT,
    FileLock,
    Folder,
    Mark,
    Marks,
    file_name,
    lock_writing,
    read_mark,
)
from callboard.commitlog.segment import LogSegmentTable
from callboard.commitlog.writer import LogExtent, Writer
from callboard.entity.state import copies
from callboard.lease.sqlite import SharedFile, connect_to_read
from callboard.store.backend import sqlite as store_sqlite
from callboard.store.backend.sqlite import SqliteBackend
from callboard.support.database.sqlite_file import (
    SqliteFile,
    copy_database,
    open_read_only,
)
from callboard.support.files.private_file import make_folder, open_private

#: Seconds that one attempt waits for a writer; shorter than a second, so that two
#: backups that hold sources in different orders do not wait for each other for long.
HOLD_SECONDS: Final = 0.9

#: The folder of the places of named readers in a log.
_READERS: Final = "readers"
_PLACE: Final = ".place"


class BackupSource(Protocol):
    """A log or database that is backed up."""

    @property
    def place(self) -> Path:
        """Its path."""

    def hold(self) -> bool:
        """Stop all writes; return False if a writer does not stop in time."""

    def pin(self) -> None:
        """Decide which data is copied; while it is held."""

    def release(self) -> None:
        """Resume writes, unless the copy needs the hold."""

    def copy(self, folder: Path, name: str) -> Part:
        """Copy the pinned data to `folder/name`."""

    def close(self) -> None:
        """End the backup of this source, after `hold` or any later step."""


class LogSource:
    """A log that this process writes."""

    def __init__(self, folder: str, writer: Writer) -> None:
        """Refer to an open log."""
        self.place = Path(folder)
        self._writer = writer
        self._extent: LogExtent | None = None
        self._small_files: list[tuple[str, bytes]] = []
        self._is_held = False

    @classmethod
    def of(cls, log: CommitLog) -> "LogSource":
        """Return the source for an open log."""
        return cls(log.folder, log.writer)

    def hold(self) -> bool:
        """Wait for the writer's locks."""
        self._is_held = self._writer.hold(HOLD_SECONDS)
        return self._is_held

    def pin(self) -> None:
        """Keep all segments, and read the identity and the places of named readers.

        A place that is read later could be beyond the pinned records, and its reader would
        skip the records that are appended after a restore.
        """
        self._extent = self._writer.pin()
        self._small_files = _small_files_in(self.place)

    def release(self) -> None:
        """Release the writer."""
        if self._is_held:
            self._is_held = False
            self._writer.resume()

    def copy(self, folder: Path, name: str) -> Part:
        """Copy the segments up to the pinned end."""
        assert self._extent is not None
        return copy_log(self.place, self._extent, self._small_files, folder, name)

    def close(self) -> None:
        """Release the writer, and let segments expire again."""
        self.release()
        if self._extent is not None:
            self._extent = None
            self._writer.unpin()


class IdleLogSource:
    """A log that no process writes; its writer's lock is held until it is copied."""

    def __init__(self, place: Path) -> None:
        """Refer to the folder of a log."""
        self.place = place
        self._lock: FileLock | None = None
        self._extent = LogExtent([], 0, 0)

    def hold(self) -> bool:
        """Acquire the writer's lock.

        Raises:
            BackupError: a process writes the log; the text names it.
        """
        try:
            self._lock = lock_writing(str(self.place))
        except LogLocked as error:
            writer = str(error).partition(";")[0]
            message = f"{writer}; give the address of its node instead of the folder"
            raise BackupError(message) from error
        return True

    def pin(self) -> None:
        """Find the end of the log.

        Raises:
            BackupError: durable records at its end are damaged.
        """
        folder = Folder(RealDisk("/"), str(self.place))
        infos = LogSegmentTable(folder).infos()
        last = infos[-1]
        if last.bytes < read_mark(folder, last.base).size:
            message = (
                f"the end of the log {self.place} is damaged; see it with:"
                f" callboard log verify {self.place}"
            )
            raise BackupError(message)
        self._extent = LogExtent([info.base for info in infos], last.bytes, last.end)

    def release(self) -> None:
        """Do nothing: no process writes here."""

    def copy(self, folder: Path, name: str) -> Part:
        """Copy the segments."""
        return copy_log(self.place, self._extent, _small_files_in(self.place), folder, name)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class StateSource:
    """The entities of a SQLite file, which any process of this machine may be writing."""

    def __init__(self, place: Path) -> None:
        """Refer to the file of a state."""
        self.place = place
        self._gate: SharedFile | None = None
        self._view: SharedFile | None = None

    def hold(self) -> bool:
        """Acquire SQLite's lock for writing.

        Raises:
            StorageError: the file cannot be opened.
        """
        self._view = SharedFile(self.place, connect_to_read)
        self._gate = SharedFile(self.place)
        try:
            self._gate.begin()
        except sqlite3.OperationalError:  # another process has written for two seconds
            return False
        return True

    def pin(self) -> None:
        """Start a transaction that reads the present state until it ends."""
        assert self._view is not None
        self._view.connection.execute("BEGIN")
        self._view.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def release(self) -> None:
        """Release the lock; readers of SQLite do not delay writers."""
        if self._gate is not None:
            self._gate.roll_back()

    def copy(self, folder: Path, name: str) -> Part:
        """Copy the database, as its reading transaction sees it."""
        assert self._view is not None
        return _copy_file_of(self._view, ENTITIES, copies.facts_of, folder, name)

    def close(self) -> None:
        """Close both connections."""
        self.release()
        for file in (self._gate, self._view):
            if file is not None:
                file.close()
        self._gate = self._view = None


class StoreSource:
    """The file of a store whose master is in this process, which alone has the file open."""

    def __init__(self, backend: SqliteBackend) -> None:
        """Refer to an open backend."""
        self.place = Path(backend.options.path).absolute()
        self._backend = backend
        self._is_held = False

    def hold(self) -> bool:
        """Wait for the thread that writes."""
        self._is_held = self._backend.hold(HOLD_SECONDS)
        return self._is_held

    def pin(self) -> None:
        """Do nothing: the store stays held until it is copied."""

    def release(self) -> None:
        """Do nothing: see `pin`."""

    def copy(self, folder: Path, name: str) -> Part:
        """Copy the database, and release it."""
        target = _target(folder, name)
        self._backend.copy_to(target)
        self.close()
        return _part_of(target, STORE, name, store_sqlite.facts_of)

    def close(self) -> None:
        """Release the backend."""
        if self._is_held:
            self._is_held = False
            self._backend.resume()


class IdleStoreSource:
    """The file of a store without a master."""

    def __init__(self, place: Path) -> None:
        """Refer to the file of a store."""
        self.place = place
        self._file: SqliteFile | None = None

    def hold(self) -> bool:
        """Open the file, and begin to read it.

        Raises:
            BackupError: the master of the store has the file open.
        """
        remedy = "put it back"
        connection = open_read_only(self.place, HOLD_SECONDS)
        self._file = SqliteFile(self.place, connection, BackupError, remedy)
        try:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            message = (
                f"{self.place} cannot be read ({error}); if a node has this store, give the"
                " address of the node instead of the folder"
            )
            raise BackupError(message) from error
        return True

    def pin(self) -> None:
        """Do nothing: the transaction has begun."""

    def release(self) -> None:
        """Do nothing: no process writes here."""

    def copy(self, folder: Path, name: str) -> Part:
        """Copy the database."""
        assert self._file is not None
        return _copy_file_of(self._file, STORE, store_sqlite.facts_of, folder, name)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


Facts = Callable[[sqlite3.Connection], dict[str, Any]]


def _copy_file_of(file: SqliteFile, kind: str, facts: Facts, folder: Path, name: str) -> Part:
    """Copy the database of a connection to `folder/name`."""
    target = _target(folder, name)
    copy_database(file.connection, target)
    return _part_of(target, kind, name, facts)


def _part_of(target: Path, kind: str, name: str, facts: Facts) -> Part:
    """Return the part for a copied database."""
    with closing(open_read_only(target, 0)) as connection:
        row = facts(connection)
    return Part(kind, name, row, [sum_file(target, "")])


def _target(folder: Path, name: str) -> Path:
    """Return the path of a copy, in an existing folder."""
    target = folder / name
    make_folder(target.parent)
    return target


def copy_log(
    place: Path,
    extent: LogExtent,
    small_files: list[tuple[str, bytes]],
    folder: Path,
    name: str,
) -> Part:
    """Copy a log up to an extent, with files that were read at the cut."""
    target = folder / name
    make_folder(target)
    files: list[CopiedFile] = []
    last = extent.bases[-1]
    for base in extent.bases:
        size = extent.size if base == last else None
        segment = file_name(base)
        files.append(copy_file(place / segment, target / segment, segment, size))
        endings = (CUT, PUBLISHED) if base == last else (INDEX, COLUMNS, CUT, PUBLISHED)
        for kind in endings:
            with suppress(FileNotFoundError):
                path_name = file_name(base, kind)
                files.append(copy_file(place / path_name, target / path_name, path_name))
    with suppress(FileNotFoundError):
        files.append(copy_file(place / FIELDS, target / FIELDS, FIELDS))
    with closing(Marks(Folder(RealDisk("/"), str(target)))) as marks:
        marks.add(Mark(last, extent.size, extent.end))
    files.append(sum_file(target / MARKS, MARKS))
    for path_name, data in small_files:
        path = target / path_name
        make_folder(path.parent)
        with open(path, "wb", opener=open_private) as file:
            file.write(data)
        files.append(sum_file(path, path_name))
    return Part(LOG, name, {"start": extent.bases[0], "end": extent.end}, files)


def _small_files_in(place: Path) -> list[tuple[str, bytes]]:
    """Return the files of the identity of a log, and of the places of its named readers."""
    files: list[tuple[str, bytes]] = []
    for path in [
        place / IDENTITY,
        place / EPOCHS,
        *sorted((place / _READERS).glob(f"*{_PLACE}")),
    ]:
        with suppress(FileNotFoundError):
            files.append((str(path.relative_to(place)), read_plain(path)))
    return files


def is_log(place: Path) -> bool:
    """Return whether a folder holds a log."""
    with suppress(LogError, OSError):
        return any(path.suffix == SEGMENT for path in place.iterdir()) and bool(
            Folder(RealDisk("/"), str(place)).log_bases()
        )
    return False
