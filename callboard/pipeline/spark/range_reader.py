"""Reader of a range of a log as Arrow record batches; Spark's tasks run it."""

import os
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from callboard.commitlog import Cursor, LogCorrupt, LogReader
from callboard.commitlog.arrow import arrow_schema, record_batches
from callboard.commitlog.fields.decoding import Decoded, decode_arrays
from callboard.commitlog.fields.sealed_fields import SealedFields
from callboard.commitlog.reader import open_folder
from callboard.commitlog.reading import LogReading
from callboard.commitlog.segment import LogSegmentTable
from callboard.pipeline.errors import DataLost, Undecodable
from callboard.pipeline.spark.dead_letters import Origin, bury, full_path, stored_letters
from callboard.pipeline.spark.options import SourceOptions

#: Default schema; Spark's times are in microseconds.
RECORD_SCHEMA: Final = (
    arrow_schema()
    .set(1, pa.field("time", pa.timestamp("us", tz="UTC")))
    .set(3, pa.field("key", pa.string()))
)

RECORD_COLUMNS: Final = frozenset(RECORD_SCHEMA.names)

#: Column with the reason why a payload does not decode.
ERROR: Final = "error"
#: Column with the row of a record in a column file, while records are selected.
_ROW: Final = "row of the file"


def read_range(
    options: SourceOptions, schema: pa.Schema, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records from `start` up to, but not including, `end`.

    Args:
        options: The log, and the records to select.
        schema: The columns: of records, `error`, and fields of payloads.
        start: The first offset.
        end: The offset after the last one.

    Raises:
        DataLost: some records are gone.
        LogCorrupt: some records are damaged.
        Undecodable: a payload does not fit, and dead letters are off.
    """
    decoder = _Decoder(options, schema)
    for records, decoded in _records(options, schema, decoder.fields, start, end):
        yield decoder.decode(records, decoded)
    if decoder.reasons and options.dead_letters:
        origin = Origin(full_path(options.path), *_reader_of(options, schema))
        log = LogReader(options.path, **options.access)
        letters = stored_letters(log, origin, decoder.reasons)
        storage = options.storage_options if "://" in options.dead_letters else None
        bury(options.dead_letters, letters, options.dead_letters_retain, storage)


def _reader_of(options: SourceOptions, schema: pa.Schema) -> tuple[str, str]:
    """Return the id and the name of the reading query.

    The id of a table is derived from its schema, which decides which records do not decode.
    """
    if options.query:
        return options.query, options.query_name
    names = [name for name in schema.names if name not in RECORD_COLUMNS]
    fields = sorted(f"{name} {schema.field(name).type}" for name in names)
    return "table-" + sha256("\n".join(fields).encode()).hexdigest()[:16], options.query_name


def _records(
    options: SourceOptions, schema: pa.Schema, fields: list[pa.Field], start: int, end: int
) -> Iterator[tuple[pa.RecordBatch, Decoded | None]]:
    """Yield the selected records of a range, and check for losses.

    Records of column files come with their fields.
    """
    table = LogSegmentTable(open_folder(options.path, **options.access))
    records = {"offset", *options.where.columns}.union(
        RECORD_COLUMNS.intersection(schema.names)
    )
    if options.topics or ERROR not in schema.names:  # errors name the topic
        records.add("topic")
    sealed = SealedFields(table.folder, records, fields, options.rules)
    while start < end:
        file = sealed.next_file(start, end)
        border = end if file is None else max(start, min(end, file.segment.base))
        for batch in _logged(options, table, start, border):
            yield batch, None
        start = border
        if file is not None:
            stop = min(end, file.segment.end)
            for part in sealed.batches(file, start, stop):
                yield _selected(options, *part)
            start = stop


def _selected(
    options: SourceOptions, records: pa.RecordBatch, decoded: Decoded
) -> tuple[pa.RecordBatch, Decoded]:
    """Return the selected records of a column file, with their fields."""
    if not options.where.all and not options.topics:
        return records, decoded
    rows = pa.array(range(records.num_rows), pa.int64())
    numbered = records.append_column(_ROW, rows)
    chosen = options.where.select(_of_topics(numbered, options.topics))
    places = chosen[_ROW]
    columns = [column.take(places) for column in decoded.columns]
    new = {old: row for row, old in enumerate(places.to_pylist())} if decoded.reasons else {}
    reasons = {new[row]: text for row, text in decoded.reasons.items() if row in new}
    return chosen.drop_columns([_ROW]), Decoded(columns, reasons)


def _logged(
    options: SourceOptions, table: LogSegmentTable, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the selected records of a range from the segments."""
    common = os.path.commonprefix(options.topics) if options.topics else ""
    expected = start
    while expected < end:
        reading = LogReading(table, Cursor(expected))
        try:
            for records in record_batches(reading, end, common, choose=options.where.choose):
                check_loss(options, expected, expected + reading.lost)
                several = options.topics if len(options.topics) > 1 else ()
                yield options.where.select(_of_topics(records, several))
            reached = min(reading.cursor.offset, end)
            check_loss(options, expected, expected + reading.lost)
            check_loss(options, reached, end)
            return
        except LogCorrupt as error:
            if options.fails_on_loss:
                raise
            expected = error.next_offset


def check_loss(options: SourceOptions, expected: int, first: int) -> None:
    """Check for missing records.

    Raises:
        DataLost: records are missing, and the query must read them.
    """
    if first > expected and options.fails_on_loss:
        msg = (
            f"records {expected} to {first - 1} of {options.path} are gone, but this query"
            " must read them; retain records longer, or accept the loss with"
            ' option("failOnDataLoss", "false")'
        )
        raise DataLost(msg)


def _of_topics(records: pa.RecordBatch, prefixes: tuple[str, ...]) -> pa.RecordBatch:
    """Return the records whose topic starts with one of the prefixes; all without one."""
    if not prefixes:
        return records
    matches = pc.starts_with(records["topic"], prefixes[0])
    for prefix in prefixes[1:]:
        matches = pc.or_(matches, pc.starts_with(records["topic"], prefix))
    return records.filter(matches)


class _Decoder:
    """Converts records to the schema.

    Attributes:
        fields: The fields of payloads.
        reasons: Reasons why records did not decode, by offset.
    """

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self.reasons: dict[int, str] = {}
        self._options = options
        self._schema = schema
        self.fields = [field for field in schema if field.name not in (*RECORD_COLUMNS, ERROR)]
        self._tells_errors = ERROR in schema.names

    def decode(self, records: pa.RecordBatch, decoded: Decoded | None) -> pa.RecordBatch:
        """Return records in the schema; undecodable ones get an error or are set aside.

        Args:
            records: Columns of records.
            decoded: The fields of their payloads, if they need not be decoded.
        """
        columns = {
            field.name: _converted(records[field.name], field.type)
            for field in self._schema
            if field.name in RECORD_COLUMNS
        }
        reasons: dict[int, str] = {}
        if self.fields or self._tells_errors:
            field_columns, reasons = decoded or decode_arrays(
                records["payload"], records["is_bytes"], self.fields, self._options.rules
            )
            columns |= {
                field.name: column
                for field, column in zip(self.fields, field_columns, strict=True)
            }
            columns[ERROR] = pa.nulls(records.num_rows, pa.string())
            if reasons:
                texts = [reasons.get(index) for index in range(records.num_rows)]
                columns[ERROR] = pa.array(texts, pa.string())
        arrays = [columns[name] for name in self._schema.names]
        if not arrays:  # a query that only counts
            return records.select([])
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if not reasons or self._tells_errors:
            return whole
        self._put_aside(records.filter(columns[ERROR].is_valid()), reasons)
        return whole.filter(columns[ERROR].is_null())

    def _put_aside(self, bad: pa.RecordBatch, reasons: dict[int, str]) -> None:
        """Store the reasons of records that do not decode.

        Raises:
            Undecodable: dead letters are off.
        """
        offsets: list[int] = bad["offset"].to_pylist()
        texts = [reason for _, reason in sorted(reasons.items())]
        if self._options.dead_letters is None:
            topic = bad["topic"][0].as_py()
            msg = (
                f"record {offsets[0]} of {self._options.path} ({topic}) does not"
                f' decode: {texts[0]}; set a log with option("deadLetters", …), or add'
                f" the column {ERROR} STRING to the schema"
            )
            raise Undecodable(msg)
        self.reasons.update(zip(offsets, texts, strict=True))


def _converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of records in the type of the schema."""
    if column.type == kind:
        return column
    try:
        if pa.types.is_timestamp(kind):  # rounded down, as in Parquet files of segments
            column = pc.floor_temporal(column, unit="microsecond")
        return column.cast(kind)
    except pa.ArrowInvalid:
        if not (pa.types.is_binary(column.type) and pa.types.is_string(kind)):
            raise
        return pa.array([_text(key) for key in column.to_pylist()], pa.string())


def _text(key: bytes | None) -> str | None:
    r"""Return a key as text; other bytes as \x and hexadecimal digits."""
    try:
        return None if key is None else key.decode()
    except UnicodeDecodeError:
        return "\\x" + key.hex() if key else ""
