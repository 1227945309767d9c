"""The watcher: one thread per process, which notices runners that are stuck in a handler.

It checks every few milliseconds, but only while some runner is busy, because a runner that
polls is not stuck. When all runners have been idle for a while, it sleeps until one wakes it.
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

#: Seconds between two checks; a blocking handler delays other actors by one or two of them.
TICK: Final = 0.002


#: Consecutive checks with only idle runners, after which the watcher sleeps.
IDLE_TICKS: Final = 8


class Watched(Protocol):
    """The interface of a runner for the watcher."""

    sleeping: bool
    turns: int
    times: TimeSheet
    sampler: Sampler
    #: The runnable that runs, or ran last.
    current: Any

    #: Returns the monotonic time in seconds.
    now: Callable[[], float]

    def pass_role_on(self) -> bool:
        """Pass the role to a spare thread; return False if the holder is not in a handler."""


class Watcher:
    """Passes on the role of stuck runners."""

    def __init__(self) -> None:
        self._lock = locks.lock("runners that are watched", 810)
        self._runners: frozenset[Watched] = frozenset()
        self._thread: threading.Thread | None = None
        self._busy = threading.Event()
        #: Whether the watcher sleeps; a runner that sees this after a poll calls `awaken`.
        self.dormant = False
        after_fork.register(self, Watcher._drop_copy)

    def _drop_copy(self) -> None:
        """Forget thread and runners, which a forked process does not have."""
        self._thread, self._runners = None, frozenset()
        self.dormant = False

    def awaken(self) -> None:
        """Resume the checks, because a runner is busy."""
        self.dormant = False
        self._busy.set()

    def watch(self, runner: Watched) -> None:
        """Add a runner, and start the thread if needed."""
        with self._lock:
            self._runners = self._runners | {runner}
            self.awaken()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="callboard-watcher", daemon=True
                )
                self._thread.start()

    def unwatch(self, runner: Watched) -> None:
        """Remove a runner; the thread ends with the last one."""
        with self._lock:
            self._runners = self._runners - {runner}
            self.awaken()

    def _run(self) -> None:
        """Check all runners every tick, until none is left."""
        turns: dict[Watched, int] = {}
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
            # A runner that is busy delays the watcher as well, so a delay is only recorded if
            # none is.
            if all(runner.sleeping or runner.times.stuck for runner in runners):
                CONTENTION.record_delay(elapsed - TICK)
            turns, is_idle = _checked(runners, turns, elapsed)
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


def _checked(
    runners: frozenset[Watched], previous: dict[Watched, int], elapsed: float
) -> tuple[dict[Watched, int], bool]:
    """Check each runner; return their turns, and whether all were idle."""
    turns_seen: dict[Watched, int] = {}
    is_idle = True
    for runner in runners:
        turns = runner.turns
        times = runner.times
        if times.stuck or not runner.sleeping:
            times.sample(None if runner.sleeping else runner.current, elapsed)
        runner.sampler.check(None if runner.sleeping else runner.current, runner.now())
        if times.stuck:
            is_idle = False
            times.report_slow(runner.now())
        if runner.sleeping:
            is_idle = is_idle and previous.get(runner) == turns
            turns_seen[runner] = turns
            continue
        is_idle = False
        if previous.get(runner) != turns or not runner.pass_role_on():
            turns_seen[runner] = turns
    return turns_seen, is_idle


WATCHER: Final = Watcher()
