"""The average of a field in a log of sealed segments, by SQL on one machine.

A million records with three fields; each sealed segment has a Parquet file. callboard
opens the log, verifies the checksums of the files, and queries DuckDB. The peer is DuckDB on a
plain Parquet file with the same columns. Both include the start of DuckDB's connection.
"""

import tempfile
import time
from importlib.util import find_spec

from benchmarks.measure import Measure, PeerMissingError, Subject
from benchmarks.spark_logs import RECORDS, write
from callboard.commitlog import CommitLog, LogReader, write_columns

QUERY = "select avg(load), count(*) from "


def prepare() -> None:
    """Check that DuckDB and pyarrow are installed."""
    if find_spec("duckdb") is None or find_spec("pyarrow") is None:
        message = "DuckDB or pyarrow is not installed: pip install 'callboard[sql]'"
        raise PeerMissingError(message)


def sealed_log(folder: str, records: int) -> None:
    """Write a log, all of whose records are in sealed segments with Parquet files."""
    write(folder, records, segment_bytes=16 << 20)
    with CommitLog(folder, segment_bytes=1) as log:  # which begins another segment
        log.append("/end", b"")
    write_columns(folder)


def ours(share: float = 1.0) -> float:
    """Return records for each second."""
    from callboard.commitlog.sql import open_sql

    records = int(RECORDS * share)
    with tempfile.TemporaryDirectory() as folder:
        sealed_log(folder, records)
        started = time.perf_counter()
        with open_sql({"log": folder}) as connection:
            ((average, count),) = connection.sql(f"{QUERY} log").fetchall()
        seconds = time.perf_counter() - started
    assert 0.4 < average < 0.6
    assert count == records + 1
    return records / seconds


def parquet(share: float = 1.0) -> float:
    """Return records for each second."""
    import duckdb
    from pyarrow.parquet import write_table

    records = int(RECORDS * share)
    with tempfile.TemporaryDirectory() as folder:
        write(folder, records)
        with CommitLog(folder) as log:
            log.declare({"load": "float", "host": "text", "n": "int"})
        rows = LogReader(folder).to_arrow(fields=True).drop_columns(["payload", "headers"])
        write_table(rows, f"{folder}/rows.parquet", row_group_size=1 << 17, compression="zstd")
        started = time.perf_counter()
        with duckdb.connect() as connection:
            query = f"{QUERY} read_parquet('{folder}/rows.parquet')"
            ((average, count),) = connection.sql(query).fetchall()
        seconds = time.perf_counter() - started
    assert 0.4 < average < 0.6
    assert count == records
    return records / seconds


MEASURE = Measure(
    title="SQL, the average of a field of a log",
    unit="records/s",
    subjects=(
        Subject("callboard, log sql", ours, prepare),
        Subject("DuckDB, plain Parquet", parquet, prepare, against="callboard, log sql"),
    ),
)
