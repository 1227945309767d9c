"""A host of a simulated cluster that runs a plain asyncio program."""

import asyncio
import random
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, TypeVar

from callboard.kernel.errors import CallboardError
from callboard.kernel.reply import Future
from callboard.simulation.clock import Clock, NodeClock
from callboard.simulation.disk import SimulatedDisk
from callboard.simulation.network import SimulatedNetwork
from callboard.simulation.programs.files import HostFiles, Statuses
from callboard.simulation.programs.loop import HostLoop
from callboard.simulation.trace import EventTrace

T = TypeVar("T")


class HostEnded(CallboardError, ConnectionError):
    """The program of a host was killed, crashed or ended before the awaited result."""


class World(NamedTuple):
    """The parts of a cluster that its hosts use."""

    clock: Clock
    network: SimulatedNetwork
    trace: EventTrace
    random: random.Random
    #: Called with a loop that needs a turn.
    woken: Callable[[HostLoop], None]
    #: Returns the disk of the host with an address.
    disk_of: Callable[[str], SimulatedDisk]
    #: Restarts a host.
    restart: Callable[["SimulatedHost"], object]


class SimulatedHost:
    """A machine of a simulated cluster whose program is a coroutine function.

    Create it with `Cluster.host`. It is subject to all faults of machines. A restarted host
    runs its program from the beginning, with the files that its disk kept.
    """

    def __init__(
        self,
        world: World,
        name: str,
        main: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[Any, ...],
        *,
        address: str,
        number: int,
        respawn: float | None,
        mortal: bool,
    ) -> None:
        self.name = name
        self.address = address
        self.number = number
        #: Whether drawn and planned faults may kill or crash it.
        self.mortal = mortal
        #: The program's signal handlers by signal number.
        self.handlers: dict[int, Any] = {}
        #: Number of starts.
        self.lives = 0
        self._world = world
        self._main = main
        self._args = args
        self._respawn = respawn
        self._buried: list[HostLoop] = []
        self._waiting: dict[Future[Any], None] = {}
        self._closing = False
        self._clock = NodeClock(world.clock)
        self._statuses = Statuses()
        self.start()

    def __repr__(self) -> str:
        """Return name, address and state."""
        state = "ended" if self.loop.closed else "running"
        return f"<SimulatedHost {self.name!r} at {self.address}, {state}>"

    # --- for tests ---

    @property
    def done(self) -> bool:
        """Whether its program has ended: it returned, failed, or was killed."""
        return self._outcome.is_done

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the program ends, and return the result of `main`.

        Args:
            timeout: virtual seconds to wait.

        Raises:
            ResultTimeout: the program is still running.
            HostEnded: the program was killed, crashed, or ended by `sys.exit` with an error.
        """
        return self._outcome.result(timeout)

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> "Future[T]":
        """Call a coroutine function on the host, concurrently with its program.

        Return a future for the result.

        Raises:
            HostEnded: the program has ended; restart it with `Cluster.restart`.
        """
        if self.loop.closed:
            msg = f"host {self.name!r} has ended; restart it with cluster.restart(host)"
            raise HostEnded(msg)
        return self._follow(function, args)[0]

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal: the program's handler runs, or the program ends."""
        handler = self.handlers.get(number, signal.SIG_DFL)
        if handler == signal.SIG_IGN or self.loop.closed:
            return
        self._note("signal", int(number))
        if handler == signal.SIG_DFL:
            if number != signal.SIGCHLD:
                self.loop.call_soon_threadsafe(self.exited, f"signal {int(number)}")
        else:
            self.loop.call_soon_threadsafe(handler, number, None)

    # --- life cycle ---

    def start(self) -> None:
        """Start the program; it gets its first turn when time advances."""
        world = self._world
        rng = random.Random(world.random.random())
        self.lives += 1
        self.handlers.clear()
        clock, self._clock = self._clock, NodeClock(world.clock)
        self._clock.rate, self._clock.step = (
            clock.rate,
            clock.step,
        )  # the clocks belong to the machine
        self.loop = HostLoop(self, self._clock, world.clock, world.network, rng, world.woken)
        self.loop.files = HostFiles(self.loop, world.disk_of(self.address), self._statuses)
        self._note("starts")
        self._outcome, task = self._follow(self._main, self._args)
        task.add_done_callback(partial(self._main_done, self._outcome))

    def _follow(
        self, function: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]
    ) -> "tuple[Future[Any], asyncio.Task[Any]]":
        """Run a coroutine function as a task, and return a future for its outcome."""
        future: Future[Any] = Future(self.name)
        self._waiting[future] = None

        async def call() -> Any:
            return await function(*args)

        def done(task: "asyncio.Task[Any]") -> None:
            self._waiting.pop(future, None)
            if task.cancelled():
                future.set_exception(HostEnded(f"a task of host {self.name!r} was cancelled"))
            elif (error := task.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(task.result())

        task = self.loop.create_task(call())
        task.add_done_callback(done)
        self.loop.wake()
        return future, task

    def _main_done(self, outcome: "Future[Any]", task: "asyncio.Task[Any]") -> None:
        """End the program after its main coroutine, as `asyncio.run` does."""
        loop = self.loop
        if not loop.closed and not self._closing:
            loop.create_task(self._leave(loop, outcome.exception()))

    async def _leave(self, loop: HostLoop, error: BaseException | None) -> None:
        """Cancel the remaining tasks of the program, and end it."""
        await asyncio.gather(*loop.cancel_tasks(), return_exceptions=True)
        await loop.shutdown_asyncgens()
        loop.files.flush()
        if error is None:
            self._note("ends")
        elif not isinstance(error, SystemExit):
            self._note("fails", type(error).__name__)
            if self._respawn is None:
                error.add_note(f"on host {self.name!r}, {self._world.clock.now:.6f} s")
                loop.failure = error
        self._ended(loop, is_failure=error is not None)

    def exited(self, code: object) -> None:
        """Record that the program ended by `sys.exit` or by a signal."""
        loop = self.loop
        if loop.closed:
            return
        self._note("exits", code)
        if code in (None, 0):
            self._waiting.pop(self._outcome, None)
            self._outcome.set_result(None)
        else:
            self._outcome.set_exception(HostEnded(f"host {self.name!r} ended with {code}"))
        self._ended(loop, is_failure=code not in (None, 0))

    def _ended(self, loop: HostLoop, *, is_failure: bool) -> None:
        """Close the program's connections; schedule a restart after an error if enabled."""
        self.ended("its program ended")
        self._world.network.kill_host(self.address)
        if is_failure and self._respawn is not None:
            self._world.clock.plan(self._respawn, self._respawned, self.lives)

    def _respawned(self, life: int) -> None:
        """Restart the program after an error, unless it was restarted already."""
        if self.lives == life:
            self._world.restart(self)

    def ended(self, reason: str) -> None:
        """Stop taking turns, because the program was killed, crashed or ended."""
        if self.loop.closed:
            return
        self.loop.closed = True
        self._buried.append(self.loop)
        waiting, self._waiting = list(self._waiting), {}
        for future in waiting:
            future.set_exception(HostEnded(f"host {self.name!r}: {reason}"))

    def troubled(self, message: str, error: BaseException | None) -> None:
        """Record an error that no task awaits; an AssertionError fails the test."""
        if error is not None and error is self.loop.failure:
            return  # asyncio reports it a second time
        self._note("trouble", message, type(error).__name__)
        if isinstance(error, AssertionError):
            error.add_note(f"on host {self.name!r}, {self._world.clock.now:.6f} s")
            self.loop.failure = error

    def close(self) -> None:
        """End the program at the end of the simulation: cancel its tasks in one last turn."""
        loop = self.loop
        self._closing = True
        if not loop.closed:
            loop.cancel_tasks()
            loop.last_turn()
            self.ended("the simulation ended")
        for buried in self._buried:
            buried.bury()
        self._buried.clear()

    def _note(self, *parts: object) -> None:
        """Record an event of the program in the trace."""
        self._world.trace.note(self._world.clock.now, self.name, *parts)
