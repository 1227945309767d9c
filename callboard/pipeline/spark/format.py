"""The format "callboard": what Spark asks for readers and writers of logs."""

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
    """`spark.read.format("callboard")` and its relatives; options in `docs/pipeline.md`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "callboard"

    def schema(self) -> StructType:
        """Return the columns of a log that is read without a schema."""
        return infer_schema(SourceOptions.parse(self.options))

    def reader(self, schema: StructType) -> LogBatchReader:
        """Return what reads a log once."""
        options = SourceOptions.parse(self.options)
        return (PushedBatchReader if options.pushes else LogBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802
        """Return what reads a log as it grows."""
        return LogStreamReader(SourceOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> LogBatchWriter:  # noqa: FBT001  # Spark's signature
        """Return what appends a table to a log."""
        if overwrite:
            what = 'a log is never overwritten; use mode("append")'
            raise InvalidSetting(what)
        return LogBatchWriter(SinkOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamWriter:  # noqa: FBT001, N802
        """Return what publishes the results of a query."""
        if overwrite:
            what = 'a log is never overwritten; use outputMode("append")'
            raise InvalidSetting(what)
        return LogStreamWriter(SinkOptions.parse(self.options), schema)
