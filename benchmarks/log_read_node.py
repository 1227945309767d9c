"""Reading a whole log that a node serves: payloads of 100 bytes, each accessed.

The node is in a separate process, and the log in the system's cache. The peer reads the folder
itself: the ratio shows the cost of the transport.
"""

import subprocess
import sys
import tempfile
import time

from benchmarks.log_append import PAYLOAD, RUN, TOPIC, check
from benchmarks.measure import Measure, Subject
from callboard.commitlog import CommitLog, LogReader

RECORDS = 1_000_000

NODE = """
import sys
from callboard import Node
with Node("shop", serve_logs={"log": sys.argv[1]}) as node:
    print(node.listen("127.0.0.1", 0), flush=True)
    sys.stdin.read()
"""


def served(share: float = 1.0) -> float:
    """Return records read for each second from a node."""
    return _read(share, is_served=True)


def folder(share: float = 1.0) -> float:
    """Return records read for each second from the folder."""
    return _read(share, is_served=False)


def _read(share: float, *, is_served: bool) -> float:
    """Write a log, serve it, and read it."""
    records = int(RECORDS * share) // RUN * RUN
    with tempfile.TemporaryDirectory() as place:
        with CommitLog(place, sync="none") as log:
            for _ in range(records // RUN):
                log.append_batch([PAYLOAD] * RUN, topic=TOPIC)
        command = [sys.executable, "-c", NODE, place]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, **pipes) as node:  # type: ignore[call-overload]
            port = int(node.stdout.readline())
            reader = LogReader(f"basp://127.0.0.1:{port}/log" if is_served else place)
            size = 0
            started = time.perf_counter()
            for record in reader.read():
                size += len(record.payload)
            taken = time.perf_counter() - started
            node.stdin.close()
    check(size, records * len(PAYLOAD))
    return records / taken


MEASURE = Measure(
    title="reading a log that a node serves, beside its folder",
    unit="records/s",
    subjects=(
        Subject("callboard", served),
        Subject("the folder", folder, against="callboard"),
    ),
)
