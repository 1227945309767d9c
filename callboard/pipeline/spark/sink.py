"""Results of Spark as records of a log: those of each batch all at once, and once."""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
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
from callboard.pipeline.spark.checkpoint import query_id, sync_checkpoint
from callboard.pipeline.spark.encode import RowEncoder
from callboard.pipeline.spark.journal import Journal, Staged
from callboard.pipeline.spark.options import lowered, retention_of

_DURABLE: Final = {"batch": True, "none": False}


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of `format("callboard")` when it writes.

    Attributes:
        path: The directory of the log that takes the results.
        topic: The topic of rows that have none.
        is_durable: `sync`: "batch" (the default) or "none".
        checkpoint: `checkpointLocation`; streams need it.
        retain: `retain`: how long results are kept.
    """

    path: str
    topic: str | None = None
    is_durable: bool = True
    checkpoint: str | None = None
    retain: Retention | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        """Read Spark's options, whose names it has in lower case.

        Raises:
            InvalidSetting: one of them makes no sense, or the path is missing.
        """
        given = lowered(options)
        sync = given.get("sync", "batch")
        if sync not in _DURABLE:
            what = f"sync={sync!r}; give batch or none"
            raise InvalidSetting(what)
        return cls(
            given["path"],
            given.get("topic"),
            _DURABLE[sync],
            given.get("checkpointlocation"),
            retention_of(given, "retain"),
        )

    @property
    def journal(self) -> Journal:
        """The log, to publish in it."""
        return Journal(self.path, is_durable=self.is_durable, retain=self.retain)


class StagedRows(WriterCommitMessage):
    """What a task has staged."""

    def __init__(self, staged: Staged) -> None:
        self.staged = staged


class _Stager:
    """Stages the rows of tasks; to publish them is for those that derive from it."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._encoder()  # or say what is wrong

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

        return StagedRows(self._options.journal.stage(batches()))


def _staged(messages: list[WriterCommitMessage | None]) -> list[Staged]:
    """Return what tasks that succeeded have staged."""
    return [each.staged for each in messages if isinstance(each, StagedRows)]


class LogStreamWriter(_Stager, DataSourceStreamArrowWriter):
    """Publishes the results of micro-batches, by the id of the query and of the batch."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if options.checkpoint is None:
            what = 'give option("checkpointLocation", …): it tells which query this is'
            raise InvalidSetting(what)
        self._checkpoint = options.checkpoint
        super().__init__(options, schema)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks of a batch have staged, unless it was published before."""
        query = query_id(self._checkpoint)
        if self._options.is_durable:
            sync_checkpoint(self._checkpoint, batchId)
        self._options.journal.publish(query, batchId, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove what tasks have staged; Spark says this of published batches as well."""
        self._options.journal.discard(_staged(messages))


class LogBatchWriter(_Stager, DataSourceArrowWriter):
    """Appends the rows of a table, all of them or none."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._query = f"batch-{uuid.uuid4()}"
        super().__init__(options, schema)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what all tasks have staged."""
        self._options.journal.publish(self._query, 0, _staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what tasks have staged."""
        self._options.journal.discard(_staged(messages))
