"""Snapshots: the entries of a master in chunks, as `AckClone` carries them between our nodes.

A large frame delays all frames after it on the same link. A snapshot therefore travels in
chunks of at most `CHUNK_SIZE` bytes, and the clone requests more as they arrive: at most
`WINDOW` chunks are in flight. After a loss the clone requests the first missing chunk again,
not the whole snapshot.
"""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

from callboard.store.machine.stored import Stored, Token
from callboard.support.dataclass import dataclass

#: Bytes of one chunk; a single larger value makes a chunk of its own.
CHUNK_SIZE: Final = 256 * 1024

#: Chunks in flight that the clone has not confirmed.
WINDOW: Final = 8

#: Chunks after which the clone reports its progress.
ACK_EVERY: Final = 4

#: Entries of the first attempt at a chunk; `fitting` then cuts it to `CHUNK_SIZE`.
_STRIDE: Final = 4096

Entry = tuple[Token, Stored]


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A part of the state of a master.

    Attributes:
        offset: number of the last command whose effect the snapshot contains.
        heartbeat_interval: ticks between heartbeats of the master.
        index: index of the chunk in its snapshot, from 0.
        is_last: whether the chunk completes the snapshot.
        entries: key, value, key, value …
        unreadable: a reason for each entry that was received and could not be read.
    """

    offset: int
    heartbeat_interval: int
    index: int
    is_last: bool
    entries: tuple[object, ...]
    unreadable: tuple[str, ...] = ()


class Snapshot:
    """The sending side: the snapshot for one clone, cut into chunks as it is sent."""

    def __init__(self, entries: dict[Token, Stored], offset: int, interval: int) -> None:
        """Copy the current entries. Values are immutable, so a shallow copy is enough."""
        self.offset = offset
        self._interval = interval
        self._items = iter(entries.copy().items())
        #: Chunks that the clone has not confirmed, from the index `_first_pending` on.
        self._pending: list[list[Entry]] = []
        self._first_pending = 0
        self._rest: list[Entry] = []
        self._is_cut = False
        self._sent = 0

    def chunks(self, first: int, *, again: bool) -> list[SnapshotChunk]:
        """Return the next chunks for a clone that has all chunks below `first`.

        Args:
            first: index of the chunk that the clone needs next.
            again: whether to repeat chunks that were sent but have not arrived.
        """
        if first < self._first_pending:
            return []  # a late message: these chunks are confirmed and dropped
        del self._pending[: first - self._first_pending]
        self._first_pending = first
        while len(self._pending) < WINDOW and not self._is_cut:
            self._pending.append(self._cut())
        end = self._first_pending + len(self._pending)
        start = first if again else max(first, self._sent)
        self._sent = end
        chunks = []
        for index in range(start, end):
            entries = tuple(chain.from_iterable(self._pending[index - first]))
            is_last = self._is_cut and index == end - 1
            chunks.append(SnapshotChunk(self.offset, self._interval, index, is_last, entries))
        return chunks

    def _cut(self) -> list[Entry]:
        """Remove the entries of one chunk from the rest of the snapshot."""
        entries = self._rest + list(islice(self._items, _STRIDE - len(self._rest)))
        count = fitting(entries)
        self._rest = entries[count:]
        if not self._rest:
            following = next(self._items, None)
            self._is_cut = following is None
            self._rest = [] if following is None else [following]
        return entries[:count]


def fitting(entries: Sequence[Entry]) -> int:
    """Return how many entries fit one chunk: at least one, or a large value were never sent."""
    size = 0
    for count, (key, value) in enumerate(entries):
        size += _size_of(key) + _size_of(value)
        if size > CHUNK_SIZE and count:
            return count
    return len(entries)


def _size_of(stored: Stored) -> int:
    """Return the approximate size of a value as CBOR, in bytes."""
    kind = type(stored)
    if kind is str:
        return 5 + (len(stored) if stored.isascii() else len(stored.encode()))
    if kind is bytes:
        return 5 + len(stored)
    if kind is tuple:
        return 5 + sum(map(_size_of, stored))
    return 9


class SnapshotIntake:
    """The receiving side: assembles chunks in order."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        #: Index of the next missing chunk.
        self.next_index = 0
        self.entries: dict[Token, Stored] = {}

    def take(self, chunk: SnapshotChunk) -> bool:
        """Add a chunk; return False if it is not the next chunk of this snapshot."""
        if chunk.offset != self.offset or chunk.index != self.next_index:
            return False
        self.next_index += 1
        parts = iter(chunk.entries)
        self.entries.update(zip(parts, parts, strict=True))  # type: ignore[arg-type]
        return True
