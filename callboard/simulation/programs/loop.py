"""The event loop of a simulated host: asyncio's own, without a thread, descriptors and time.

Callbacks run in the order in which asyncio runs them. A turn goes on until nothing is ready;
the simulation gives the next one when bytes arrive or a timer is due. Bytes, timers and chance
are the simulation's, so a run depends on its seed alone.

What blocks a callback, `time.sleep` above all, blocks its host: its clock is ahead of the
others until they have caught up, and what it sends meanwhile leaves it then.
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
from callboard.simulation.marks import AlwaysBroken
from callboard.simulation.network import SimulatedNetwork
from callboard.simulation.not_simulated import NotSimulated
from callboard.simulation.programs.files import HostFiles
from callboard.simulation.programs.here import Program, here
from callboard.simulation.programs.sockets import HostSelector, addresses

#: Rounds of a turn, after which time has to pass: a program that polls without an end would
#: otherwise hold up the simulation for ever.
ROUNDS_A_TURN: Final = 1000

#: Seconds that so many rounds take.
ROUNDS_TIME: Final = 0.01

#: Seconds in which an executor begins to call a function.
EXECUTOR_TIME: Final = 0.001

#: The first of the numbers that stand for descriptors.
FIRST_DESCRIPTOR: Final = 1_000_000

#: Cancelled timers that are kept, unless they are more than half of all; as asyncio has it.
_CANCELLED_KEPT: Final = 100

# A turn asks for each of them.
_get_running_loop: Final = asyncio._get_running_loop
_set_running_loop: Final = asyncio._set_running_loop


class HostTask(asyncio.Task[Any]):
    """A task that has the same place in a set in each run."""

    def __init__(self, number: int, *args: Any, **options: Any) -> None:
        self.number = number
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        """Return its number: `asyncio.wait` and task groups keep tasks in sets."""
        return self.number

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same task."""
        return self is other

    @property
    def error(self) -> BaseException | None:
        """What it raised; unlike `exception()`, asking does not count as taking it."""
        raised: BaseException | None = self._exception
        return raised


class HostLoop(selector_events.BaseSelectorEventLoop):
    """One life of a program: from its start until it ends, is killed or crashes."""

    #: Its files, which its host sets.
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
        """Make the loop of a host.

        Args:
            host: whose program it runs.
            node_clock: the clocks of the host.
            simulation: the clock of all.
            network: of all.
            rng: where chance comes from.
            woken: called when the loop needs a turn.
        """
        self.host = host
        self.number = host.number
        self.simulation = simulation
        self.network = network
        self.random = rng
        self.chance = rng.random
        #: Where the program's own chance comes from.
        self.drawn = random.Random(rng.getrandbits(64))
        self.node_clock = node_clock
        self.time = node_clock.time  # type: ignore[method-assign]  # asked all the time
        self.closed = False
        self.calls = 0
        #: Whether it takes no turns, as a process that got SIGSTOP.
        self.is_paused = False
        #: What the test has to be told of at the end of the turn.
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
        """Run all that is ready until nothing is, and plan the next turn."""
        if self.closed or self.is_paused or self._is_blocked():
            self._sleeping = True
            return
        outer, before = here.loop, _get_running_loop()
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
            here.loop = outer
            _set_running_loop(before)
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
        """Run what is ready, round by round; returns whether nothing is left."""
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
        """Return whether the host sleeps in a callback, or waits for its disk."""
        return self.node_clock.busy_until > self.simulation.now

    def block(self, seconds: float) -> None:
        """Let seconds of the host's clock pass in which it does nothing else."""
        until = self.wait_for_disk(seconds / self.node_clock.rate)
        self.network.busy[self.host.address] = until

    def wait_for_disk(self, seconds: float) -> float:
        """Do nothing for so long; returns when that is over.

        What the host sends in the rest of its callback leaves it then.
        """
        clock = self.node_clock
        if here.loop is self:
            clock.busy_until = max(clock.busy_until, self.simulation.now) + seconds
        return clock.busy_until

    def _plan(self) -> None:
        """Be woken for the next timer, unless that is planned already."""
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
        """Wake the host for a timer, unless an earlier one was planned since."""
        if planned == self._planned_at:
            self._planned_at = None
            self.wake()

    def wake(self) -> None:
        """Ask for a turn, once."""
        if self._sleeping and not self.closed:
            self._sleeping = False
            self._woken_by(self)

    # --- faults ---

    def resume(self) -> None:
        """Go on after `is_paused` was set."""
        self.is_paused = False
        self._planned_at = None
        self.wake()

    def set_rate(self, rate: float) -> None:
        """Let the host's clock run at another rate."""
        self.node_clock.set_rate(rate)
        self._planned_at = None
        self.wake()

    # --- what asyncio asks of a loop ---

    def call_soon(  # type: ignore[override]  # typeshed ties callback and args
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Call in the next round: what asyncio does, without the checks of its debug mode."""
        if self._debug or self._closed:  # type: ignore[attr-defined]
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # typeshed ties callback and args
        self, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        """Call in the next round, also from outside of a turn."""
        handle = self.call_soon(callback, *args, context=context)
        self.wake()
        return handle

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> HostTask:
        """Make a task with a number.

        It lives until it is done: asyncio forgets one to which nothing refers, whenever the
        garbage collector comes, which is no matter of a seed.
        """
        made = HostTask(next(self._task_numbers), coro, loop=loop, **options)
        if not made.done():  # an eager one
            self._tasks[made.number] = made
            made.add_done_callback(self._forget)
        return made

    def _forget(self, task: asyncio.Task[Any]) -> None:
        """Keep a task no longer; what always has to hold fails the test, whoever waits for it.

        asyncio before 3.11.5 tells nobody of a handler of a stream that raised.
        """
        assert isinstance(task, HostTask)
        del self._tasks[task.number]
        if isinstance(task.error, AlwaysBroken) and not self.closed:
            self.host.troubled("what always has to hold was broken in a task", task.error)

    def new_descriptor(self, of: object) -> int:
        """Return the number of a socket or file."""
        number = next(self._numbers)
        self.sockets[number] = of
        return number

    def drop_descriptor(self, number: int) -> None:
        """Forget a number."""
        self.sockets.pop(number, None)

    async def getaddrinfo(self, *args: Any, **options: Any) -> list[Any]:
        """Return the address of a host of the simulation."""
        return addresses(self, *args, **options)

    async def getnameinfo(self, sockaddr: Any, flags: int = 0) -> tuple[str, str]:
        """Return the name of a host and a port."""
        found = (name for name, at in self.network.names.items() if at == sockaddr[0])
        return next(found, str(sockaddr[0])), str(sockaddr[1])

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call a function soon, in one step; what it sleeps passes before its end is told."""
        future = self.create_future()
        self.call_later(self.chance() * EXECUTOR_TIME, self._apart, future, func, args)
        return future

    def _apart(self, future: asyncio.Future[Any], func: Any, args: Any) -> None:
        """Call a function as if on a thread of its own."""
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
        except BaseException as raised:  # noqa: BLE001 - it belongs to who waits
            error = raised
        finally:
            asyncio._set_running_loop(self)
        slept = (clock.busy_until - now) * clock.rate
        clock.busy_until = self.network.busy[self.host.address] = 0.0

        def tell() -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        if slept > 0:
            self.call_later(slept, tell)
        else:
            tell()

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Any, *args: Any
    ) -> None:
        """Call when the test sends a signal to the host."""
        self.host.handlers[sig] = lambda *_: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        """Call no more."""
        return self.host.handlers.pop(sig, None) is not None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell of an error that nobody waits for; a broken assertion fails the test."""
        error = context.get("exception")
        if self.closed:
            return
        self.host.troubled(str(context.get("message")), error)
        super().call_exception_handler(context)

    def run_forever(self) -> None:
        """Refuse: the simulation runs the loop."""
        message = "this loop belongs to a simulated host and runs while time moves"
        raise RuntimeError(message)

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        """Refuse."""
        self.refuse("subprocesses are not simulated", "make the other program a host")

    subprocess_shell = subprocess_exec

    async def connect_read_pipe(self, *_: Any, **__: Any) -> Any:
        """Refuse."""
        self.refuse("pipes are not simulated", "use a connection")

    connect_write_pipe = connect_read_pipe
    create_unix_connection = connect_read_pipe
    create_unix_server = connect_read_pipe

    def refuse(self, what: str, instead: str) -> NoReturn:
        """Raise `NotSimulated`, and say what to do."""
        message = f"host {self.host.name!r}: {what}; {instead}"
        raise NotSimulated(message)

    # asyncio's own wake-up pipe is a pair of real sockets.

    def _make_self_pipe(self) -> None:
        """Need none."""

    def _close_self_pipe(self) -> None:
        """See `_make_self_pipe`."""

    def _write_to_self(self) -> None:
        """See `call_soon_threadsafe`."""
        self.wake()

    # --- the end ---

    def cancel_tasks(self) -> list[asyncio.Task[Any]]:
        """Cancel all tasks but the current one, and return them."""
        rest: list[asyncio.Task[Any]]
        rest = [task for task in self._tasks.values() if task is not asyncio.current_task(self)]
        for task in rest:
            task.cancel()
        return rest

    def last_turn(self) -> None:
        """Let cancelled tasks do what needs no waiting."""
        self.is_paused = False
        self.node_clock.busy_until = 0.0
        with contextlib.suppress(BaseException):
            self.turn()

    def bury(self) -> None:
        """Let nothing of a program that was ended go on: what is suspended is thrown away."""
        self.closed = True
        before, outer = asyncio._get_running_loop(), here.loop
        here.loop = self
        asyncio._set_running_loop(self)
        try:
            for task in self._tasks.values():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):  # nobody is left to be told
                    task.get_coro().close()
            for transport in list(self._transports.values()):  # type: ignore[attr-defined]
                vars(transport).update(_closing=True, _sock=None)  # or it would warn
        finally:
            here.loop = outer
            asyncio._set_running_loop(before)
        self._tasks.clear()
        self._ready.clear()  # type: ignore[attr-defined]
        self._scheduled.clear()  # type: ignore[attr-defined]
        self._thread_id = None
        self.close()
