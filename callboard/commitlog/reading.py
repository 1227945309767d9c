"""Reads records from a cursor to the end of a log, across segment boundaries.

`LogReading` iterates over records. `RunReader` returns a limited number of records at a time,
for any number of cursors, and keeps partly read batches decoded.
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

#: Called with damage when reading should continue after it.
OnDamage = Callable[[LogCorrupt], object]

#: Attempts to open a segment that the table lists. After these, a missing file is damage, not a
#: race with retention.
_ATTEMPTS: Final = 3


class LogReading(Iterator[Record]):
    """Iterates over records up to the newest one.

    Attributes:
        lost: Number of records after the first cursor that retention has removed.
        cursor: The position after the last batch that was read.
    """

    def __init__(
        self, table: LogSegmentTable, cursor: Cursor, on_damage: OnDamage | None = None
    ) -> None:
        """Start at a cursor; with `on_damage`, report damage to it and continue after it."""
        self.lost = 0
        self.cursor = cursor
        self._table = table
        self._on_damage = on_damage
        decode = partial(records_of, first=cursor.offset)
        if on_damage is not None:
            decode = partial(self._decode_intact, cursor.offset)
        self._records = chain.from_iterable(map(decode, self.batches()))

    def __iter__(self) -> Iterator[Record]:  # noqa: PYI034
        """Return the inner iterator; `self` would cost a call of `__next__` per record."""
        return self._records

    def __next__(self) -> Record:
        """Return the next record."""
        return next(self._records)

    def _decode_intact(self, first: int, batch: Batch) -> Iterator[Record]:
        """Return the records of a batch; if it is malformed, report that and return none."""
        try:
            return records_of(batch, first)
        except LogCorrupt as error:
            self.meet(error)
            return iter(())

    def meet(self, error: LogCorrupt) -> None:
        """Raise an error, or report it to `on_damage` and continue after the damage."""
        if self._on_damage is None:
            raise error
        self._on_damage(error)
        self.cursor = Cursor(error.next_offset)

    def batches(self) -> Iterator[Batch]:
        """Iterate over batches; the first one may start before the cursor.

        Raises:
            LogCorrupt: durable bytes are damaged.
            LogFailed: the disk failed.
        """
        with self._table.folder.reading():
            yield from self._readable()

    def _readable(self) -> Iterator[Batch]:
        """Iterate over batches; disk errors are raised as `OSError`."""
        table, is_second_look, attempts = self._table, False, 0
        while attempts >= 0:
            segment = table.holding(self.cursor.offset)
            try:
                with closing(
                    table.folder.disk.open(table.folder.segment(segment.base))
                ) as file:
                    if self.cursor.offset < segment.base:  # retention removed some records
                        self.lost += segment.base - self.cursor.offset
                        self.cursor = Cursor(segment.base, segment.base)
                    start = self.cursor.offset
                    position = yield from self._batches_of(segment, file)
                    attempts, following = 0, table.after(segment)
                    end = (
                        following.base if following else self._durable(segment, file, position)
                    )
                    if following is None and self.cursor.offset >= end:
                        return
                    if self.cursor.offset != start:
                        is_second_look = False
                    elif end > start:
                        # The segment may have grown after its end was read and before the next
                        # segment was found, so look a second time before reporting damage.
                        if (
                            is_second_look
                            and (batch := self._find_duplicate(segment)) is not None
                        ):
                            self.cursor = Cursor(batch.end)
                            yield batch
                        elif is_second_look:
                            self.meet(self._damage_at(segment, file, position, end))
                        is_second_look = not is_second_look
            except FileNotFoundError:  # retention removed it; in object stores even while open
                attempts = self._check_missing(segment, attempts)

    def _check_missing(self, segment: LogSegment, attempts: int) -> int:
        """Return how often the file was missing; negative if no records follow it.

        Retention removes a segment from the table before its file. If a segment without a file
        stays in the table, something else has removed the file, which is damage.
        """
        self._table.refresh()
        if self._table.holding(self.cursor.offset) is not segment:
            return 0
        if attempts < _ATTEMPTS:
            return attempts + 1
        following = self._table.after(segment)
        offset = max(self.cursor.offset, segment.base)
        end = max(segment.index.end, self._table.marked)
        end = end if following is None else following.base
        if offset >= end:
            return -1
        path = self._table.folder.segment(segment.base)
        msg = (
            f"{path} is missing: records {offset} to {end - 1} are lost; continue reading at"
            f" {end}"
        )
        self.meet(LogCorrupt(msg, offset=offset, next_offset=end))
        return attempts

    def _batches_of(self, segment: LogSegment, file: DiskFile) -> Generator[Batch, None, int]:
        """Iterate over the batches of a segment; return the position after the last one."""
        scan, base = self._begin(segment, file), segment.base
        while True:
            batch = scan.next()
            if batch is None:
                if scan.offset is None or scan.offset >= self.cursor.offset:
                    if scan.offset == self.cursor.offset:  # followers resume at this position
                        self.cursor = Cursor(scan.offset, base, scan.position)
                    return scan.position
                intact = find_intact(file, scan.position, scan.offset)
                if intact is None or intact.base > self.cursor.offset:
                    return scan.position
                scan = Scan(file, intact.position, intact.base)
            elif batch.end > self.cursor.offset:
                self.cursor = Cursor(batch.end, base, scan.position)
                yield batch

    def _begin(self, segment: LogSegment, file: DiskFile) -> Scan:
        """Return a scan that starts at or before the cursor."""
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
        place = index.find(offset)
        if Scan(file, *place).next() is None:  # the index is wrong, or the batch damaged
            return Scan(file, 0, base)
        return Scan(file, *place)

    def _durable(self, segment: LogSegment, file: DiskFile, position: int) -> int:
        """Return the first offset after the durable records; a torn batch may follow them."""
        end = self._table.marked
        if file.size() != position or self.cursor.offset < end:
            mark = read_mark(self._table.folder, segment.base)
            end = max(end, mark.end if position < mark.size else 0)
        return end

    def _find_duplicate(self, segment: LogSegment) -> Batch | None:
        """Return the batch with the next record if the previous segment has it as well."""
        table, offset = self._table, self.cursor.offset
        previous = table.holding(segment.base - 1)
        index = table.cover(previous)
        if not previous.base < segment.base <= offset < index.end:
            return None
        with closing(table.folder.disk.open(table.folder.segment(previous.base))) as file:
            scan = Scan(file, *index.find(offset))
            while (batch := scan.next()) is not None and batch.end <= offset:
                pass
        return batch

    def _damage_at(
        self, segment: LogSegment, file: DiskFile, position: int, end: int
    ) -> LogCorrupt:
        """Return the error for a damaged position, with the offset at which to resume."""
        offset = self.cursor.offset
        intact = find_intact(file, position + 1, offset + 1)
        next_offset = intact.base if intact else max(end, offset + 1)
        path, file_size = self._table.folder.segment(segment.base), file.size()
        size = (intact.position if intact else file_size) - position
        cause = (
            "" if is_readable(file, max(0, size), position) else " (the disk cannot read it)"
        )
        msg = (
            f"{path} is damaged at byte {position}{cause}: records {offset} to"
            f" {next_offset - 1} are lost; continue reading at {next_offset}"
        )
        return LogCorrupt(msg, offset=offset, next_offset=next_offset)


#: Partly read batches that are kept decoded. With more cursors, batches are decoded again.
KEPT: Final = 8


class _Part(NamedTuple):
    """The records of a batch, its position, and the cursor after it."""

    records: list[Record]
    segment: int
    position: int
    end: Cursor


class RunReader:
    """Reads runs of records for any number of cursors."""

    def __init__(self, table: LogSegmentTable) -> None:
        """Read from the segments of a table."""
        self._table = table
        self._cache: dict[tuple[int, int], _Part] = {}

    def read(self, begin: Cursor, max_records: int, max_bytes: int | None) -> Run:
        """Return the next records from a cursor on.

        Raises:
            LogCorrupt: the next record is damaged; records before the damage are returned
                first.
        """
        records: list[Record] = []
        cached = self._find(begin)
        reading = LogReading(self._table, cached.end if cached else begin)
        try:
            for part in self._parts(cached, reading):
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
                    return Run(records, part.end, reading.lost)
        except LogCorrupt as error:
            if not records:
                raise
            return Run(records, Cursor(error.offset), reading.lost)
        return Run(records, reading.cursor, reading.lost)

    def _parts(self, cached: _Part | None, reading: LogReading) -> Iterator[_Part]:
        """Iterate over decoded batches: the cached one if any, then those of the log."""
        if cached is not None:
            yield cached
        for batch in reading.batches():
            end = reading.cursor
            yield _Part(list(records_of(batch)), end.segment, batch.position, end)

    def _find(self, begin: Cursor) -> _Part | None:
        """Return the cached batch that has the next record of a cursor."""
        part = self._cache.get((begin.segment, begin.position))
        if part is None or not part.records[0].offset <= begin.offset < part.end.offset:
            return None
        return part

    def _keep(self, part: _Part) -> None:
        """Cache a partly read batch; evict the oldest one if the cache is full."""
        cache = {**self._cache, (part.segment, part.position): part}
        if len(cache) > KEPT:
            del cache[next(iter(cache))]
        self._cache = cache  # replaced, not modified: other threads may be reading it


def _fitting(records: list[Record], max_bytes: int, *, is_first: bool) -> list[Record]:
    """Return the records whose payloads fit into `max_bytes`; at least one if `is_first`."""
    used = 0
    for count, record in enumerate(records):
        used += len(record.data)
        if used > max_bytes and not (is_first and count == 0):
            return records[:count]
    return records
