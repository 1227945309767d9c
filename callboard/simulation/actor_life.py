"""Chance, threads and blocking calls of the actors on one simulated node.

`programs.substitutes` puts functions in the place of those of Python's library. In code that
actors of a simulated node run, these call this life: chance comes from the seed of the run, a
sleep passes in virtual time, and what would need a real thread or socket is refused.
"""

import asyncio
import random
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

from callboard.kernel.context import current_cell
from callboard.kernel.environment import LoopRunner, RunnerLoop
from callboard.simulation.clock import Clock, NodeClock
from callboard.simulation.not_simulated import NotSimulated

#: Seconds after which an executor begins with a function, at most.
EXECUTOR_SECONDS: Final = 0.001

#: Rooms of callboard itself, by the first part of a module's name.
OWN_ROOMS: Final = ("callboard", "actors", "basp", "proxies")

#: Frames that are looked at to find out who calls.
_FRAMES: Final = 200

_LOOP: Final = RunnerLoop.__module__
_INSTALLED: Final = ("site-packages", "dist-packages")


def is_called_by_users(depth: int = 2) -> bool:
    """Return whether code of users makes the present call, and not callboard for itself.

    The frames from the call outwards are those of Python's library, of libraries that are
    installed, of users, and of callboard, which runs them all. Between the call and callboard
    there is code of users, or an actor runs a library that users have brought along, or the
    event loop a function of asyncio that a task was made of.

    Args:
        depth: frames between the one that asks and the call.
    """
    frame: Any = sys._getframe(depth)  # the documented way to a caller
    has_library = False
    for _ in range(_FRAMES):
        if frame is None:
            return False
        name = str(frame.f_globals.get("__name__", ""))
        room = name.partition(".")[0]
        if room in OWN_ROOMS:
            return name == _LOOP or (has_library and name.startswith("callboard.actors."))
        if room not in sys.stdlib_module_names:
            if not any(part in frame.f_code.co_filename for part in _INSTALLED):
                return True
            has_library = True
        frame = frame.f_back
    return False


class ActorLife:
    """What stands for chance, time and threads in the actors of one simulated node."""

    def __init__(
        self,
        name: str,
        number: int,
        rng: random.Random,
        clocks: tuple[Clock, NodeClock],
    ) -> None:
        """Begin the life of a node.

        Args:
            name: of the node.
            number: its place among the nodes.
            rng: the chance of the node; nothing is drawn from it, so runs stay what they are.
            clocks: the simulation's and the node's.
        """
        seeds = random.Random(0)
        seeds.setstate(rng.getstate())
        #: Where the chance of functions and generators comes from that actors use.
        self.drawn = random.Random(f"drawn {seeds.getrandbits(64)}")
        self.random = random.Random(f"made {seeds.getrandbits(64)}")
        self.name, self.number = name, number
        self.address = name
        self.simulation, self.node_clock = clocks
        self.calls = 0

    @property
    def host(self) -> "ActorLife":
        """Itself: a node is its own host."""
        return self

    def time(self) -> float:
        """Return what the node's clock shows."""
        return self.node_clock.time()

    def block(self, seconds: float) -> None:
        """Let seconds pass in which the node, or a function on a thread, does nothing else."""
        clock = self.node_clock
        since = max(clock.busy_until, self.simulation.now)
        clock.busy_until = since + seconds / clock.rate

    def refuse(self, what: str, instead: str) -> NoReturn:
        """Raise `NotSimulated`, and say what to do."""
        message = f"node {self.name!r}: {what}; {instead}"
        raise NotSimulated(message)


class SimulatedLoop(RunnerLoop):
    """The event loop of a simulated node, whose executors have no threads."""

    def __init__(self, runner: LoopRunner, life: Callable[[], ActorLife]) -> None:
        super().__init__(runner)
        self._life = life

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call a function of users soon, in one step; its sleeps pass in virtual time.

        Functions of callboard itself wait for real threads and disks, on a real thread.
        """
        if not is_called_by_users():
            return super().run_in_executor(executor, func, *args)
        future = self.create_future()
        life = self._life()
        self.call_later(life.random.random() * EXECUTOR_SECONDS, self._run, future, func, args)
        return future

    def _run(self, future: asyncio.Future[Any], func: Callable[..., Any], args: Any) -> None:
        """Call a function as if on a thread of its own."""
        if future.cancelled():
            return
        life = self._life()
        clock, now = life.node_clock, life.simulation.now
        busy_until, clock.busy_until = clock.busy_until, 0.0
        error: BaseException | None = None
        result = None
        asyncio._set_running_loop(None)
        cell = current_cell.set(None)
        try:
            result = func(*args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as raised:  # noqa: BLE001 - it belongs to who waits
            error = raised
        finally:
            current_cell.reset(cell)
            asyncio._set_running_loop(self)
            slept = max(0.0, clock.busy_until - now) * clock.rate
            clock.busy_until = busy_until
        self.call_later(slept, _resolve, future, result, error)


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Give a future the outcome of its function."""
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        future.set_exception(error)
