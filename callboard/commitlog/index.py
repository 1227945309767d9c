"""A sparse index of one segment: where batches begin, by offset and by time.

It is built while batches are written or read, one entry for each 64 KiB, and written beside a
segment that gets no more batches. It is only a short cut: one that is missing or damaged is
built again.

File: `CBI1`, CRC-32 of the rest, size of the segment, end offset, number of entries (4 each but
the middle two, which are 8), then the entries: offset, position, latest time (8 each).
"""

import struct
from bisect import bisect_left, bisect_right
from itertools import chain, islice
from typing import Final
from zlib import crc32

from callboard.commitlog.batch import Batch

STEP: Final = 64 << 10
_MAGIC: Final = b"CBI1"
_START: Final = struct.Struct("<4sI")
_REST: Final = struct.Struct("<QQI")
NO_TIME: Final = -(2**63)


class SegmentIndex:
    """Where the batches of a segment begin.

    Attributes:
        size: Bytes of the segment that are covered.
        end: The offset behind the last record that is covered.
    """

    def __init__(self, base: int) -> None:
        """Cover nothing yet of a segment."""
        self.size = 0
        self.end = base
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._latest: list[int] = []  # up to and with this entry's batches, so it never falls

    @property
    def latest(self) -> int:
        """The latest time of all records covered; `NO_TIME` if there are none."""
        return self._latest[-1] if self._latest else NO_TIME

    def add(self, batch: Batch) -> None:
        """Cover one batch more."""
        self.cover(batch.base, batch.end, batch.size, batch.header.latest_time)

    def cover(self, base: int, end: int, size: int, latest: int) -> None:
        """Cover one batch more, which begins where the last one ended."""
        if not self._offsets or self.size - self._positions[-1] >= STEP:
            self._latest.append(max(latest, self.latest))
            self._positions.append(self.size)
            self._offsets.append(base)
        elif latest > self._latest[-1]:
            self._latest[-1] = latest
        self.size += size
        self.end = end

    def find(self, offset: int) -> tuple[int, int]:
        """Return position and offset of a batch at or before the one with this record."""
        at = bisect_right(self._offsets, offset) - 1
        return (self._positions[at], self._offsets[at]) if at >= 0 else (0, self.first(offset))

    def first(self, default: int) -> int:
        """Return the first offset that is covered."""
        return self._offsets[0] if self._offsets else default

    def find_time(self, time: int) -> int | None:
        """Return an offset at or shortly before the first record that is not older."""
        at = bisect_left(self._latest, time)
        return self._offsets[at] if at < len(self._offsets) else None

    def encode(self) -> bytes:
        """Return the index as bytes."""
        rows = zip(self._offsets, self._positions, self._latest, strict=True)
        rest = _REST.pack(self.size, self.end, len(self._offsets))
        rest += struct.pack("<" + "QQq" * len(self._offsets), *chain.from_iterable(rows))
        return _START.pack(_MAGIC, crc32(rest)) + rest


def decode_index(data: bytes, base: int, size: int) -> SegmentIndex | None:
    """Return an index that was encoded, or None if it is damaged or of another segment."""
    if len(data) < _START.size + _REST.size:
        return None
    magic, checksum = _START.unpack_from(data)
    if magic != _MAGIC or checksum != crc32(memoryview(data)[_START.size :]):
        return None
    covered, end, count = _REST.unpack_from(data, _START.size)
    rows = data[_START.size + _REST.size :]
    if covered != size or len(rows) != 24 * count:
        return None
    index = SegmentIndex(base)
    numbers = struct.unpack("<" + "QQq" * count, rows)
    index._offsets, index._positions, index._latest = (  # noqa: SLF001
        list(islice(numbers, start, None, 3)) for start in range(3)
    )
    if index.first(base) != base:
        return None
    index.size, index.end = covered, end
    return index
