"""A log on disk as Arrow's record batches, from its begin to its end, all columns.

A million records of 100 random bytes about ten topics, written in runs of 100, in the system's
cache. The peer is pyarrow, which reads the Parquet files of the same records, all columns.
"""

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from benchmarks.log_append import RUN, check
from benchmarks.measure import Measure, PeerMissingError, Subject
from callboard.commitlog import CommitLog, LogReader, sealed_segments, write_columns

RECORDS = 1_000_000
TOPICS = [f"/sensor/{number}" for number in range(10)] * (RUN // 10)


@contextmanager
def written(records: int, distinct: int = 10 * RUN) -> Iterator[str]:
    """Write a log, all of whose records are in sealed segments; payloads come again."""
    payloads = [random.randbytes(100) for _ in range(distinct)]
    with tempfile.TemporaryDirectory() as folder:
        with CommitLog(folder, segment_bytes=16 << 20) as log:
            for number in range(records // RUN):
                begin = number * RUN % distinct
                log.append_batch(payloads[begin : begin + RUN], topic=TOPICS)
        with CommitLog(folder, segment_bytes=1) as log:  # which begins another segment
            log.append("/end", b"")
        yield folder


def prepare() -> None:
    """Check that pyarrow is installed, which comes with Spark."""
    if find_spec("pyarrow") is None:
        message = "pyarrow is not installed; make setup brings it with Spark"
        raise PeerMissingError(message)


def ours(share: float = 1.0) -> float:
    """Return records for each second."""
    import pyarrow.compute  # noqa: F401  (every user of tables has it)

    records = int(RECORDS * share) // RUN * RUN
    with written(records) as folder:
        started = time.perf_counter()
        batches = LogReader(folder).arrow_batches(0, records)
        rows = sum(batch.num_rows for batch in batches)
        taken = time.perf_counter() - started
    check(rows, records)
    return records / taken


def parquet(share: float = 1.0) -> float:
    """Return records for each second."""
    from pyarrow.parquet import ParquetFile

    records = int(RECORDS * share) // RUN * RUN
    with written(records) as folder:
        write_columns(folder)
        files = [each.columns for each in sealed_segments(folder)]
        started = time.perf_counter()
        rows = sum(
            batch.num_rows for file in files for batch in ParquetFile(file).iter_batches()
        )
        taken = time.perf_counter() - started
    check(rows, records)
    return records / taken


MEASURE = Measure(
    title="a log as Arrow's record batches",
    unit="records/s",
    subjects=(
        Subject("callboard, segments", ours, prepare),
        Subject(
            "pyarrow, Parquet of the same", parquet, prepare, against="callboard, segments"
        ),
    ),
)
