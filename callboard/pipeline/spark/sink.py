"""Results of Spark as records of a log: those of each batch all at once, and once."""

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
from callboard.pipeline.spark.checkpoint import local_path, sync_checkpoint
from callboard.pipeline.spark.cluster import DRIVER, SHARED, check_folder
from callboard.pipeline.spark.encode import RowEncoder
from callboard.pipeline.spark.journal import FolderJournal, Staged
from callboard.pipeline.spark.options import lowered, retention_of, storage_of
from callboard.pipeline.spark.store_journal import StoreJournal, journal_at

_SYNCS: Final = ("batch", "checkpoint", "none")

#: What Spark tells each task of a stream: the query's id, the same after a new start.
_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of `format("callboard")` when it writes.

    Attributes:
        path: The directory of the log that takes the results.
        topic: The topic of rows that have none.
        is_durable: Whether `sync` is not "none".
        syncs: The checkpoint that is made durable first, with `sync` "checkpoint".
        retain: `retain`: how long results are kept.
        is_sent: Whether tasks send what they write to the driver: `staging` is "driver".
        query: `queryId`: which query this is; by default what Spark says.
        storage: `storage.NAME`: what fsspec needs for a store, as JSON.
    """

    path: str
    topic: str | None = None
    is_durable: bool = True
    syncs: str | None = None
    retain: Retention | None = None
    is_sent: bool = False
    query: str = ""
    storage: str = field(default="", repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Read Spark's options, whose names it has in lower case.

        Raises:
            InvalidSetting: one of them makes no sense, the path is missing, or it is that of a
                folder on a cluster, and nothing says who has it.
        """
        given = lowered(options)
        sync, checkpoint = given.get("sync", "batch"), given.get("checkpointlocation", "")
        if sync not in _SYNCS:
            what = f"sync={sync!r}; give {', '.join(_SYNCS[:-1])} or {_SYNCS[-1]}"
            raise InvalidSetting(what)
        if sync == "checkpoint" and (not checkpoint or local_path(checkpoint) is None):
            what = f"sync=checkpoint, but {checkpoint!r} is no folder of the driver; give batch"
            raise InvalidSetting(what)
        return cls(
            given["path"],
            given.get("topic"),
            sync != "none",
            checkpoint if sync == "checkpoint" else None,
            retention_of(given, "retain"),
            _is_sent(given),
            given.get("queryid", ""),
            storage_of(given),
        )

    @property
    def journal(self) -> FolderJournal | StoreJournal:
        """The log, to publish in it.

        Raises:
            InvalidSetting: it is served to be read, or a package is missing.
        """
        if "://" in self.path:
            options = json.loads(self.storage) if self.storage else None
            return journal_at(self.path, options, retain=self.retain)
        return FolderJournal(self.path, is_durable=self.is_durable, retain=self.retain)


def _is_sent(given: Mapping[str, str]) -> bool:
    """Return whether tasks send results to the driver.

    Raises:
        InvalidSetting: the option is something else, or is needed and missing.
    """
    staging = given.get("staging", "")
    if staging not in {"", SHARED, DRIVER}:
        what = f"staging={staging!r}; give {SHARED} or {DRIVER}"
        raise InvalidSetting(what)
    if not staging:
        check_folder(
            given["path"],
            f'give option("staging", "{DRIVER}") if the folder is the driver\'s,'
            f' "{SHARED}" if all hosts have it under this path (--staging)',
        )
    return staging == DRIVER


class StagedRows(WriterCommitMessage):
    """What a task has staged, or sends to be staged.

    Attributes:
        staged: What is in the folder of the log.
        sent: Batches that are not there yet, with how many records each has.
        query: The id of the query.
    """

    def __init__(
        self, staged: Staged | None, sent: Sequence[tuple[bytes, int]], query: str
    ) -> None:
        self.staged = staged
        self.sent = sent
        self.query = query


class _Stager:
    """Stages the rows of tasks; to publish them is for those that derive from it."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._encoder()  # or say what is wrong, as the next does
        assert options.journal is not None

    def _encoder(self) -> RowEncoder:
        """Return what encodes rows."""
        return RowEncoder(to_arrow_schema(self._schema, timezone="UTC"), self._options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Encode the rows of one task and stage them."""
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
        if self._options.is_sent:
            return StagedRows(None, list(batches()), query)
        return StagedRows(self._options.journal.stage(batches()), (), query)

    def _publish(self, query: str, batch: int, told: "list[StagedRows]") -> None:
        """Publish what the tasks of a batch have written, unless it was published before."""
        journal = self._options.journal
        sent = [journal.stage(each.sent) for each in told if each.sent]
        journal.publish(query, batch, [*_staged(told), *sent])

    def _discard(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks have staged."""
        self._options.journal.discard(_staged(_told(messages)))


def _told(messages: list[WriterCommitMessage | None]) -> list[StagedRows]:
    """Return what tasks that succeeded have told."""
    return [each for each in messages if isinstance(each, StagedRows)]


def _staged(told: list[StagedRows]) -> list[Staged]:
    """Return what is in the folder of the log."""
    return [each.staged for each in told if each.staged is not None]


class LogStreamWriter(_Stager, DataSourceStreamArrowWriter):
    """Publishes the results of micro-batches, by the id of the query and of the batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks of a batch have staged, unless it was published before.

        Raises:
            InvalidSetting: neither Spark nor an option says which query this is.
        """
        told = _told(messages)
        if not told:  # a batch without tasks has no results
            return
        query = told[0].query
        if not query:
            what = 'Spark does not tell the id of this query; give option("queryId", …)'
            raise InvalidSetting(what)
        if self._options.syncs is not None:
            sync_checkpoint(self._options.syncs, batchId)
        self._publish(query, batchId, told)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what tasks have staged; Spark says this of published batches as well."""
        self._discard(messages)


class LogBatchWriter(_Stager, DataSourceArrowWriter):
    """Appends the rows of a table, all of them or none."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._query = f"batch-{uuid.uuid4()}"
        super().__init__(options, schema)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what all tasks have staged."""
        self._publish(self._query, 0, _told(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks have staged."""
        self._discard(messages)
