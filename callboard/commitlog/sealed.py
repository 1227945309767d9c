"""Sealed segments, which are complete, and their columns as Parquet files.

A segment is sealed when the next one is created. A column file may exist beside it, under the
same name with `.parquet`. It has the same rows in the same order, for Spark, DuckDB and others
to read without callboard. It is written under another name, synced and renamed, so it is either
complete or missing. It is only a copy: if it is missing, readers use the segment. `Sealing` is
the thread that writes the column files of new sealed segments.

The columns match `arrow_schema`, but `time` is in microseconds, because Spark does not read
finer times; `time_ns` has the nanoseconds as an integer. The metadata have `callboard.base` and
`callboard.end`. Few readers of Parquet verify the checksums of pages, and the footer has none.
Therefore 8 bytes precede the footer, in a place that readers ignore: `CBLP` and the CRC-32 of
all other bytes.
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

#: Records in a row group, the unit that readers can skip by offset or topic.
ROWS: Final = 1 << 17

_SEAL: Final = b"CBLP"
_LENGTH: Final = struct.Struct("<I4s")
_SUM: Final = struct.Struct("<4sI")


class SealedSegment(NamedTuple):
    """A complete segment, which does not grow any further.

    Attributes:
        path: Path of the segment.
        columns: Path of its Parquet file; None if that does not exist.
        base: Offset of its first record.
        end: First offset after its last record.
    """

    path: str
    columns: str | None
    base: int
    end: int


def sealed_segments(folder: str | Path, *, disk: Disk | None = None) -> list[SealedSegment]:
    """Return all sealed segments of a log, oldest first; reads only file names.

    Records from the `end` of the last one on are in the segment that is being written.

    Raises:
        LogFailed: the folder does not hold a log.
    """
    return sealed_segments_in(open_folder(folder, disk))


def write_columns(folder: str | Path, *, disk: Disk | None = None) -> list[SealedSegment]:
    """Write the missing column files of sealed segments; return these segments.

    Any process may call this, even while another one writes the log. Damaged segments are
    skipped.

    Raises:
        ExtraMissing: pyarrow is not installed.
        LogFailed: the folder does not hold a log, or the disk failed.
    """
    load_pyarrow()
    place = open_folder(folder, disk)
    segments: list[SealedSegment] = []
    for segment in sealed_segments_in(place):
        with suppress(LogCorrupt):
            if segment.columns is not None:
                continue
            if (written := write_segment(place, segment)) is not None:
                segments.append(written)
    return segments


def sealed_segments_in(folder: Folder) -> list[SealedSegment]:
    """Return the sealed segments of the log in a folder.

    Raises:
        LogFailed: the folder does not hold a log.
    """
    with folder.reading():
        bases = folder.log_bases()
        with_columns = set(folder.bases(COLUMNS))
    segments = []
    for base, end in pairwise(bases):
        columns = folder.segment(base, COLUMNS) if base in with_columns else None
        segments.append(SealedSegment(folder.segment(base), columns, base, end))
    return segments


def gaps_between(
    start: int, end: int, covered: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the ranges without columns; a single empty one if all records are covered."""
    position = start
    for base, covered_end in covered:
        if position < base:
            yield position, base
        position = max(position, covered_end)
    if position < end or not covered:
        yield position, max(position, end)


def write_segment(folder: Folder, segment: SealedSegment) -> SealedSegment | None:
    """Write the column file of a segment durably; return None if retention removed it.

    Raises:
        ExtraMissing: pyarrow is not installed.
        LogCorrupt: the segment is damaged.
        LogFailed: the disk failed.
    """
    try:
        data = _as_parquet(folder, segment)
        path = folder.segment(segment.base, COLUMNS)
        # Several processes may write the same columns, so temporary names are unique.
        folder.replace(path, data, unique=str(os.getpid()))
        if segment.base not in folder.bases():  # retention removed the segment in the meantime
            folder.remove(path)
            return None
    except OSError as error:
        reason = error.strerror or error
        msg = (
            f"the columns of {segment.path} could not be written: {reason}; free space, or"
            " check its folder"
        )
        raise LogFailed(msg) from error
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
        msg = f"{segment.path} has {count} records, {segment.end - segment.base} expected"
        raise LogCorrupt(msg, offset=segment.base, next_offset=segment.end)
    return _with_checksum(out.getvalue())


def _with_checksum(data: bytes) -> bytes:
    """Insert the checksum of a Parquet file before its footer."""
    length, _ = _LENGTH.unpack_from(data, len(data) - _LENGTH.size)
    footer = len(data) - _LENGTH.size - length
    return data[:footer] + _SUM.pack(_SEAL, crc32(data)) + data[footer:]


def end_of_columns(segment: SealedSegment) -> int | None:
    """Return the `end` of a segment's Parquet file; None if the file is damaged.

    This reads the whole file. If it lacks our checksum, it is decoded to verify its pages.
    """
    from pyarrow import parquet

    assert segment.columns is not None
    try:
        with open(segment.columns, "rb", opener=open_plain) as file:
            data = memoryview(file.read())
        length, _ = _LENGTH.unpack_from(data, len(data) - _LENGTH.size)
        seal_start = len(data) - _LENGTH.size - length - _SUM.size
        seal, checksum = _SUM.unpack_from(data, seal_start)
        if seal != _SEAL:
            columns_to_arrow(io.BytesIO(data))
        elif checksum != crc32(data[seal_start + _SUM.size :], crc32(data[:seal_start])):
            return None
        metadata = parquet.read_metadata(io.BytesIO(data)).metadata
        is_its_own = int(metadata[b"callboard.base"]) == segment.base
        return int(metadata[b"callboard.end"]) if is_its_own else None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        struct.error,
    ):  # of pyarrow and of unpacking
        return None


def _parquet_schema(pa: Any) -> "pa.Schema":
    """Return the schema of Parquet files: times in microseconds, then in nanoseconds."""
    schema = arrow_schema()
    index = schema.get_field_index("time")
    coarse = pa.field("time", pa.timestamp("us", tz="UTC"))
    return schema.set(index, coarse).append(pa.field("time_ns", pa.int64()))


def as_written(pieces: "Sequence[pa.RecordBatch]") -> "pa.Table":
    """Return records in the schema of Parquet files, with times rounded down."""
    pa = load_pyarrow()
    from pyarrow import compute

    schema, whole = _parquet_schema(pa), pa.Table.from_batches(pieces, arrow_schema())
    times = whole.column("time").cast(pa.int64())
    # This rounds down also before 1970, and does not overflow near the extremes of int64, as
    # floor_temporal would.
    micros = compute.divide(times, 1000)
    is_above = compute.greater(compute.multiply(micros, 1000), times)
    coarse = compute.subtract(micros, is_above.cast(pa.int64())).cast(schema.field("time").type)
    columns = [coarse if name == "time" else whole.column(name) for name in schema.names[:-1]]
    return pa.Table.from_arrays([*columns, times], schema=schema)


def columns_to_arrow(file: str | BinaryIO) -> "pa.Table":
    """Return the records of a Parquet file in the schema of `arrow_schema`.

    Raises:
        ExtraMissing: pyarrow is not installed.
        OSError: the file is missing or damaged.
    """
    load_pyarrow()
    from pyarrow import parquet

    table = parquet.read_table(file, page_checksum_verification=True)
    schema = arrow_schema()
    times = table.column("time_ns").cast(schema.field("time").type)
    index = table.schema.get_field_index("time")
    return table.set_column(index, "time", times).select(schema.names).cast(schema)


_log = logging.getLogger("callboard.commitlog")


class Sealing(Background):
    """A thread that writes missing column files at its start and after each `wake`."""

    def __init__(self, folder: Folder) -> None:
        """Start the thread."""
        self._folder = folder
        self._damaged: set[int] = set()  # bases of damaged segments
        super().__init__("callboard-log-columns")
        self.wake()

    def work(self) -> bool:
        """Write missing column files; failures are retried when the next segment is sealed."""
        try:
            self._sweep()
            self._write_missing()
        except OSError as error:
            _log.error("the columns of %s could not be written: %s", self._folder.path, error)
            return False
        return True

    def _sweep(self) -> None:
        """Remove the column files of removed segments."""
        for base in {*self._folder.bases(COLUMNS)} - {*self._folder.bases()}:
            self._folder.remove(self._folder.segment(base, COLUMNS))

    def _write_missing(self) -> None:
        """Write the missing column files of all sealed segments."""
        for segment in sealed_segments_in(self._folder):
            if segment.columns is not None or segment.base in self._damaged:
                continue
            if self.is_ended:
                return
            try:
                write_segment(self._folder, segment)
            except LogCorrupt as error:
                self._damaged.add(segment.base)
                _log.warning("the columns of a damaged segment are not written: %s", error)
            except LogError as error:  # retried when the next segment is sealed
                _log.warning("%s", error)
                return
