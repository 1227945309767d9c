"""Renews and watches leases on a dedicated thread, so that a busy node does not lose its own.

A C extension that keeps the GIL for a whole TTL stops this thread as well. Like SIGSTOP, that
loses the lease; `LeaseLost` then names the handler that was running.
"""

import heapq
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from callboard.lease.errors import LeaseLost
from callboard.lease.leases import Leases
from callboard.lease.machine.lease_machine import (
    Effect,
    HolderGone,
    LeaseExpired,
    LeaseHeld,
    LeaseKilled,
    LeaseMachine,
    ReadLease,
    WriteLease,
)
from callboard.support.database.group_worker import GroupWorker, call_all

#: Events that the driver reports to its node.
LeaseNews = LeaseHeld | LeaseLost | LeaseKilled | HolderGone

#: A clock that runs while the machine is suspended: the lease expires during that time.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: Seconds to wait beyond the time at which a silent lease may be killed: a coarse clock could
#: otherwise wake the driver just too early.
_CLOCK_STEP: Final = 0.002


def boot_time() -> float:
    """Return the seconds since the machine started, including time in suspension."""
    return time.clock_gettime(_CLOCK)


class LeasePlace(Protocol):
    """The executor of a driver: it runs the driver's callbacks one at a time."""

    def now(self) -> float:
        """Return seconds of a clock that runs while the machine is suspended."""

    def submit(self, done: Callable[[Any], object], method: Any, /, *args: Any) -> None:
        """Call a method of the register, then `done` with its result or error."""

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> object:
        """Schedule a callback after a delay."""

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback; may be called from any thread."""

    def close(self) -> None:
        """Run the posted callbacks and stop; may be called from any thread, and blocks."""


class LeaseThread:
    """Runs the callbacks of a driver on a thread of its own."""

    def __init__(
        self, leases: Leases, name: str, clock: Callable[[], float] = boot_time
    ) -> None:
        """Start the thread.

        Args:
            leases: the register; `close` closes it, too.
            name: part of the thread's name.
            clock: returns seconds, including the time while the machine was suspended.
        """
        self._leases, self.now = leases, clock
        self._timers: list[tuple[float, int, Any]] = []
        self._numbers = count()
        self._worker: GroupWorker[Callable[[], object]]
        self._worker = GroupWorker(f"callboard-lease-{name}", call_all, self._run_due)

    def submit(self, done: Callable[[Any], object], method: Any, /, *args: Any) -> None:
        """Call a method of the register; must be called on the thread."""
        try:
            answer = getattr(self._leases, method.__name__)(*args)
        except Exception as error:  # noqa: BLE001 - passed to the driver
            answer = error
        done(answer)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback after a delay; must be called on the thread."""
        due = self.now() + seconds
        timer = due, next(self._numbers), partial(callback, *args)
        heapq.heappush(self._timers, timer)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback on the thread."""
        self._worker.add(partial(callback, *args))

    def close(self) -> None:
        """Run the posted callbacks, stop the thread, and close the register."""
        self._worker.close()
        self._leases.close()

    def _run_due(self) -> float | None:
        """Run due timers; return the seconds until the next one."""
        while self._timers and self._timers[0][0] <= self.now():
            heapq.heappop(self._timers)[2]()
        return self._timers[0][0] - self.now() if self._timers else None


class LeaseLoop:
    """Runs callbacks on the node's thread; for a register that does not block."""

    def __init__(self, calls: Any, runtime: Any) -> None:
        """Run on a node's runtime; `calls.submit` calls the register."""
        self.submit, self.call_later = calls.submit, runtime.call_later
        self.post, self.now = runtime.post, runtime.now

    def close(self) -> None:
        """Do nothing: the node stops its timers."""


class LeaseDriver:
    """Holds the lease of one life and watches other lives, from `start` to `close`."""

    def __init__(
        self,
        place: LeasePlace,
        machine: LeaseMachine,
        tell: Callable[[LeaseNews], object],
        *,
        running: Callable[[], str] = str,
    ) -> None:
        """Create the driver of a life.

        Args:
            place: the executor; it is closed with the driver.
            machine: state machine of the life.
            tell: called on the executor with `LeaseHeld`, with `HolderGone`, with `LeaseLost`
                if the lease was not renewed in time, and with `LeaseKilled` if another life has
                killed the lease.
            running: returns the name of the running handler, for the text of `LeaseLost`.
        """
        self._place, self._machine, self._tell = place, machine, tell
        self._running = running
        self._is_closed = False
        #: Time of the next renewal, and the number of the latest timer; earlier timers do
        #: nothing.
        self._due = float("-inf")
        self._timer = 0
        #: Times at which the counters of other lives rose last. The mapping is replaced, never
        #: modified, because other threads read it.
        self._risen: Mapping[str, float] = {}

    def start(self) -> None:
        """Start acquiring and renewing the lease; `LeaseHeld` reports that it is valid."""
        self._place.post(self._wake, self._timer)

    def is_valid(self) -> bool:
        """Return whether the own lease is valid now; may be called from any thread."""
        return self._machine.is_valid(self._place.now())

    def risen(self) -> set[str]:
        """Return the writers whose counter rose within the last TTL.

        Can be called from any thread.
        """
        since = self._place.now() - self._machine.ttl
        return {writer for writer, rose_at in self._risen.items() if rose_at >= since}

    def watch(self, writers: set[str]) -> None:
        """Watch exactly these lives from now on; may be called from any thread."""
        self._place.post(self._watch, writers)

    def begin_anew(self) -> None:
        """Start another term after `LeaseKilled`; may be called from any thread."""
        self._place.post(self._begin_anew)

    def close(self) -> None:
        """Release the lease, and close the place."""
        if not self._is_closed:
            self._place.post(self._release)
            self._place.close()

    # --- in the place ---

    def _watch(self, writers: set[str]) -> None:
        self._machine.watch(writers)
        self._carry_out(self._machine.read_watched())

    def _begin_anew(self) -> None:
        self._machine.begin_anew()
        self._due = float("-inf")
        self._wake(self._timer)

    def _release(self) -> None:
        self._is_closed = True
        if not self._machine.is_killed:
            self._carry_out(self._machine.release())

    def _wake(self, timer: int) -> None:
        """Renew the lease if that is due, else check whether another life may be killed."""
        if timer != self._timer or self._is_closed:
            return
        machine, now = self._machine, self._place.now()
        if now >= self._due:
            self._due = max(self._due + machine.ttl / 4, now)
            if self._due <= now:
                self._due = now + machine.ttl / 4
            self._carry_out(machine.tick(now))
        else:
            self._carry_out(machine.read_watched())
        self._plan()

    def _plan(self) -> None:
        """Schedule the next wake-up."""
        self._timer += 1
        now = self._place.now()
        due = min(self._due, self._machine.silent_at(now) + _CLOCK_STEP)
        self._place.call_later(max(0.0, due - now), self._wake, self._timer)

    def _carry_out(self, effects: list[Effect]) -> None:
        """Execute effects in order."""
        for effect in effects:
            match effect:
                case ReadLease(name):
                    done = partial(self._read_done, name, self._place.now())
                    self._place.submit(done, Leases.read, name)
                case WriteLease(name, value, expected):
                    done = partial(self._write_done, name, self._place.now())
                    self._place.submit(done, Leases.write, name, value, expected)
                case LeaseExpired(late):
                    self._report_lost(late)
                case _:
                    self._tell(effect)

    def _report_lost(self, late: float) -> None:
        """Report that the lease was not renewed in time."""
        handler = self._running()
        during = f"; {handler} was running" if handler else ""
        message = (
            f"the lease {self._machine.name} expired {late:.3f} s ago, before it could be"
            f" renewed{during}: the process or its database was stopped or busy for longer than"
            " the TTL"
        )
        self._tell(LeaseLost(message, handler))

    def _read_done(self, name: str, sent_at: float, answer: Any) -> None:
        """Handle the result of a read."""
        versioned = None if isinstance(answer, BaseException) else answer
        effects = self._machine.read_done(name, sent_at, self._place.now(), versioned)
        self._risen = self._machine.risen()
        self._carry_out(effects)

    def _write_done(self, name: str, sent_at: float, answer: Any) -> None:
        """Handle the result of a write."""
        is_written = None if isinstance(answer, BaseException) else answer
        now = self._place.now()
        self._carry_out(self._machine.write_done(name, sent_at, now, is_written=is_written))
