"""From a log through Spark into another log, exactly once: a million records, all columns.

In micro-batches of 250,000, each synced to the disk before it counts. The start of the query is
timed, the session and a first query are not.
"""

import tempfile
from typing import Any

from benchmarks.measure import Measure, Subject
from benchmarks.spark_logs import RECORDS, spark_ready, start, timed, write
from callboard.commitlog import LogReader

BATCH = 250_000


def _copy(spark: Any, log: str, out: str) -> None:
    rows = spark.readStream.format("callboard").option("maxOffsetsPerTrigger", str(BATCH))
    writer = rows.load(log).writeStream.format("callboard")
    writer = writer.option("checkpointLocation", f"{out}-checkpoint")
    writer.trigger(availableNow=True).start(out).awaitTermination()


def ours(share: float = 1.0) -> float:
    """Return records a second."""
    records = int(RECORDS * share)
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log"
        write(log, records)
        write(f"{folder}/small", 1000)
        spark = start()
        try:
            _copy(spark, f"{folder}/small", f"{folder}/first")
            taken = timed(lambda: _copy(spark, log, f"{folder}/second"))
        finally:
            spark.stop()
        assert LogReader(f"{folder}/second").end == records
        return records / taken


MEASURE = Measure(
    title="from a log through Spark to a log",
    unit="records/s",
    subjects=(Subject("callboard", ours, spark_ready),),
)
