"""Sealed segments: those that get no more records, and their columns as Parquet.

A segment is sealed when the next one has begun. Its columns then may stand beside it, under the
same name with `.parquet`: the same rows in the same order, as Spark and DuckDB read them by
themselves. Such a file is whole or not there: it is written under another name, synced, and
renamed. It is a copy: a log is complete without it, and a reader that misses it reads the
segment. `Sealing` is the thread that writes the columns of new sealed segments.

Columns: those of `arrow_schema`, but `time` is in microseconds, since Spark reads no finer
ones; `time_ns` has the nanoseconds as a number. Its metadata tell `callboard.base` and
`callboard.end`. Few readers of Parquet look at the checksums of pages,
and the footer has none: so 8 bytes stand before the footer, where no reader looks, `CBLP` and
the CRC-32 of all the others.
"""

import io
import logging
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple
from zlib import crc32

from callboard.commitlog.arrow import arrow_schema, load_pyarrow, record_batches
from callboard.commitlog.disk import Disk, open_plain
from callboard.commitlog.errors import LogCorrupt, LogError, LogFailed
from callboard.commitlog.folder import COLUMNS, Folder
from callboard.commitlog.reader import open_folder
from callboard.commitlog.reading import LogReading
from callboard.commitlog.record import Cursor
from callboard.commitlog.segment import LogSegmentTable
from callboard.commitlog.writer import Background

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]

#: Records of a row group: the least that readers skip by offset or topic.
ROWS: Final = 1 << 17

_SEAL: Final = b"CBLP"
_LENGTH: Final = struct.Struct("<I4s")
_SUM: Final = struct.Struct("<4sI")


class SealedSegment(NamedTuple):
    """A segment that gets no more records.

    Attributes:
        path: Its file.
        columns: The same records as Parquet; None where there is no such file.
        base: The offset of its first record.
        end: The offset behind its last one.
    """

    path: str
    columns: str | None
    base: int
    end: int


def sealed_segments(folder: str | Path, *, disk: Disk | None = None) -> list[SealedSegment]:
    """Return all sealed segments of a log, the oldest first; reads only names.

    The records behind them, from the `end` of the last one on, are in the segment that grows.

    Raises:
        LogFailed: there is no log.
    """
    return sealed_segments_in(open_folder(folder, disk))


def write_columns(folder: str | Path, *, disk: Disk | None = None) -> list[SealedSegment]:
    """Write the columns of all sealed segments that have none; returns these segments.

    Any process may do that, also while another one writes the log. A segment that is damaged
    gets none.

    Raises:
        ExtraMissing: pyarrow is not installed.
        LogFailed: there is no log, or the disk refuses.
    """
    load_pyarrow()
    place = open_folder(folder, disk)
    made: list[SealedSegment] = []
    for each in sealed_segments_in(place):
        with suppress(LogCorrupt):
            if each.columns is None and (written := write_segment(place, each)) is not None:
                made.append(written)
    return made


def sealed_segments_in(folder: Folder) -> list[SealedSegment]:
    """Return the sealed segments of the log in a folder.

    Raises:
        LogFailed: there is no log.
    """
    with folder.reading():
        bases = folder.log_bases()
        kept = set(folder.bases(COLUMNS))
    found = []
    for base, end in pairwise(bases):
        columns = folder.segment(base, COLUMNS) if base in kept else None
        found.append(SealedSegment(folder.segment(base), columns, base, end))
    return found


def gaps_between(
    start: int, end: int, covered: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Return the ranges that have no columns, and an empty one if all have."""
    position = start
    for base, behind in covered:
        if position < base:
            yield position, base
        position = max(position, behind)
    if position < end or not covered:
        yield position, max(position, end)


def write_segment(folder: Folder, segment: SealedSegment) -> SealedSegment | None:
    """Write the columns of one segment, durably and at once; None if it is gone meanwhile.

    Raises:
        ExtraMissing: pyarrow is not installed.
        LogCorrupt: the segment is damaged.
        LogFailed: the disk refuses.
    """
    try:
        data = _as_parquet(folder, segment)
        path = folder.segment(segment.base, COLUMNS)
        # Several processes may write the same columns: each under a name of its own.
        folder.replace(path, data, unique=str(os.getpid()))
        if segment.base not in folder.bases():  # retention was quicker
            folder.remove(path)
            return None
    except OSError as error:
        why = error.strerror or error
        what = f"no columns of {segment.path} were written: {why}; make room or see its folder"
        raise LogFailed(what) from error
    return segment._replace(columns=path)


def _as_parquet(folder: Folder, segment: SealedSegment) -> bytes:
    """Return the records of a segment as a Parquet file."""
    from pyarrow import parquet

    pa, out = load_pyarrow(), io.BytesIO()
    bounds = {"callboard.base": str(segment.base), "callboard.end": str(segment.end)}
    reading = LogReading(LogSegmentTable(folder), Cursor(segment.base))
    count = 0
    with parquet.ParquetWriter(
        out,
        _parquet_schema(pa).with_metadata(bounds),
        compression="zstd",
        use_dictionary=["topic", "key", "sender"],
        write_page_checksum=True,
    ) as writer:
        for piece in record_batches(reading, segment.end, rows=ROWS):
            writer.write_table(as_written([piece]), row_group_size=ROWS)
            count += piece.num_rows
    if count != segment.end - segment.base:
        what = f"{segment.path} has {count} records, {segment.end - segment.base} expected"
        raise LogCorrupt(what, offset=segment.base, next_offset=segment.end)
    return _with_checksum(out.getvalue())


def _with_checksum(data: bytes) -> bytes:
    """Put a checksum of all before the footer of a Parquet file."""
    length, _ = _LENGTH.unpack_from(data, len(data) - _LENGTH.size)
    at = len(data) - _LENGTH.size - length
    return data[:at] + _SUM.pack(_SEAL, crc32(data)) + data[at:]


def end_of_columns(segment: SealedSegment) -> int | None:
    """Return the offset behind what the Parquet file of a segment has; None if it is damaged.

    This reads the whole file. One without a checksum of ours is decoded, by those of its pages.
    """
    from pyarrow import parquet

    assert segment.columns is not None
    try:
        with open(segment.columns, "rb", opener=open_plain) as file:
            data = memoryview(file.read())
        length, _ = _LENGTH.unpack_from(data, len(data) - _LENGTH.size)
        at = len(data) - _LENGTH.size - length - _SUM.size
        seal, checksum = _SUM.unpack_from(data, at)
        if seal != _SEAL:
            columns_to_arrow(io.BytesIO(data))
        elif checksum != crc32(data[at + _SUM.size :], crc32(data[:at])):
            return None
        named = parquet.read_metadata(io.BytesIO(data)).metadata
        is_its_own = int(named[b"callboard.base"]) == segment.base
        return int(named[b"callboard.end"]) if is_its_own else None
    except (OSError, ValueError, KeyError, TypeError, struct.error):  # pyarrow's, and ours
        return None


def _parquet_schema(pa: Any) -> "pa.Schema":
    """Return the schema of Parquet files: coarse times, and nanoseconds beside them."""
    schema = arrow_schema()
    at = schema.get_field_index("time")
    coarse = pa.field("time", pa.timestamp("us", tz="UTC"))
    return schema.set(at, coarse).append(pa.field("time_ns", pa.int64()))


def as_written(pieces: "Sequence[pa.RecordBatch]") -> "pa.Table":
    """Return records in the columns of Parquet files: with coarse times, rounded down."""
    pa = load_pyarrow()
    from pyarrow import compute

    schema, whole = _parquet_schema(pa), pa.Table.from_batches(pieces, arrow_schema())
    times = whole.column("time").cast(pa.int64())
    # Rounded down also before 1970, and for times at the ends, where floor_temporal overflows.
    micros = compute.divide(times, 1000)
    is_above = compute.greater(compute.multiply(micros, 1000), times)
    coarse = compute.subtract(micros, is_above.cast(pa.int64())).cast(schema.field("time").type)
    columns = [coarse if name == "time" else whole.column(name) for name in schema.names[:-1]]
    return pa.Table.from_arrays([*columns, times], schema=schema)


def columns_to_arrow(file: str | BinaryIO) -> "pa.Table":
    """Return what a file of columns holds, in the columns of `arrow_schema`.

    Raises:
        ExtraMissing: pyarrow is not installed.
        OSError: the file is gone, or damaged.
    """
    load_pyarrow()
    from pyarrow import parquet

    table = parquet.read_table(file, page_checksum_verification=True)
    schema = arrow_schema()
    times = table.column("time_ns").cast(schema.field("time").type)
    at = table.schema.get_field_index("time")
    return table.set_column(at, "time", times).select(schema.names).cast(schema)


_log = logging.getLogger("callboard.commitlog")


class Sealing(Background):
    """Writes what is missing when it begins and after each `wake`; sleeps in between."""

    def __init__(self, folder: Folder) -> None:
        """Start the thread."""
        self._folder = folder
        self._left: set[int] = set()  # damaged segments
        super().__init__("callboard-log-columns")
        self.wake()

    def work(self) -> bool:
        """Write what is missing; what was not is tried again when a segment is sealed."""
        try:
            self._sweep()
            self._write_missing()
        except OSError as error:
            _log.error("the columns of %s are not written: %s", self._folder.path, error)
            return False
        return True

    def _sweep(self) -> None:
        """Remove columns whose segment is gone."""
        for base in {*self._folder.bases(COLUMNS)} - {*self._folder.bases()}:
            self._folder.remove(self._folder.segment(base, COLUMNS))

    def _write_missing(self) -> None:
        """Write the columns of all sealed segments that have none."""
        for segment in sealed_segments_in(self._folder):
            if segment.columns is not None or segment.base in self._left:
                continue
            if self.is_ended:
                return
            try:
                write_segment(self._folder, segment)
            except LogCorrupt as error:
                self._left.add(segment.base)
                _log.warning("no columns of a damaged segment: %s", error)
            except LogError as error:  # tried again when the next segment is sealed
                _log.warning("%s", error)
                return
