"""A pool of workers: nodes in child processes, so that actors use more than one core."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, TypeVar

from actors.actor import Actor
from actors.errors import NodeClosed, WouldBlock
from actors.future import Future
from actors.reference import ActorRef
from basp.header import INSPECTOR
from proxies.class_source import ClassSource
from proxies.draining import Drained
from proxies.errors import WorkerFailed
from proxies.events import LinkUp, NodeDown, WorkerEnded, WorkerStarted
from proxies.inspection import DrainNode
from proxies.worker import Employer, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

A = TypeVar("A", bound=Actor)

FIRST_PAUSE: Final = 0.1
LAST_PAUSE: Final = 5.0

STEADY: Final = 10.0
"""Seconds that a worker runs before its end no longer counts as one of a series."""

START_TIME: Final = 30.0
"""Seconds that a worker may take until it is linked, on a busy machine."""

REPORT_TIME: Final = 1.0
"""Seconds that the report of a worker's drain may take beyond the drain itself."""

REFILL_TIME: Final = 5.0
"""Seconds that a spawn waits while no worker runs."""


class WorkerPool:
    """Worker processes of one node; `node.workers(n)` makes it.

    A process that ends is replaced, after a pause that grows while that happens again and
    again. Its actors are gone: who monitors them is told `unreachable`.
    """

    def __init__(
        self,
        employer: Employer,
        count: int,
        offers: dict[str, ClassSource],
        wait: "Callable[[Coroutine[Any, Any, Any]], Any]",
    ) -> None:
        """Start `count` processes; only nodes make pools.

        Raises:
            ValueError: fewer than one.
        """
        if count < 1:
            msg = f"workers({count!r}): start at least one"
            raise ValueError(msg)
        self._employer = employer
        self._runtime = employer.runtime
        self._offers = offers
        self._wait = wait
        self._is_closed = False
        self._streaks = dict.fromkeys(range(count), 0)
        self._turns = itertools.count()
        self._waiting: list[Future[Worker]] = []
        self._subscription = ExitStack()
        self._subscription.enter_context(self._runtime.subscribed(self._note))
        self._workers = {index: self._start(index) for index in range(count)}

    # --- who works ---

    def workers(self) -> list[Worker]:
        """Return the workers that run."""
        return [worker for worker in list(self._workers.values()) if worker.is_running]

    def __len__(self) -> int:
        return len(self.workers())

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers())

    def __getitem__(self, index: int) -> Worker:
        return self.workers()[index]

    def __repr__(self) -> str:
        return f"<WorkerPool of {self._runtime.name}, {len(self)} run>"

    # --- actors ---

    def spawn(self, actor_class: type[A], *args: Any, **kwargs: Any) -> ActorRef[A]:
        """Spawn an actor on the worker whose turn it is.

        Raises:
            NotSpawnable: the class is local to a function, or cannot be loaded there.
            WorkerFailed: no worker runs.
            RemoteError: the actor's `__init__` raised there.
        """
        return self._wait(self.aspawn(actor_class, *args, **kwargs))  # type: ignore[no-any-return]

    async def aspawn(self, actor_class: type[A], *args: Any, **kwargs: Any) -> ActorRef[A]:
        """Awaitable twin of `spawn`."""
        worker = await self._pick()
        return await worker.aspawn(actor_class, *args, **kwargs)

    def spawn_each(self, actor_class: type[A], *args: Any, **kwargs: Any) -> list[ActorRef[A]]:
        """Spawn an actor on each worker that runs; raises what `spawn` does."""
        return self._wait(self.aspawn_each(actor_class, *args, **kwargs))  # type: ignore[no-any-return]

    async def aspawn_each(
        self, actor_class: type[A], *args: Any, **kwargs: Any
    ) -> list[ActorRef[A]]:
        """Awaitable twin of `spawn_each`."""
        starts = [worker.aspawn(actor_class, *args, **kwargs) for worker in self]
        return list(await asyncio.gather(*starts))

    async def _pick(self) -> Worker:
        if self._is_closed:
            msg = f"the workers of {self._runtime.name} were closed; start others"
            raise NodeClosed(msg)
        ready = self.workers()
        if ready:
            return ready[next(self._turns) % len(ready)]
        found: Future[Worker] = Future("a worker")
        self._waiting.append(found)
        timer = self._runtime.runner.call_later(
            REFILL_TIME,
            found.set_exception,
            WorkerFailed(f"no worker of {self._runtime.name} runs; see its events for why"),
        )
        try:
            return await found
        finally:
            timer.cancel()

    async def started(self) -> None:
        """Wait until all workers run.

        Raises:
            WorkerFailed: one ended instead, or took too long.
        """
        runner = self._runtime.runner
        for worker in list(self._workers.values()):
            late = WorkerFailed(f"worker {worker.name} did not start within {START_TIME:g} s")
            timer = runner.call_later(START_TIME, worker.ready.set_exception, late)
            try:
                await worker.ready
            finally:
                timer.cancel()

    # --- the end ---

    async def adrain(self, timeout: float) -> Drained:
        """Let all workers finish what is under way and end; for the node's own drain.

        Returns the sum of their reports; a worker that gives none counts as one left.
        """
        self._stop_refilling()
        asks = [
            self._runtime.ref_to(worker.node_id, INSPECTOR).ask(
                DrainNode(timeout), timeout + REPORT_TIME
            )
            for worker in self
        ]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        reports = [report for report in outcomes if isinstance(report, Drained)]
        return Drained(
            finished=sum(report.finished for report in reports),
            left=sum(report.left for report in reports) + len(outcomes) - len(reports),
            seconds=max((report.seconds for report in reports), default=0.0),
            unsent=sum(report.unsent for report in reports),
        )

    def close(self) -> None:
        """End all workers and wait for their processes; twin `aclose`.

        Raises:
            WouldBlock: called on the thread of a running event loop; nothing was closed.
        """
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = "close() would block the event loop; await pool.aclose() instead"
            raise WouldBlock(msg)
        self.begin_close()
        self.join()

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        self.begin_close()
        await asyncio.get_running_loop().run_in_executor(None, self.join)

    def begin_close(self) -> None:
        """Let all workers end, and start none."""
        self._stop_refilling()
        self._subscription.close()
        for worker in list(self._workers.values()):
            worker.close()

    def _stop_refilling(self) -> None:
        self._is_closed = True
        for found in self._waiting:
            found.set_exception(NodeClosed("the workers were closed"))

    def join(self) -> None:
        """Wait for the processes, a few seconds at most."""
        for worker in list(self._workers.values()):
            worker.join()

    # --- what happens ---

    def _start(self, index: int) -> Worker:
        name = f"{self._runtime.name}-worker-{index + 1}"
        worker = Worker(
            self._employer,
            name,
            self._offers,
            lambda ended, reason: self._runtime.runner.post(self._ended, index, ended, reason),
        )
        worker.ready.add_done_callback(self._started)
        return worker

    def _started(self, ready: Future[Worker]) -> None:
        if ready.exception() is None:
            worker = ready.result()
            self._runtime.emit(WorkerStarted(worker.name, worker.node_id, worker.pid))
            waiting_for_one, self._waiting = self._waiting, []
            for found in waiting_for_one:
                found.set_result(worker)

    def _note(self, event: object) -> None:
        """Look at links and nodes: a link may make a worker ready, a frozen one is lost."""
        if isinstance(event, LinkUp):
            for worker in list(self._workers.values()):
                self._runtime.runner.post(worker.linked)
        elif isinstance(event, NodeDown):
            for worker in list(self._workers.values()):
                if worker.node_id == event.node_id:
                    worker.kill()  # it is of no use without its link, also if it is only frozen

    def _ended(self, index: int, worker: Worker, reason: str) -> None:
        if self._is_closed:
            return
        self._runtime.emit(WorkerEnded(worker.name, worker.node_id, worker.pid, reason))
        runner = self._runtime.runner
        if runner.now() - worker.started_at > STEADY:
            self._streaks[index] = 0
        pause = min(LAST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._streaks[index], 30))
        self._streaks[index] += 1
        runner.call_later(pause * (1.0 + runner.random.random() / 2), self._refill, index)

    def _refill(self, index: int) -> None:
        if not self._is_closed:
            self._workers[index] = self._start(index)
