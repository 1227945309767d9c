"""The common parts of the measures of pipelines: a log of a million records, a session."""

import random
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from benchmarks.measure import PeerMissingError
from callboard.commitlog import CommitLog
from callboard.pipeline import SparkMissing

RECORDS = 1_000_000
TOPICS = 100
RUN = 8192


def spark_ready() -> None:
    """Check that Spark is installed.

    Raises:
        PeerMissingError: it is not.
    """
    from callboard.pipeline.java import find_java

    if find_spec("pyspark") is None:
        what = "needs Spark: pip install 'callboard[spark]'"
        raise PeerMissingError(what)
    try:
        find_java()
    except SparkMissing as error:
        raise PeerMissingError(str(error)) from None


def start() -> Any:
    """Return a session of two threads, quick to start as in the demo."""
    from callboard.pipeline import session

    return session("local[2]", name="benchmark", shortcuts=True)


def write(folder: str, records: int, **options: Any) -> None:
    """Write a log with payloads of about 60 bytes, half of them random, under 100 topics."""
    chance = random.Random(1)
    topics = [f"/metrics/host-{number}/cpu" for number in range(TOPICS)]
    with CommitLog(folder, sync="none", **options) as log:
        for first in range(0, records, RUN):
            count = min(RUN, records - first)
            rows = [
                {"load": chance.random(), "host": f"host-{number % TOPICS}", "n": number}
                for number in range(first, first + count)
            ]
            log.append_batch(rows, topic=[topics[row["n"] % TOPICS] for row in rows])


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds that some work takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
