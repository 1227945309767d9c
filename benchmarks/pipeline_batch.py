"""A group-by over a million records of a log, on two threads of Spark, all its columns in use.

The peer is Spark's own reader of Parquet on the same rows and columns. Sessions, and one run of
the query that warms them up, are not timed.
"""

import tempfile
from typing import Any

from benchmarks.measure import Measure, Subject
from benchmarks.spark_logs import RECORDS, TOPICS, spark_ready, start, timed, write

_COLUMNS = ("offset", "time", "payload", "sender", "key", "is_bytes")


def rate(make: Any, records: int, folder: str) -> float:
    """Return rows a second of what `make` returns for a session and a folder."""
    spark = start()

    def query() -> list[Any]:
        # Made anew each time: a query that is asked again has its shuffled rows still there.
        rows = make(spark, folder).groupBy("topic")
        found: list[Any] = rows.agg(dict.fromkeys(_COLUMNS, "max")).collect()
        return found

    try:
        assert len(query()) == min(TOPICS, records)
        return records / timed(query)
    finally:
        spark.stop()


def ours(share: float = 1.0) -> float:
    """Return records a second through the source."""
    records = int(RECORDS * share)
    with tempfile.TemporaryDirectory() as folder:
        write(folder, records)
        return rate(
            lambda spark, path: spark.read.format("callboard").load(path), records, folder
        )


def sealed(share: float = 1.0) -> float:
    """Return records a second of `table`, most of the log being sealed as Parquet."""
    from callboard.commitlog import write_columns
    from callboard.pipeline import table

    records = int(RECORDS * share)
    with tempfile.TemporaryDirectory() as folder:
        write(folder, records, segment_bytes=8 << 20)
        write_columns(folder)
        return rate(table, records, folder)


def parquet(share: float = 1.0) -> float:
    """Return rows a second of a Parquet file with the same."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    from callboard.commitlog import LogReader

    records = int(RECORDS * share)
    with tempfile.TemporaryDirectory() as folder:
        write(folder, records)
        rows = LogReader(folder).to_arrow()
        at = rows.schema.get_field_index("time")
        rows = rows.set_column(
            at, "time", rows["time"].cast(pa.timestamp("us", tz="UTC"), safe=False)
        )
        write_table(rows, f"{folder}/rows.parquet", row_group_size=1 << 17)
        return rate(
            lambda spark, path: spark.read.parquet(f"{path}/rows.parquet"), records, folder
        )


MEASURE = Measure(
    title="Spark, a group-by over a log",
    unit="records/s",
    subjects=(
        Subject("callboard", ours, spark_ready),
        Subject("callboard, sealed columns", sealed, spark_ready),
        Subject("Spark, Parquet", parquet, spark_ready, against="callboard"),
    ),
)
