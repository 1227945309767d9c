"""Reading on from a place, over the borders of segments, up to the end there is.

`LogReading` iterates over records. `RunReader` returns so many records at a time, also of
batches that are much longer, for any number of cursors.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from callboard.commitlog.batch import Batch, records_of
from callboard.commitlog.disk import DiskFile, is_readable
from callboard.commitlog.errors import LogCorrupt
from callboard.commitlog.folder import read_mark
from callboard.commitlog.integrity import Scan, find_intact
from callboard.commitlog.record import Cursor, Record, Run
from callboard.commitlog.segment import LogSegment, LogSegmentTable

#: What is told of damage, where reading is to go on behind it.
OnDamage = Callable[[LogCorrupt], object]

#: Looks at a file that is missing until it is no race with who removes it.
_LOOKS: Final = 3


class LogReading(Iterator[Record]):
    """Iterates over records; ends with the last one that is there.

    Attributes:
        lost: How many records were asked for that retention has removed.
        cursor: The place behind the last batch that was taken up.
    """

    def __init__(
        self, table: LogSegmentTable, cursor: Cursor, on_damage: OnDamage | None = None
    ) -> None:
        """Begin at a place; `on_damage` is told of damage, and reading goes on behind it."""
        self.lost = 0
        self.cursor = cursor
        self._table = table
        self._on_damage = on_damage
        wanted = partial(records_of, first=cursor.offset)
        if on_damage is not None:
            wanted = partial(self._intact, cursor.offset)
        self._records = chain.from_iterable(map(wanted, self.batches()))

    def __iter__(self) -> Iterator[Record]:  # noqa: PYI034
        """Return the records; not `self`, which would cost a call for each."""
        return self._records

    def __next__(self) -> Record:
        """Return the next record."""
        return next(self._records)

    def _intact(self, first: int, batch: Batch) -> Iterator[Record]:
        """Return the records of a batch; none if it is malformed, which is told."""
        try:
            return records_of(batch, first)
        except LogCorrupt as error:
            self.meet(error)
            return iter(())

    def meet(self, error: LogCorrupt) -> None:
        """Raise an error, or tell it and go on behind the damage."""
        if self._on_damage is None:
            raise error
        self._on_damage(error)
        self.cursor = Cursor(error.next_offset)

    def batches(self) -> Iterator[Batch]:
        """Iterate over batches, the first of which may begin before the place asked for.

        Raises:
            LogCorrupt: durable bytes are damaged.
            LogFailed: the disk refuses.
        """
        with self._table.folder.reading():
            yield from self._readable()

    def _readable(self) -> Iterator[Batch]:
        """Iterate over batches; errors of the disk are those of the system."""
        table, is_second_look, looks = self._table, False, 0
        while looks >= 0:
            segment = table.holding(self.cursor.offset)
            try:
                with closing(
                    table.folder.disk.open(table.folder.segment(segment.base))
                ) as file:
                    if (
                        self.cursor.offset < segment.base
                    ):  # retention removed what was asked for
                        self.lost += segment.base - self.cursor.offset
                        self.cursor = Cursor(segment.base, segment.base)
                    before = self.cursor.offset
                    position = yield from self._batches_of(segment, file)
                    looks, following = 0, table.after(segment)
                    behind = (
                        following.base if following else self._durable(segment, file, position)
                    )
                    if following is None and self.cursor.offset >= behind:
                        return
                    if self.cursor.offset != before:
                        is_second_look = False
                    elif behind > before:
                        # It may have grown between the look at its end and that for the next.
                        if is_second_look and (batch := self._twice(segment)) is not None:
                            self.cursor = Cursor(batch.end)
                            yield batch
                        elif is_second_look:
                            self.meet(self._damaged(segment, file, position, behind))
                        is_second_look = not is_second_look
            except FileNotFoundError:  # retention removed it, on an object store also meanwhile
                looks = self._look_again(segment, looks)

    def _look_again(self, segment: LogSegment, looks: int) -> int:
        """Return how often a file was missing; below zero where nothing stands behind it.

        Retention takes a segment from the table before its file, so one that stays there was
        taken away by somebody else, which is damage.
        """
        self._table.refresh()
        if self._table.holding(self.cursor.offset) is not segment:
            return 0
        if looks < _LOOKS:
            return looks + 1
        following = self._table.after(segment)
        offset = max(self.cursor.offset, segment.base)
        behind = max(segment.index.end, self._table.marked)
        behind = behind if following is None else following.base
        if offset >= behind:
            return -1
        path = self._table.folder.segment(segment.base)
        what = (
            f"{path} is gone: records {offset} to {behind - 1} are lost; read on from {behind}"
        )
        self.meet(LogCorrupt(what, offset=offset, next_offset=behind))
        return looks

    def _batches_of(self, segment: LogSegment, file: DiskFile) -> Generator[Batch, None, int]:
        """Iterate over the batches of one segment; returns where that ended."""
        scan, base = self._begin(segment, file), segment.base
        while True:
            batch = scan.next()
            if batch is None:
                if scan.offset is None or scan.offset >= self.cursor.offset:
                    if (
                        scan.offset == self.cursor.offset
                    ):  # who follows comes back to this place
                        self.cursor = Cursor(scan.offset, base, scan.position)
                    return scan.position
                found = find_intact(file, scan.position, scan.offset)
                if found is None or found.base > self.cursor.offset:
                    return scan.position
                scan = Scan(file, found.position, found.base)
            elif batch.end > self.cursor.offset:
                self.cursor = Cursor(batch.end, base, scan.position)
                yield batch

    def _begin(self, segment: LogSegment, file: DiskFile) -> Scan:
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
        found = index.find(offset)
        if Scan(file, *found).next() is None:  # the index lies, or the batch is damaged
            return Scan(file, 0, base)
        return Scan(file, *found)

    def _durable(self, segment: LogSegment, file: DiskFile, position: int) -> int:
        """Return the offset behind all that was durable; torn or half a batch may follow."""
        behind = self._table.marked
        if file.size() != position or self.cursor.offset < behind:
            mark = read_mark(self._table.folder, segment.base)
            behind = max(behind, mark.end if position < mark.size else 0)
        return behind

    def _twice(self, segment: LogSegment) -> Batch | None:
        """Return the batch with the next record if the segment before has that as well."""
        table, offset = self._table, self.cursor.offset
        before = table.holding(segment.base - 1)
        index = table.cover(before)
        if not before.base < segment.base <= offset < index.end:
            return None
        with closing(table.folder.disk.open(table.folder.segment(before.base))) as file:
            scan = Scan(file, *index.find(offset))
            while (batch := scan.next()) is not None and batch.end <= offset:
                pass
        return batch

    def _damaged(
        self, segment: LogSegment, file: DiskFile, position: int, behind: int
    ) -> LogCorrupt:
        """Return the error for a damaged place, which says where to go on."""
        offset = self.cursor.offset
        found = find_intact(file, position + 1, offset + 1)
        next_offset = found.base if found else max(behind, offset + 1)
        path, end = self._table.folder.segment(segment.base), file.size()
        size = (found.position if found else end) - position
        why = "" if is_readable(file, max(0, size), position) else " (the disk cannot read it)"
        what = (
            f"{path} is damaged at byte {position}{why}: records {offset} to {next_offset - 1}"
            f" are lost; read on from {next_offset}"
        )
        return LogCorrupt(what, offset=offset, next_offset=next_offset)


#: Batches read in part that are kept decoded; cursors that are elsewhere decode again.
KEPT: Final = 8


class _Part(NamedTuple):
    """The records of one batch, where it begins, and the place behind it."""

    records: list[Record]
    segment: int
    position: int
    behind: Cursor


class RunReader:
    """Reads runs for any number of cursors."""

    def __init__(self, table: LogSegmentTable) -> None:
        """Read from these segments."""
        self._table = table
        self._kept: dict[tuple[int, int], _Part] = {}

    def read(self, begin: Cursor, max_records: int, max_bytes: int | None) -> Run:
        """Return the next records from a cursor on.

        Raises:
            LogCorrupt: the next record is damaged; those before damage are returned first.
        """
        records: list[Record] = []
        kept = self._find(begin)
        reading = LogReading(self._table, kept.behind if kept else begin)
        try:
            for part in self._parts(kept, reading):
                first = max(begin.offset - part.records[0].offset, 0)
                some = part.records[first : first + max_records - len(records)]
                if max_bytes is not None:
                    some = _fitting(some, max_bytes, is_first=not records)
                    max_bytes -= sum(len(record.data) for record in some)
                records += some
                if first + len(some) < len(part.records):
                    self._keep(part)
                    following = part.records[first + len(some)].offset
                    return Run(records, Cursor(following, *part[1:3]), reading.lost)
                if len(records) == max_records:
                    return Run(records, part.behind, reading.lost)
        except LogCorrupt as error:
            if not records:
                raise
            return Run(records, Cursor(error.offset), reading.lost)
        return Run(records, reading.cursor, reading.lost)

    def _parts(self, kept: _Part | None, reading: LogReading) -> Iterator[_Part]:
        """Iterate over a kept batch and those behind it, decoded."""
        if kept is not None:
            yield kept
        for batch in reading.batches():
            behind = reading.cursor
            yield _Part(list(records_of(batch)), behind.segment, batch.position, behind)

    def _find(self, begin: Cursor) -> _Part | None:
        """Return a kept batch that has this record."""
        part = self._kept.get((begin.segment, begin.position))
        if part is None or not part.records[0].offset <= begin.offset < part.behind.offset:
            return None
        return part

    def _keep(self, part: _Part) -> None:
        """Keep a batch that was read in part; the oldest one makes room."""
        kept = {**self._kept, (part.segment, part.position): part}
        if len(kept) > KEPT:
            del kept[next(iter(kept))]
        self._kept = kept  # replaced, not changed: other threads may look


def _fitting(records: list[Record], max_bytes: int, *, is_first: bool) -> list[Record]:
    """Return the records whose payloads fit; at least one if it is the first of all."""
    used = 0
    for count, record in enumerate(records):
        used += len(record.data)
        if used > max_bytes and not (is_first and count == 0):
            return records[:count]
    return records
