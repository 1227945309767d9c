"""The files of a log: their names, small ones, marks of what is durable, the writer's lock.

A log has one writer at a time: the lock on a file ends with the process that holds it.
"""

import fcntl
import json
import logging
import os
import re
import struct
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from callboard.commitlog.disk import Disk, DiskFile, open_plain, read_through
from callboard.commitlog.errors import LogFailed, LogLocked
from callboard.support import after_fork
from callboard.support.file_place import identity_of, is_at
from callboard.support.private_file import lock_mode_in

SEGMENT: Final = ".log"
INDEX: Final = ".index"
CUT: Final = ".cut"
COLUMNS: Final = ".parquet"
MARKS: Final = "synced"
#: The fields that a log declares; see `fields.declared`.
FIELDS: Final = "fields"
#: A note beside a segment that was published as a whole; see `pipeline.spark.journal`.
PUBLISHED: Final = ".published"
LOCK: Final = "lock"
TEMPORARY: Final = ".tmp"
#: The largest offset that indexes and batches hold.
LAST_OFFSET: Final = 2**63 - 1
_DIGITS: Final = 20
#: Files of a log that others may read, and the names under which a log is served.
SERVED: Final = re.compile(r"[0-9]{20}\.(?:log|index|published)|synced|fields")
SERVED_NAME: Final = re.compile(r"[\w.+@=-]+", re.ASCII)
_COPY: Final = 1 << 20
#: No file is larger but segments, which are read in pieces.
_LARGEST: Final = 64 << 20
_MARK: Final = struct.Struct("<QQQI")
_FACTS: Final = struct.Struct("<QQQ")
_MAX_FILE: Final = 4096


_log = logging.getLogger("callboard.commitlog")


class Folder:
    """A folder on a disk."""

    def __init__(self, disk: Disk, path: str) -> None:
        """Name a folder, which need not exist."""
        self.disk = disk
        self.path = path

    def file(self, name: str) -> str:
        """Return the path of a file in it."""
        return f"{self.path}/{name}"

    def segment(self, base: int, kind: str = SEGMENT) -> str:
        """Return the path of a segment or of its index; a name is the first offset."""
        return self.file(file_name(base, kind))

    def bases(self, kind: str = SEGMENT) -> list[int]:
        """Return the first offsets of all segments, or of files beside them, in order.

        Raises:
            FileNotFoundError: there is no such folder.
        """
        return [
            int(name.removesuffix(kind))
            for name in self.disk.listdir(self.path)
            if name.endswith(kind) and is_base(name.removesuffix(kind))
        ]

    def log_bases(self) -> list[int]:
        """Return the first offsets of all segments of a log, of which there is at least one.

        Raises:
            LogFailed: there is no log.
        """
        try:
            if bases := self.bases():
                return bases
        except LogFailed:  # of a server or a store
            raise
        except OSError:
            pass
        what = f"there is no log in {self.path}; make one with CommitLog(folder)"
        if end := read_mark(self).end:
            gone = (
                f"the segments of the log in {self.path} are gone: {end} records were durable"
            )
            what = f"{gone}; put them back, or go on behind with CommitLog(folder)"
        raise LogFailed(what)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn what the disk refuses to a reader into `LogFailed`."""
        try:
            yield
        except OSError as error:
            if isinstance(error, LogFailed):
                raise
            what = f"{self.path} cannot be read: {error.strerror or error}; see its disk"
            raise LogFailed(what) from error

    def make(self) -> None:
        """Make the folder and those above it where they are missing."""
        for path in self._line():
            try:
                self.disk.listdir(path)
            except FileNotFoundError:
                with suppress(FileExistsError):  # another process made it meanwhile
                    self.disk.mkdir(path)

    def sync(self) -> None:
        """Make the names in the folder durable."""
        self.disk.sync_folder(self.path)

    def sync_above(self) -> None:
        """Make the names of the folder and of those above it durable."""
        for path in self._line():
            with suppress(PermissionError):  # then we did not make it
                self.disk.sync_folder(path.rpartition("/")[0] or "/")

    def _line(self) -> list[str]:
        """Return the folder's path and those of all folders above it."""
        names = [name for name in self.path.split("/") if name]
        return ["/" + "/".join(names[:depth]) for depth in range(1, len(names) + 1)]

    def read(self, path: str) -> bytes:
        """Return a file's contents; nothing if there is none, or none of ours is so large."""
        try:
            with closing(self.disk.open(path)) as file:
                size = file.size()
                return read_through(file, size, 0) if size <= _LARGEST else b""
        except FileNotFoundError:
            return b""

    def write(self, path: str, data: bytes, *, durably: bool = True) -> None:
        """Write a file anew."""
        with closing(self.disk.open(path, append=True)) as file:
            file.truncate(0)
            write_all(file, data)
            if durably:
                file.fsync()

    def replace(self, path: str, data: bytes, *, unique: str = "") -> None:
        """Write a file; durable, and at no time half done.

        Args:
            path: Its name.
            data: All of it.
            unique: What tells this writer from others that may write it at the same time.
        """
        temporary = f"{path}{unique}{TEMPORARY}"
        self.write(temporary, data)
        self.disk.rename(temporary, path)
        self.sync()

    def rewrite(self, path: str, size: int) -> None:
        """Replace a file by a copy of its first bytes; durable, and at no time half done."""
        with (
            closing(self.disk.open(path)) as source,
            closing(self.disk.open(path + TEMPORARY, append=True)) as copy,
        ):
            copy_bytes(source, copy, 0, size)
        self.disk.rename(path + TEMPORARY, path)
        self.sync()

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""
        with suppress(FileNotFoundError):
            self.disk.unlink(path)


def file_name(base: int, kind: str = SEGMENT) -> str:
    """Return the name of a segment's file or of one beside it."""
    return f"{base:0{_DIGITS}}{kind}"


def is_base(digits: str) -> bool:
    """Return whether a file's name is an offset as a log writes it; others are not its own."""
    is_number = len(digits) == _DIGITS and digits.isascii() and digits.isdecimal()
    return is_number and int(digits) <= LAST_OFFSET


def offset_in(text: str) -> int | None:
    """Return the offset that a text of others is; None if it is none."""
    is_number = len(text) <= _DIGITS and text.isascii() and text.isdecimal()
    return int(text) if is_number and int(text) <= LAST_OFFSET else None


class Sink(Protocol):
    """What takes bytes, perhaps not all at once."""

    def write(self, data: bytes, /) -> int:
        """Take bytes; returns how many."""


def write_all(file: Sink, data: bytes) -> None:
    """Write all of it, however many calls that takes."""
    done = file.write(data)
    while done < len(data):
        done += file.write(data[done:])


class Mark(NamedTuple):
    """A segment, how many bytes of it are durable, and the offset behind these."""

    base: int
    size: int
    end: int


class Marks:
    """The file of marks, open to write.

    A mark notes what is durable; one is written after each sync. A mark is true for ever, so
    marks are not synced themselves; an older one promises less. Each has 28 bytes: base of the
    segment, durable bytes, end offset (8 each), CRC-32 of these.
    """

    def __init__(self, folder: Folder) -> None:
        """Open the file."""
        self._file: DiskFile = folder.disk.open(folder.file(MARKS), append=True)
        self._size = self._file.size()
        self.last: Mark | None = None

    def add(self, mark: Mark) -> None:
        """Note what is durable; where the disk refuses, older marks promise less."""
        facts = _FACTS.pack(*mark)
        self.last = mark
        try:
            if self._size + _MARK.size > _MAX_FILE or self._size % _MARK.size:
                self._file.truncate(0)
                self._size = 0
            write_all(self._file, facts + struct.pack("<I", crc32(facts)))
            self._size += _MARK.size
        except OSError as error:
            self._size = -1  # half a mark may be there: the next one begins anew
            _log.warning("%s is not written: %s", MARKS, error.strerror or error)

    def is_in_place(self) -> bool:
        """Return whether the path of the file still leads to it."""
        return self._file.is_in_place()

    def close(self) -> None:
        """Make the marks durable, and close the file."""
        with closing(self._file):
            self._file.fsync()


def read_mark(folder: Folder, base: int | None = None) -> Mark:
    """Return the furthest mark, or that in a segment; one at its begin if there is none."""
    data = folder.read(folder.file(MARKS))
    best = Mark(base or 0, 0, base or 0)
    for at in range(0, len(data) - _MARK.size + 1, _MARK.size):
        *facts, checksum = _MARK.unpack_from(data, at)
        if checksum == crc32(data[at : at + _FACTS.size]) and base in (None, facts[0]):
            best = max(best, Mark(*facts))
    with suppress(FileNotFoundError):  # in a folder that is not there
        noted = [each for each in folder.bases(PUBLISHED) if base in (None, each)]
        return max([best, *(_read_note(folder, each) for each in noted)])
    return best


def _read_note(folder: Folder, base: int) -> Mark:
    """Return what a note of a published segment says; a mark at its begin if it is damaged."""
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        told = json.loads(folder.read(folder.segment(base, PUBLISHED)))
        return Mark(base, int(told["bytes"]), int(told["end"]))
    return Mark(base, 0, base)


def copy_bytes(source: DiskFile, copy: DiskFile, start: int, end: int) -> None:
    """Write bytes of a file as all that another one has; durable."""
    copy.truncate(0)
    for position in range(start, end, _COPY):
        write_all(copy, source.pread(min(_COPY, end - position), position))
    copy.fsync()


#: Seconds that a forked child of a process which has ended gets to drop its copy of a lock: it
#: does so as soon as it runs, but may have been forked a moment before its parent was killed.
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
    except (OSError, OverflowError):  # another user's, or no number of a process
        return False
    return False


class FileLock:
    """Held while somebody has a log open to write, or a named reader; ends with the process."""

    def __init__(self, folder: str, name: str, what: str, remedy: str) -> None:
        """Take the lock.

        Args:
            folder: Where its file is.
            name: That of the file.
            what: What is held, for the text of the error.
            remedy: What to do where somebody else holds it.

        Raises:
            LogLocked: somebody else holds it; the text names the process.
        """
        self.path = str(Path(folder) / name)
        self._descriptor = open_plain(self.path, os.O_RDWR | os.O_CREAT)
        if not os.fstat(self._descriptor).st_size:  # it was just made
            with suppress(OSError):  # another user made it
                os.fchmod(self._descriptor, lock_mode_in(self.path))
        deadline, holder = time.monotonic() + COPY_SECONDS, ""
        while not (is_locked := self._try()):
            holder = os.pread(self._descriptor, 20, 0).decode(errors="replace").strip()
            if not _has_ended(holder) or time.monotonic() > deadline:
                break
            time.sleep(COPY_PAUSE)
        if not is_locked:
            os.close(self._descriptor)
            who = f"process {holder}" if holder.isdecimal() else "another process"
            if holder == str(os.getpid()):
                who = f"this process ({holder})"
            text = f"{what} by {who}; {remedy}"
            raise LogLocked(text)
        with suppress(OSError):  # who holds it is told as another process
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        after_fork.register(self, after_fork.drop)

    def _try(self) -> bool:
        """Take the lock of the system; return whether it was free."""
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

        Otherwise another process can lock the file that is there now.
        """
        return is_at(self.path, identity_of(self._descriptor))

    def release(self) -> None:
        """Give the lock back."""
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def lock_writing(folder: str) -> FileLock:
    """Take the lock of who writes the log in a folder.

    Raises:
        LogLocked: somebody else holds it; the text names the process.
    """
    remedy = "close it there, or use LogReader"
    return FileLock(folder, LOCK, f"the log {folder} is written", remedy)
