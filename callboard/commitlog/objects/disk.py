"""A log on an object store as a disk to read only: what reads a folder reads it alike.

Its files are those of the segments that the newest manifest lists. Behind them stands the
tail, the files of the same log where it is written, if its place is known; else an empty
segment, so that the log ends with its last sealed one.

Objects are read in ranges that grow while a reader goes on where it was, and the next ones are
fetched meanwhile, over the borders of segments, within `_AHEAD` bytes.
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
from callboard.commitlog.objects.manifest import ListedSegment, Manifest, Manifests
from callboard.support.redaction import redacted

#: Seconds that a manifest is taken for the newest one: each look is a request that costs.
FRESH: Final = 1.0
#: Bytes of a range: of the first one, and at most.
_FIRST: Final = 256 << 10
_LARGEST: Final = 8 << 20
#: Bytes that are fetched before a reader asks, and objects that this may begin.
_AHEAD: Final = 24 << 20
_OBJECTS_AHEAD: Final = 4
_THREADS: Final = 4


@lru_cache(maxsize=2)
def _fetchers(process: int) -> ThreadPoolExecutor:
    """Return the threads of a process that fetch what is read next."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="callboard-objects")


def _read_only(url: str, *_: object, **__: object) -> NoReturn:
    """Refuse to write."""
    what = f"{redacted(url)} is there to be read; write the log where it is"
    raise LogFailed(what)


class ObjectDisk:
    """A `Disk` with the files of one log."""

    def __init__(self, manifests: Manifests, tail: Folder | None = None) -> None:
        """Name a log; nothing is asked yet."""
        self._manifests = manifests
        self._url = manifests.objects.url
        self._tail = tail
        self._manifest: Manifest | None = None
        self._rows: dict[int, ListedSegment] = {}
        self._looked = 0.0
        #: Where the files of the tail take over.
        self._border = 0
        self._upcoming: dict[str, ObjectFile] = {}
        self._process = os.getpid()
        #: The offset behind a segment that a reader has come to the end of.
        self._reached = -1
        self.mkdir = self.rename = self.unlink = self.sync_folder = partial(
            _read_only, self._url
        )

    def listdir(self, path: str) -> list[str]:
        """Return the names of the log's files, sorted."""
        if path.strip("/") != self._url.strip("/"):
            raise FileNotFoundError(errno.ENOENT, "it is not on the store", path)
        manifest, others = self._look(), self._names_of_tail()
        first = min(map(_base_of, others), default=0)
        if others and first > manifest.end:  # its tail was removed when it was archived
            manifest = self._look(at_once=True)
        bases = [_base_of(each) for each in others if each.endswith(SEGMENT)]
        end = manifest.end
        self._border = max(
            (each for each in bases if each <= end), default=min(bases, default=end)
        )
        names = [file_name(base) for base in self._rows if base < self._border]
        if self._tail is None:
            return [*names, file_name(end)]
        return names + [each for each in others if _base_of(each) >= self._border]

    def open(self, path: str, *, append: bool = False) -> DiskFile:
        """Open a file to read it."""
        if append:
            _read_only(self._url)
        name = path.rpartition("/")[2]
        manifest = self._look()
        row = self._row(name)
        if row is None:
            return self._open_other(name, manifest, path)
        if name.endswith(INDEX):
            if not row.index_bytes:
                raise FileNotFoundError(errno.ENOENT, "it has no index", path)
            return ObjectFile(self, row._replace(bytes=row.index_bytes), row.index_object)
        if self._process != os.getpid():  # a fork has no threads that would bring it
            self._process, self._upcoming = os.getpid(), {}
        file = self._upcoming.pop(row.name, None) or ObjectFile(self, row, row.object)
        file.is_read_on |= self._reached == row.base
        return file

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        name = path.rpartition("/")[2]
        manifest, row = self._look(), self._row(name)
        if row is not None:
            return row.index_bytes if name.endswith(INDEX) else row.bytes
        file = self._open_other(name, manifest, path)
        try:
            return file.size()
        finally:
            file.close()

    def _open_other(self, name: str, manifest: Manifest, path: str) -> DiskFile:
        """Open a file of the tail, or the empty one that stands for it."""
        if self._tail is not None:
            return self._tail.disk.open(self._tail.file(name))
        if name == file_name(manifest.end):
            return _Empty(self._url)
        raise FileNotFoundError(errno.ENOENT, "it is not on the store", path)

    def _row(self, name: str) -> ListedSegment | None:
        """Return the segment on the store that a file belongs to."""
        base, _, kind = name.partition(".")
        if f".{kind}" not in (SEGMENT, INDEX) or not is_base(base) or int(base) >= self._border:
            return None
        return self._rows.get(int(base))

    def _names_of_tail(self) -> list[str]:
        """Return the names of the tail's files that a reader of segments opens."""
        if self._tail is None:
            return []
        names = self._tail.disk.listdir(self._tail.path)
        kinds = (SEGMENT, INDEX, PUBLISHED)
        return [
            each for each in names if each.endswith(kinds) and is_base(each.partition(".")[0])
        ]

    def _look(self, *, at_once: bool = False) -> Manifest:
        """Return the newest manifest.

        Raises:
            LogFailed: there is none.
        """
        now = time.monotonic()
        if self._manifest is not None and not at_once and now - self._looked < FRESH:
            return self._manifest
        found = self._manifests.newest()
        if found is None:
            what = (
                f"there is no log at {redacted(self._url)};"
                " copy one there with: callboard log archive"
            )
            raise LogFailed(what)
        if self._manifest is None or found.number != self._manifest.number:
            self._rows = {each.base: each for each in found.segments}
            if self._tail is None:
                self._border = found.end
        self._manifest, self._looked = found, now
        return found

    # --- what files need ---

    def fetch(self, name: str, start: int, end: int) -> "Future[bytes]":
        """Begin to read a range of an object."""
        return _fetchers(os.getpid()).submit(self._manifests.objects.read, name, start, end)

    def is_listed(self, row: ListedSegment) -> bool:
        """Return whether the newest manifest of now has a segment."""
        self._look(at_once=True)
        found = self._rows.get(row.base)
        return found is not None and found.name == row.name

    def prepare(self, row: ListedSegment, room: int) -> None:
        """Begin to read the segments behind one whose end is read."""
        self._reached = row.end
        following = sorted(base for base in self._rows if row.end <= base < self._border)
        wanted = [self._rows[base] for base in following[:_OBJECTS_AHEAD]]
        names = {each.name for each in wanted}
        for name in [each for each in self._upcoming if each not in names]:
            self._upcoming.pop(name).close()
        for each in wanted:
            if each.name not in self._upcoming and room > 0:
                self._upcoming[each.name] = file = ObjectFile(self, each, each.object)
                room -= file.begin(min(each.bytes, room, _LARGEST))


class _Block(NamedTuple):
    """A range of an object that is there, or on its way."""

    start: int
    end: int
    data: "Future[bytes]"


class ObjectFile:
    """A `DiskFile` of an object.

    Attributes:
        is_read_on: Whether its reader goes on from where it was.
    """

    def __init__(self, disk: ObjectDisk, row: ListedSegment, name: str) -> None:
        """Name an object; nothing is asked yet."""
        self._disk = disk
        self._row = row
        self._name = name
        self._blocks: deque[_Block] = deque()
        self._next_size = _FIRST
        self._is_gone = False
        self.is_read_on = False
        self.write = self.truncate = self.fsync = partial(_read_only, name)

    def begin(self, size: int) -> int:
        """Fetch the first bytes before they are asked for; returns how many."""
        self._next_size, self.is_read_on = size, True
        self._request(0)
        return size

    def is_in_place(self) -> bool:
        """Return True: what is read elsewhere is checked by its reader."""
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""
        end = min(offset + size, self._row.bytes)
        if offset >= end or self._is_gone:
            return b""
        self._cover(offset, end)
        try:
            parts = list(self._parts(offset, end))
        except FileNotFoundError:
            self.close()
            if self._disk.is_listed(self._row):  # lost: as if it were empty, which is damage
                self._is_gone = True
                return b""
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _parts(self, offset: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of blocks between two places; they end where the object does."""
        for block in self._blocks:
            if block.start >= end:
                return
            data = block.data.result()
            yield data[max(0, offset - block.start) : end - block.start]
            if len(data) < block.end - block.start:
                return

    def _cover(self, offset: int, end: int) -> None:
        """Fetch what is wanted, and while a reader goes on, what comes next."""
        blocks = self._blocks
        while blocks and blocks[0].end <= offset:
            behind = blocks.popleft().end
            if not blocks and behind == offset:
                self._request(offset)
            self.is_read_on = True
        if blocks and not blocks[0].start <= offset <= blocks[-1].end:
            self.close()
        if not blocks:
            self._next_size = max(_FIRST, end - offset)
            self._request(offset)
        while blocks[-1].end < end:
            self._request(blocks[-1].end)
        while self.is_read_on and blocks[-1].end < min(self._row.bytes, offset + _AHEAD):
            self._request(blocks[-1].end)
        if end == self._row.bytes and self._name == self._row.object:
            self._disk.prepare(self._row, _AHEAD if self.is_read_on else _FIRST)

    def _request(self, start: int) -> None:
        """Ask for the next range, four times as long as the one before."""
        end = min(start + self._next_size, self._row.bytes)
        self._next_size = min(4 * self._next_size, _LARGEST)
        self._blocks.append(_Block(start, end, self._disk.fetch(self._name, start, end)))

    def size(self) -> int:
        """Return the size in bytes."""
        return 0 if self._is_gone else self._row.bytes

    def close(self) -> None:
        """Keep nothing."""
        for each in self._blocks:
            each.data.cancel()
        self._blocks.clear()


class _Empty:
    """The file of a segment that has nothing yet."""

    def __init__(self, url: str) -> None:
        """Stand for the tail of a log."""
        self.write = self.truncate = self.fsync = partial(_read_only, url)

    def is_in_place(self) -> bool:
        """Return True: what is read elsewhere is checked by its reader."""
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
    """Return the first offset of the segment that a file belongs to."""
    return int(name.partition(".")[0])
