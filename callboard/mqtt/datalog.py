"""The messages of one filter: a segmented log in memory, and who waits for more.

Each message is appended to the log of each filter that matches its topic; readers keep offsets.
A segment is complete at a size; when there are too many, the oldest goes, and a reader that was
not there yet jumps: what it missed is counted and told (`CursorJump`). When all readers have
read everything, the log is emptied, so a flow that is kept up with takes no memory. With a
journal the oldest segments are shelved for lasting sessions, and read back from there.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from callboard.mqtt.message import Run
from callboard.mqtt.segment import Segment, Shelf

if TYPE_CHECKING:
    from callboard.mqtt.tracker import DataRequest

SEGMENT_BYTES: Final = 1 << 20
"""Bytes, with what Python's objects take, at which a segment is complete."""

SEGMENT_COUNT: Final = 10
"""Segments of a filter; the default of rumqttd, whose 100 MiB a segment would be too much."""


_base_of = attrgetter("base")

Passed = tuple[bytes, int, bool]
"""Packets that passed a log by: their bytes, the bytes of each, whether they are MQTT 5's."""


@dataclass(frozen=True, slots=True)
class CursorJump:
    """Alert: a reader was too slow, and messages that it had not read are gone.

    Attributes:
        client_id: of the reader; empty for the group of a shared subscription.
        topic_filter: what it reads.
        lost: messages.
    """

    client_id: str
    topic_filter: str
    lost: int


class DataLog:
    """The log of a plain filter.

    Attributes:
        topic_filter: without any share.
        start: the offset of the oldest message that is there.
        end: the offset of the next one.
        is_swollen: whether more than half of its segments are in use; see `brake`.
        most: segments in memory, above which the oldest goes.
        has_shelves: whether segments are shelved when they go, for lasting sessions.
        shelved: how many are; they come first in `segments`.
        waiters: requests that have read everything, parked here until the next append.
        readers: requests there are in all, waiting or not, also those of clients that are away.
    """

    __slots__ = (
        "durable_readers",
        "end",
        "has_shelves",
        "is_swollen",
        "last",
        "most",
        "readers",
        "segment_bytes",
        "segment_count",
        "segments",
        "shelved",
        "topic_filter",
        "waiters",
    )

    def __init__(
        self,
        topic_filter: str,
        segment_bytes: int = SEGMENT_BYTES,
        segment_count: int = SEGMENT_COUNT,
        *,
        has_shelves: bool = False,
    ) -> None:
        self.has_shelves = has_shelves
        self.shelved = 0
        self.topic_filter = topic_filter
        self.segment_bytes = segment_bytes
        self.segment_count = self.most = segment_count
        self.is_swollen = False
        self.segments = [Segment(0)]
        self.end = 0
        self.readers = 0
        #: Readers whose sessions survive the router, with QoS above 0.
        self.durable_readers = 0
        self.waiters: dict[DataRequest, None] = {}
        #: The newest messages, for who asks for the last one.
        self.last: Run | Passed | None = None

    @property
    def start(self) -> int:
        """The offset of the oldest message that is there."""
        return self.segments[0].base

    @property
    def in_memory(self) -> int:
        """How many segments are not shelved."""
        return len(self.segments) - self.shelved

    @property
    def head(self) -> int:
        """The offset of the oldest message in memory."""
        return self.segments[self.shelved].base

    @property
    def weight(self) -> int:
        """Bytes in memory, estimated."""
        return sum(segment.weight for segment in self.segments)

    def append(self, run: Run) -> None:
        """Add messages; empties the log before if nobody is behind."""
        segments = self.segments
        segment = segments[-1]
        if segment.runs:
            if len(self.waiters) == self.readers:
                self.clear()
                segment = segments[0]
            elif segment.weight >= self.segment_bytes:
                segment = Segment(self.end)
                segments.append(segment)
                self.trim()
                self.is_swollen = self.in_memory > self.segment_count // 2
        segment.runs.append(run)
        segment.starts.append(self.end)  # type: ignore[attr-defined]  # a list in memory
        segment.weight += run.weight
        self.end += run.count
        self.last = run

    def pass_by(self, count: int, packets: Passed) -> None:
        """Count messages that all readers get without it; they have read all others."""
        segments = self.segments
        if len(segments) > 1 or segments[0].runs:
            self.clear()
        self.end += count
        segments[0].base = self.end
        self.last = packets

    def trim(self) -> None:
        """Shelve or drop the oldest segments in memory if there are too many."""
        while self.in_memory > self.most:
            segment = self.segments[self.shelved]
            if self.has_shelves and not segment.shelve():
                break  # it is being written
            if segment.places():
                self.shelved += 1
            else:
                del self.segments[self.shelved]

    def drop_shelved(self, before: int) -> None:
        """Drop shelved messages before an offset."""
        while self.shelved and self.segments[1].base <= before:
            del self.segments[0]
            self.shelved -= 1
        if self.shelved:
            self.segments[0].drop_before(before)

    def restore_shelved(self, span: int, starts: Sequence[int], shelf: Shelf) -> None:
        """Put a shelved segment behind those that are there, into a log with nothing else."""
        segment = Segment(self.end)
        segment.put_on_shelf([self.end + start for start in starts], shelf)
        self.segments.insert(self.shelved, segment)
        self.shelved += 1
        self.end += span
        self.segments[-1].base = self.end

    def relax(self) -> None:
        """Keep no more than the log's segments: nobody is waited for."""
        self.is_swollen = False
        self.most = self.segment_count
        self.trim()

    def clear(self) -> None:
        """Forget all messages."""
        segments = self.segments
        if len(segments) > 1:
            del segments[:-1]
            self.shelved = 0
        segment = segments[0]
        segment.base = self.end
        segment.runs.clear()
        segment.starts = []
        segment.weight = 0

    def release(self) -> None:
        """Forget all messages if every reader has read them."""
        if self.segments[-1].runs and len(self.waiters) == self.readers:
            self.clear()

    def find(self, offset: int) -> tuple[int, Segment, int]:
        """Return the first offset from this one on that is there, its segment, and its run.

        The run is the number of it in the segment; the offset is below `end`.
        """
        segments = self.segments
        segment = segments[0]
        if offset < segment.base:
            return segment.base, segment, 0
        if len(segments) > 1:
            at = bisect_right(segments, offset, key=_base_of) - 1
            segment = segments[at]
            if segment.shelf is not None:
                found = segment.find(offset)
                if found is None:
                    return self.find(segments[at + 1].base)
                return found[0], segment, found[1]
        return offset, segment, bisect_right(segment.starts, offset) - 1
