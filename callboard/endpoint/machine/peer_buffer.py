"""What waits for one peer that reads too slowly, and what becomes of it.

A link takes `LINK_ROOM` bytes ahead of what its peer has read. Runs beyond that wait here, in
order, and go on as the peer reads. While it reads at all, nothing is dropped: threads that
publish are slowed down instead. When it has not read a byte for `STALL_LIMIT` seconds and more
than the limit of messages wait, or when `HARD_FACTOR` times as many wait in any case, the
overflow policy decides (Zeek Broker's `peer_overflow_policy`):

- `disconnect`: the link is cut, what waited is dropped;
- `drop_newest`: what comes is dropped until there is room;
- `drop_oldest`: what has waited longest is dropped.

Everything that is dropped is counted, by messages.
"""

from collections import deque
from enum import StrEnum
from typing import Final

from callboard.endpoint.machine.effect import TransmitRun

#: Bytes that may wait in a link itself.
LINK_ROOM: Final = 8 * 1024 * 1024

#: Seconds without a byte read after which a peer counts as stuck.
STALL_LIMIT: Final = 1.0

#: Times the limit that may wait for a slow peer before it is treated as a stuck one.
HARD_FACTOR: Final = 64


class OverflowPolicy(StrEnum):
    """What happens when too much waits for a peer."""

    DISCONNECT = "disconnect"
    DROP_NEWEST = "drop_newest"
    DROP_OLDEST = "drop_oldest"


class PeerBuffer:
    """Runs that wait for one link."""

    def __init__(self, limit: int, policy: OverflowPolicy) -> None:
        self.limit = limit
        self.policy = policy
        #: Messages that wait.
        self.waiting = 0
        #: Messages that were dropped, in all.
        self.dropped = 0
        self._runs: deque[TransmitRun] = deque()
        self._read = -1  # what the peer had read when it was last looked at
        self._read_at = 0.0

    def __len__(self) -> int:
        return len(self._runs)

    def offer(self, run: TransmitRun, now: float) -> bool:
        """Take a run; False when the peer has to be disconnected."""
        if not self._runs:
            self._read, self._read_at = -1, now
        self._runs.append(run)
        self.waiting += run.messages
        if not self._is_over(now):
            return True
        match self.policy:
            case OverflowPolicy.DISCONNECT:
                self.drop_all()
                return False
            case OverflowPolicy.DROP_NEWEST:
                self._drop(self._runs.pop())
            case OverflowPolicy.DROP_OLDEST:
                while self.waiting > self.limit and len(self._runs) > 1:
                    self._drop(self._runs.popleft())
        return True

    def take(self, waiting_in_link: int, read: int, now: float) -> list[TransmitRun]:
        """Return the runs that the link has room for.

        Args:
            waiting_in_link: bytes that wait in the link.
            read: bytes that the peer took so far.
            now: the time, in seconds.
        """
        if read != self._read:
            self._read, self._read_at = read, now
        runs: list[TransmitRun] = []
        while self._runs and waiting_in_link < LINK_ROOM:
            run = self._runs.popleft()
            self.waiting -= run.messages
            waiting_in_link += len(run.payload)
            runs.append(run)
        return runs

    def is_stuck(self, now: float) -> bool:
        """Return whether the peer has not read a byte for too long while runs wait."""
        return bool(self._runs) and now - self._read_at >= STALL_LIMIT

    def drop_all(self) -> int:
        """Drop everything, because the link ended; returns the messages."""
        dropped = self.waiting
        self.dropped += dropped
        self._runs.clear()
        self.waiting = 0
        return dropped

    def _is_over(self, now: float) -> bool:
        """Return whether the overflow policy has to decide."""
        if self.waiting <= self.limit:
            return False
        return self.is_stuck(now) or self.waiting > HARD_FACTOR * self.limit

    def _drop(self, run: TransmitRun) -> None:
        """Count the messages of a run that is dropped."""
        self.waiting -= run.messages
        self.dropped += run.messages
