"""Restores the producers of a log from its last table and the notes after it.

Each segment starts with the table, if there were producers when the segment was created. The
table is missing in segments of an older callboard, and if the head of the segment is torn or
damaged. Then the segments before it are searched.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from callboard.commitlog.batch import Batch, has_note, malformed, note_of
from callboard.commitlog.integrity import Scan
from callboard.commitlog.producing.table import (
    ProducerEntry,
    ProducerNote,
    ProducerTable,
    decode_note,
)
from callboard.commitlog.reading import LogReading
from callboard.commitlog.record import Cursor
from callboard.commitlog.segment import LogSegment, LogSegmentTable

#: Segments that are searched for a table.
SCAN_LIMIT: Final = 16
#: Runs of a producer that are searched, backwards, for the offset of an earlier number.
RUNS: Final = 1024


def restored(table: LogSegmentTable) -> ProducerTable:
    """Return the table of producers; damaged batches are skipped.

    Raises:
        LogCorrupt: a note is malformed.
        OSError: the disk failed.
    """
    producers, last = ProducerTable(), table.segments[-1]
    start, has_table = None, False
    for segment in reversed(table.segments[-SCAN_LIMIT:]):
        head = _head(table, segment)
        if head is None:
            continue
        start = segment.base if start is None else start
        if (note := _note(head)) is not None and note.table is not None:
            start, has_table = segment.base, True
            break
    is_without = not has_table and start == last.base and not table.cover(last).has_notes
    if start is None or is_without:
        return producers
    reading = LogReading(table, Cursor(start, start), lambda _: None)
    for batch in reading.batches():
        if (note := _note(batch)) is not None:
            producers.replay(note)
    return producers


def runs_before(table: LogSegmentTable, entry: ProducerEntry | None) -> Iterator[ProducerEntry]:
    """Iterate backwards over the runs of a producer that are still in the log."""
    for _ in range(RUNS):
        if entry is None:
            return
        yield entry
        name, offset, entry = entry.name, entry.previous, None
        if offset >= 0:
            reading = LogReading(table, Cursor(offset), lambda _: None)
            batch = next(reading.batches(), None)
            note = None if batch is None else _note(batch)
            if note and note.entry and (note.entry.name, note.entry.offset) == (name, offset):
                entry = note.entry


def _head(table: LogSegmentTable, segment: LogSegment) -> Batch | None:
    """Return the first batch of a segment; None if it is missing or damaged."""
    try:
        file = table.folder.disk.open(table.folder.segment(segment.base))
    except FileNotFoundError:
        return None
    with closing(file):
        return Scan(file, 0, segment.base).next()


def _note(batch: Batch) -> ProducerNote | None:
    """Return the note of a batch; None if it has none.

    Raises:
        LogCorrupt: the note is malformed.
    """
    try:
        return decode_note(note_of(batch)) if has_note(batch.header) else None
    except ValueError as error:
        raise malformed(batch, error) from None
