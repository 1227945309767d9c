"""Send buffer of a peer that reads slowly.

A link accepts `LINK_ROOM` bytes that its peer has not read. Further runs wait here, in order,
and are sent as the peer reads. While the peer reads, nothing is dropped: publishing threads are
slowed down instead. The overflow policy (Zeek Broker's `peer_overflow_policy`) applies in two
cases: the peer has not read a byte for `STALL_LIMIT` seconds and more messages wait than the
limit, or `HARD_FACTOR` times the limit wait.

- `disconnect`: the link is cut and all waiting runs are dropped.
- `drop_newest`: new runs are dropped until there is room.
- `drop_oldest`: the runs that have waited longest are dropped.

Dropped runs are counted by their messages.
"""

from typing import Final

from callboard.bounded_queue import BoundedQueue, Overflow
from callboard.topics.machine.effect import TransmitRun

#: Maximum number of bytes that wait in the link itself.
LINK_ROOM: Final = 8 * 1024 * 1024

#: Seconds without a byte read after which a peer counts as stuck.
STALL_LIMIT: Final = 1.0

#: A slow peer is treated as a stuck one when this many times the limit wait.
HARD_FACTOR: Final = 64


#: The policies of these buffers.
PEER_POLICIES: Final = (Overflow.DISCONNECT, Overflow.DROP_NEWEST, Overflow.DROP_OLDEST)


class PeerBuffer:
    """Runs that wait for one link."""

    def __init__(self, limit: int, policy: Overflow) -> None:
        self.limit = limit
        self.policy = policy
        self._runs = BoundedQueue[TransmitRun](limit)
        #: Bytes that the peer had read at the last check, and the time when that number
        #: changed.
        self._read, self._read_at = -1, 0.0

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def waiting(self) -> int:
        """Number of waiting messages."""
        return self._runs.messages

    @property
    def dropped(self) -> int:
        """Total number of dropped messages."""
        return self._runs.dropped

    def offer(self, run: TransmitRun, now: float) -> bool:
        """Add a run; return False if the peer has to be disconnected."""
        if not self._runs:
            self._read, self._read_at = -1, now
        self._runs.append(run, len(run.payload), run.messages)
        if not self._is_over(now):
            return True
        match self.policy:
            case Overflow.DISCONNECT:
                self.drop_all()
                return False
            case Overflow.DROP_NEWEST:
                self._runs.drop(self.policy)  # only the new run
            case Overflow.DROP_OLDEST:
                self._runs.trim(minimum=1)
        return True

    def take(self, waiting_in_link: int, read: int, now: float) -> list[TransmitRun]:
        """Remove and return the runs for which the link has room.

        Args:
            waiting_in_link: bytes that wait in the link.
            read: total bytes that the peer has read.
            now: the time in seconds.
        """
        if read != self._read:
            self._read, self._read_at = read, now
        runs: list[TransmitRun] = []
        while self._runs and waiting_in_link < LINK_ROOM:
            run = self._runs.popleft()
            waiting_in_link += len(run.payload)
            runs.append(run)
        return runs

    def is_stuck(self, now: float) -> bool:
        """Return whether the peer has not read a byte for too long while runs wait."""
        return bool(self._runs) and now - self._read_at >= STALL_LIMIT

    def drop_all(self) -> int:
        """Drop all runs, because the link ended; returns their number of messages."""
        return sum(self._runs.drop() for _ in range(len(self._runs)))

    def _is_over(self, now: float) -> bool:
        """Return whether the overflow policy applies."""
        if self.waiting <= self.limit:
            return False
        return self.is_stuck(now) or self.waiting > HARD_FACTOR * self.limit
