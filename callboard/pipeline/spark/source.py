"""Spark's tables and streams over logs, in partitions."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from callboard.commitlog import ExtraMissing, LogFailed, LogReader, Position
from callboard.commitlog.fields.declared import arrow_fields
from callboard.commitlog.fields.decoding import infer_fields
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.spark.cluster import tasks_at_once
from callboard.pipeline.spark.options import SourceOptions, find_offset
from callboard.pipeline.spark.positions import StreamPositions, check_task
from callboard.pipeline.spark.range_reader import (
    ERROR,
    RECORD_COLUMNS,
    RECORD_SCHEMA,
    check_loss,
    read_range,
)

#: Local properties of a stream's tasks: its id, and a description with name and id.
_QUERY_ID: Final = "sql.streaming.queryId"
_ABOUT: Final = "spark.job.description"

#: Fewest records of a partition: for fewer, the start of a task takes longer than the reading.
_LEAST_ROWS: Final = 20_000


#: Columns of records without the payload.
_DESCRIBED: Final = [
    field for field in RECORD_SCHEMA if field.name not in {"payload", "is_bytes"}
]
_UNSIGNED_LIST: Final = pa.list_(pa.uint64())


#: The position of a range that no task checks.
_UNKNOWN: Final = Position("", 0, 0)


class Range(InputPartition):
    """A range of records for one task.

    Attributes:
        start: The first offset.
        end: The offset after the last one.
        position: The position at the end in the log of the driver.
    """

    def __init__(self, start: int, end: int, position: Position = _UNKNOWN) -> None:
        super().__init__((start, end, *position))
        self.start = start
        self.end = end
        self.position = position


def open_log(options: SourceOptions) -> LogReader:
    """Return a reader of a log.

    Raises:
        InvalidSetting: the log does not exist.
    """
    if "://" not in options.path and Path(options.path).is_file():
        msg = f"{options.path} is a file; a log is a folder, which CommitLog(folder) creates"
        raise InvalidSetting(msg)
    try:
        return LogReader(options.path, **options.access)
    except (LogFailed, ExtraMissing, ValueError) as error:
        raise InvalidSetting(str(error)) from None


def infer_schema(options: SourceOptions) -> StructType:
    """Return the columns of records; `inferSchema` adds fields from a sample."""
    if not options.infers:
        return from_arrow_schema(RECORD_SCHEMA)
    log = open_log(options)
    if declared := log.fields:
        fields = [signed_field(field) for field in arrow_fields(declared)]
        return from_arrow_schema(pa.schema([*_DESCRIBED, *fields]))
    records = log.read(max(log.start, find_offset(log, options.start)))
    matching = (record for record in records if record.topic.startswith(options.topics or ""))
    sample = list(islice(matching, options.sample))
    fields = infer_fields(
        [record.data for record in sample], [record.is_bytes for record in sample]
    )
    payload_fields = [field for field in fields if field.name not in (*RECORD_COLUMNS, ERROR)]
    return from_arrow_schema(pa.schema([*_DESCRIBED, *payload_fields]))


def signed_field(field: pa.Field) -> pa.Field:
    """Return a field with signed integers, as Spark lacks unsigned ones."""
    if field.type == pa.uint64():
        return field.with_type(pa.int64())
    return field.with_type(pa.list_(pa.int64())) if field.type == _UNSIGNED_LIST else field


def check_columns(schema: StructType) -> None:
    """Refuse a column that has the name of a record's column, and a type that this cannot have.

    Raises:
        InvalidSetting: there is one.
    """
    for field in schema:
        kinds = _KINDS.get(field.name)
        kind = field.dataType.typeName()
        if kinds is not None and kind.partition("(")[0] not in kinds:
            msg = (
                f"the column {field.name!r} is {kind}, but records have a column of this name"
                f" and type {kinds[0]}; for a payload's field, write `payload.{field.name}`"
            )
            raise InvalidSetting(msg)


_TEXTS: Final = ("string", "binary", "varchar", "char")
_NUMBERS: Final = ("long", "integer", "short", "byte", "double", "float", "decimal")
#: Types of the record's own columns, the usual one first.
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "offset": _NUMBERS,
    "time": ("timestamp", "timestamp_ntz", "date"),
    "topic": _TEXTS,
    "key": _TEXTS,
    "sender": _TEXTS,
    "headers": ("map",),
    "payload": ("binary", "string"),
    "is_bytes": ("boolean",),
    ERROR: ("string",),
}


def split(start: int, end: int, part_count: int = 0) -> list[Range]:
    """Divide a range into parts of similar size; none is small unless `wanted` demands it."""
    count = end - start
    parts = part_count or min(tasks_at_once(), count // _LEAST_ROWS)
    parts = max(1, min(parts, count))
    borders = [start + count * part // parts for part in range(parts + 1)]
    return [Range(borders[part], borders[part + 1]) for part in range(parts)]


def _parts(options: SourceOptions, log: LogReader, start: int, end: int) -> list[Range]:
    """Return the ranges for tasks."""
    ranges = options.where.ranges(log, start, end) if end > start else []
    part_count = -(-options.partitions // len(ranges)) if ranges else 0
    parts = [part for segment in ranges for part in split(*segment, part_count)]
    identity = log.identity
    return [Range(part.start, part.end, identity.position(part.end)) for part in parts]


class _RangeTasks:
    """Reads ranges of a log in tasks; subclasses choose the ranges."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_columns(schema)
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition; runs in a task."""
        assert isinstance(partition, Range)
        options = self._options
        check_task(options, partition.position)
        if options.dead_letters:
            options = _for_query(options, TaskContext.get())
        return read_range(options, self._schema, partition.start, partition.end)


def _for_query(options: SourceOptions, task: TaskContext | None) -> SourceOptions:
    """Add the id and name of the stream; the id belongs to its checkpoint."""
    query = (task and task.getLocalProperty(_QUERY_ID)) or ""
    about = (task and task.getLocalProperty(_ABOUT)) or ""
    name = about.partition("\n")[0] if f"\nid = {query}\n" in about else ""
    return replace(options, query=options.query or query, query_name=name)


class LogBatchReader(_RangeTasks, DataSourceReader):
    """Reads a log once between two offsets."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges for tasks.

        Raises:
            InvalidSetting: the log does not exist.
        """
        options = self._options
        log = open_log(options)
        start, end = find_offset(log, options.start), find_offset(log, options.end)
        end = min(end, log.end)
        check_loss(options, start, log.start)
        start = max(start, log.start)
        return _parts(options, log, start, end) or [Range(0, 0)]


class PushedBatchReader(LogBatchReader):
    """Reads a log once, limited by the conditions of the query.

    Spark 4.3 reuses such a reader for later queries over the same table, and for the other side
    of a union, which have other conditions. So it is only for tables that are used once, which
    the option `pushFilters` promises.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Add the supported conditions; Spark checks all of them again."""
        self._options = replace(self._options, where=self._options.where.and_of(filters))
        return filters


class LogStreamReader(_RangeTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a growing log; see `positions` for the positions in its checkpoint."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.end != "latest":
            msg = f"endingOffsets={options.end}: a stream cannot have an end; use spark.read"
            raise InvalidSetting(msg)
        super().__init__(options, schema)
        self._log = open_log(options)
        self._positions = StreamPositions(self._log, options)
        self._target: int | None = None
        self._last_batch = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of a query without a checkpoint."""
        return self._positions.fields_at(find_offset(self._log, self._options.start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the most records of a micro-batch."""
        limit = self._options.max_rows
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch.

        Raises:
            DataLost: the log ends before the position of the query.
            PositionRefused: the checkpoint belongs to another log, or to other records.
        """
        begin = self._positions.resume(start).offset
        end = self._log.end if self._target is None else self._target
        check_loss(self._options, end, begin)
        end = max(end, begin)
        if isinstance(limit, ReadMaxRows):
            # A query that accepts losses starts after them; otherwise it would need many empty
            # batches to pass the lost range.
            first = begin if self._options.fails_on_loss else max(begin, self._log.start)
            end = min(end, first + limit.max_rows)
        if not self._is_due(end - begin):
            return dict(start)
        self._last_batch = time.monotonic()
        return self._positions.fields_at(end)

    def _is_due(self, records: int) -> bool:
        """Return whether there are enough records for a micro-batch, or it waited too long."""
        options, limit = self._options, self._options.max_rows
        least = options.min_rows if limit is None else min(options.min_rows, limit)
        if self._target is not None or records >= least:
            return True
        return time.monotonic() - self._last_batch >= options.max_delay

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the log, for progress reports."""
        return self._positions.fields_at(self._log.end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of the query."""
        self._target = self._log.end

    def partitions(
        self, start: Mapping[str, Any], end: Mapping[str, Any]
    ) -> Sequence[InputPartition]:
        """Return the ranges for the tasks of a micro-batch.

        Raises:
            DataLost: retention has removed records that were not read yet.
            PositionRefused: the checkpoint belongs to another log, or to other records.
        """
        first, last = self._positions.resume(start).offset, self._positions.resume(end).offset
        oldest = min(self._log.start, last)
        check_loss(self._options, first, oldest)
        first = max(first, oldest)
        return _parts(self._options, self._log, first, last)

    def commit(self, end: Any) -> None:
        """Do nothing: Spark's checkpoint holds the position."""

    def stop(self) -> None:
        """Do nothing: the reader holds no resources."""
