"""Jobs that are put into a work queue, taken and acknowledged, 200 of each outstanding.

Ours lie in a file of SQLite and are on the disk when `put` answers. The peer is Celery with
Redis, which syncs its file each second, and one worker with two processes that do nothing.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.measure import Measure, Subject
from benchmarks.peers import celery

JOBS = 20_000
CELERY_JOBS = 5_000
OUTSTANDING = 200


class Load:
    """Calls something again and again, some at once, until it was done so often."""

    def __init__(self, call: Callable[[int, Callable[[], None]], None], count: int) -> None:
        """Begin."""
        self._call, self._left, self._begun = call, count, 0
        self._count = count
        self._ended = threading.Event()

    def begin(self) -> None:
        """Call for the first time, or once more."""
        if self._begun < self._count:
            self._begun += 1
            self._call(self._begun, self._done)

    def _done(self) -> None:
        self._left -= 1
        if not self._left:
            self._ended.set()
        self.begin()

    def wait(self) -> None:
        """Wait until all is done."""
        self._ended.wait()


def ours(share: float = 1.0) -> float:
    """Return jobs for each second."""
    from callboard import Node

    count = max(OUTSTANDING, int(JOBS * share))
    with tempfile.TemporaryDirectory() as folder, Node() as node:
        queue = node.queue("jobs", state=f"sqlite:{folder}/jobs.db")
        takings: set[Any] = set()

        def put(number: int, done: Callable[[], None]) -> None:
            queue.put({"to": "ann", "number": number}).on_done(lambda _: done())

        def take(_: int, done: Callable[[], None]) -> None:
            taking = queue.take()
            takings.add(taking)  # an unreferenced object takes no memory

            def taken(_: object) -> None:
                takings.discard(taking)
                taking.result().ack().on_done(lambda _: done())

            taking.on_done(taken)

        started = time.perf_counter()
        loads = [Load(put, count), Load(take, count)]
        for load in loads:
            for _ in range(OUTSTANDING):
                node.runtime.post(load.begin)
        for load in loads:
            load.wait()
        return count / (time.perf_counter() - started)


MEASURE = Measure(
    title="jobs put, taken and acknowledged",
    unit="jobs/s",
    subjects=(
        Subject("callboard, SQLite", ours),
        Subject(
            "Celery, Redis",
            lambda share: celery.jobs(max(100, int(CELERY_JOBS * share))),
            celery.prepare,
            against="callboard, SQLite",
        ),
    ),
)
