"""Spark over a log that another host serves by Arrow Flight, beside the same one in a folder.

The group-by of `pipeline_batch` over a million records of 100 random bytes, all columns, on
two threads. The bytes come as they are on the disk, and Spark's tasks check and decode them.
"""

from functools import partial

from benchmarks import log_served, pipeline_batch
from benchmarks.measure import Measure, Subject
from benchmarks.spark_logs import RUN, spark_ready


def work(place: str, records: int) -> float:
    """Return records a second through the source."""
    return pipeline_batch.rate(
        lambda spark, path: spark.read.format("callboard").load(path), records, place
    )


MEASURE = Measure(
    title="Spark, a group-by over a log of another host, by Flight",
    unit="records/s",
    subjects=(
        Subject(
            "callboard, served", partial(log_served.served, "pipeline_served"), spark_ready
        ),
        Subject(
            "callboard, a folder",
            partial(log_served.local, work, RUN),
            spark_ready,
            against="callboard, served",
        ),
    ),
)
