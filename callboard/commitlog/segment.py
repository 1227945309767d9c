"""Segments of a log, each with a sparse index.

The index gives positions of batches by offset and by time, with one entry per 64 KiB. It is
built while batches are written or read, and stored beside a segment once that is complete. The
file is only an optimization: if it is missing or damaged, the index is rebuilt.

File: `CBI1`, CRC-32 of the rest (4 bytes each), size of the segment, end offset (8 each),
number of entries (4), then the entries: offset, position, latest time (8 each).
"""

import struct
from bisect import bisect_left, bisect_right
from contextlib import closing
from operator import itemgetter
from typing import Final, NamedTuple
from zlib import crc32

from callboard import locks
from callboard.commitlog.batch import Batch, has_note
from callboard.commitlog.folder import INDEX, Folder, read_mark
from callboard.commitlog.integrity import Scan

STEP: Final = 64 << 10
_MAGIC: Final = b"CBI1"
_START: Final = struct.Struct("<4sI")
_REST: Final = struct.Struct("<QQI")
_ENTRY: Final = struct.Struct("<QQq")
NO_TIME: Final = -(2**63)


class SegmentIndex:
    """Sparse index of the batches of a segment.

    Attributes:
        size: Bytes of the segment that the index covers.
        end: First offset after the last record covered.
        has_notes: Whether a batch with a note was added; not stored in the file.
    """

    def __init__(self, base: int) -> None:
        """Start an empty index of a segment."""
        self.size = 0
        self.end = base
        self.has_notes = False
        #: Offset and position of a batch, and the latest time of all records up to the next
        #: entry. Because it never decreases, it can be searched by bisection.
        self._entries: list[list[int]] = []

    @property
    def latest(self) -> int:
        """The latest time of all records covered; `NO_TIME` without any."""
        return self._entries[-1][2] if self._entries else NO_TIME

    def add(self, batch: Batch) -> None:
        """Add the next batch."""
        self.has_notes |= has_note(batch.header)
        self.cover(batch.base, batch.end, batch.size, batch.header.latest_time)

    def cover(self, base: int, end: int, size: int, latest: int) -> None:
        """Add the next batch, which follows the last one directly."""
        last = self._entries[-1] if self._entries else None
        if last is None or self.size - last[1] >= STEP:
            self._entries.append([base, self.size, max(latest, self.latest)])
        elif latest > last[2]:
            last[2] = latest
        self.size += size
        self.end = end

    def find(self, offset: int) -> tuple[int, int]:
        """Return position and offset of a batch at or before the one with this record."""
        i = bisect_right(self._entries, offset, key=itemgetter(0)) - 1
        begin, position, _ = self._entries[i] if i >= 0 else (self.first(offset), 0, 0)
        return position, begin

    def first(self, default: int) -> int:
        """Return the first offset covered, or `default`."""
        return self._entries[0][0] if self._entries else default

    def find_time(self, time: int) -> int | None:
        """Return an offset at or shortly before the first record not older than `time`."""
        i = bisect_left(self._entries, time, key=itemgetter(2))
        return self._entries[i][0] if i < len(self._entries) else None

    def encode(self) -> bytes:
        """Return the index as bytes."""
        rest = _REST.pack(self.size, self.end, len(self._entries))
        rest += b"".join(_ENTRY.pack(*entry) for entry in self._entries)
        return _START.pack(_MAGIC, crc32(rest)) + rest


def decode_index(data: bytes, base: int, size: int) -> SegmentIndex | None:
    """Decode an index; return None if it is damaged or belongs to another segment."""
    if len(data) < _START.size + _REST.size:
        return None
    magic, checksum = _START.unpack_from(data)
    if magic != _MAGIC or checksum != crc32(memoryview(data)[_START.size :]):
        return None
    covered, end, count = _REST.unpack_from(data, _START.size)
    rows = data[_START.size + _REST.size :]
    if covered != size or len(rows) != _ENTRY.size * count:
        return None
    index = SegmentIndex(base)
    index._entries = [list(entry) for entry in _ENTRY.iter_unpack(rows)]  # noqa: SLF001
    if index.first(base) != base:
        return None
    index.size, index.end = covered, end
    return index


class LogSegment:
    """One file of a log.

    Attributes:
        base: Offset of its first record.
        index: Index of the batches read so far.
        is_covered: Whether the index is complete and the segment does not grow.
        covering: Lock held while the index is extended: threads share readers.
    """

    __slots__ = ("base", "covering", "index", "is_covered")

    def __init__(self, base: int, *, is_covered: bool = False) -> None:
        self.base = base
        self.index = SegmentIndex(base)
        self.is_covered = is_covered
        self.covering = locks.lock("index of a segment", 612, runs_users=True)

    def __getstate__(self) -> tuple[int, "SegmentIndex", bool]:
        """Return the state without the lock: readers are pickled for executor processes."""
        with self.covering:
            return self.base, self.index, self.is_covered

    def __setstate__(self, state: tuple[int, "SegmentIndex", bool]) -> None:
        self.base, self.index, self.is_covered = state
        self.covering = locks.lock("index of a segment", 612, runs_users=True)


class SegmentInfo(NamedTuple):
    """Description of a segment with the offsets from `base` up to, not including, `end`."""

    base: int
    end: int
    bytes: int
    latest_time: int
    path: str


class LogSegmentTable:
    """All segments of a log, oldest first.

    The list is replaced, never modified, so that other threads can iterate over the one they
    have. A writer updates its own table; a reader updates its table with `refresh`.
    """

    def __init__(self, folder: Folder, segments: list[LogSegment] | None = None) -> None:
        """List the segments in a folder; a writer passes `segments` and updates them itself.

        Raises:
            LogFailed: the folder does not hold a log.
        """
        self.folder = folder
        self.segments: list[LogSegment] = segments or []
        self._is_writers = segments is not None
        self.refresh()
        #: First offset after the durable records at the start, even of a missing segment.
        self.marked = 0 if self._is_writers else read_mark(folder).end
        self.refresh()  # a segment created since the first listing is not missing

    def refresh(self) -> None:
        """List the segments of a reader again.

        Raises:
            LogFailed: the log was removed.
        """
        if self._is_writers:
            return
        segments = {segment.base: segment for segment in self.segments}
        self.segments = [
            segments.get(base) or LogSegment(base) for base in self.folder.log_bases()
        ]

    def infos(self) -> list[SegmentInfo]:
        """Describe all segments, oldest first."""
        infos = []
        for segment in self.segments:
            index, path = self.cover(segment), self.folder.segment(segment.base)
            infos.append(SegmentInfo(segment.base, index.end, index.size, index.latest, path))
        return infos

    def holding(self, offset: int) -> LogSegment:
        """Return the segment with this record, or the oldest one for an older record."""
        segments = self.segments
        count = bisect_right(segments, offset, key=lambda segment: segment.base)
        return segments[max(0, count - 1)]

    def after(self, segment: LogSegment) -> LogSegment | None:
        """Return the next segment, even if it was created just now."""
        for is_second_try in (False, True):
            if is_second_try:
                self.refresh()
            segments = self.segments
            index = bisect_right(segments, segment.base, key=lambda other: other.base)
            if index < len(segments):
                return segments[index]
        return None

    def cover(self, segment: LogSegment) -> SegmentIndex:
        """Extend the index of a segment to its end, from its file or by reading the segment."""
        if not segment.is_covered:
            with segment.covering:  # two threads would add each batch twice
                if not segment.is_covered:
                    self._cover(segment)
        return segment.index

    def _cover(self, segment: LogSegment) -> None:
        is_last = segment is self.segments[-1]
        folder = self.folder
        try:
            if not is_last and not segment.index.size:
                stored = folder.read(folder.segment(segment.base, INDEX))
                size = folder.disk.size(folder.segment(segment.base))
                index = decode_index(stored, segment.base, size)
                if index is not None and index.end == self._end_of(segment):
                    segment.index = index
            self._extend_index(segment)
        except FileNotFoundError:  # retention removed it
            self.refresh()
        segment.is_covered = not is_last

    def _end_of(self, segment: LogSegment) -> int:
        """Return the base of the segment after one; its own base if it is the last."""
        following = self.after(segment)
        return segment.base if following is None else following.base

    def _extend_index(self, segment: LogSegment) -> None:
        """Add the batches to the index that it does not cover yet."""
        with closing(self.folder.disk.open(self.folder.segment(segment.base))) as file:
            scan = Scan(file, segment.index.size, segment.index.end)
            while batch := scan.next():
                segment.index.add(batch)
