"""Raises and watches leases on a thread of its own, so that a busy node does not lose its own.

What holds the interpreter for a whole TTL (a C extension that keeps the GIL) stops this thread
as well: that is a pause like SIGSTOP, and `LeaseLost` names what ran meanwhile.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from callboard.lease.errors import LeaseLost, StorageError
from callboard.lease.machine.lease_machine import (
    PREFIX,
    Effect,
    HolderGone,
    LeaseExpired,
    LeaseHeld,
    LeaseKilled,
    LeaseMachine,
    ReadLease,
    WriteLease,
)
from callboard.lease.register import Leases, Versioned

#: What the driver tells its node.
LeaseNews = LeaseHeld | LeaseLost | HolderGone

#: Goes on while the machine sleeps: a lease that slept is over.
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Return the seconds since the machine started, its sleep included."""
    return time.clock_gettime(_CLOCK)


class LeaseDriver:
    """Holds the lease of one life, from `start` to `close`."""

    def __init__(
        self,
        leases: Leases,
        machine: LeaseMachine,
        tell: Callable[[LeaseNews], object],
        *,
        running: Callable[[], str] = str,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        """Make the driver of a life.

        Args:
            leases: the register; who made it closes it, after `close`.
            machine: the life's.
            tell: called on the driver's thread with `LeaseHeld`, `HolderGone`, or `LeaseLost`
                (`is_killed` of the machine says whether for good).
            running: returns which handler runs now, for the text of `LeaseLost`.
            clock: seconds that go on while the machine sleeps.
        """
        self._leases, self._machine, self._tell = leases, machine, tell
        self._running, self._clock = running, clock
        self._calls: deque[Callable[[], list[Effect]]] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        name = f"callboard-lease-{machine.writer}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to raise the lease; `LeaseHeld` tells when it is valid."""
        self._thread.start()

    def is_valid(self) -> bool:
        """Return whether the own lease is valid now; costs a reading of the clock."""
        return self._machine.is_valid(self._clock())

    def has_risen(self, writer: str) -> bool:
        """Return whether another's counter was seen to rise within a TTL: it has a vote."""
        return self._machine.has_risen(writer, self._clock())

    def watch(self, writers: set[str]) -> None:
        """Watch these lives from now on, and no others."""

        def call() -> list[Effect]:
            self._machine.watch(writers)
            return []

        self._post(call)

    def condemn(self, writer: str) -> None:
        """Kill the lease of another now; `HolderGone` tells when it is."""
        self._post(lambda: self._machine.condemn(writer))

    def close(self) -> None:
        """Release the lease, and end the thread."""
        if not self._thread.is_alive():
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _post(self, call: Callable[[], list[Effect]]) -> None:
        """Have the thread make a call, and carry out what comes of it."""
        with self._changed:
            self._calls.append(call)
            self._changed.notify()

    # --- the thread ---

    def _run(self) -> None:
        """Tick and make calls until closed."""
        machine, due = self._machine, self._clock()
        while True:
            with self._changed:
                wait = due - self._clock()
                if not self._calls and not self._is_closing and wait > 0:
                    self._changed.wait(wait)
                calls = list(self._calls)
                self._calls.clear()
                is_closing = self._is_closing
            for call in calls:
                self._carry_out(call())
            if is_closing:
                break
            if self._clock() >= due:
                due = max(due + machine.ttl / 4, self._clock())
                self._carry_out(machine.tick(self._clock()))
        if not machine.is_killed:
            self._carry_out(machine.release())

    def _carry_out(self, effects: list[Effect]) -> None:
        """Carry out effects in order, and those of their answers."""
        waiting = deque(effects)
        while waiting:
            effect = waiting.popleft()
            match effect:
                case ReadLease():
                    waiting.extend(self._read(effect))
                case WriteLease():
                    waiting.extend(self._write(effect))
                case LeaseExpired(late):
                    handler = self._running()
                    during = f"; {handler} ran meanwhile" if handler else ""
                    message = (
                        f"the lease {self._machine.name} was over {late:.3f} s ago, before it"
                        f" could be raised{during}: the process or its database was stopped or"
                        " busy for longer than the TTL"
                    )
                    self._tell(LeaseLost(message, handler))
                case LeaseKilled(by):
                    self._tell(LeaseLost(f"the lease {self._machine.name} was killed by {by}"))
                case _:
                    self._tell(effect)

    def _read(self, effect: ReadLease) -> list[Effect]:
        """Read a lease."""
        sent_at, answer = self._clock(), None
        with suppress(StorageError):
            answer = self._read_or_prove(effect.name)
        return self._machine.read_done(effect.name, sent_at, self._clock(), answer)

    def _read_or_prove(self, name: str) -> Versioned:
        """Read a lease; one whose process is gone for certain is condemned."""
        answer = self._leases.read(name)
        writer = name.removeprefix(PREFIX)
        if (
            answer[0] is not None
            and name != self._machine.name
            and self._leases.is_gone(writer)
        ):
            self._machine.condemn(writer)
        return answer

    def _write(self, effect: WriteLease) -> list[Effect]:
        """Write a lease."""
        sent_at = self._clock()
        is_written: bool | None = None
        with suppress(StorageError):
            is_written = self._leases.write(effect.name, effect.value, effect.expected_version)
        return self._machine.write_done(
            effect.name, sent_at, self._clock(), is_written=is_written
        )
