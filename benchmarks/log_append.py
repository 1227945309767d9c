"""Appending to a log on disk: records of 100 bytes, made durable every 10 ms.

Runs: 100 records in each call. One by one: a call for each record. All records are on the disk
when the time ends. The peer is SQLite, the store that comes with Python, in its mode for many
small writes (WAL, synchronous=FULL): the same rows, in the same runs, committed every 10 ms.
"""

import sqlite3
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Measure, Subject
from benchmarks.processes import RunFailedError
from callboard.commitlog import CommitLog

RUN = 100
RECORDS = 2_000_000
ALONE = 200_000
PAYLOAD = b"x" * 100
TOPIC = "/sensor/7"
INTERVAL = 0.01
"""Seconds between syncs or commits."""


def runs(share: float = 1.0) -> float:
    """Return records for each second, in runs."""
    payloads = [PAYLOAD] * RUN
    with (
        tempfile.TemporaryDirectory() as folder,
        CommitLog(folder, sync_interval=INTERVAL) as log,
    ):
        appending(log, payloads, int(RECORDS * share) // 10)
        return appending(log, payloads, int(RECORDS * share))


def appending(log: CommitLog, payloads: list[bytes], records: int) -> float:
    """Append records until all are durable."""
    append, begin = log.append_batch, log.end
    started = time.perf_counter()
    for _ in range(records // RUN):
        append(payloads, topic=TOPIC)
    log.flush()
    taken = time.perf_counter() - started
    check(log.durable - begin, records // RUN * RUN)
    return records / taken


def one_by_one(share: float = 1.0) -> float:
    """Return records for each second, one in each call."""
    records = int(ALONE * share)
    with (
        tempfile.TemporaryDirectory() as folder,
        CommitLog(folder, sync_interval=INTERVAL) as log,
    ):
        started = time.perf_counter()
        for _ in range(records):
            log.append(TOPIC, PAYLOAD)
        log.flush()
        taken = time.perf_counter() - started
        check(log.durable, records)
    return records / taken


def sqlite_runs(share: float = 1.0) -> float:
    """Return rows for each second, in runs."""
    records = int(RECORDS * share) // 4
    with tempfile.TemporaryDirectory() as folder:
        table = open_table(folder)
        started = committed = time.perf_counter()
        for _ in range(records // RUN):
            rows = [(time.time_ns(), TOPIC, PAYLOAD)] * RUN
            table.executemany("insert into log (time, topic, payload) values (?, ?, ?)", rows)
            if time.perf_counter() - committed > INTERVAL:
                table.commit()
                committed = time.perf_counter()
        table.commit()
        taken = time.perf_counter() - started
        check(table.execute("select count(*) from log").fetchone()[0], records // RUN * RUN)
        table.close()
    return records / taken


def open_table(folder: str) -> sqlite3.Connection:
    """Make a table of records."""
    table = sqlite3.connect(Path(folder) / "log.sqlite")
    table.execute("pragma journal_mode=wal")
    table.execute("pragma synchronous=full")
    table.execute("create table log (offset integer primary key, time, topic, payload)")
    return table


def check(found: int, expected: int) -> None:
    """Fail the run when records are missing."""
    if found != expected:
        message = f"{found} were found, {expected} expected"
        raise RunFailedError(message)


MEASURE = Measure(
    title="appending to a log, durable every 10 ms",
    unit="records/s",
    subjects=(
        Subject("callboard, runs of 100", runs),
        Subject("callboard, one by one", one_by_one),
        Subject("SQLite, runs of 100", sqlite_runs, against="callboard, runs of 100"),
    ),
)
