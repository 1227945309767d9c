"""Appending to a log of another node, with receipts: 16 publishers, each waits for its offset.

A receipt is sent when the record (100 bytes) is on the disk; records that arrive during a sync
share the next one. Two processes on this machine, TCP over loopback. For comparison the same 16
threads ask an actor there, one ask after the other: a receipt also includes the disk.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks import ours
from benchmarks.log_append import PAYLOAD, check
from benchmarks.measure import Measure, Subject
from benchmarks.processes import RunFailedError, serving
from callboard import LogWriter, Node
from callboard.commitlog import LogReader

PUBLISHERS = 16
COUNT = 40_000
"""Appends or asks of all publishers."""


def rate(callers: list[Callable[[], object]], count: int) -> float:
    """Return calls a second; each caller has its own thread."""
    done = []

    def call(caller: Callable[[], object]) -> None:
        for _ in range(count // PUBLISHERS):
            caller()
        done.append(caller)

    threads = [threading.Thread(target=call, args=(each,)) for each in callers]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - started
    if len(done) < len(callers):
        message = "a publisher failed"
        raise RunFailedError(message)
    return count // PUBLISHERS * PUBLISHERS / taken


def receipts(share: float = 1.0) -> float:
    """Return appends for each second."""
    count = int(COUNT * share)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        _, address = stack.enter_context(serving(ours.node_program("--log", folder)))
        node = stack.enter_context(Node())
        writers = [
            stack.enter_context(LogWriter(f"{address}/cpu", f"meter-{n}", node=node))
            for n in range(PUBLISHERS)
        ]
        callers = [lambda writer=each: writer.append("/power", PAYLOAD) for each in writers]
        rate(callers, count // 10)
        result = rate(callers, count)
        check(LogReader(folder).end, sum(each.last or 0 for each in writers))
    return result


def asks(share: float = 1.0) -> float:
    """Return asks for each second."""
    count = int(COUNT * share)
    with ours.remote_partner("echo") as (_, partner):
        callers = [lambda: partner.ask(7).result(ours.LIMIT)] * PUBLISHERS
        rate(callers, count // 10)
        return rate(callers, count)


MEASURE = Measure(
    title="appends with receipts from another node, 16 publishers",
    unit="appends/s",
    subjects=(
        Subject("callboard", receipts),
        Subject("plain asks", asks),
    ),
)
