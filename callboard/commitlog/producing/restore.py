"""Reading how far each producer of a log has come: from the last table in it, and what follows.

The table stands at the head of each segment that was begun when there was something to keep.
One that has none was begun by an older callboard, or when there was nothing, or its head is
torn or damaged: then segments before it are looked at.
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

#: Segments that are looked at for a table before there is taken to be none.
LOOKED_AT: Final = 16
#: Runs of a producer that are gone back through for the offset of an earlier number.
RUNS: Final = 1024


def restored(table: LogSegmentTable) -> ProducerTable:
    """Return how far each producer has come; damaged batches are passed over.

    Raises:
        LogCorrupt: a note is not what we write.
        OSError: the disk refuses.
    """
    producers, last = ProducerTable(), table.segments[-1]
    start, has_table = None, False
    for segment in reversed(table.segments[-LOOKED_AT:]):
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
    """Iterate over the runs of a producer backwards, as far as the log keeps them."""
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
    """Return the first batch of a segment; None if it is not intact, or not there."""
    try:
        file = table.folder.disk.open(table.folder.segment(segment.base))
    except FileNotFoundError:
        return None
    with closing(file):
        return Scan(file, 0, segment.base).next()


def _note(batch: Batch) -> ProducerNote | None:
    """Return what stands with a batch, if anything does.

    Raises:
        LogCorrupt: it is not what we write.
    """
    try:
        return decode_note(note_of(batch)) if has_note(batch.header) else None
    except ValueError as error:
        raise malformed(batch, error) from None
