"""Sealed segments, which are complete, and their columns as Parquet files.

A segment is sealed when the next one is created. A column file may exist beside it, under the
same name with `.parquet`. It has the same rows in the same order, for Spark, DuckDB and others
to read without callboard. It is written under another name, synced and renamed, so it is either
complete or missing. It is only a copy: if it is missing, readers use the segment. `Sealing` is
the thread that writes the column files of new sealed segments.

The columns match `arrow_schema`, but `time` is in microseconds, because Spark does not read
finer times; `time_ns` has the nanoseconds as an integer. Then come the fields of payloads as
typed columns (`fields.segment_fields`). The payload of a record is null if these columns give
back the same bytes, which was checked record by record; `payload_template` then has the number
of a template in the metadata `callboard.templates`.

`callboard.offsets` has the first offset and the one after the last. A file without fields of
payloads has `callboard.base` and `callboard.end` instead, as all files of callboard 0.1 do: a
reader of 0.1 regards files without these two as damaged, and reads their segments.

Few readers of Parquet verify the checksums of pages, and the footer has none. Therefore 8 bytes
precede the footer, in a place that readers ignore: `CBLP` and the CRC-32 of all other bytes.
"""

import io
import json
import logging
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple
from zlib import crc32

from callboard.commitlog.arrow import arrow_schema, load_numpy, load_pyarrow, record_batches
from callboard.commitlog.disk import open_plain
from callboard.commitlog.errors import LogCorrupt, LogError, LogFailed
from callboard.commitlog.fields.declared import (
    DeclaredField,
    arrow_fields,
    column_name,
    read_fields,
    wider_type,
)
from callboard.commitlog.folder import COLUMNS, LAST_OFFSET, Folder
from callboard.commitlog.reading import LogReading
from callboard.commitlog.record import Cursor
from callboard.commitlog.segment import LogSegmentTable
from callboard.commitlog.writer import Background
from callboard.support.nesting import parse_json

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]

    from callboard.commitlog.fields.restoring import StoredTemplate
    from callboard.commitlog.fields.segment_fields import SegmentFields
    from callboard.commitlog.fields.templates import ParsedPayloads

#: Column with the number of the template that restores a payload; `COMPLETE` if the payload is
#: stored although the columns have all its fields, null if they may lack some.
TEMPLATE: Final = "payload_template"
#: Bytes of a segment that is read only once to write its columns.
_IN_MEMORY: Final = 128 << 20
#: Names of fields without a column in the metadata of a file.
_UNKNOWN_LIMIT: Final = 100
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
    """Return the records of a segment as a Parquet file.

    Raises:
        LogCorrupt: the segment is damaged.
    """
    from pyarrow import parquet

    load_numpy()
    from callboard.commitlog.fields.segment_fields import SegmentFields

    arrow, out = load_pyarrow(), io.BytesIO()

    def pieces() -> "Iterator[pa.RecordBatch]":
        reading = LogReading(LogSegmentTable(folder), Cursor(segment.base))
        count = 0
        for piece in record_batches(reading, segment.end, rows=ROWS):
            count += piece.num_rows
            yield piece
        if count != segment.end - segment.base:
            msg = f"{segment.path} has {count} records, {segment.end - segment.base} expected"
            raise LogCorrupt(msg, offset=segment.base, next_offset=segment.end)

    # The records are seen twice: the columns of the first row group include later fields. Those
    # of a large segment are read twice instead of being kept in memory.
    fields = SegmentFields(read_fields(folder), inferred_fields(folder, segment.base))
    is_small = _size(folder, segment.path) <= _IN_MEMORY
    surveyed: list[tuple[pa.RecordBatch, ParsedPayloads | None]] = []
    for piece in pieces():
        parsed = fields.survey(piece["payload"], piece["is_bytes"])
        if is_small:
            surveyed.append((piece, parsed))
    fields.decide()
    schema, metadata = _described(fields, segment)
    names = [field.name for field in schema if field.type == arrow.string()]
    with parquet.ParquetWriter(
        out,
        schema.with_metadata(metadata),
        compression="zstd",
        use_dictionary=["key", *names],
        write_page_checksum=True,
    ) as writer:
        for part in surveyed if is_small else ((piece, None) for piece in pieces()):
            rows = as_written([part[0]])
            if fields.fields:
                rows = _rows_with_fields(rows, fields, *part)
            writer.write_table(rows, row_group_size=ROWS)
    return _with_checksum(out.getvalue())


def _size(folder: Folder, path: str) -> int:
    """Return the size of a file in bytes."""
    with closing(folder.disk.open(path)) as file:
        return file.size()


def _described(
    fields: "SegmentFields", segment: SealedSegment
) -> "tuple[pa.Schema, dict[str, str]]":
    """Return the schema of a file, and its metadata."""
    from callboard.commitlog.fields.restoring import templates_to_json

    pa = load_pyarrow()
    schema = _parquet_schema(pa)
    if not fields.fields:
        base, end = str(segment.base), str(segment.end)
        return schema, {"callboard.base": base, "callboard.end": end}
    for field in arrow_fields(fields.fields):
        schema = schema.append(field)
    schema = schema.append(pa.field(TEMPLATE, pa.int32()))
    return schema, {
        "callboard.offsets": f"{segment.base} {segment.end}",
        "callboard.fields": json.dumps(fields.fields),
        "callboard.inferred": str(len(fields.fields) - fields.declared),
        "callboard.templates": templates_to_json(fields.templates),
        "callboard.unknown": json.dumps(dict(fields.unknown.most_common(_UNKNOWN_LIMIT))),
    }


def _rows_with_fields(
    rows: "pa.Table",
    fields: "SegmentFields",
    piece: "pa.RecordBatch",
    parsed: "ParsedPayloads | None",
) -> "pa.Table":
    """Return rows with the columns of their fields, without payloads that these replace."""
    columns = fields.columns_of(piece["payload"], piece["is_bytes"], parsed)
    index = rows.schema.get_field_index("payload")
    rows = rows.set_column(index, rows.schema.field(index), columns.payloads)
    for field, column in zip(arrow_fields(fields.fields), columns.fields, strict=True):
        rows = rows.append_column(field, column)
    return rows.append_column(TEMPLATE, columns.templates)


def _with_checksum(data: bytes) -> bytes:
    """Insert the checksum of a Parquet file before its footer."""
    length, _ = _LENGTH.unpack_from(data, len(data) - _LENGTH.size)
    footer = len(data) - _LENGTH.size - length
    return data[:footer] + _SUM.pack(_SEAL, crc32(data)) + data[footer:]


def intact_columns(segment: SealedSegment) -> "tuple[int, FileFields] | None":
    """Return the end and the fields of a segment's Parquet file; None if the file is damaged.

    This reads the whole file.
    """
    assert segment.columns is not None
    try:
        with open(segment.columns, "rb", opener=open_plain) as file:
            return intact_content(segment.base, file.read())
    except OSError:
        return None


def intact_content(base: int, content: bytes) -> "tuple[int, FileFields] | None":
    """Return the end and the fields of a Parquet file; None if its bytes are damaged.

    Args:
        base: The first offset of the segment; a file of another segment is damage.
        content: The bytes. If they lack our checksum, they are decoded to verify their pages.
    """
    from pyarrow import parquet

    data = memoryview(content)
    try:
        length, _ = _LENGTH.unpack_from(data, len(data) - _LENGTH.size)
        seal_start = len(data) - _LENGTH.size - length - _SUM.size
        seal, checksum = _SUM.unpack_from(data, seal_start)
        if seal != _SEAL:
            columns_to_arrow(io.BytesIO(data))
        elif checksum != crc32(data[seal_start + _SUM.size :], crc32(data[:seal_start])):
            return None
        metadata = parquet.read_metadata(io.BytesIO(data)).metadata
        own_base, end = _offsets(metadata)
        return (end, fields_of_file(metadata)) if own_base == base else None
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        struct.error,
    ):  # of pyarrow and of unpacking
        return None


def _offsets(metadata: Mapping[bytes, bytes]) -> tuple[int, int]:
    """Return the first offset of a file, and the one after its last."""
    if both := metadata.get(b"callboard.offsets"):
        base, end = both.split()
    else:
        base, end = metadata[b"callboard.base"], metadata[b"callboard.end"]
    return int(base), int(end)


class FileFields(NamedTuple):
    """The fields of a column file.

    Attributes:
        fields: All fields that have a column.
        inferred: Those that the log had not declared.
        templates: The templates of payloads that are left out.
        unknown: How many records have a field without a column, by name.
    """

    fields: list[DeclaredField]
    inferred: list[DeclaredField]
    templates: "list[StoredTemplate]"
    unknown: dict[str, int]

    def is_unknown(self, name: str) -> bool:
        """Return whether payloads may have a field that has no column."""
        return not self.fields or name in self.unknown or len(self.unknown) >= _UNKNOWN_LIMIT

    def source_of(self, field: DeclaredField) -> str | None:
        """Return the column with a field; "" if no record has it, None if payloads have it."""
        own = next((item for item in self.fields if item.name == field.name), None)
        if own is None:
            return None if self.is_unknown(field.name) else ""
        is_same = wider_type(own.type, field.type) == field.type
        return column_name(own.name) if is_same else None


def fields_of_file(metadata: Mapping[bytes, bytes] | None) -> FileFields:
    """Return the fields of a column file, from its metadata; none for a file of callboard 0.1.

    Raises:
        ValueError: the metadata are malformed.
    """
    if not metadata or b"callboard.fields" not in metadata:
        return FileFields([], [], [], {})
    from callboard.commitlog.fields.restoring import templates_from_json

    fields = [
        DeclaredField(*map(str, row)) for row in parse_json(metadata[b"callboard.fields"])
    ]
    count = int(metadata[b"callboard.inferred"])
    unknown = parse_json(metadata[b"callboard.unknown"])
    templates = templates_from_json(metadata[b"callboard.templates"])
    return FileFields(fields, fields[len(fields) - count :], templates, unknown)


def fields_of_path(path: str) -> FileFields | None:
    """Return the fields of a column file; None if its metadata cannot be read."""
    from pyarrow import parquet

    try:
        return fields_of_file(parquet.read_metadata(path).metadata)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def all_fields(folder: Folder) -> list[DeclaredField]:
    """Return the declared fields of a log, followed by those that its column files infer."""
    declared = read_fields(folder)
    names = {field.name.casefold() for field in declared}
    inferred = inferred_fields(folder)
    return declared + [field for field in inferred if field.name.casefold() not in names]


def inferred_fields(folder: Folder, limit: int = LAST_OFFSET) -> list[DeclaredField]:
    """Return the inferred fields of the newest column file.

    Args:
        folder: Folder of the log.
        limit: Only files whose first offset is lower.
    """
    from pyarrow import parquet

    bases = [base for base in folder.bases(COLUMNS) if base < limit]
    for base in reversed(bases):
        with suppress(
            OSError, ValueError, KeyError, TypeError, struct.error
        ):  # damaged, removed
            with closing(folder.disk.open(folder.segment(base, COLUMNS))) as file:
                size = file.size()
                length, _ = _LENGTH.unpack(file.pread(_LENGTH.size, size - _LENGTH.size))
                footer = length + _LENGTH.size
                data = file.pread(footer, size - footer)
            return fields_of_file(parquet.read_metadata(io.BytesIO(data)).metadata).inferred
    return []


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

    Payloads that the file leaves out are restored.

    Raises:
        ExtraMissing: pyarrow is not installed.
        OSError: the file is missing or damaged.
        ValueError: its metadata are malformed.
    """
    load_pyarrow()
    from pyarrow import parquet

    table = parquet.read_table(file, page_checksum_verification=True)
    schema = arrow_schema()
    times = table.column("time_ns").cast(schema.field("time").type)
    index = table.schema.get_field_index("time")
    table = with_payloads(table.set_column(index, "time", times))
    return table.select(schema.names).cast(schema)


def with_payloads(table: "pa.Table") -> "pa.Table":
    """Return rows of a column file with the payloads that it leaves out.

    Raises:
        ValueError: the metadata are malformed.
    """
    templates = fields_of_file(table.schema.metadata).templates
    if not templates:
        return table
    from callboard.commitlog.fields.restoring import restore_payloads

    pa = load_pyarrow()
    names = {slot.column for template in templates for slot in template.slots if slot.column}
    pieces = [
        restore_payloads(
            batch["payload"], batch[TEMPLATE], templates, {name: batch[name] for name in names}
        )
        for batch in table.to_batches()
    ]
    index = table.schema.get_field_index("payload")
    return table.set_column(index, "payload", pa.chunked_array(pieces, pa.binary()))


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
