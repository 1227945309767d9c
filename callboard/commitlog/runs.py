"""Bounded reading: so many records at a time, also of batches that are much longer."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from callboard.commitlog.batch import records_of
from callboard.commitlog.errors import LogCorrupt
from callboard.commitlog.reading import Reading
from callboard.commitlog.record import Cursor, Record, Run
from callboard.commitlog.table import SegmentTable

KEPT: Final = 8
"""Batches read in part that are kept decoded; cursors that are elsewhere decode again."""


class _Part(NamedTuple):
    """The records of one batch, where it begins, and the place behind it."""

    records: list[Record]
    segment: int
    position: int
    behind: Cursor


class RunReader:
    """Reads runs for any number of cursors."""

    def __init__(self, table: SegmentTable) -> None:
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
        reading = Reading(self._table, kept.behind if kept else begin)
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

    def _parts(self, kept: _Part | None, reading: Reading) -> Iterator[_Part]:
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
