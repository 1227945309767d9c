"""The segments of a log as a reader or the writer knows them."""

from bisect import bisect_right
from typing import NamedTuple

from callboard.commitlog.errors import LogFailed
from callboard.commitlog.folder import INDEX, Folder
from callboard.commitlog.index import SegmentIndex, decode_index
from callboard.commitlog.scan import Scan


class Segment:
    """One file of a log.

    Attributes:
        base: The offset of its first record.
        index: Where its batches begin, as far as they were seen.
        is_covered: Whether the index has all there is, and will have.
    """

    __slots__ = ("base", "index", "is_covered")

    def __init__(self, base: int, *, is_covered: bool = False) -> None:
        self.base = base
        self.index = SegmentIndex(base)
        self.is_covered = is_covered


class SegmentInfo(NamedTuple):
    """One segment, for people and programs: offsets from `base` up to, not with, `end`."""

    base: int
    end: int
    bytes: int
    latest_time: int
    path: str


class SegmentTable:
    """All segments, oldest first.

    The list is never changed, only replaced, so that other threads can go on with the one they
    have. The table of a writer is kept by the writer, that of a reader by `refresh`.
    """

    def __init__(self, folder: Folder, segments: list[Segment] | None = None) -> None:
        """Look at a folder; with `segments`, a writer keeps the table.

        Raises:
            LogFailed: there is no log.
        """
        self.folder = folder
        self.segments: list[Segment] = segments or []
        self._is_kept = segments is not None
        self.refresh()

    def refresh(self) -> None:
        """Look again which segments there are.

        Raises:
            LogFailed: the log is gone.
        """
        if self._is_kept:
            return
        try:
            bases = self.folder.bases()
        except OSError:
            bases = []
        if not bases:
            what = f"there is no log in {self.folder.path}; make one with CommitLog(folder)"
            raise LogFailed(what)
        known = {segment.base: segment for segment in self.segments}
        self.segments = [known.get(base) or Segment(base) for base in bases]

    def holding(self, offset: int) -> Segment:
        """Return the segment with this record, or the oldest one for an older record."""
        segments = self.segments
        return segments[max(0, bisect_right(segments, offset, key=lambda each: each.base) - 1)]

    def after(self, segment: Segment) -> Segment | None:
        """Return the next segment, also if it was made just now."""
        for _ in range(2):
            segments = self.segments
            at = bisect_right(segments, segment.base, key=lambda each: each.base)
            if at < len(segments):
                return segments[at]
            self.refresh()
        return None

    def cover(self, segment: Segment) -> SegmentIndex:
        """Bring the index of a segment up to date, by its file or by reading the segment."""
        if segment.is_covered:
            return segment.index
        is_last = segment is self.segments[-1]
        folder = self.folder
        try:
            if not is_last and not segment.index.size:
                stored = folder.read(folder.segment(segment.base, INDEX))
                size = folder.disk.size(folder.segment(segment.base))
                segment.index = decode_index(stored, segment.base, size) or segment.index
            self._read_on(segment)
        except FileNotFoundError:  # retention removed it
            self.refresh()
        segment.is_covered = not is_last
        return segment.index

    def _read_on(self, segment: Segment) -> None:
        file = self.folder.disk.open(self.folder.segment(segment.base))
        try:
            scan = Scan(file, segment.index.size, segment.index.end)
            while batch := scan.next():
                segment.index.add(batch)
        finally:
            file.close()
