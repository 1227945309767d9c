"""The lease of one process, and its view of the leases of other processes.

A lease is a counter in the register that its holder increments ("raises") every TTL/4. Clocks
of different machines are never compared:

- The holder is valid until the **send** time of its last successful raise, plus TTL less drift.
  The raise took effect no earlier than it was sent.
- A watcher that has read the same counter for TTL plus drift kills the lease by
  compare-and-set: either the kill or the holder's next raise succeeds. The watcher counts from
  the **receipt** of the first read with this counter to the **send** of the latest one, and
  only while successful reads are at most TTL/2 apart. After a gap it counts from the start;
  else a restart of the database would let all watchers kill all leases.

Thus, while drift is below its bound, a watcher kills only a holder that is no longer valid. A
holder that expired but was not killed is valid again after its next raise. A killed holder
stops all work and then starts another **term** (`begin_anew`). Its numbers continue to grow,
and a term is identified by its first number, so the end of an earlier term does not affect a
later one.

If the outcome of a write is unknown, the machine reads the value, which contains its writer and
number and so shows whether the write succeeded. A missing value counts as a kill, because its
last content is unknown.
"""

from typing import Final

from callboard.lease.leases import LeaseValue, Versioned
from callboard.support.dataclass import dataclass

#: Possible texts of a lease.
HELD: Final = "held"
KILLED: Final = "killed"
RELEASED: Final = "released"

PREFIX: Final = "lease/"


def lease_name(writer: str) -> str:
    """Return the name in the register of the lease of a life."""
    return PREFIX + writer


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Effect: read a lease, then call `read_done`."""

    name: str


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Effect: write a lease, then call `write_done`."""

    name: str
    value: LeaseValue
    expected_version: int


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """The own lease is valid, for the first time or again."""

    #: The first number of its term.
    term: int


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The own lease was not raised in time, but is not known to be killed."""

    #: Seconds since it expired.
    late: float


@dataclass(frozen=True, slots=True)
class LeaseKilled:
    """The own lease was killed: all work of its term must stop."""

    #: Writer of the kill; empty if the value was removed from the register.
    by: str


@dataclass(frozen=True, slots=True)
class HolderGone:
    """The lease of another life was killed or released, so that life owns nothing."""

    writer: str
    #: All its terms up to this number have ended.
    number: int


Effect = ReadLease | WriteLease | LeaseHeld | LeaseExpired | LeaseKilled | HolderGone


@dataclass(slots=True)
class _Watched:
    """State of the watched lease of another life."""

    number: int = -1
    version: int = 0
    #: Time at which this counter was first received, and time of the last read.
    since: float = 0.0
    read_at: float | None = None
    #: Time at which the counter last rose; None before the first rise.
    rose_at: float | None = None
    is_reading: bool = False
    is_killing: bool = False


class LeaseMachine:
    """The lease of one life; methods return the effects to execute, in order."""

    def __init__(self, writer: str, ttl: float = 2.0, drift: float = 0.05) -> None:
        """Start without a lease.

        Args:
            writer: id of the life.
            ttl: seconds that a lease lasts.
            drift: bound of the relative error of clocks; 0.05 is 5 %.
        """
        self.writer, self.name = writer, lease_name(writer)
        self.ttl, self.drift = ttl, drift
        self.is_killed = self.is_released = False
        self.valid_until = float("-inf")
        #: The number of the first raise of this term.
        self.term = 1
        self._is_held = False
        self._number = 0
        self._version = 0
        #: Send time of the write whose result has not arrived; None without such a write.
        self._sent_at: float | None = None
        self._is_unknown = False
        self._watched: dict[str, _Watched] = {}

    def is_valid(self, now: float) -> bool:
        """Return whether the own lease is valid, so that no other life may take its place."""
        return now < self.valid_until and not self.is_killed

    def risen(self) -> dict[str, float]:
        """Return the time at which each watched counter last rose, by writer."""
        watched = self._watched.items()
        return {
            name.removeprefix(PREFIX): lease.rose_at
            for name, lease in watched
            if lease.rose_at is not None
        }

    def silent_at(self, now: float) -> float:
        """Return the next time at which a watched lease may be killed; infinite if none."""
        silence = self.ttl * (1 + self.drift)
        times = [lease.since + silence for lease in self._watched.values() if lease.read_at]
        return min((time for time in times if time > now), default=float("inf"))

    # --- inputs ---

    def tick(self, now: float) -> list[Effect]:
        """Raise the own lease and read the watched ones; call this every TTL/4."""
        effects = self._expire(now)
        if not (self.is_killed or self.is_released) and self._sent_at is None:
            self._sent_at = now
            self._number += 1  # a new one per attempt, to recognize a delayed write
            value = LeaseValue(self.writer, self._number, HELD)
            effects.append(WriteLease(self.name, value, self._version))
        elif self._is_unknown:
            effects.append(ReadLease(self.name))
        return effects + self.read_watched()

    def read_watched(self) -> list[Effect]:
        """Request a read of each watched lease that is not being read or killed."""
        effects: list[Effect] = []
        for name, watched in self._watched.items():
            if not watched.is_reading and not watched.is_killing:
                watched.is_reading = True
                effects.append(ReadLease(name))
        return effects

    def watch(self, writers: set[str]) -> None:
        """Watch exactly the leases of these lives."""
        names = {lease_name(writer) for writer in writers} - {self.name}
        watched = self._watched
        self._watched = {name: watched.get(name) or _Watched() for name in sorted(names)}

    def begin_anew(self) -> None:
        """Start another term after a kill; all work of the last one must have stopped."""
        if self.is_killed:
            self.is_killed, self.term = False, self._number + 1

    def release(self) -> list[Effect]:
        """Release the own lease, which ends at once."""
        self.is_released, self.valid_until = True, float("-inf")
        value = LeaseValue(self.writer, self._number + 1, RELEASED)
        return [WriteLease(self.name, value, self._version)]

    def read_done(
        self, name: str, sent_at: float, now: float, answer: Versioned | None
    ) -> list[Effect]:
        """Handle the result of a read; None if it failed."""
        if name == self.name:
            return self._own_read(now, answer)
        watched = self._watched.get(name)
        if watched is None:
            return []
        watched.is_reading = False
        if answer is None:
            return []
        value, version = answer
        if value is not None and value.text != HELD:
            return self._report_gone(name, value.number)
        number = value.number if value is not None else 0
        has_gap = watched.read_at is None or sent_at - watched.read_at > self.ttl / 2
        if number != watched.number:
            if watched.number >= 0:
                watched.rose_at = now
            watched.since = now
        elif has_gap:
            watched.since = now
        watched.number, watched.version, watched.read_at = number, version, now
        is_silent = sent_at - watched.since >= self.ttl * (1 + self.drift)
        if is_silent:
            watched.is_killing = True
            return [WriteLease(name, LeaseValue(self.writer, number + 1, KILLED), version)]
        return []

    def write_done(
        self, name: str, sent_at: float, now: float, *, is_written: bool | None
    ) -> list[Effect]:
        """Handle the result of a write; None if the outcome is unknown."""
        if name == self.name:
            return self._own_write(now, is_written=is_written)
        watched = self._watched.get(name)
        if watched is None:
            return []
        watched.is_killing = False
        if is_written:
            return self._report_gone(name, watched.number + 1)
        watched.is_reading = (
            True  # it was raised, another life killed it, or the reply was lost
        )
        return [ReadLease(name)]

    def _report_gone(self, name: str, number: int) -> list[Effect]:
        """Report ended terms; repeated with each read, as long as the lease is watched."""
        self._watched[name] = _Watched()
        return [HolderGone(name.removeprefix(PREFIX), number)]

    # --- the own lease ---

    def _own_write(self, now: float, *, is_written: bool | None) -> list[Effect]:
        """Handle the result of a raise."""
        if self.is_released or self._sent_at is None:
            return []
        if is_written:
            return self._renewed(now, self._version + 1)
        self._is_unknown = True
        return [ReadLease(self.name)]

    def _own_read(self, now: float, answer: Versioned | None) -> list[Effect]:
        """Handle a read of the own lease, which shows whether the last raise was written."""
        if not self._is_unknown or answer is None:
            return []  # the next tick reads again
        value, version = answer
        self._is_unknown = False
        if value is not None and value.text != HELD:
            self._number = max(self._number, value.number)
            return self._killed(value.writer, version)
        if value is None and self._version:  # a kill may have been removed with it
            return self._killed("", version)
        if value is not None and value.number == self._number:
            return self._renewed(now, version)
        # The raise was not written yet, but may still arrive late. The next raise uses the
        # version that was just read, so only one of them can succeed.
        self._version, self._sent_at = version, None
        return []

    def _killed(self, by: str, version: int) -> list[Effect]:
        """End the term after a kill."""
        self.is_killed, self._is_held = True, False
        self._version, self._sent_at = version, None
        return [LeaseKilled(by)]

    def _renewed(self, now: float, version: int) -> list[Effect]:
        """Extend the validity from the send time of the raise."""
        assert self._sent_at is not None, "a raise was in flight"
        self.valid_until = self._sent_at + self.ttl * (1 - self.drift)
        self._version, self._sent_at = version, None
        if self._is_held or now >= self.valid_until:
            return []
        self._is_held = True
        return [LeaseHeld(self.term)]

    def _expire(self, now: float) -> list[Effect]:
        """Report, once, that the own lease has expired."""
        if not self._is_held or self.is_valid(now):
            return []
        self._is_held = False
        return [LeaseExpired(now - self.valid_until)]
