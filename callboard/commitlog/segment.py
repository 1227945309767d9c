"""Segments as a reader or the writer knows them, with a sparse index of each.

The index says where batches begin, by offset and by time. It is built while batches are
written or read, one entry for each 64 KiB, and written beside a segment that gets no more
batches. It is only a short cut: one that is missing or damaged is built again.

File: `CBI1`, CRC-32 of the rest, size of the segment, end offset, number of entries (4 bytes
each but the middle two, which are 8), then the entries: offset, position, latest time (8 each).
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
    """Where the batches of a segment begin.

    Attributes:
        size: Bytes of the segment that are covered.
        end: The offset behind the last record that is covered.
        has_notes: Whether a batch that was read has a note; not kept in its file.
    """

    def __init__(self, base: int) -> None:
        """Cover nothing yet of a segment."""
        self.size = 0
        self.end = base
        self.has_notes = False
        #: Offset and position of a batch, and the latest time up to and with the entry's
        #: batches, which therefore never falls.
        self._entries: list[list[int]] = []

    @property
    def latest(self) -> int:
        """The latest time of all records covered; `NO_TIME` if there are none."""
        return self._entries[-1][2] if self._entries else NO_TIME

    def add(self, batch: Batch) -> None:
        """Cover one batch more."""
        self.has_notes |= has_note(batch.header)
        self.cover(batch.base, batch.end, batch.size, batch.header.latest_time)

    def cover(self, base: int, end: int, size: int, latest: int) -> None:
        """Cover one batch more, which begins where the last one ended."""
        last = self._entries[-1] if self._entries else None
        if last is None or self.size - last[1] >= STEP:
            self._entries.append([base, self.size, max(latest, self.latest)])
        elif latest > last[2]:
            last[2] = latest
        self.size += size
        self.end = end

    def find(self, offset: int) -> tuple[int, int]:
        """Return position and offset of a batch at or before the one with this record."""
        at = bisect_right(self._entries, offset, key=itemgetter(0)) - 1
        begin, position, _ = self._entries[at] if at >= 0 else (self.first(offset), 0, 0)
        return position, begin

    def first(self, default: int) -> int:
        """Return the first offset that is covered."""
        return self._entries[0][0] if self._entries else default

    def find_time(self, time: int) -> int | None:
        """Return an offset at or shortly before the first record that is not older."""
        at = bisect_left(self._entries, time, key=itemgetter(2))
        return self._entries[at][0] if at < len(self._entries) else None

    def encode(self) -> bytes:
        """Return the index as bytes."""
        rest = _REST.pack(self.size, self.end, len(self._entries))
        rest += b"".join(_ENTRY.pack(*entry) for entry in self._entries)
        return _START.pack(_MAGIC, crc32(rest)) + rest


def decode_index(data: bytes, base: int, size: int) -> SegmentIndex | None:
    """Return an index that was encoded, or None if it is damaged or of another segment."""
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
        base: The offset of its first record.
        index: Where its batches begin, as far as they were seen.
        is_covered: Whether the index has all there is, and will have.
        covering: Held while the index is brought up to date: readers are shared by threads.
    """

    __slots__ = ("base", "covering", "index", "is_covered")

    def __init__(self, base: int, *, is_covered: bool = False) -> None:
        self.base = base
        self.index = SegmentIndex(base)
        self.is_covered = is_covered
        self.covering = locks.lock("index of a segment", 612, runs_users=True)

    def __getstate__(self) -> tuple[int, "SegmentIndex", bool]:
        """Return what a copy in another process has: readers are sent to executors."""
        with self.covering:
            return self.base, self.index, self.is_covered

    def __setstate__(self, state: tuple[int, "SegmentIndex", bool]) -> None:
        self.base, self.index, self.is_covered = state
        self.covering = locks.lock("index of a segment", 612, runs_users=True)


class SegmentInfo(NamedTuple):
    """One segment, for people and programs: offsets from `base` up to, not with, `end`."""

    base: int
    end: int
    bytes: int
    latest_time: int
    path: str


class LogSegmentTable:
    """All segments, oldest first.

    The list is never changed, only replaced, so that other threads can go on with the one they
    have. The table of a writer is kept by the writer, that of a reader by `refresh`.
    """

    def __init__(self, folder: Folder, segments: list[LogSegment] | None = None) -> None:
        """Look at a folder; with `segments`, a writer keeps the table.

        Raises:
            LogFailed: there is no log.
        """
        self.folder = folder
        self.segments: list[LogSegment] = segments or []
        self._is_kept = segments is not None
        self.refresh()
        #: What was durable when this looked first, whether its segment is there or not.
        self.marked = 0 if self._is_kept else read_mark(folder).end
        self.refresh()  # a segment that was begun meanwhile is not missing

    def refresh(self) -> None:
        """Look again which segments there are.

        Raises:
            LogFailed: the log is gone.
        """
        if self._is_kept:
            return
        known = {segment.base: segment for segment in self.segments}
        self.segments = [
            known.get(base) or LogSegment(base) for base in self.folder.log_bases()
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
        return segments[max(0, bisect_right(segments, offset, key=lambda each: each.base) - 1)]

    def after(self, segment: LogSegment) -> LogSegment | None:
        """Return the next segment, also if it was made just now."""
        for has_looked in (False, True):
            if has_looked:
                self.refresh()
            segments = self.segments
            at = bisect_right(segments, segment.base, key=lambda each: each.base)
            if at < len(segments):
                return segments[at]
        return None

    def cover(self, segment: LogSegment) -> SegmentIndex:
        """Bring the index of a segment up to date, by its file or by reading the segment."""
        if not segment.is_covered:
            with segment.covering:  # two at once would count each batch twice
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
            self._read_on(segment)
        except FileNotFoundError:  # retention removed it
            self.refresh()
        segment.is_covered = not is_last

    def _end_of(self, segment: LogSegment) -> int:
        """Return where the segment behind one begins."""
        following = self.after(segment)
        return segment.base if following is None else following.base

    def _read_on(self, segment: LogSegment) -> None:
        """Cover the batches behind those that the index has."""
        with closing(self.folder.disk.open(self.folder.segment(segment.base))) as file:
            scan = Scan(file, segment.index.size, segment.index.end)
            while batch := scan.next():
                segment.index.add(batch)
