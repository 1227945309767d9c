"""Exports a log in child processes that are killed at random moments.

As a program: FORMAT FOLDER TARGET KILLS SEED. It appends records, forks an exporter, kills it,
and continues until the given number was killed; the last exporter runs to its end.
"""

import os
import random
import select
import signal
import sys
from contextlib import closing

import callboard.commitlog.export.delta
import callboard.commitlog.export.parquet
import callboard.commitlog.export.postgresql
from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.export.exporting import export, open_target
from callboard.commitlog.export.rows import RowOptions

DAY = 86_400 * 10**9
OPTIONS = RowOptions("day")
MODULES = (
    callboard.commitlog.export.delta,
    callboard.commitlog.export.parquet,
    callboard.commitlog.export.postgresql,
)


def append(folder: str, count: int) -> int:
    """Append records of three days; return the end of the log."""
    with CommitLog(folder, sync="none") as log:
        begin = log.end
        rows = [
            {"n": n, "delay": n / 4 if n % 5 else None, f"late{n // 2000}": str(n)}
            for n in range(begin, begin + count)
        ]
        times = [n % 3 * DAY + n for n in range(begin, begin + count)]
        log.append_batch(rows, topic="/flights", time=times)
        return log.end


def export_once(kind: str, folder: str, target: str) -> None:
    """Export up to the end of the log."""
    log = LogReader(folder)
    with closing(open_target(kind, target, log, OPTIONS)) as place:
        for _ in export(log, place, OPTIONS, rows=100):
            pass


def main(kind: str, folder: str, target: str, kills: int, seed: int) -> int:
    """Kill exporters; return how many were killed while they exported."""
    chance, killed = random.Random(seed), 0
    append(folder, 1000)
    import deltalake  # noqa: F401  # loaded once, not by each child
    import psycopg  # noqa: F401

    while True:
        child = os.fork()
        if child == 0:
            try:
                export_once(kind, folder, target)
                os._exit(0)
            except BaseException as error:  # noqa: BLE001  # told by the exit code
                print(repr(error), file=sys.stderr)
                os._exit(1)
        if killed < kills:
            select.select([], [], [], chance.uniform(0.0, 0.4))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        elif os.WEXITSTATUS(status):
            return -1
        elif killed >= kills:
            return killed
        else:
            append(folder, 500)


if __name__ == "__main__":
    kind, folder, target, kills, seed = sys.argv[1:]
    number = main(kind, folder, target, int(kills), int(seed))
    print(number)
    sys.exit(number < 0)
