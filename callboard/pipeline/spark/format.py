"""The format "callboard": the readers and writers that Spark requests."""

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.spark.options import SourceOptions
from callboard.pipeline.spark.sink import LogBatchWriter, LogStreamWriter, SinkOptions
from callboard.pipeline.spark.source import (
    LogBatchReader,
    LogStreamReader,
    PushedBatchReader,
    infer_schema,
)


class CallboardFormat(DataSource):
    """`spark.read.format("callboard")` and the like; for options see `docs/pipeline.md`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "callboard"

    def schema(self) -> StructType:
        """Return the columns of a log for a read without a schema."""
        return infer_schema(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> LogBatchReader:
        """Return a reader for a table."""
        options = SourceOptions.parse(self.options)
        return (PushedBatchReader if options.pushes else LogBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802
        """Return a reader for a stream."""
        return LogStreamReader(SourceOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LogBatchWriter:  # noqa: FBT001  # Spark's signature
        """Return a writer for a table."""
        if overwrite:
            msg = 'a log cannot be overwritten; use mode("append")'
            raise InvalidSetting(msg)
        return LogBatchWriter(SinkOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:  # noqa: FBT001, N802
        """Return a writer for the results of a query."""
        if overwrite:
            msg = (
                'a log cannot be overwritten, as outputMode("complete") would; use'
                ' outputMode("append") with a watermark, or append each batch in foreachBatch'
            )
            raise InvalidSetting(msg)
        return LogStreamWriter(SinkOptions.parse(self.options), schema)
