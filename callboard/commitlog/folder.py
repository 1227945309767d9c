"""The files of a log: names, small files, marks of durable data, and the writer's lock.

A log has one writer at a time. The system releases the lock when the writer's process ends.
"""

import fcntl
import json
import logging
import os
import re
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from callboard.backoff import Backoff, retrying
from callboard.commitlog.disk import Disk, DiskFile, open_plain, read_through
from callboard.commitlog.errors import LogFailed, LogLocked
from callboard.support import after_fork
from callboard.support.files.file_place import identity_of, is_at
from callboard.support.files.private_file import lock_mode_in

SEGMENT: Final = ".log"
INDEX: Final = ".index"
CUT: Final = ".cut"
COLUMNS: Final = ".parquet"
MARKS: Final = "synced"
#: The fields that a log declares; see `fields.declared`.
FIELDS: Final = "fields"
#: A note beside a segment that was published as a unit; see `pipeline.spark.journal`.
PUBLISHED: Final = ".published"
#: The id of the log, and its epochs; see `identity.identity`.
IDENTITY: Final = "identity"
EPOCHS: Final = "epochs"
LOCK: Final = "lock"
TEMPORARY: Final = ".tmp"
#: The largest offset that indexes and batches can store.
LAST_OFFSET: Final = 2**63 - 1
_DIGITS: Final = 20
#: Names of log files that remote readers may read, and valid names of served logs.
SERVED: Final = re.compile(r"[0-9]{20}\.(?:log|index|published)|synced|fields|identity|epochs")
SERVED_NAME: Final = re.compile(r"[\w.+@=-]+", re.ASCII)
_COPY: Final = 1 << 20
#: Limit in bytes of a file that is read as a whole; only segments are larger.
_LARGEST: Final = 64 << 20
_MARK: Final = struct.Struct("<QQQI")
_FACTS: Final = struct.Struct("<QQQ")
_MAX_FILE: Final = 4096


_log = logging.getLogger("callboard.commitlog")


class Folder:
    """A folder on a disk."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Refer to a folder, which need not exist."""
        self.disk = disk
        self.path = path

    def file(self, name: str) -> str:
        """Return the path of a file in the folder."""
        return f"{self.path}/{name}"

    def segment(self, base: int, kind: str = SEGMENT) -> str:
        """Return the path of a segment, or of a file beside it, by its first offset."""
        return self.file(file_name(base, kind))

    def bases(self, kind: str = SEGMENT) -> list[int]:
        """Return the first offsets of all segments, or of files beside them, in order.

        Raises:
            FileNotFoundError: the folder does not exist.
        """
        return [
            int(name.removesuffix(kind))
            for name in self.disk.listdir(self.path)
            if name.endswith(kind) and is_base(name.removesuffix(kind))
        ]

    def log_bases(self) -> list[int]:
        """Return the first offsets of all segments of a log; at least one.

        Raises:
            LogFailed: the folder does not hold a log.
        """
        try:
            if bases := self.bases():
                return bases
        except LogFailed:  # from a server or an object store
            raise
        except OSError:
            pass
        msg = f"there is no log in {self.path}; create one with CommitLog(folder)"
        if end := read_mark(self).end:
            msg = (
                f"the segments of the log in {self.path} are missing: {end} records were"
                " durable; put them back, or continue after them with CommitLog(folder)"
            )
        raise LogFailed(msg)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn `OSError` of a reader into `LogFailed`."""
        try:
            yield
        except OSError as error:
            if isinstance(error, LogFailed):
                raise
            msg = f"{self.path} cannot be read: {error.strerror or error}; check its disk"
            raise LogFailed(msg) from error

    def make(self) -> None:
        """Create the folder and its parents if they are missing."""
        for path in self._line():
            try:
                self.disk.listdir(path)
            except FileNotFoundError:
                with suppress(FileExistsError):  # another process created it just now
                    self.disk.mkdir(path)

    def sync(self) -> None:
        """Make the names in the folder durable."""
        self.disk.sync_folder(self.path)

    def sync_above(self) -> None:
        """Make the names of the folder and its parents durable."""
        for path in self._line():
            with suppress(PermissionError):  # then this process did not create it
                self.disk.sync_folder(path.rpartition("/")[0] or "/")

    def _line(self) -> list[str]:
        """Return the paths of the folder and all its parents, from the top."""
        names = [name for name in self.path.split("/") if name]
        return ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]

    def read(self, path: str) -> bytes:
        """Return the contents of a file; empty if it is missing or too large to be ours."""
        try:
            with closing(self.disk.open(path)) as file:
                size = file.size()
                return read_through(file, size, 0) if size <= _LARGEST else b""
        except FileNotFoundError:
            return b""

    def write(self, path: str, data: bytes, *, durably: bool = True) -> None:
        """Write a file, replacing its contents."""
        with closing(self.disk.open(path, append=True)) as file:
            file.truncate(0)
            write_all(file, data)
            if durably:
                file.fsync()

    def replace(self, path: str, data: bytes, *, unique: str = "") -> None:
        """Write a file durably and atomically.

        Args:
            path: Path of the file.
            data: The whole contents.
            unique: Suffix of the temporary file, unique among processes that may write the
                file at the same time.
        """
        temporary = f"{path}{unique}{TEMPORARY}"
        self.write(temporary, data)
        self.disk.rename(temporary, path)
        self.sync()

    def rewrite(self, path: str, size: int) -> None:
        """Replace a file by a copy of its first bytes, durably and atomically."""
        with (
            closing(self.disk.open(path)) as source,
            closing(self.disk.open(path + TEMPORARY, append=True)) as copy,
        ):
            copy_bytes(source, copy, 0, size)
        self.disk.rename(path + TEMPORARY, path)
        self.sync()

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        with suppress(FileNotFoundError):
            self.disk.unlink(path)


def file_name(base: int, kind: str = SEGMENT) -> str:
    """Return the name of a segment, or of a file beside it."""
    return f"{base:0{_DIGITS}}{kind}"


def is_base(digits: str) -> bool:
    """Return whether a file name is an offset in the form that logs write."""
    is_number = len(digits) == _DIGITS and digits.isascii() and digits.isdecimal()
    return is_number and int(digits) <= LAST_OFFSET


def offset_in(text: str) -> int | None:
    """Parse an offset from an untrusted text; return None if it is malformed."""
    is_number = len(text) <= _DIGITS and text.isascii() and text.isdecimal()
    return int(text) if is_number and int(text) <= LAST_OFFSET else None


class Sink(Protocol):
    """A writable object that may write only part of the data."""

    def write(self, data: bytes, /) -> int:
        """Write data; return the number of bytes written."""


def write_all(file: Sink, data: bytes) -> None:
    """Write all of `data`, with as many calls as needed."""
    count = file.write(data)
    while count < len(data):
        count += file.write(data[count:])


class Mark(NamedTuple):
    """A segment, the number of its durable bytes, and the first offset after them."""

    base: int
    size: int
    end: int


class Marks:
    """The file of marks, open for writing.

    A mark records which data is durable; one is written after each sync. A mark never becomes
    false, so marks are not synced: if the last ones are lost, an older one claims less. A mark
    has 28 bytes: base of the segment, durable bytes, end offset (8 each), and their CRC-32.
    """

    def __init__(self, folder: Folder) -> None:
        """Open the file."""
        self._file: DiskFile = folder.disk.open(folder.file(MARKS), append=True)
        self._size = self._file.size()
        self.last: Mark | None = None

    def add(self, mark: Mark) -> None:
        """Write a mark; if the disk fails, log it and rely on older marks, which claim less."""
        facts = _FACTS.pack(*mark)
        self.last = mark
        try:
            if self._size + _MARK.size > _MAX_FILE or self._size % _MARK.size:
                self._file.truncate(0)
                self._size = 0
            write_all(self._file, facts + struct.pack("<I", crc32(facts)))
            self._size += _MARK.size
        except OSError as error:
            self._size = -1  # a partial mark may remain: the next `add` starts the file anew
            _log.warning("%s could not be written: %s", MARKS, error.strerror or error)

    def is_in_place(self) -> bool:
        """Return whether the path of the file still leads to it."""
        return self._file.is_in_place()

    def close(self) -> None:
        """Make the marks durable, and close the file."""
        with closing(self._file):
            self._file.fsync()


def read_mark(folder: Folder, base: int | None = None) -> Mark:
    """Return the furthest mark of all segments or of one; without marks, one of size 0."""
    data = folder.read(folder.file(MARKS))
    best = Mark(base or 0, 0, base or 0)
    for start in range(0, len(data) - _MARK.size + 1, _MARK.size):
        *facts, checksum = _MARK.unpack_from(data, start)
        if checksum == crc32(data[start : start + _FACTS.size]) and base in (None, facts[0]):
            best = max(best, Mark(*facts))
    with suppress(FileNotFoundError):  # the folder does not exist
        published = [first for first in folder.bases(PUBLISHED) if base in (None, first)]
        return max([best, *(_read_note(folder, first) for first in published)])
    return best


def _read_note(folder: Folder, base: int) -> Mark:
    """Return the mark in the note of a published segment; one of size 0 if it is damaged."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        note = json.loads(folder.read(folder.segment(base, PUBLISHED)))
        return Mark(base, int(note["bytes"]), int(note["end"]))
    return Mark(base, 0, base)


def copy_bytes(source: DiskFile, copy: DiskFile, start: int, end: int) -> None:
    """Replace the contents of a file by a range of bytes of another one, durably."""
    copy.truncate(0)
    for position in range(start, end, _COPY):
        write_all(copy, source.pread(min(_COPY, end - position), position))
    copy.fsync()


#: Seconds to wait for a lock whose process has ended. A child that was forked just before its
#: parent was killed still has a copy of the lock, until it runs and drops it.
COPY_SECONDS: Final = 2.0
COPY_PAUSE: Final = 0.005


def _has_ended(holder: str) -> bool:
    """Return whether the process that wrote its number into a lock file has ended."""
    if not holder.isdecimal():
        return False
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # a process of another user, or not a process id
        return False
    return False


class FileLock:
    """A lock of a log's writer or of a named reader; released when its process ends."""

    def __init__(self, folder: str, name: str, problem: str, remedy: str) -> None:
        """Acquire the lock.

        Args:
            folder: Folder of the lock file.
            name: Name of the lock file.
            problem: Beginning of the error text, such as "the log … is written".
            remedy: End of the error text: how to resolve the conflict.

        Raises:
            LogLocked: another owner has the lock; the text names its process.
        """
        self.path = str(Path(folder) / name)
        self._descriptor = open_plain(self.path, os.O_RDWR | os.O_CREAT)
        if not os.fstat(self._descriptor).st_size:  # it was just made
            with suppress(OSError):  # another user made it
                os.fchmod(self._descriptor, lock_mode_in(self.path))
        holder, is_locked = "", False
        for _ in retrying(Backoff.fixed(COPY_PAUSE), COPY_SECONDS):
            if is_locked := self._try():
                break
            holder = os.pread(self._descriptor, 20, 0).decode(errors="replace").strip()
            if not _has_ended(holder):
                break
        if not is_locked:
            os.close(self._descriptor)
            owner = f"process {holder}" if holder.isdecimal() else "another process"
            if holder == str(os.getpid()):
                owner = f"this process ({holder})"
            text = f"{problem} by {owner}; {remedy}"
            raise LogLocked(text)
        with suppress(OSError):  # errors will then say "another process"
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        after_fork.register(self, after_fork.drop)

    def _try(self) -> bool:
        """Try to acquire the system's lock; return whether it was free."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def fileno(self) -> int:
        """Return the descriptor of the locked file; -1 after `release`."""
        return self._descriptor

    def is_in_place(self) -> bool:
        """Return whether the path of the locked file still leads to it.

        If not, another process can lock the file that is at the path now.
        """
        return is_at(self.path, identity_of(self._descriptor))

    def release(self) -> None:
        """Release the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def lock_writing(folder: str) -> FileLock:
    """Acquire the writer's lock of the log in a folder.

    Raises:
        LogLocked: the log has another writer; the text names its process.
    """
    remedy = "close it there, or use LogReader"
    return FileLock(folder, LOCK, f"the log {folder} is written", remedy)
