"""Spark's results as records of a log: each batch is published atomically and once."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from callboard.commitlog import Retention
from callboard.commitlog.batch import decode_header
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.spark.checkpoint import (
    check_checkpoint,
    local_path,
    sync_checkpoint,
)
from callboard.pipeline.spark.cluster import DRIVER, SHARED, check_folder
from callboard.pipeline.spark.encode import RowEncoder
from callboard.pipeline.spark.journal import FolderJournal, StagedSegment
from callboard.pipeline.spark.option_table import read_options, refuse
from callboard.pipeline.spark.options import retention_of, storage_of
from callboard.pipeline.spark.store_journal import StoreJournal, journal_at

_SYNCS: Final = ("batch", "checkpoint", "none")

#: Types of Spark that a log cannot store, besides those without a form in CBOR.
_UNSTORABLE: Final = frozenset(("variant", "interval", "yearmonthinterval"))

#: Local property with the query's id, which stays the same after a restart.
_QUERY_ID: Final = "sql.streaming.queryId"
#: Local property with the id of the query's run, which differs after a restart.
_RUN_ID: Final = "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of `format("callboard")` for writing.

    Attributes:
        path: The directory of the log for the results.
        topic: The topic of rows without one.
        is_durable: Whether `sync` is not "none".
        syncs: The checkpoint to sync first, with `sync` "checkpoint".
        retain: `retain`: how long results are kept.
        is_sent: Whether tasks send their rows to the driver: `staging` is "driver".
        query: `queryId`: id of the query; by default Spark's.
        storage: `storage.NAME`: options for fsspec, as JSON.
        checkpoint: `checkpointLocation`: the checkpoint of a stream, or "".
    """

    path: str
    topic: str | None = None
    is_durable: bool = True
    syncs: str | None = None
    retain: Retention | None = None
    is_sent: bool = False
    query: str = ""
    storage: str = field(default="", repr=False)
    checkpoint: str = ""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Parse Spark's options.

        Raises:
            InvalidSetting: an option is invalid, or the path is missing, or it is a folder on a
                cluster and `staging` does not say which hosts have it.
        """
        values = read_options(options, "sink")
        sync, checkpoint = values.get("sync", "batch"), values.get("checkpointlocation", "")
        if sync not in _SYNCS:
            refuse("sync", sync, "sink")
        if sync == "checkpoint" and (not checkpoint or local_path(checkpoint) is None):
            msg = f"sync=checkpoint, but {checkpoint!r} is not a local folder; use batch"
            raise InvalidSetting(msg)
        return cls(
            values["path"],
            values.get("topic"),
            sync != "none",
            checkpoint if sync == "checkpoint" else None,
            retention_of(values, "retain", "sink"),
            _is_sent(values),
            values.get("queryid", ""),
            storage_of(values),
            checkpoint,
        )

    @property
    def journal(self) -> FolderJournal | StoreJournal:
        """The log, opened for publishing.

        Raises:
            InvalidSetting: the log is read-only, or a package is missing.
        """
        if "://" in self.path:
            options = json.loads(self.storage) if self.storage else None
            return journal_at(self.path, options, retain=self.retain)
        return FolderJournal(self.path, is_durable=self.is_durable, retain=self.retain)


def _is_sent(values: Mapping[str, str]) -> bool:
    """Return whether tasks send results to the driver.

    Raises:
        InvalidSetting: the option is invalid, or is needed and missing.
    """
    staging = values.get("staging", "")
    if staging not in {"", SHARED, DRIVER}:
        refuse("staging", staging, "sink")
    if not staging:
        check_folder(
            values["path"],
            f'set option("staging", "{DRIVER}") if only the driver has the folder, or'
            f' "{SHARED}" if all hosts have it under this path (--staging)',
        )
    return staging == DRIVER


class StagedRows(WriterCommitMessage):
    """The rows of a task, staged or sent to be staged.

    Attributes:
        staged: Rows that are staged in the folder of the log.
        sent: Batches that are not staged yet, with their numbers of records.
        query: Id of the query.
        run: Id of the run of the query; empty outside streams.
    """

    def __init__(
        self,
        staged: StagedSegment | None,
        sent: Sequence[tuple[bytes, int]],
        query: str,
        run: str = "",
    ) -> None:
        self.staged = staged
        self.sent = sent
        self.query = query
        self.run = run


class _Stager:
    """Stages the rows of tasks; subclasses publish them."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._encoder()  # raises for an invalid schema, as the next for invalid options
        assert options.journal is not None

    def _encoder(self) -> RowEncoder:
        """Return an encoder for the rows.

        Raises:
            InvalidSetting: a column has a type that a log cannot store.
        """
        kinds = {field.name: field.dataType.typeName() for field in self._schema}
        for name, kind in kinds.items():
            if kind in _UNSTORABLE:
                msg = f"the column {name!r} is {kind}, which a log cannot store; cast it"
                raise InvalidSetting(msg)
        return RowEncoder(to_arrow_schema(self._schema, timezone="UTC"), self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Encode and stage the rows of one task."""
        encoder = self._encoder()

        def batches() -> Iterator[tuple[bytes, int]]:
            base = 0
            for part in iterator:
                for data in encoder.encode(part, base, time.time_ns()):
                    header = decode_header(data)
                    assert header is not None
                    yield data, header.records
                base += part.num_rows

        task = TaskContext.get()
        query = self._options.query or (task and task.getLocalProperty(_QUERY_ID)) or ""
        run = (task and task.getLocalProperty(_RUN_ID)) or ""
        if self._options.is_sent:
            return StagedRows(None, list(batches()), query, run)
        return StagedRows(self._options.journal.stage(batches()), (), query, run)

    def _publish(self, query: str, batch: int, results: "list[StagedRows]") -> None:
        """Publish the rows of a batch, unless it is published already."""
        journal = self._options.journal
        sent = [journal.stage(result.sent) for result in results if result.sent]
        run = results[0].run if results else ""
        journal.publish(query, batch, [*_staged(results), *sent], run)

    def _discard(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove staged rows."""
        self._options.journal.discard(_staged(_results(messages)))


def _results(messages: list[WriterCommitMessage | None]) -> list[StagedRows]:
    """Return the rows of tasks that succeeded."""
    return [message for message in messages if isinstance(message, StagedRows)]


def _staged(results: list[StagedRows]) -> list[StagedSegment]:
    """Return the rows that are staged in the folder of the log."""
    return [result.staged for result in results if result.staged is not None]


class LogStreamWriter(_Stager, DataSourceStreamArrowWriter):
    """Publishes results of micro-batches, identified by query and batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        published = options.journal.published() if options.query else {}
        check_checkpoint(options.checkpoint, options.path, options.query, published)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the staged rows of a batch, unless it is published already.

        Raises:
            InvalidSetting: neither Spark nor an option gives the id of the query.
        """
        results = _results(messages)
        if not results:  # a batch without tasks is empty
            return
        query = results[0].query
        if not query:
            msg = 'Spark gives no id for this query; set option("queryId", …)'
            raise InvalidSetting(msg)
        if self._options.syncs is not None:
            sync_checkpoint(self._options.syncs, batchId)
        self._publish(query, batchId, results)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove staged rows; Spark calls this for published batches, too."""
        self._discard(messages)


class LogBatchWriter(_Stager, DataSourceArrowWriter):
    """Appends the rows of a table, all or none."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._query = f"batch-{uuid.uuid4()}"
        super().__init__(options, schema)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the staged rows of all tasks."""
        self._publish(self._query, 0, _results(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove staged rows."""
        self._discard(messages)
