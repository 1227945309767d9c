"""A log that is served by Arrow Flight on another host, read beside the same one in a folder.

Records of 100 random bytes, written in runs of 100, each payload looked at. The other host is a
network namespace at the end of a veth pair; where there can be none the log is served over
loopback, which is told on stderr. There, as on a network of one's own, it is served plainly.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec

from benchmarks.log_append import RUN, check
from benchmarks.measure import Measure, PeerMissingError, Subject
from benchmarks.namespaces import Network, again, why_not
from callboard.commitlog import CommitLog, LogReader

RECORDS = 1_000_000
TOPICS = [f"/sensor/{number}" for number in range(100)]
_PAYLOAD = 100
_PROGRAM = (sys.executable, "-m", "benchmarks.log_served")

#: Returns the figure for a log, given its place and how many records it has.
Work = Callable[[str, int], float]


def write(folder: str, records: int, run: int = RUN) -> None:
    """Write a log."""
    chance = random.Random(1)
    with CommitLog(folder, sync="none", segment_bytes=16 << 20) as log:
        for first in range(0, records, run):
            count = min(run, records - first)
            payloads = [chance.randbytes(_PAYLOAD) for _ in range(count)]
            topics = [TOPICS[number % len(TOPICS)] for number in range(first, first + count)]
            log.append_batch(payloads, topic=topics)


def prepare() -> None:
    """Check that pyarrow is installed, which comes with Spark.

    Raises:
        PeerMissingError: it is not there.
    """
    if find_spec("pyarrow") is None:
        message = "pyarrow is not installed; make setup brings it with Spark"
        raise PeerMissingError(message)


def local(work: Work, run: int, share: float = 1.0) -> float:
    """Return the figure of some work on a folder."""
    records = int(RECORDS * share) // run * run
    with tempfile.TemporaryDirectory() as folder:
        write(folder, records, run)
        return work(folder, records)


def served(measure: str, share: float = 1.0) -> float:
    """Return the figure of a measure's work on a log of another host."""
    if why := why_not():
        print(f"over loopback: {why}", file=sys.stderr)
        return _over("loopback", measure, share)
    command = again(*_PROGRAM, "network", measure, str(share))
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(told.rpartition("figure ")[2])


def _over(way: str, measure: str, share: float) -> float:
    """Write a log, let another process serve it, and do the work of a measure."""
    found = import_module(f"benchmarks.{measure}")
    records = int(RECORDS * share) // found.RUN * found.RUN
    with ExitStack() as stack:
        folder, host = stack.enter_context(tempfile.TemporaryDirectory()), "127.0.0.1"
        write(folder, records, found.RUN)
        command = [*_PROGRAM, "serve", folder]
        if way == "network":
            other = stack.enter_context(Network()).add_host()
            command, host = other.command(*command), other.address
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        server = stack.enter_context(subprocess.Popen([*command, host], **pipes))
        figure: float = found.work(server.stdout.readline().strip(), records)
        return figure  # the end of its stdin ends the server


def serve(folder: str, host: str) -> None:
    """Serve a log until stdin ends; prints where."""
    from callboard.commitlog.remote.server import LogServer

    server = LogServer({"log": folder}, f"grpc://{host}:0", lambda _: ["*"])
    print(f"grpc://{host}:{server.port}/log", flush=True)
    sys.stdin.read()
    server.shutdown()


def work(place: str, records: int) -> float:
    """Return records read for each second."""
    reader, size = LogReader(place), 0
    started = time.perf_counter()
    for record in reader.read():
        size += len(record.payload)
    taken = time.perf_counter() - started
    check(size, records * _PAYLOAD)
    return records / taken


MEASURE = Measure(
    title="reading a log of another host, by Flight",
    unit="records/s",
    subjects=(
        Subject("callboard, served", partial(served, "log_served"), prepare),
        Subject("callboard, a folder", partial(local, work, RUN), against="callboard, served"),
    ),
)

if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        print("figure", _over(sys.argv[1], sys.argv[2], float(sys.argv[3])), flush=True)
