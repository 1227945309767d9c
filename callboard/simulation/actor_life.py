"""Random numbers, sleeps and threads for the actors on one simulated node.

`patches` replaces functions of the standard library. When actors of a simulated
node call these, the patches use this module: random numbers come from the seed of the run,
sleeps pass in virtual time, and anything that needs a real thread or socket is refused.
"""

import asyncio
import random
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from callboard.kernel.context import current_cell
from callboard.kernel.environment import LoopRunner, RunnerLoop
from callboard.simulation.clock import Clock, NodeClock
from callboard.simulation.not_simulated import NotSimulated

#: Maximum seconds until an executor starts a function.
EXECUTOR_SECONDS: Final = 0.001

#: Top-level packages of callboard itself.
OWN_ROOMS: Final = ("callboard", "actors", "basp", "proxies")

#: Maximum frames to inspect for the caller.
_FRAMES: Final = 200

_LOOP: Final = RunnerLoop.__module__
_INSTALLED: Final = ("site-packages", "dist-packages")


def is_called_by_users(depth: int = 2) -> bool:
    """Return whether the current call is made by user code, and not by callboard itself.

    Walking outwards, the frames belong to the standard library, to installed libraries, to
    users, and finally to callboard, which runs everything. The call is a user's if there is a
    user's frame before the first frame of callboard, if an actor runs an installed library, or
    if the event loop runs an asyncio function as a task.

    Args:
        depth: frames between this function and the call.
    """
    frame: Any = sys._getframe(depth)  # documented, despite the underscore
    has_library = False
    for _ in range(_FRAMES):
        if frame is None:
            return False
        name = str(frame.f_globals.get("__name__", ""))
        package = name.partition(".")[0]
        if package in OWN_ROOMS:
            return name == _LOOP or (has_library and name.startswith("callboard.actors."))
        if package not in sys.stdlib_module_names:
            if not any(part in frame.f_code.co_filename for part in _INSTALLED):
                return True
            has_library = True
        frame = frame.f_back
    return False


class ActorLife:
    """Random source, clock and thread substitute for the actors of one simulated node."""

    def __init__(
        self,
        name: str,
        rng: random.Random,
        clocks: tuple[Clock, NodeClock],
    ) -> None:
        """Create the environment of a node's actors.

        Args:
            name: name of the node.
            rng: random source of the node. Only its state is copied; drawing from it would
                change the runs of existing seeds.
            clocks: the clocks of the simulation and of the node.
        """
        seeds = random.Random(0)
        seeds.setstate(rng.getstate())
        #: Random source of the `random` functions and generators that actors use.
        self.drawn = random.Random(f"drawn {seeds.getrandbits(64)}")
        self.random = random.Random(f"made {seeds.getrandbits(64)}")
        self.name = name
        self.simulation, self.node_clock = clocks

    def block(self, seconds: float) -> None:
        """Block the node, or a function of its executor, for some seconds."""
        clock = self.node_clock
        since = max(clock.busy_until, self.simulation.now)
        clock.busy_until = since + seconds / clock.rate

    def refuse(self, problem: str, instead: str) -> NoReturn:
        """Raise `NotSimulated` with the unsupported call and an alternative."""
        message = f"node {self.name!r}: {problem}; {instead}"
        raise NotSimulated(message)


class _CurrentLife(threading.local):
    """The environment of the node whose turn it is on a thread; None outside of turns."""

    life: ActorLife | None = None


#: The environment of the current thread.
current: Final = _CurrentLife()


class SimulatedLoop(RunnerLoop):
    """The event loop of a simulated node, whose executors have no threads."""

    def __init__(self, runner: LoopRunner, life: Callable[[], ActorLife]) -> None:
        super().__init__(runner)
        self._life = life

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Schedule a user's function to run in one step; its sleeps pass in virtual time.

        Functions of callboard itself run on a real thread.
        """
        if not is_called_by_users():
            return super().run_in_executor(executor, func, *args)
        future = self.create_future()
        life = self._life()
        self.call_later(life.random.random() * EXECUTOR_SECONDS, self._run, future, func, args)
        return future

    def _run(self, future: asyncio.Future[Any], func: Callable[..., Any], args: Any) -> None:
        """Call a function as if on a separate thread."""
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
        except BaseException as raised:  # noqa: BLE001 - the awaiting task gets it
            error = raised
        finally:
            current_cell.reset(cell)
            asyncio._set_running_loop(self)
            slept = max(0.0, clock.busy_until - now) * clock.rate
            clock.busy_until = busy_until
        self.call_later(slept, _resolve, future, result, error)


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Set the outcome of a function on its future."""
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        future.set_exception(error)
