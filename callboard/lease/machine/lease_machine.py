"""One process' own lease, and what it sees of the leases of others.

A lease is a counter in the register that its holder raises every TTL/4. Nobody compares clocks:

- The holder is valid until the **send** time of its last raise that succeeded, plus TTL less
  drift. The raise took effect no earlier than it was sent.
- A watcher that read the same counter for TTL plus drift kills the lease by compare-and-set:
  either the kill or the holder's next raise takes place. What counts is the time from the
  **receipt** of the first read that showed the counter to the **send** of the latest one, and
  only while reads succeed at most TTL/2 apart: after a gap counting begins again, else every
  restart of the database would be a storm of kills.

So while drift is below its bound, who may kill sees a holder that is no longer valid. A holder
that expired and was not killed is valid again with its next raise. One that was killed ends all
that it does, and then begins another **term** (`begin_anew`): numbers go on rising, and a term
is named by its first one, so that the death of an earlier term says nothing about a later one.

An outcome that is not known is settled by reading: a value carries its writer and a number.
A value that is no longer there is a kill, too: what it said last is not known.
"""

from typing import Final

from callboard.lease.register import LeaseValue, Versioned
from callboard.support.dataclass import dataclass

#: What the text of a lease says.
HELD: Final = "held"
KILLED: Final = "killed"
RELEASED: Final = "released"

PREFIX: Final = "lease/"


def lease_name(writer: str) -> str:
    """Return the name under which the lease of a process' life lies in the register."""
    return PREFIX + writer


@dataclass(frozen=True, slots=True)
class ReadLease:
    """Read a lease, and say so with `read_done`."""

    name: str


@dataclass(frozen=True, slots=True)
class WriteLease:
    """Write a lease, and say so with `write_done`."""

    name: str
    value: LeaseValue
    expected_version: int


@dataclass(frozen=True, slots=True)
class LeaseHeld:
    """The own lease is valid (again)."""

    #: The number that its term began with.
    term: int


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The own lease was not raised in time; nobody has killed it yet, as far as is known."""

    #: Seconds since it expired.
    late: float


@dataclass(frozen=True, slots=True)
class LeaseKilled:
    """The own lease was killed: what was done in its term has to end."""

    #: Who did; empty where its value was removed from the register.
    by: str


@dataclass(frozen=True, slots=True)
class HolderGone:
    """The lease of another life was killed or released: it owns nothing any more."""

    writer: str
    #: All its terms up to this number have ended.
    number: int


Effect = ReadLease | WriteLease | LeaseHeld | LeaseExpired | LeaseKilled | HolderGone


@dataclass(slots=True)
class _Watched:
    """What is known of the lease of another."""

    number: int = -1
    version: int = 0
    #: When this counter was first received, and when any read was last.
    since: float = 0.0
    read_at: float | None = None
    #: When the counter was last seen to rise; None: never.
    rose_at: float | None = None
    is_reading: bool = False
    is_killing: bool = False


class LeaseMachine:
    """The lease of one life; every method returns what is to be done, in order."""

    def __init__(self, writer: str, ttl: float = 2.0, drift: float = 0.05) -> None:
        """Make the machine of a life that has no lease yet.

        Args:
            writer: the life's id.
            ttl: seconds that a lease lasts.
            drift: how far clocks may be from real time, as a part of it.
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
        #: When the write under way was sent; None: there is none.
        self._sent_at: float | None = None
        self._is_unknown = False
        self._watched: dict[str, _Watched] = {}

    def is_valid(self, now: float) -> bool:
        """Return whether the own lease is valid: nobody else may act in this life's place."""
        return now < self.valid_until and not self.is_killed

    def risen(self) -> dict[str, float]:
        """Return when the counters of others were last seen to rise, by writer."""
        watched = self._watched.items()
        return {
            name.removeprefix(PREFIX): each.rose_at
            for name, each in watched
            if each.rose_at is not None
        }

    def silent_at(self, now: float) -> float:
        """Return when the next of the others may be killed; infinite where there is none."""
        silence = self.ttl * (1 + self.drift)
        times = [each.since + silence for each in self._watched.values() if each.read_at]
        return min((time for time in times if time > now), default=float("inf"))

    # --- what comes in ---

    def tick(self, now: float) -> list[Effect]:
        """Raise the own lease, and read those of others; to be called every TTL/4."""
        effects = self._expire(now)
        if not (self.is_killed or self.is_released) and self._sent_at is None:
            self._sent_at = now
            self._number += 1  # of each attempt: a late one is told from this one
            value = LeaseValue(self.writer, self._number, HELD)
            effects.append(WriteLease(self.name, value, self._version))
        elif self._is_unknown:
            effects.append(ReadLease(self.name))
        return effects + self.look()

    def look(self) -> list[Effect]:
        """Read the leases of others."""
        effects: list[Effect] = []
        for name, watched in self._watched.items():
            if not watched.is_reading and not watched.is_killing:
                watched.is_reading = True
                effects.append(ReadLease(name))
        return effects

    def watch(self, writers: set[str]) -> None:
        """Watch the leases of these lives, and no others."""
        names = {lease_name(writer) for writer in writers} - {self.name}
        before = self._watched
        self._watched = {name: before.get(name) or _Watched() for name in sorted(names)}

    def begin_anew(self) -> None:
        """Begin another term after a kill: all that was done in the last one has ended."""
        if self.is_killed:
            self.is_killed, self.term = False, self._number + 1

    def release(self) -> list[Effect]:
        """Give the own lease back: it is gone at once."""
        self.is_released, self.valid_until = True, float("-inf")
        value = LeaseValue(self.writer, self._number + 1, RELEASED)
        return [WriteLease(self.name, value, self._version)]

    def read_done(
        self, name: str, sent_at: float, now: float, answer: Versioned | None
    ) -> list[Effect]:
        """Take the answer of a read; None: it failed."""
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
            return self._gone(name, value.number)
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
        """Take the answer of a write; None: nobody knows whether it took place."""
        if name == self.name:
            return self._own_write(now, is_written=is_written)
        watched = self._watched.get(name)
        if watched is None:
            return []
        watched.is_killing = False
        if is_written:
            return self._gone(name, watched.number + 1)
        watched.is_reading = True  # it rose, another killed it, or the answer was lost
        return [ReadLease(name)]

    def _gone(self, name: str, number: int) -> list[Effect]:
        """Tell of terms that have ended; told again with each read, until it is not watched."""
        self._watched[name] = _Watched()
        return [HolderGone(name.removeprefix(PREFIX), number)]

    # --- the own lease ---

    def _own_write(self, now: float, *, is_written: bool | None) -> list[Effect]:
        """Take the answer of a raise."""
        if self.is_released or self._sent_at is None:
            return []
        if is_written:
            return self._raised(now, self._version + 1)
        self._is_unknown = True
        return [ReadLease(self.name)]

    def _own_read(self, now: float, answer: Versioned | None) -> list[Effect]:
        """Find out what became of a raise."""
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
            return self._raised(now, version)
        # It did not take place yet; with the version that was read, a late one cannot any more
        # once the next raise has.
        self._version, self._sent_at = version, None
        return []

    def _killed(self, by: str, version: int) -> list[Effect]:
        """End the term."""
        self.is_killed, self._is_held = True, False
        self._version, self._sent_at = version, None
        return [LeaseKilled(by)]

    def _raised(self, now: float, version: int) -> list[Effect]:
        """Be valid from when the raise was sent."""
        assert self._sent_at is not None, "a raise was under way"
        self.valid_until = self._sent_at + self.ttl * (1 - self.drift)
        self._version, self._sent_at = version, None
        if self._is_held or now >= self.valid_until:
            return []
        self._is_held = True
        return [LeaseHeld(self.term)]

    def _expire(self, now: float) -> list[Effect]:
        """Tell once that the own lease is over."""
        if not self._is_held or self.is_valid(now):
            return []
        self._is_held = False
        return [LeaseExpired(now - self.valid_until)]
