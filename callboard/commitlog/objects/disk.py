"""A log on an object store as a read-only disk, for the readers of logs in folders.

Its files are the segments of the newest manifest. They are followed by the tail: the files of
the same log in its folder, if the folder is known, else an empty segment, so that the log ends
with its last sealed segment.

Objects are read in ranges. The ranges grow while a reader reads sequentially, and up to
`_AHEAD_BYTES` are fetched in advance, across segments.
"""

import errno
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Final, NamedTuple, NoReturn

from callboard.commitlog.disk import DiskFile
from callboard.commitlog.errors import LogFailed
from callboard.commitlog.folder import (
    INDEX,
    PUBLISHED,
    SEGMENT,
    Folder,
    file_name,
    is_base,
)
from callboard.commitlog.identity.identity import read_identity
from callboard.commitlog.identity.position import LogIdentity, PositionOwner, resume
from callboard.commitlog.objects.manifest import ListedSegment, Manifest, Manifests
from callboard.support.redaction import redacted

#: How a reader continues if the tail is of another log.
_OWN_TAIL: Final = "read the archive without this tail, or the tail alone"
#: Seconds for which a manifest is used before it is read again: each request costs money.
FRESH_SECONDS: Final = 1.0
#: Bytes of the first range, and of the largest.
_FIRST_RANGE: Final = 256 << 10
_LARGEST_RANGE: Final = 8 << 20
#: Bytes that are fetched in advance, and the number of objects that they may belong to.
_AHEAD_BYTES: Final = 24 << 20
_OBJECTS_AHEAD: Final = 4
_THREADS: Final = 4


@lru_cache(maxsize=2)
def _fetchers(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process that fetch ranges in advance."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="callboard-objects")


def _read_only(url: str, *_: object, **__: object) -> NoReturn:
    """Raise the error of a write."""
    message = f"{redacted(url)} is read-only; write the log in its folder"
    raise LogFailed(message)


class ObjectDisk:
    """A `Disk` with the files of one log."""

    def __init__(self, manifests: Manifests, tail: Folder | None = None) -> None:
        """Use the manifests of a log; no request is sent yet."""
        self._manifests = manifests
        self._url = manifests.objects.url
        self._tail = tail
        self._manifest: Manifest | None = None
        self._rows: dict[int, ListedSegment] = {}
        self._read_at = 0.0
        self._compared_at = -FRESH_SECONDS
        #: The offset from which on files of the tail are used.
        self._border = 0
        self._prefetched: dict[str, ObjectFile] = {}
        self._process = os.getpid()
        #: The end of the last segment that a reader has read completely.
        self._reached = -1
        self.mkdir = self.rename = self.unlink = self.sync_folder = partial(
            _read_only, self._url
        )

    def identity(self) -> LogIdentity:
        """Return the identity of the log, by its manifest and its tail.

        Raises:
            OtherLog: the tail is another log.
            OtherEpoch: the records of the tail replaced records of the archive.
        """
        manifest = self._newest()
        if self._tail is None:
            return manifest.identity
        return self._compared(manifest, read_identity(self._tail))

    def _compared(self, manifest: Manifest, tail: LogIdentity) -> LogIdentity:
        """Return the identity of the log, if the archive and the tail are parts of one log."""
        self._compared_at = time.monotonic()
        if not tail.log or not manifest.segments:  # then the tail is of callboard 0.1
            return manifest.identity
        path = self._tail.path if self._tail else ""
        position = manifest.identity.position(manifest.end)
        owner = PositionOwner(
            f"the archive {redacted(self._url)}", f"the tail {path}", _OWN_TAIL
        )
        if position.log != tail.log or position.epoch:
            resume(position, tail, manifest.end, owner)
        return tail if tail.epochs else manifest.identity

    def listdir(self, path: str) -> list[str]:
        """Return the names of the log's files, sorted.

        Raises:
            OtherLog: the tail is another log.
            OtherEpoch: the records of the tail replaced records of the archive.
        """
        if path.strip("/") != self._url.strip("/"):
            raise FileNotFoundError(errno.ENOENT, "it is not on the store", path)
        manifest, tail = self._newest(), self._names_of_tail()
        if self._tail is not None and time.monotonic() - self._compared_at >= FRESH_SECONDS:
            self._compared(manifest, read_identity(self._tail))
        first = min(map(_base_of, tail), default=0)
        if tail and first > manifest.end:  # segments were archived and removed since
            manifest = self._newest(at_once=True)
        bases = [_base_of(name) for name in tail if name.endswith(SEGMENT)]
        end = manifest.end
        self._border = max(
            (base for base in bases if base <= end), default=min(bases, default=end)
        )
        names = [file_name(base) for base in self._rows if base < self._border]
        if self._tail is None:
            return [*names, file_name(end)]
        return names + [name for name in tail if _base_of(name) >= self._border]

    def open(self, path: str, *, append: bool = False) -> DiskFile:
        """Open a file for reading."""
        if append:
            _read_only(self._url)
        name = path.rpartition("/")[2]
        manifest = self._newest()
        row = self._row(name)
        if row is None:
            return self._open_other(name, manifest, path)
        if name.endswith(INDEX):
            if not row.index_bytes:
                raise FileNotFoundError(errno.ENOENT, "it has no index", path)
            return ObjectFile(self, row._replace(bytes=row.index_bytes), row.index_object)
        if self._process != os.getpid():  # a fork does not copy the threads that fetch
            self._process, self._prefetched = os.getpid(), {}
        file = self._prefetched.pop(row.name, None) or ObjectFile(self, row, row.object)
        file.is_sequential |= self._reached == row.base
        return file

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        name = path.rpartition("/")[2]
        manifest, row = self._newest(), self._row(name)
        if row is not None:
            return row.index_bytes if name.endswith(INDEX) else row.bytes
        file = self._open_other(name, manifest, path)
        try:
            return file.size()
        finally:
            file.close()

    def _open_other(self, name: str, manifest: Manifest, path: str) -> DiskFile:
        """Open a file of the tail, or the empty segment that replaces the tail."""
        if self._tail is not None:
            return self._tail.disk.open(self._tail.file(name))
        if name == file_name(manifest.end):
            return _Empty(self._url)
        raise FileNotFoundError(errno.ENOENT, "it is not on the store", path)

    def _row(self, name: str) -> ListedSegment | None:
        """Return the segment of a file on the store."""
        base, _, kind = name.partition(".")
        if f".{kind}" not in (SEGMENT, INDEX) or not is_base(base) or int(base) >= self._border:
            return None
        return self._rows.get(int(base))

    def _names_of_tail(self) -> list[str]:
        """Return the names of the tail's files that a reader opens."""
        if self._tail is None:
            return []
        names = self._tail.disk.listdir(self._tail.path)
        kinds = (SEGMENT, INDEX, PUBLISHED)
        return [
            name for name in names if name.endswith(kinds) and is_base(name.partition(".")[0])
        ]

    def _newest(self, *, at_once: bool = False) -> Manifest:
        """Return the newest manifest; `at_once` ignores the one that was read recently.

        Raises:
            LogFailed: the store does not have a manifest.
        """
        now = time.monotonic()
        is_fresh = now - self._read_at < FRESH_SECONDS
        if self._manifest is not None and not at_once and is_fresh:
            return self._manifest
        manifest = self._manifests.newest()
        if manifest is None:
            message = (
                f"there is no log at {redacted(self._url)};"
                " copy one to it with: callboard log archive"
            )
            raise LogFailed(message)
        if self._manifest is None or manifest.number != self._manifest.number:
            self._rows = {row.base: row for row in manifest.segments}
            if self._tail is None:
                self._border = manifest.end
        self._manifest, self._read_at = manifest, now
        return manifest

    # --- calls of the files ---

    def fetch(self, name: str, start: int, end: int) -> "Future[bytes]":
        """Request a range of an object."""
        return _fetchers(os.getpid()).submit(self._manifests.objects.read, name, start, end)

    def is_listed(self, row: ListedSegment) -> bool:
        """Return whether the newest manifest lists a segment."""
        self._newest(at_once=True)
        listed = self._rows.get(row.base)
        return listed is not None and listed.name == row.name

    def prepare(self, row: ListedSegment, room: int) -> None:
        """Prefetch up to `room` bytes of the segments after one that is read completely."""
        self._reached = row.end
        bases = sorted(base for base in self._rows if row.end <= base < self._border)
        following = [self._rows[base] for base in bases[:_OBJECTS_AHEAD]]
        names = {segment.name for segment in following}
        for name in [name for name in self._prefetched if name not in names]:
            self._prefetched.pop(name).close()
        for segment in following:
            if segment.name not in self._prefetched and room > 0:
                file = ObjectFile(self, segment, segment.object)
                self._prefetched[segment.name] = file
                room -= file.prefetch(min(segment.bytes, room, _LARGEST_RANGE))


class _Block(NamedTuple):
    """A range of an object that was requested."""

    start: int
    end: int
    data: "Future[bytes]"


class ObjectFile:
    """A `DiskFile` of an object.

    Attributes:
        is_sequential: Whether its reader reads sequentially.
    """

    def __init__(self, disk: ObjectDisk, row: ListedSegment, name: str) -> None:
        """Name an object; nothing is requested yet."""
        self._disk = disk
        self._row = row
        self._name = name
        self._blocks: deque[_Block] = deque()
        self._next_size = _FIRST_RANGE
        self._is_lost = False
        self.is_sequential = False
        self.write = self.truncate = self.fsync = partial(_read_only, name)

    def prefetch(self, size: int) -> int:
        """Request the first bytes in advance; return their number."""
        self._next_size, self.is_sequential = size, True
        self._request(0)
        return size

    def is_in_place(self) -> bool:
        """Return True: a reader checks the contents of remote files."""
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""
        end = min(offset + size, self._row.bytes)
        if offset >= end or self._is_lost:
            return b""
        self._cover(offset, end)
        try:
            parts = list(self._parts(offset, end))
        except FileNotFoundError:
            self.close()
            if self._disk.is_listed(self._row):  # the object is lost: read it as damaged
                self._is_lost = True
                return b""
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _parts(self, offset: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of blocks between two positions, up to the end of the object."""
        for block in self._blocks:
            if block.start >= end:
                return
            data = block.data.result()
            yield data[max(0, offset - block.start) : end - block.start]
            if len(data) < block.end - block.start:
                return

    def _cover(self, offset: int, end: int) -> None:
        """Request a range, and the following ranges if the reader reads sequentially."""
        blocks = self._blocks
        while blocks and blocks[0].end <= offset:
            block_end = blocks.popleft().end
            if not blocks and block_end == offset:
                self._request(offset)
            self.is_sequential = True
        if blocks and not blocks[0].start <= offset <= blocks[-1].end:
            self.close()
        if not blocks:
            self._next_size = max(_FIRST_RANGE, end - offset)
            self._request(offset)
        while blocks[-1].end < end:
            self._request(blocks[-1].end)
        ahead = min(self._row.bytes, offset + _AHEAD_BYTES)
        while self.is_sequential and blocks[-1].end < ahead:
            self._request(blocks[-1].end)
        if end == self._row.bytes and self._name == self._row.object:
            room = _AHEAD_BYTES if self.is_sequential else _FIRST_RANGE
            self._disk.prepare(self._row, room)

    def _request(self, start: int) -> None:
        """Request the next range, four times as long as the previous one."""
        end = min(start + self._next_size, self._row.bytes)
        self._next_size = min(4 * self._next_size, _LARGEST_RANGE)
        self._blocks.append(_Block(start, end, self._disk.fetch(self._name, start, end)))

    def size(self) -> int:
        """Return the size in bytes."""
        return 0 if self._is_lost else self._row.bytes

    def close(self) -> None:
        """Cancel all requests."""
        for block in self._blocks:
            block.data.cancel()
        self._blocks.clear()


class _Empty:
    """The file of an empty segment, in place of the tail of a log."""

    def __init__(self, url: str) -> None:
        self.write = self.truncate = self.fsync = partial(_read_only, url)

    def is_in_place(self) -> bool:
        """Return True: a reader checks the contents of remote files."""
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Return nothing."""
        return b""

    def size(self) -> int:
        """Return 0."""
        return 0

    def close(self) -> None:
        """Do nothing."""


def _base_of(name: str) -> int:
    """Return the first offset of the segment of a file."""
    return int(name.partition(".")[0])
