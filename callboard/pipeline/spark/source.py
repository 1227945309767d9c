"""Logs as tables and streams of Spark, in partitions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
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

from callboard.commitlog import ExtraMissing, LogFailed, LogReader
from callboard.commitlog.fields.declared import arrow_fields
from callboard.commitlog.fields.decoding import infer_fields
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.spark.cluster import tasks_at_once
from callboard.pipeline.spark.options import SourceOptions, find_offset
from callboard.pipeline.spark.range_reader import (
    ERROR,
    RECORD_COLUMNS,
    RECORD_SCHEMA,
    read_range,
    see_loss,
)

#: What tasks are told of the stream that they are of: its id, and lines with name and id.
_QUERY_ID: Final = "sql.streaming.queryId"
_ABOUT: Final = "spark.job.description"

#: Records of a partition: a task for fewer costs more than it brings.
_LEAST_ROWS: Final = 20_000


#: Columns of records beside those of their payloads.
_DESCRIBED: Final = [each for each in RECORD_SCHEMA if each.name not in {"payload", "is_bytes"}]
_UNSIGNED_LIST: Final = pa.list_(pa.uint64())


class Range(InputPartition):
    """The records that one task reads."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


def open_log(options: SourceOptions) -> LogReader:
    """Return a reader of a log.

    Raises:
        InvalidSetting: there is no log.
    """
    try:
        return LogReader(options.path, **options.access)
    except (LogFailed, ExtraMissing, ValueError) as error:
        raise InvalidSetting(str(error)) from None


def infer_schema(options: SourceOptions) -> StructType:
    """Return the columns of records, and with `inferSchema` fields of a sample's payloads."""
    if not options.infers:
        return from_arrow_schema(RECORD_SCHEMA)
    log = open_log(options)
    if declared := log.fields:  # where Spark has no unsigned integers, signed ones
        fields = [_signed(field) for field in arrow_fields(declared)]
        return from_arrow_schema(pa.schema([*_DESCRIBED, *fields]))
    records = log.read(max(log.start, find_offset(log, options.start)))
    wanted = (each for each in records if each.topic.startswith(options.topics or ""))
    sample = list(islice(wanted, options.sample))
    fields = infer_fields([each.data for each in sample], [each.is_bytes for each in sample])
    found = [field for field in fields if field.name not in (*RECORD_COLUMNS, ERROR)]
    return from_arrow_schema(pa.schema([*_DESCRIBED, *found]))


def _signed(field: pa.Field) -> pa.Field:
    """Return a field whose unsigned integers are signed ones: Spark has no others."""
    if field.type == pa.uint64():
        return field.with_type(pa.int64())
    return field.with_type(pa.list_(pa.int64())) if field.type == _UNSIGNED_LIST else field


def split(start: int, end: int, wanted: int = 0) -> list[Range]:
    """Cut a range into parts of about the same size, of which none is small."""
    count = end - start
    parts = wanted or min(tasks_at_once(), count // _LEAST_ROWS)
    parts = max(1, min(parts, count))
    borders = [start + count * part // parts for part in range(parts + 1)]
    return [Range(*borders[part : part + 2]) for part in range(parts)]


def _parts(options: SourceOptions, log: LogReader, start: int, end: int) -> list[Range]:
    """Return what of a range tasks read."""
    ranges = options.where.ranges(log, start, end) if end > start else []
    wanted = -(-options.partitions // len(ranges)) if ranges else 0
    return [part for each in ranges for part in split(*each, wanted)]


class _RangeTasks:
    """Reads ranges of a log in tasks; to choose them is for those that derive from it."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one of the partitions; runs in a task."""
        assert isinstance(partition, Range)
        options = self._options
        if options.dead_letters:
            options = _for_query(options, TaskContext.get())
        return read_range(options, self._schema, partition.start, partition.end)


def _for_query(options: SourceOptions, task: TaskContext | None) -> SourceOptions:
    """Say which stream a task is of, whose id stays the same as long as its checkpoint."""
    query = (task and task.getLocalProperty(_QUERY_ID)) or ""
    about = (task and task.getLocalProperty(_ABOUT)) or ""
    name = about.partition("\n")[0] if f"\nid = {query}\n" in about else ""
    return replace(options, query=options.query or query, query_name=name)


class LogBatchReader(_RangeTasks, DataSourceReader):
    """Reads a log once, between two offsets."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return what tasks read.

        Raises:
            InvalidSetting: there is no log.
        """
        options = self._options
        log = open_log(options)
        start, end = find_offset(log, options.start), find_offset(log, options.end)
        end = min(end, log.end)
        see_loss(options, start, log.start)
        start = max(start, log.start)
        return _parts(options, log, start, end) or [Range(0, 0)]


class PushedBatchReader(LogBatchReader):
    """Reads a log once, only what the conditions of the query may want.

    Spark 4.3 keeps what a reader made of the conditions of one query for the next ones over the
    same table, and for the other side of a union. So this is for tables of a single use, whose
    option `pushFilters` says so.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take up what is known of the conditions; Spark checks all of them again."""
        self._options = replace(self._options, where=self._options.where.and_of(filters))
        return filters


class LogStreamReader(_RangeTasks, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a log as it grows; a place in it is `{"offset": n}`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.end != "latest":
            what = f"endingOffsets={options.end}: a stream has no end; use spark.read"
            raise InvalidSetting(what)
        super().__init__(options, schema)
        self._log = open_log(options)
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where a query begins that has no checkpoint."""
        return {"offset": find_offset(self._log, self._options.start)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how many records a micro-batch has at most."""
        limit = self._options.max_rows
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return where the next micro-batch ends.

        Raises:
            DataLost: the log ends before the place where the query is.
        """
        end = self._log.end if self._target is None else self._target
        begin = start["offset"]
        see_loss(self._options, end, begin)
        end = max(end, begin)
        if isinstance(limit, ReadMaxRows):
            # A query that accepts losses begins behind them, else it would crawl through.
            kept = begin if self._options.fails_on_loss else max(begin, self._log.start)
            end = min(end, kept + limit.max_rows)
        return {"offset": end}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the end of the log, for progress reports."""
        return {"offset": self._log.end}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where the query ends."""
        self._target = self._log.end

    def partitions(
        self, start: Mapping[str, int], end: Mapping[str, int]
    ) -> Sequence[InputPartition]:
        """Return what the tasks of a micro-batch read.

        Raises:
            DataLost: retention was quicker than the query.
        """
        first, last = start["offset"], end["offset"]
        kept = min(self._log.start, last)
        see_loss(self._options, first, kept)
        first = max(first, kept)
        return _parts(self._options, self._log, first, last)

    def commit(self, end: Any) -> None:
        """Do nothing: Spark's checkpoint holds the place."""

    def stop(self) -> None:
        """Do nothing: a reader of a log holds nothing."""
