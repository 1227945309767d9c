"""A pool of workers: nodes in child processes, so that actors use more than one core."""

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import IO, Any, Final, ParamSpec, TypeVar, cast

from callboard import locks
from callboard.actors.actor import Actor
from callboard.actors.errors import NodeClosed, NotSpawnable, WrongValue
from callboard.actors.future import Future
from callboard.actors.reference import ActorRef
from callboard.actors.values import Event
from callboard.backoff import Backoff
from callboard.basp.header import INSPECTOR, SPAWN_SERVER
from callboard.closing import on_a_thread, refuse_loop
from callboard.proxies.broker import Broker
from callboard.proxies.errors import WorkerFailed
from callboard.proxies.events import LinkUp, NodeDown, WorkerEnded, WorkerStarted
from callboard.proxies.messages import Drained, DrainNode, Spawn
from callboard.proxies.workers.class_source import ClassSource, source_of
from callboard.support.after_fork import own_socket
from callboard.support.calls import AnyCoroutine
from callboard.support.dataclass import dataclass
from callboard.support.text import error_text

A = TypeVar("A", bound=Actor)
P = ParamSpec("P")

MODULE: Final = "callboard.proxies.worker_process"

#: Seconds for a worker to end before it is killed.
EXIT_TIME: Final = 3.0


@dataclass(eq=False, repr=False)
class Worker:
    """A node in a child process. `spawn(…, on=worker)` spawns an actor on it."""

    #: Broker of the node that it is linked to.
    _broker: Broker
    #: Class of the worker's node, as `module:name`.
    _node_class: str
    #: Name of its node, for people.
    name: str
    #: Classes that it offers at its start; classes loaded later are added.
    _offers: dict[str, ClassSource]
    #: Called with the reason, on a separate thread, when the process has ended.
    _ended: Callable[["Worker", str], object]

    def __post_init__(self) -> None:
        """Start the process in the background."""
        #: Done when its node is linked and offers the classes; fails with `WorkerFailed`.
        self.ready: Future[Worker] = Future(f"worker {self.name}")
        self.node_id = b""
        self.pid = 0
        self.started_at = self._broker.runtime.now()
        self._offered: dict[str, Future[None]] = {}
        self._lock = locks.lock("classes of a worker", 620)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closing = False
        self._is_over = False
        self._control, self._their_control = map(own_socket, socket.socketpair())
        self._thread = threading.Thread(
            target=self._supervise, name=f"callboard-{self.name}", daemon=True
        )
        self._thread.start()

    def __repr__(self) -> str:
        return f"<Worker {self.name}, process {self.pid}>"

    # --- for users ---

    async def aspawn(
        self, actor_class: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> ActorRef[A]:
        """Spawn an actor in the worker, which loads the class from its module or file.

        Raises:
            NotSpawnable: the class is local to a function, or cannot be loaded there.
            NodeUnreachable: the worker ended.
            RemoteError: the actor's `__init__` raised there.
        """
        source = source_of(cast("type[A]", actor_class))
        await self._offer(source)
        server = self._broker.runtime.ref_of(self.node_id, SPAWN_SERVER)
        return await server.ask(Spawn(source.key, args, kwargs or None))  # type: ignore[no-any-return]

    @property
    def is_running(self) -> bool:
        """Whether it is ready and neither its process nor its link has ended."""
        return self.ready.done() and self.ready.exception() is None and not self._is_over

    # --- for its pool ---

    def close(self) -> None:
        """Ask the process to end; `join` waits for it."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the process at once."""
        self._is_over = True
        if self._process is not None:
            self._process.kill()

    def join(self, timeout: float = EXIT_TIME) -> None:
        """Wait until the process has ended; kill it after the timeout."""
        self._thread.join(min(timeout, EXIT_TIME))
        if self._thread.is_alive():
            self.kill()
            self._thread.join(EXIT_TIME)

    def linked(self) -> None:
        """Complete `ready` if a new link is the one to this worker."""
        if self.node_id and self.node_id in self._broker.routes.router.next_hops:
            self.ready.set_result(self)

    def _offer(self, source: ClassSource) -> Future[None]:
        """Make the worker load a class, unless it has done so before."""
        with self._lock:
            offered = self._offered.get(source.key)
            if offered is None:
                self._offers[source.key] = source
                offered = self._expect(source.key)
                self._write_line([source.key, *source])
            is_over = self._is_over
        if is_over:
            offered.set_exception(WorkerFailed(f"worker {self.name} ended"))
        return offered

    def _expect(self, key: str) -> Future[None]:
        """Return the future of a class that the worker loads."""
        offered: Future[None] = Future(f"{self.name} loading {key}")
        self._offered[key] = offered
        return offered

    # --- the thread that follows the process ---

    def _supervise(self) -> None:
        """Start the process, and handle its lines until it ends."""
        reason = "it could not be started"
        try:
            self._start()
            with (
                contextlib.suppress(OSError),  # a reset means that the process ended
                self._control.makefile("r", encoding="utf-8") as lines,
            ):
                self._listen(lines)
            reason = self._reap()
        except OSError as error:
            reason = f"it could not be started: {error_text(error)}"
        finally:
            failed = WorkerFailed(f"worker {self.name} ended: {reason}")
            with self._lock:
                self._is_over = True
                self._control.close()
                offered = list(self._offered.values())
            self.ready.set_exception(failed)
            for loading in offered:
                loading.set_exception(failed)
            self._ended(self, reason)

    def _start(self) -> None:
        """Start the process, with its ends of two socket pairs."""
        ours, theirs = map(own_socket, socket.socketpair())
        runtime, connector = self._broker.runtime, self._broker.connector
        numbers = (self._their_control.fileno(), theirs.fileno())
        try:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and module
                [sys.executable, "-P", "-m", MODULE, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                pass_fds=numbers,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            self._their_control.close()
        self.pid = self._process.pid
        # The worker starts its handshake when its interpreter is running, which may take long
        # on a busy machine. Therefore this side waits longer than usual.
        runtime.post(partial(connector.adopt, ours, dialer=False, patience=START_TIME))
        with self._lock:
            offers = dict(self._offers)
            for key in offers:
                self._expect(key)
        about = {
            "class": self._node_class,
            "offers": offers,
            "name": self.name,
            "parent": runtime.node_id.hex(),
            "limits": asdict(connector.options.limits),
            "python_path": os.environ.get("PYTHONPATH"),
        }
        self._write_line(about)

    def _write_line(self, data: object) -> None:
        """Write one line to the process."""
        import json

        # If the process has ended, `_supervise` fails the waiting callers.
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(data).encode() + b"\n")

    def _listen(self, lines: IO[str]) -> None:
        """Handle the lines that the process writes."""
        import json

        for line in lines:
            report = json.loads(line)
            if "node" in report:
                self.node_id = bytes.fromhex(report["node"])
                for offered in self._offered.values():
                    offered.set_result(
                        None
                    )  # the worker's node is linked only after the class was loaded
                self._broker.runtime.post(self.linked)
            elif "offered" in report:
                self._offered[report["offered"]].set_result(None)
            else:
                key = report["refused"]
                text = f"{key} cannot be loaded in worker {self.name}: {report['why']}"
                self._offered[key].set_exception(NotSpawnable(text))
                # Without effect if the worker is ready already.
                self.ready.set_exception(NotSpawnable(text))

    def _reap(self) -> str:
        """Wait for the end of the process, and return a description of it."""
        assert self._process is not None
        try:
            code = self._process.wait(EXIT_TIME)
        except subprocess.TimeoutExpired:  # the process closed its socket, but did not end
            self._process.kill()
            code = self._process.wait()
        if self._is_closing:
            return "closed"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


FIRST_PAUSE: Final = 0.1
LAST_PAUSE: Final = 5.0

#: Seconds of running after which the end of a worker does not count as one of a series.
STEADY: Final = 10.0

#: Seconds for a worker to start and link: ten processes may share a processor.
START_TIME: Final = 120.0

#: Seconds for the report of a worker's drain beyond the drain itself.
REPORT_TIME: Final = 1.0

#: Seconds that a spawn waits while no worker is running.
REFILL_TIME: Final = 5.0


@dataclass(eq=False, repr=False)
class WorkerPool:
    """Worker processes of one node; `node.workers(n)` makes it.

    A process that ends is replaced after a pause, which grows if it happens repeatedly.
    Monitors of its actors report `unreachable`.
    """

    _broker: Broker
    _node_class: str
    _count: int
    _offers: dict[str, ClassSource]
    #: Runs a coroutine and waits for it.
    _wait: Callable[[AnyCoroutine], Any]

    def __post_init__(self) -> None:
        """Start the processes; only nodes create pools.

        Raises:
            ValueError: the count is less than one.
        """
        if self._count < 1:
            msg = f"workers({self._count!r}): start at least one"
            raise WrongValue(msg)
        self._runtime = self._broker.runtime
        self._is_closed = False
        self._backoffs = [Backoff(FIRST_PAUSE, LAST_PAUSE) for _ in range(self._count)]
        self._turns = itertools.count()
        self._waiting: list[Future[Worker]] = []
        self._stop_listening = self._runtime.listen(self._check_event)
        self._workers = [self._start(index) for index in range(self._count)]

    # --- running workers ---

    def workers(self) -> list[Worker]:
        """Return the running workers."""
        return [worker for worker in self._workers if worker.is_running]

    def __len__(self) -> int:
        return len(self.workers())

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers())

    def __getitem__(self, index: int) -> Worker:
        return self.workers()[index]

    def __repr__(self) -> str:
        return f"<WorkerPool of {self._runtime.name}, {len(self)} run>"

    # --- actors ---

    def spawn(
        self, actor_class: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> ActorRef[A]:
        """Spawn an actor on the next worker in turn.

        Raises:
            NotSpawnable: the class is local to a function, or cannot be loaded there.
            WorkerFailed: no worker is running.
            RemoteError: the actor's `__init__` raised there.
        """
        return self._wait(self.aspawn(actor_class, *args, **kwargs))  # type: ignore[no-any-return]

    async def aspawn(
        self, actor_class: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> ActorRef[A]:
        """Awaitable twin of `spawn`."""
        worker = await self._pick()
        return await worker.aspawn(actor_class, *args, **kwargs)

    def spawn_each(
        self, actor_class: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> list[ActorRef[A]]:
        """Spawn an actor on each running worker; raises the errors of `spawn`."""
        return self._wait(self.aspawn_each(actor_class, *args, **kwargs))  # type: ignore[no-any-return]

    async def aspawn_each(
        self, actor_class: Callable[P, A], *args: P.args, **kwargs: P.kwargs
    ) -> list[ActorRef[A]]:
        """Awaitable twin of `spawn_each`."""
        starts = [worker.aspawn(actor_class, *args, **kwargs) for worker in self]
        return list(await asyncio.gather(*starts))

    async def _pick(self) -> Worker:
        """Return the next worker in turn; wait for one if none is running."""
        if self._is_closed:
            msg = f"the workers of {self._runtime.name} were closed; start others"
            raise NodeClosed(msg)
        ready = self.workers()
        if ready:
            return ready[next(self._turns) % len(ready)]
        next_ready: Future[Worker] = Future("a worker")
        self._waiting.append(next_ready)
        late = f"no worker of {self._runtime.name} runs; see its events for why"
        return await self._runtime.in_time(next_ready, REFILL_TIME, WorkerFailed(late))

    async def started(self) -> None:
        """Wait until all workers are running.

        Raises:
            WorkerFailed: a worker ended instead, or took too long.
        """
        for worker in self._workers:
            late = f"worker {worker.name} did not start within {START_TIME:g} s"
            await self._runtime.in_time(worker.ready, START_TIME, WorkerFailed(late))

    # --- the end ---

    async def adrain(self, timeout: float) -> Drained:
        """Drain all workers, as part of the node's own drain.

        Returns the sum of their reports; a worker without a report counts as one left.
        """
        self._stop_refilling()
        refs = [self._runtime.ref_of(worker.node_id, INSPECTOR) for worker in self]
        asks = [ref.ask(DrainNode(timeout), timeout + REPORT_TIME) for ref in refs]
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
        refuse_loop("close()", "pool.aclose()")
        self.begin_close()
        self.join()

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        self.begin_close()
        await on_a_thread(self.join)

    def begin_close(self) -> None:
        """End all workers, and stop replacing them."""
        self._stop_refilling()
        self._stop_listening()
        for worker in self._workers:
            worker.close()

    def _stop_refilling(self) -> None:
        """Stop replacing workers, and fail the spawns that wait for one."""
        self._is_closed = True
        for waiter in self._waiting:
            waiter.set_exception(NodeClosed("the workers were closed"))

    def join(self, timeout: float = EXIT_TIME) -> None:
        """Wait for all processes within one timeout in seconds; the rest are killed."""
        end = time.monotonic() + min(timeout, EXIT_TIME)
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))

    # --- events ---

    def _start(self, index: int) -> Worker:
        name = f"{self._runtime.name}-worker-{index + 1}"
        worker = Worker(
            self._broker,
            self._node_class,
            name,
            self._offers,
            lambda ended, reason: self._runtime.post(self._ended, index, ended, reason),
        )
        worker.ready.add_done_callback(self._started)
        return worker

    def _started(self, ready: Future[Worker]) -> None:
        """Report a worker that is ready, and pass it to the spawns that wait."""
        if ready.exception() is None:
            worker = ready.result()
            self._runtime.report(WorkerStarted(worker.name, worker.node_id, worker.pid))
            waiting_for_one, self._waiting = self._waiting, []
            for waiter in waiting_for_one:
                waiter.set_result(worker)

    def _check_event(self, event: Event) -> None:
        """Check new links for ready workers, and lost nodes for frozen ones."""
        if isinstance(event, LinkUp):
            for worker in self._workers:
                self._runtime.post(worker.linked)
        elif isinstance(event, NodeDown):
            for worker in self._workers:
                if worker.node_id == event.node_id:
                    worker.kill()  # without its link it is useless, even if it is only frozen

    def _ended(self, index: int, worker: Worker, reason: str) -> None:
        """Report a worker that ended, and schedule its replacement."""
        if self._is_closed:
            return
        self._runtime.report(WorkerEnded(worker.name, worker.node_id, worker.pid, reason))
        runtime = self._runtime
        if runtime.now() - worker.started_at > STEADY:
            self._backoffs[index].reset()
        pause = self._backoffs[index].next_pause(runtime.random)
        runtime.call_later(pause, self._refill, index)

    def _refill(self, index: int) -> None:
        """Start a worker in the place of one that ended."""
        if not self._is_closed:
            self._workers[index] = self._start(index)
