"""Reading on from a place, over the borders of segments, up to the end there is."""

from collections.abc import Generator, Iterator
from itertools import chain

from callboard.commitlog.batch import Batch, records_of
from callboard.commitlog.disk import DiskFile
from callboard.commitlog.errors import LogCorrupt
from callboard.commitlog.marks import read_mark
from callboard.commitlog.record import Cursor, Record
from callboard.commitlog.scan import Scan, find_intact
from callboard.commitlog.table import Segment, SegmentTable


class Reading(Iterator[Record]):
    """Iterates over records; ends with the last one that is there.

    Attributes:
        lost: How many records were asked for that retention has removed.
        cursor: The place behind the last batch that was taken up.
    """

    def __init__(self, table: SegmentTable, cursor: Cursor) -> None:
        """Begin at a place."""
        self.lost = 0
        self.cursor = cursor
        self._table = table
        self._records = chain.from_iterable(map(self._records_of, self.batches()))
        self._first = cursor.offset

    def __iter__(self) -> Iterator[Record]:  # noqa: PYI034
        """Return the records; not `self`, which would cost a call for each."""
        return self._records

    def __next__(self) -> Record:
        """Return the next record."""
        return next(self._records)

    def _records_of(self, batch: Batch) -> Iterator[Record]:
        return records_of(batch, self._first)

    def batches(self) -> Iterator[Batch]:
        """Iterate over batches, the first of which may begin before the place asked for.

        Raises:
            LogCorrupt: durable bytes are damaged.
        """
        table, is_second_look = self._table, False
        while True:
            segment = table.holding(self.cursor.offset)
            try:
                file = table.folder.disk.open(table.folder.segment(segment.base))
            except FileNotFoundError:  # retention removed it
                table.refresh()
                continue
            try:
                before = self._jump_to_head(segment)
                position = yield from self._batches_of(segment, file)
                following = table.after(segment)
                if following is None:
                    if self._is_all(segment, file, position):
                        return
                elif self.cursor.offset != before:
                    is_second_look = False
                elif following.base > before:
                    # It may have grown between the look at its end and that for the next one.
                    if is_second_look:
                        raise self._damaged(segment, file, position, following.base)
                    is_second_look = True
            finally:
                file.close()

    def _jump_to_head(self, segment: Segment) -> int:
        """Count what retention removed; returns the offset to go on with."""
        if self.cursor.offset < segment.base:
            self.lost += segment.base - self.cursor.offset
            self.cursor = Cursor(segment.base, segment.base)
        return self.cursor.offset

    def _batches_of(self, segment: Segment, file: DiskFile) -> Generator[Batch, None, int]:
        """Iterate over the batches of one segment; returns where that ended."""
        scan, base = self._begin(segment, file), segment.base
        while True:
            batch = scan.next()
            if batch is None:
                if scan.offset is None or scan.offset >= self.cursor.offset:
                    return scan.position
                found = find_intact(file, scan.position, scan.offset)
                if found is None or found.base > self.cursor.offset:
                    return scan.position
                scan = Scan(file, found.position, found.base)
            elif batch.end > self.cursor.offset:
                self.cursor = Cursor(batch.end, base, scan.position)
                yield batch

    def _begin(self, segment: Segment, file: DiskFile) -> Scan:
        """Return a scan that begins at or before the place."""
        offset, base, position = self.cursor
        if base == segment.base and position:
            batch = Scan(file, position).next()
            if batch is not None and batch.base <= offset < batch.end:
                return Scan(file, position, batch.base)
            if position >= segment.index.size:
                return Scan(file, position, offset)
        if offset == segment.base:
            return Scan(file, 0, offset)
        index = self._table.cover(segment)
        if offset >= index.end:
            return Scan(file, index.size, index.end)
        return Scan(file, *index.find(offset))

    def _is_all(self, segment: Segment, file: DiskFile, position: int) -> bool:
        """Whether the last segment really ends here; what is torn or half written may follow.

        Raises:
            LogCorrupt: what follows was durable.
        """
        if file.size() == position:
            return True
        mark = read_mark(self._table.folder, segment.base)
        if position >= mark.size or self.cursor.offset >= mark.end:
            return True
        if Scan(file, position).next() is not None:  # it was written meanwhile
            return False
        raise self._damaged(segment, file, position, mark.end)

    def _damaged(
        self, segment: Segment, file: DiskFile, position: int, behind: int
    ) -> LogCorrupt:
        offset = self.cursor.offset
        found = find_intact(file, position + 1, offset + 1)
        next_offset = found.base if found else max(behind, offset + 1)
        path = self._table.folder.segment(segment.base)
        what = (
            f"{path} is damaged at byte {position}: records {offset} to {next_offset - 1} are"
            f" lost; read on from {next_offset}"
        )
        return LogCorrupt(what, offset=offset, next_offset=next_offset)
