"""Reading a log on disk from its begin to its end, with a look at each payload of 100 bytes.

The log was written in runs of 100 and is in the system's cache. The peer reads the same rows
from SQLite in the order of their key.
"""

import tempfile
import time

from benchmarks.log_append import PAYLOAD, RUN, TOPIC, check, open_table
from benchmarks.measure import Measure, Subject
from callboard.commitlog import CommitLog, LogReader

RECORDS = 1_000_000


def ours(share: float = 1.0) -> float:
    """Return records read for each second."""
    records = int(RECORDS * share) // RUN * RUN
    with tempfile.TemporaryDirectory() as folder:
        with CommitLog(folder) as log:
            for _ in range(records // RUN):
                log.append_batch([PAYLOAD] * RUN, topic=TOPIC)
        size = 0
        started = time.perf_counter()
        for record in LogReader(folder).read():
            size += len(record.payload)
        taken = time.perf_counter() - started
    check(size, records * len(PAYLOAD))
    return records / taken


def sqlite(share: float = 1.0) -> float:
    """Return rows read for each second."""
    records = int(RECORDS * share)
    with tempfile.TemporaryDirectory() as folder:
        table = open_table(folder)
        rows = [(time.time_ns(), TOPIC, PAYLOAD)] * records
        table.executemany("insert into log (time, topic, payload) values (?, ?, ?)", rows)
        table.commit()
        size = 0
        started = time.perf_counter()
        for row in table.execute(
            "select offset, time, topic, payload from log order by offset"
        ):
            size += len(row[3])
        taken = time.perf_counter() - started
        table.close()
    check(size, records * len(PAYLOAD))
    return records / taken


MEASURE = Measure(
    title="reading a log from begin to end",
    unit="records/s",
    subjects=(
        Subject("callboard", ours),
        Subject("SQLite", sqlite, against="callboard"),
    ),
)
