"""A host of a simulated cluster that runs a program of plain asyncio."""

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
    """The program of a host was killed, crashed or ended before what was waited for."""


class World(NamedTuple):
    """What a host has of the cluster that it is in."""

    clock: Clock
    network: SimulatedNetwork
    trace: EventTrace
    random: random.Random
    #: Called with a loop that needs a turn.
    woken: Callable[[HostLoop], None]
    #: The disk of the host with an address.
    disk_of: Callable[[str], SimulatedDisk]
    #: Starts a host again.
    restart: Callable[["SimulatedHost"], object]


class SimulatedHost:
    """A machine of a simulated cluster whose program is a coroutine function.

    `Cluster.host` makes it. All faults of machines can happen to it; a host that is started
    again runs its program from the beginning, with what its disk kept.
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
        #: Whether faults that are drawn or planned may kill or crash it.
        self.mortal = mortal
        #: What its program does at a signal, by number.
        self.handlers: dict[int, Any] = {}
        #: How often it was started.
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
        """Return its name and state."""
        state = "ended" if self.loop.closed else "running"
        return f"<SimulatedHost {self.name!r} at {self.address}, {state}>"

    # --- for tests ---

    @property
    def done(self) -> bool:
        """Whether its program came to its end: returned, failed, or was ended."""
        return self._outcome.is_done

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the program ends, and return what its `main` returns.

        Args:
            timeout: virtual seconds to wait.

        Raises:
            ResultTimeout: it goes on.
            HostEnded: it was killed, crashed, or left by `sys.exit` with an error.
        """
        return self._outcome.result(timeout)

    def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> "Future[T]":
        """Call a coroutine function on the host, beside its program; returns a future.

        Raises:
            HostEnded: the program has ended; `Cluster.restart` starts it again.
        """
        if self.loop.closed:
            msg = f"host {self.name!r} has ended; start it again with cluster.restart(host)"
            raise HostEnded(msg)
        return self._follow(function, args)[0]

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal: its program's handler runs, or the program ends."""
        handler = self.handlers.get(number, signal.SIG_DFL)
        if handler == signal.SIG_IGN or self.loop.closed:
            return
        self._note("signal", int(number))
        if handler == signal.SIG_DFL:
            if number != signal.SIGCHLD:
                self.loop.call_soon_threadsafe(self.exited, f"signal {int(number)}")
        else:
            self.loop.call_soon_threadsafe(handler, number, None)

    # --- its life ---

    def start(self) -> None:
        """Begin a life of the program; it gets its first turn when time moves."""
        world = self._world
        rng = random.Random(world.random.random())
        self.lives += 1
        self.handlers.clear()
        before, self._clock = self._clock, NodeClock(world.clock)
        self._clock.rate, self._clock.step = before.rate, before.step  # they are the machine's
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
        """End the life of a program whose main coroutine has ended, as `asyncio.run` does."""
        loop = self.loop
        if not loop.closed and not self._closing:
            loop.create_task(self._leave(loop, outcome.exception()))

    async def _leave(self, loop: HostLoop, error: BaseException | None) -> None:
        """Cancel what the program left behind, and end it."""
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
        """Take note that the program left by `sys.exit`, or was ended by a signal."""
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
        """Close what the program had open, and start it again if that is wanted."""
        self.ended("its program ended")
        self._world.network.kill_host(self.address)
        if is_failure and self._respawn is not None:
            self._world.clock.plan(self._respawn, self._respawned, self.lives)

    def _respawned(self, life: int) -> None:
        """Start the program again after an error, unless that was done already."""
        if self.lives == life:
            self._world.restart(self)

    def ended(self, why: str) -> None:
        """Take no more turns: the program was killed or crashed, or has ended."""
        if self.loop.closed:
            return
        self.loop.closed = True
        self._buried.append(self.loop)
        waiting, self._waiting = list(self._waiting), {}
        for future in waiting:
            future.set_exception(HostEnded(f"host {self.name!r}: {why}"))

    def troubled(self, message: str, error: BaseException | None) -> None:
        """Take note of an error that nobody waits for; broken assertions fail the test."""
        if error is not None and error is self.loop.failure:
            return  # asyncio tells of it as well
        self._note("trouble", message, type(error).__name__)
        if isinstance(error, AssertionError):
            error.add_note(f"on host {self.name!r}, {self._world.clock.now:.6f} s")
            self.loop.failure = error

    def close(self) -> None:
        """End the program with the simulation: its tasks are cancelled, time stands still."""
        loop = self.loop
        self._closing = True
        if not loop.closed:
            loop.cancel_tasks()
            loop.last_turn()
            self.ended("the simulation ended")
        for each in self._buried:
            each.bury()
        self._buried.clear()

    def _note(self, *what: object) -> None:
        """Note in the trace what became of the program."""
        self._world.trace.note(self._world.clock.now, self.name, *what)
