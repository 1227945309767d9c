"""All that a master holds, in chunks: what `AckClone` carries between our own nodes.

A frame delays what is behind it on its link, so a snapshot travels in chunks of at most
`CHUNK_SIZE` bytes and the clone asks for more as they arrive: `WINDOW` chunks are under way at
most. What was lost is asked for again from there, not from the beginning.
"""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

from callboard.store.machine.stored import Stored, Token
from callboard.support.dataclass import dataclass

#: Bytes of one chunk; a single larger value makes a chunk of its own.
CHUNK_SIZE: Final = 256 * 1024

#: Chunks that are sent before the clone has confirmed one of them.
WINDOW: Final = 8

#: Chunks after which the clone says how far it is.
ACK_EVERY: Final = 4

#: Entries that are tried as one chunk at first.
_STRIDE: Final = 4096

Entry = tuple[Token, Stored]


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A part of the state of a master.

    Attributes:
        offset: the number of the last event whose effect is in the snapshot.
        heartbeat_interval: in ticks.
        index: which chunk, from 0.
        is_last: whether it completes the snapshot.
        entries: key, value, key, value …
    """

    offset: int
    heartbeat_interval: int
    index: int
    is_last: bool
    entries: tuple[object, ...]


class Snapshot:
    """The sending side: one clone's snapshot, cut as it is sent."""

    def __init__(self, entries: dict[Token, Stored], offset: int, interval: int) -> None:
        """Keep the state as it is in this moment; values never change, so it is cheap."""
        self.offset = offset
        self._interval = interval
        self._items = iter(entries.copy().items())
        self._kept: list[list[Entry]] = []
        self._first_kept = 0
        self._rest: list[Entry] = []
        self._is_cut = False
        self._sent = 0

    def chunks(self, first: int, *, again: bool) -> list[SnapshotChunk]:
        """Return the next chunks for a clone that has those below `first`.

        Args:
            first: the chunk that it wants next.
            again: what was sent since then is lost.
        """
        if first < self._first_kept:
            return []  # confirmed before: an old message
        del self._kept[: first - self._first_kept]
        self._first_kept = first
        while len(self._kept) < WINDOW and not self._is_cut:
            self._kept.append(self._cut())
        end = self._first_kept + len(self._kept)
        start = first if again else max(first, self._sent)
        self._sent = end
        found = []
        for index in range(start, end):
            entries = tuple(chain.from_iterable(self._kept[index - first]))
            is_last = self._is_cut and index == end - 1
            found.append(SnapshotChunk(self.offset, self._interval, index, is_last, entries))
        return found

    def _cut(self) -> list[Entry]:
        """Take entries up to the size of a chunk."""
        entries = self._rest + list(islice(self._items, _STRIDE - len(self._rest)))
        count = fitting(entries)
        self._rest = entries[count:]
        if not self._rest:
            following = next(self._items, None)
            self._is_cut = following is None
            self._rest = [] if following is None else [following]
        return entries[:count]


def fitting(entries: Sequence[Entry]) -> int:
    """Return how many entries make one chunk: one at least, unless there is none."""
    size = 0
    for count, (key, value) in enumerate(entries):
        size += _size_of(key) + _size_of(value)
        if size > CHUNK_SIZE and count:
            return count
    return len(entries)


def _size_of(stored: Stored) -> int:
    """Return about how many bytes a value takes as CBOR."""
    kind = type(stored)
    if kind is str:
        return 5 + (len(stored) if stored.isascii() else len(stored.encode()))
    if kind is bytes:
        return 5 + len(stored)
    if kind is tuple:
        return 5 + sum(map(_size_of, stored))
    return 9


class SnapshotIntake:
    """The receiving side: puts chunks together, in order."""

    def __init__(self, offset: int) -> None:
        """Begin with nothing."""
        self.offset = offset
        #: The chunk that is wanted next.
        self.next_index = 0
        self.entries: dict[Token, Stored] = {}

    def take(self, chunk: SnapshotChunk) -> bool:
        """Take a chunk; False when it is not the next one of this snapshot."""
        if chunk.offset != self.offset or chunk.index != self.next_index:
            return False
        self.next_index += 1
        parts = iter(chunk.entries)
        self.entries.update(zip(parts, parts, strict=True))  # type: ignore[arg-type]
        return True
