"""A million records of a log through a stream of Spark, all columns, until all is read.

The start of the query is timed, the session and a query that warms it up are not. The peer is
Spark's own stream of Parquet files with the same rows.
"""

import tempfile
from typing import Any

from benchmarks.measure import Measure, Subject
from benchmarks.spark_logs import RECORDS, spark_ready, start, timed, write


def _run(rows: Any, checkpoint: str) -> None:
    writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def _rate(make: Any, records: int, folder: str) -> float:
    spark = start()
    try:
        _run(make(spark), f"{folder}/first")
        return records / timed(lambda: _run(make(spark), f"{folder}/second"))
    finally:
        spark.stop()


def ours(share: float = 1.0) -> float:
    """Return records a second through the source."""
    records = int(RECORDS * share)
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log"
        write(log, records)
        return _rate(
            lambda spark: spark.readStream.format("callboard").load(log), records, folder
        )


def parquet(share: float = 1.0) -> float:
    """Return rows a second of Spark's source of Parquet files."""
    from callboard.commitlog import write_columns

    records = int(RECORDS * share)
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log"
        write(log, records, segment_bytes=8 << 20)
        sealed = write_columns(log)[-1].end

        def rows(spark: Any) -> Any:
            schema = spark.read.parquet(f"{log}/*.parquet").schema
            return spark.readStream.schema(schema).parquet(f"{log}/*.parquet")

        return _rate(rows, sealed, folder)


MEASURE = Measure(
    title="Spark, a stream over a log",
    unit="records/s",
    subjects=(
        Subject("callboard", ours, spark_ready),
        Subject("Spark, Parquet files", parquet, spark_ready, against="callboard"),
    ),
)
