"""The watcher: one thread of the process that notices runners stuck in a handler.

It looks every few milliseconds, and only while some runner is busy: a runner that polls is not
stuck. When all runners have been idle for a while it sleeps until one of them wakes it.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from callboard import locks
from callboard.actors.runner.contention import CONTENTION
from callboard.actors.runner.sampling import Sampler
from callboard.actors.runner.slow_handlers import TimeSheet
from callboard.support import after_fork

#: Seconds between two looks; a handler that blocks holds others up for one to two of them.
TICK: Final = 0.002


#: Looks in a row at nothing but idle runners, after which the watcher sleeps.
IDLE_TICKS: Final = 8


class Watched(Protocol):
    """What the watcher sees of a runner."""

    sleeping: bool
    turns: int
    times: TimeSheet
    sampler: Sampler
    #: What runs, or ran last.
    current: Any

    #: Returns the monotonic time in seconds.
    now: Callable[[], float]

    def pass_role_on(self) -> bool:
        """Give the role to a spare thread; False if the holder is not in a handler."""


class Watcher:
    """Passes the role of stuck runners on."""

    def __init__(self) -> None:
        self._lock = locks.lock("runners that are watched", 810)
        self._runners: frozenset[Watched] = frozenset()
        self._thread: threading.Thread | None = None
        self._busy = threading.Event()
        #: Whether the watcher sleeps; a runner that finds it so after a poll calls `awaken`.
        self.dormant = False
        after_fork.register(self, Watcher._leave)

    def _leave(self) -> None:
        """Watch nothing: in a forked process there is neither the thread nor a runner."""
        self._thread, self._runners = None, frozenset()
        self.dormant = False

    def awaken(self) -> None:
        """Look again: a runner is busy."""
        self.dormant = False
        self._busy.set()

    def watch(self, runner: Watched) -> None:
        """Watch a runner from now on."""
        with self._lock:
            self._runners = self._runners | {runner}
            self.awaken()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._look, name="callboard-watcher", daemon=True
                )
                self._thread.start()

    def unwatch(self, runner: Watched) -> None:
        """Forget a runner; without runners the thread ends."""
        with self._lock:
            self._runners = self._runners - {runner}
            self.awaken()

    def _look(self) -> None:
        """Look at all runners every tick, until there are none."""
        seen: dict[Watched, int] = {}
        idle_ticks = 0
        last = time.monotonic()
        while True:
            time.sleep(TICK)
            now = time.monotonic()
            elapsed, last = now - last, now
            runners = self._runners
            if not runners:
                with self._lock:
                    if not self._runners:
                        self._thread = None
                        return
            # A runner that is busy makes the watcher late itself, and proves nothing.
            if all(runner.sleeping or runner.times.stuck for runner in runners):
                CONTENTION.look(elapsed - TICK)
            seen, is_idle = _looked(runners, seen, elapsed)
            idle_ticks = idle_ticks + 1 if is_idle else 0
            if idle_ticks >= IDLE_TICKS:
                self._sleep()
                idle_ticks = 0
                last = time.monotonic()

    def _sleep(self) -> None:
        """Sleep until a runner is busy."""
        self._busy.clear()
        self.dormant = True
        if self._runners and all(runner.sleeping for runner in self._runners):
            self._busy.wait()
        self.dormant = False


def _looked(
    runners: frozenset[Watched], before: dict[Watched, int], elapsed: float
) -> tuple[dict[Watched, int], bool]:
    """Look at each runner once; returns the turns seen, and whether all were idle."""
    seen: dict[Watched, int] = {}
    is_idle = True
    for runner in runners:
        turns = runner.turns
        times = runner.times
        if times.stuck or not runner.sleeping:
            times.sample(None if runner.sleeping else runner.current, elapsed)
        runner.sampler.look(None if runner.sleeping else runner.current, runner.now())
        if times.stuck:
            is_idle = False
            times.tell_slow(runner.now())
        if runner.sleeping:
            is_idle = is_idle and before.get(runner) == turns
            seen[runner] = turns
            continue
        is_idle = False
        if before.get(runner) != turns or not runner.pass_role_on():
            seen[runner] = turns
    return seen, is_idle


WATCHER: Final = Watcher()
