"""The event loop of a simulated host: asyncio's own, with simulated time and sockets.

Callbacks run in asyncio's order. A turn runs until nothing is ready; the simulation schedules
the next turn when bytes arrive or a timer is due. Network, timers and random numbers are
simulated, so a run depends only on its seed.

A blocking call in a callback, such as `time.sleep`, blocks its host: the host's clock is ahead
of the simulation until that catches up, and bytes sent by the rest of the callback leave the
host only then.
"""

import asyncio
import contextlib
import heapq
import itertools
import random
import threading
from asyncio import selector_events
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

from callboard.simulation.clock import Clock, NodeClock
from callboard.simulation.current_run import AlwaysBroken
from callboard.simulation.network import SimulatedNetwork
from callboard.simulation.not_simulated import NotSimulated
from callboard.simulation.programs.current_program import Program, here
from callboard.simulation.programs.files import HostFiles
from callboard.simulation.programs.sockets import HostSelector, addresses

#: Rounds of one turn before time must advance. Otherwise a program that polls in an endless
#: loop would stop the simulation.
ROUNDS_A_TURN: Final = 1000

#: Virtual seconds charged for that many rounds.
ROUNDS_TIME: Final = 0.01

#: Maximum seconds until an executor calls a function.
EXECUTOR_TIME: Final = 0.001

#: First number of simulated descriptors; real ones are much smaller.
FIRST_DESCRIPTOR: Final = 1_000_000

#: Cancelled timers kept in the heap, unless they are more than half of it; as in asyncio.
_CANCELLED_KEPT: Final = 100

# Bound here because each turn calls them.
_get_running_loop: Final = asyncio._get_running_loop
_set_running_loop: Final = asyncio._set_running_loop


class HostTask(asyncio.Task[Any]):
    """A task whose hash is the same in each run."""

    def __init__(self, number: int, *args: Any, **options: Any) -> None:
        self.number = number
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        """Return the number: `asyncio.wait` and task groups iterate over sets of tasks."""
        return self.number

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same task."""
        return self is other

    @property
    def error(self) -> BaseException | None:
        """The exception of the task; unlike `exception()`, does not mark it as retrieved."""
        raised: BaseException | None = self._exception
        return raised


class HostLoop(selector_events.BaseSelectorEventLoop):
    """One run of a program: from its start until it ends, is killed or crashes."""

    #: The files of the program; set by the host.
    files: HostFiles

    def __init__(
        self,
        host: Program,
        node_clock: NodeClock,
        simulation: Clock,
        network: SimulatedNetwork,
        rng: random.Random,
        woken: "Callable[[HostLoop], None]",
    ) -> None:
        """Create the loop of a host.

        Args:
            host: the host whose program it runs.
            node_clock: the clocks of the host.
            simulation: the clock of the simulation.
            network: the simulated network.
            rng: random source of the simulation for this host.
            woken: called when the loop needs a turn.
        """
        self.host = host
        self.number = host.number
        self.simulation = simulation
        self.network = network
        self.random = rng
        self.chance = rng.random
        #: Random source of the program.
        self.drawn = random.Random(rng.getrandbits(64))
        self.node_clock = node_clock
        self.time = node_clock.time  # type: ignore[method-assign]  # for speed
        self.closed = False
        self.calls = 0
        #: Whether it is frozen, like a process after SIGSTOP.
        self.is_paused = False
        #: Exception to raise in the test at the end of the turn.
        self.failure: BaseException | None = None
        self.sockets: dict[int, Any] = {}
        self._woken_by = woken
        self._sleeping = True
        self._planned_at: float | None = None
        #: The timer for which the next turn is planned.
        self._planned_for: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(FIRST_DESCRIPTOR)
        self._task_numbers = itertools.count()
        self._tasks: dict[int, HostTask] = {}
        self._pollable = HostSelector(self.wake, self.sockets)
        self._timer_cancelled_count = 0
        super().__init__(self._pollable)
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self._thread_id: int | None = (
            threading.get_ident()
        )  # "running", for the checks that depend on it

    # --- turns ---

    def turn(self) -> None:
        """Run callbacks until nothing is ready, then plan the next turn."""
        if self.closed or self.is_paused or self._is_blocked():
            self._sleeping = True
            return
        outer_loop, running_loop = here.loop, _get_running_loop()
        here.loop = self
        self.calls = 0
        _set_running_loop(self)
        try:
            is_idle = self._rounds()
        except SystemExit as error:
            is_idle = True
            self.files.flush()
            self.host.exited(error.code)
        finally:
            here.loop = outer_loop
            _set_running_loop(running_loop)
        self._sleeping = True
        if not self.closed:
            self._plan_next(is_idle)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def _plan_next(self, is_idle: bool) -> None:  # noqa: FBT001 - called in each turn
        """Plan the next turn."""
        if self.node_clock.busy_until > self.simulation.now:
            self.simulation.plan_at(self.node_clock.busy_until, self.wake)
        elif not is_idle:
            self.simulation.plan(ROUNDS_TIME, self.wake)
        elif scheduled := self._scheduled:  # type: ignore[attr-defined]
            is_planned = self._planned_at is not None and scheduled[0] is self._planned_for
            if not is_planned or self._timer_cancelled_count:
                self._plan()

    def _rounds(self) -> bool:
        """Run ready callbacks round by round; return whether none are left."""
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        touched = self._pollable.touched
        clock, simulation = self.node_clock, self.simulation
        now = clock.time()
        for _ in range(ROUNDS_A_TURN):
            while scheduled and scheduled[0]._when <= now:
                handle = heapq.heappop(scheduled)
                handle._scheduled = False
                ready.append(handle)
            if touched:
                self._pollable.collect(ready)
            if not ready:
                return True
            for _ in range(len(ready)):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
                    if clock.busy_until > simulation.now or self.closed:
                        return False
        return False

    def _is_blocked(self) -> bool:
        """Return whether the host is blocked by a sleep in a callback or by its disk."""
        return self.node_clock.busy_until > self.simulation.now

    def block(self, seconds: float) -> None:
        """Block the host for some seconds of its own clock."""
        until = self.wait_for_disk(seconds / self.node_clock.rate)
        self.network.busy[self.host.address] = until

    def wait_for_disk(self, seconds: float) -> float:
        """Block the host for some simulated seconds; return the end of the block.

        Bytes sent by the rest of the current callback leave the host after the block.
        """
        clock = self.node_clock
        if here.loop is self:
            clock.busy_until = max(clock.busy_until, self.simulation.now) + seconds
        return clock.busy_until

    def _plan(self) -> None:
        """Plan a wake-up for the next timer, unless one is planned already."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1
        if self._timer_cancelled_count > max(_CANCELLED_KEPT, len(scheduled) // 2):
            for handle in scheduled:
                handle._scheduled = not handle.cancelled()
            scheduled[:] = [handle for handle in scheduled if not handle.cancelled()]
            heapq.heapify(scheduled)
            self._timer_cancelled_count = 0
        if scheduled:
            due = self.node_clock.outside(scheduled[0]._when)
            if self._planned_at is None or due < self._planned_at:
                self._planned_at, self._planned_for = due, scheduled[0]
                self.simulation.plan_at(due, self._due, due)

    def _due(self, planned: float) -> None:
        """Wake the host for a timer, unless an earlier wake-up replaced this one."""
        if planned == self._planned_at:
            self._planned_at = None
            self.wake()

    def wake(self) -> None:
        """Request a turn, unless one is requested already."""
        if self._sleeping and not self.closed:
            self._sleeping = False
            self._woken_by(self)

    # --- faults ---

    def resume(self) -> None:
        """Resume after `is_paused` was set."""
        self.is_paused = False
        self._planned_at = None
        self.wake()

    def set_rate(self, rate: float) -> None:
        """Change the rate of the host's clock."""
        self.node_clock.set_rate(rate)
        self._planned_at = None
        self.wake()

    # --- asyncio's interface of a loop ---

    def call_soon(  # type: ignore[override]  # typeshed ties callback and args
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Schedule a callback for the next round, as asyncio does without debug mode."""
        if self._debug or self._closed:  # type: ignore[attr-defined]
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # typeshed ties callback and args
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """Schedule a callback for the next round; may be called outside of a turn."""
        handle = self.call_soon(callback, *args, context=context)
        self.wake()
        return handle

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> HostTask:
        """Create a numbered task.

        The loop keeps a reference until the task is done. asyncio itself keeps weak references
        only, so the garbage collector could destroy a pending task at a time that does not
        depend on the seed.
        """
        task = HostTask(next(self._task_numbers), coro, loop=loop, **options)
        if not task.done():  # an eager task may be done already
            self._tasks[task.number] = task
            task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        """Drop the reference to a finished task; a failed `always` fails the test.

        This does not depend on the awaiting code: asyncio before 3.11.5 drops exceptions of
        stream handlers.
        """
        assert isinstance(task, HostTask)
        del self._tasks[task.number]
        if isinstance(task.error, AlwaysBroken) and not self.closed:
            self.host.troubled("`always` failed in a task", task.error)

    def new_descriptor(self, of: object) -> int:
        """Assign a descriptor number to a socket or file."""
        number = next(self._numbers)
        self.sockets[number] = of
        return number

    def drop_descriptor(self, number: int) -> None:
        """Release a descriptor number."""
        self.sockets.pop(number, None)

    async def getaddrinfo(self, *args: Any, **options: Any) -> list[Any]:
        """Resolve the name of a simulated host."""
        return addresses(self, *args, **options)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """Return the name of a simulated host, and a port."""
        names = (name for name, address in self.network.names.items() if address == sockaddr[0])
        return next(names, str(sockaddr[0])), str(sockaddr[1])

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Schedule a function to run in one step; its result is delayed by its sleeps."""
        future = self.create_future()
        self.call_later(self.chance() * EXECUTOR_TIME, self._apart, future, func, args)
        return future

    def _apart(self, future: asyncio.Future[Any], func: Any, args: Any) -> None:
        """Call a function as if on a separate thread."""
        if future.cancelled():
            return
        asyncio._set_running_loop(None)
        clock, now = self.node_clock, self.simulation.now
        error: BaseException | None = None
        result = None
        try:
            result = func(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as raised:  # noqa: BLE001 - the awaiting task gets it
            error = raised
        finally:
            asyncio._set_running_loop(self)
        slept = (clock.busy_until - now) * clock.rate
        clock.busy_until = self.network.busy[self.host.address] = 0.0

        def finish() -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        if slept > 0:
            self.call_later(slept, finish)
        else:
            finish()

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Any, *args: Any
    ) -> None:
        """Register a callback for a signal that the test sends to the host."""
        self.host.handlers[sig] = lambda *_: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        """Remove the callback of a signal."""
        return self.host.handlers.pop(sig, None) is not None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an error that no task awaits; an AssertionError fails the test."""
        error = context.get("exception")
        if self.closed:
            return
        self.host.troubled(str(context.get("message")), error)
        super().call_exception_handler(context)

    def run_forever(self) -> None:
        """Refuse: the simulation runs the loop."""
        message = "this loop belongs to a simulated host; it runs while the test advances time"
        raise RuntimeError(message)

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        """Refuse: there are no subprocesses."""
        self.refuse("subprocesses are not simulated", "run the other program on another host")

    subprocess_shell = subprocess_exec

    async def connect_read_pipe(self, *_: Any, **__: Any) -> Any:
        """Refuse: there are no pipes."""
        self.refuse("pipes are not simulated", "use a connection")

    connect_write_pipe = connect_read_pipe
    create_unix_connection = connect_read_pipe
    create_unix_server = connect_read_pipe

    def refuse(self, what: str, instead: str) -> NoReturn:
        """Raise `NotSimulated` with the unsupported call and an alternative."""
        message = f"host {self.host.name!r}: {what}; {instead}"
        raise NotSimulated(message)

    # asyncio's own wake-up pipe is a pair of real sockets.

    def _make_self_pipe(self) -> None:
        """Do nothing: no other thread wakes this loop."""

    def _close_self_pipe(self) -> None:
        """Do nothing; see `_make_self_pipe`."""

    def _write_to_self(self) -> None:
        """Request a turn; see `call_soon_threadsafe`."""
        self.wake()

    # --- the end ---

    def cancel_tasks(self) -> list[asyncio.Task[Any]]:
        """Cancel all tasks except the current one, and return them."""
        cancelled: list[asyncio.Task[Any]]
        cancelled = [
            task for task in self._tasks.values() if task is not asyncio.current_task(self)
        ]
        for task in cancelled:
            task.cancel()
        return cancelled

    def last_turn(self) -> None:
        """Run one turn in which cancelled tasks can clean up without waiting."""
        self.is_paused = False
        self.node_clock.busy_until = 0.0
        with contextlib.suppress(BaseException):
            self.turn()

    def bury(self) -> None:
        """Discard all suspended tasks, transports and callbacks of an ended program."""
        self.closed = True
        running_loop, outer_loop = asyncio._get_running_loop(), here.loop
        here.loop = self
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks.values():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):  # no code is left to handle it
                    task.get_coro().close()
            for transport in list(self._transports.values()):  # type: ignore[attr-defined]
                vars(transport).update(_closing=True, _sock=None)  # or it would warn
        finally:
            here.loop = outer_loop
            asyncio._set_running_loop(running_loop)
        self._tasks.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self._thread_id = None
        self.close()
