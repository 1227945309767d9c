"""Raises and watches leases on a thread of its own, so that a busy node does not lose its own.

What holds the interpreter for a whole TTL (a C extension that keeps the GIL) stops this thread
as well: that is a pause like SIGSTOP, and `LeaseLost` names what ran meanwhile.
"""

import heapq
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from callboard import locks
from callboard.lease.errors import LeaseLost
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
from callboard.lease.register import Leases
from callboard.support import after_fork

#: What the driver tells its node.
LeaseNews = LeaseHeld | LeaseLost | LeaseKilled | HolderGone

#: Goes on while the machine sleeps: a lease that slept is over.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: Seconds behind the moment at which another may be killed, for clocks that count in steps.
_BEHIND: Final = 0.002


def boot_time() -> float:
    """Return the seconds since the machine started, its sleep included."""
    return time.clock_gettime(_CLOCK)


class LeasePlace(Protocol):
    """Where a driver runs: one thing after the other, beside what its node does."""

    def now(self) -> float:
        """Return seconds that go on while the machine sleeps."""

    def submit(self, done: Callable[[Any], object], method: Any, /, *args: Any) -> None:
        """Call a method of the register; `done` gets its answer or error, in the place."""

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> object:
        """Call back in the place after a time."""

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back in the place soon; from any thread."""

    def close(self) -> None:
        """Do what was posted, and nothing more; from any thread, blocks."""


class LeaseThread:
    """A place with a thread and a connection to the register of its own."""

    def __init__(
        self, leases: Leases, name: str, clock: Callable[[], float] = boot_time
    ) -> None:
        """Start the thread.

        Args:
            leases: the register; closed with the place.
            name: for the thread's name.
            clock: seconds that go on while the machine sleeps.
        """
        self._leases, self.now = leases, clock
        self._posted: list[Callable[[], object]] = []
        self._timers: list[tuple[float, int, Any]] = []
        self._numbers = count()
        self._changed = locks.condition("jobs of a lease driver", 550)
        self._is_closing = False
        after_fork.register(self)
        self._thread = threading.Thread(
            target=self._run, name=f"callboard-lease-{name}", daemon=True
        )
        self._thread.start()

    def submit(self, done: Callable[[Any], object], method: Any, /, *args: Any) -> None:
        """Call a method of the register; on the thread."""
        try:
            answer = getattr(self._leases, method.__name__)(*args)
        except Exception as error:  # noqa: BLE001 - the driver's
            answer = error
        done(answer)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Call back after a time; on the thread."""
        at = self.now() + seconds
        timer = at, next(self._numbers), partial(callback, *args)
        heapq.heappush(self._timers, timer)

    def post(self, callback: Callable[..., object], *args: Any) -> None:
        """Call back on the thread soon."""
        with self._changed:
            self._posted.append(partial(callback, *args))
            self._changed.notify()

    def close(self) -> None:
        """Do what was posted, end the thread, and close the register."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()
        self._leases.close()

    def _run(self) -> None:
        """Do what is posted or due, until closed."""
        while True:
            with self._changed:
                wait = self._timers[0][0] - self.now() if self._timers else None
                if not self._posted and not self._is_closing and (wait is None or wait > 0):
                    self._changed.wait(wait)
                posted, self._posted = self._posted, []
                is_closing = self._is_closing
            for callback in posted:
                callback()
            if is_closing:
                return
            while self._timers and self._timers[0][0] <= self.now():
                heapq.heappop(self._timers)[2]()


class LeaseLoop:
    """A place on a node's own thread, for a register that does not block: a simulated one."""

    def __init__(self, calls: Any, runtime: Any) -> None:
        """Run where a node runs, and call with `calls.submit`."""
        self.submit, self.call_later = calls.submit, runtime.call_later
        self.post, self.now = runtime.post, runtime.now

    def close(self) -> None:
        """Do nothing: the node ends its timers."""


class LeaseDriver:
    """Holds the lease of one life, and watches those of others, from `start` to `close`."""

    def __init__(
        self,
        place: LeasePlace,
        machine: LeaseMachine,
        tell: Callable[[LeaseNews], object],
        *,
        running: Callable[[], str] = str,
    ) -> None:
        """Make the driver of a life.

        Args:
            place: where it runs; closed with the driver.
            machine: the life's.
            tell: called in the place with `LeaseHeld`, `HolderGone`, `LeaseLost` when the lease
                was not raised in time, and `LeaseKilled` when its term is over for good.
            running: returns which handler runs now, for the text of `LeaseLost`.
        """
        self._place, self._machine, self._tell = place, machine, tell
        self._running = running
        self._is_closed = False
        #: When the next raise is due, and what tells the present timer from earlier ones.
        self._due = float("-inf")
        self._timer = 0
        #: When counters of others were last seen to rise; replaced, never changed.
        self._risen: Mapping[str, float] = {}

    def start(self) -> None:
        """Begin to raise the lease; `LeaseHeld` tells when it is valid."""
        self._place.post(self._wake, self._timer)

    def is_valid(self) -> bool:
        """Return whether the own lease is valid now; from any thread, reads the clock."""
        return self._machine.is_valid(self._place.now())

    def risen(self) -> set[str]:
        """Return whose counters were seen to rise within a TTL; from any thread."""
        since = self._place.now() - self._machine.ttl
        return {writer for writer, rose_at in self._risen.items() if rose_at >= since}

    def watch(self, writers: set[str]) -> None:
        """Watch these lives from now on, and no others; from any thread."""
        self._place.post(self._watch, writers)

    def begin_anew(self) -> None:
        """Begin another term after `LeaseKilled`; from any thread."""
        self._place.post(self._begin_anew)

    def close(self) -> None:
        """Release the lease, and close the place."""
        if not self._is_closed:
            self._place.post(self._release)
            self._place.close()

    # --- in the place ---

    def _watch(self, writers: set[str]) -> None:
        self._machine.watch(writers)
        self._carry_out(self._machine.look())

    def _begin_anew(self) -> None:
        self._machine.begin_anew()
        self._due = float("-inf")
        self._wake(self._timer)

    def _release(self) -> None:
        self._is_closed = True
        if not self._machine.is_killed:
            self._carry_out(self._machine.release())

    def _wake(self, timer: int) -> None:
        """Raise the lease when that is due, and look at others when one may be killed."""
        if timer != self._timer or self._is_closed:
            return
        machine, now = self._machine, self._place.now()
        if now >= self._due:
            self._due = max(self._due + machine.ttl / 4, now)
            if self._due <= now:
                self._due = now + machine.ttl / 4
            self._carry_out(machine.tick(now))
        else:
            self._carry_out(machine.look())
        self._plan()

    def _plan(self) -> None:
        """Plan to wake when something is due."""
        self._timer += 1
        now = self._place.now()
        at = min(self._due, self._machine.silent_at(now) + _BEHIND)
        self._place.call_later(max(0.0, at - now), self._wake, self._timer)

    def _carry_out(self, effects: list[Effect]) -> None:
        """Carry out effects in order."""
        for effect in effects:
            match effect:
                case ReadLease(name):
                    done = partial(self._read_done, name, self._place.now())
                    self._place.submit(done, Leases.read, name)
                case WriteLease(name, value, expected):
                    done = partial(self._write_done, name, self._place.now())
                    self._place.submit(done, Leases.write, name, value, expected)
                case LeaseExpired(late):
                    self._tell_lost(late)
                case _:
                    self._tell(effect)

    def _tell_lost(self, late: float) -> None:
        """Tell that the lease was not raised in time."""
        handler = self._running()
        during = f"; {handler} ran meanwhile" if handler else ""
        message = (
            f"the lease {self._machine.name} was over {late:.3f} s ago, before it could be"
            f" raised{during}: the process or its database was stopped or busy for longer than"
            " the TTL"
        )
        self._tell(LeaseLost(message, handler))

    def _read_done(self, name: str, sent_at: float, answer: Any) -> None:
        """Take the answer to a read."""
        found = None if isinstance(answer, BaseException) else answer
        effects = self._machine.read_done(name, sent_at, self._place.now(), found)
        self._risen = self._machine.risen()
        self._carry_out(effects)

    def _write_done(self, name: str, sent_at: float, answer: Any) -> None:
        """Take the answer to a write."""
        is_written = None if isinstance(answer, BaseException) else answer
        now = self._place.now()
        self._carry_out(self._machine.write_done(name, sent_at, now, is_written=is_written))
