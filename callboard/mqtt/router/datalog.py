"""The log of one filter: a segmented log in memory, and the readers that wait for more.

Each message is appended to the log of each filter that matches its topic; readers keep offsets.
A segment is complete at a size. When there are too many segments, the oldest is dropped, and a
reader that had not reached it jumps: the messages it missed are counted and reported
(`CursorJump`). When all readers have read everything, the log is emptied, so a flow whose
readers keep up takes no memory. With a journal the oldest segments are shelved for persistent
sessions, and read back from there. Of a shelved segment only numbers stay in memory, 32 bytes
for each run; messages with QoS 0, which the journal never had, are gaps in it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import field
from operator import add, attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

from callboard.mqtt.router.message import Run
from callboard.support.dataclass import dataclass

#: A reader of a log, which may wait there.
R = TypeVar("R")

#: Bytes, with what Python's objects take, at which a segment is complete.
SEGMENT_BYTES: Final = 1 << 20

#: Segments of a filter; the default of rumqttd, whose 100 MiB a segment would be too much.
SEGMENT_COUNT: Final = 10


_base_of = attrgetter("base")

#: Packets that passed a log by: their bytes, the bytes of each, whether they are MQTT 5's.
Passed = tuple[bytes, int, bool]


#: The place of a run on its way into the journal.
UNWRITTEN: Final = -1


class Shelf(NamedTuple):
    """What is known of the runs of a shelved segment.

    Attributes:
        counts: messages of each.
        numbers: of their first messages.
        places: of their records in the journal.
    """

    counts: Sequence[int]
    numbers: Sequence[int]
    places: Sequence[int]


@dataclass(slots=True, eq=False, repr=False)
class Segment:
    """Runs, and the offsets of their first messages.

    Attributes:
        base: the offset of its first message.
        runs: empty while it is shelved and was not fetched.
        starts: offsets of the runs' first messages.
        weight: bytes in memory, estimated.
        shelf: None while it was never shelved.
    """

    base: int
    runs: list[Run] = field(default_factory=list)
    starts: Sequence[int] = field(default_factory=list)
    weight: int = 0
    shelf: Shelf | None = None

    def shelve(self) -> bool:
        """Forget what the journal has; returns False if it does not have all of it yet."""
        if any(run.place == UNWRITTEN for run in self.runs):
            return False
        kept = [(at, run) for at, run in zip(self.starts, self.runs, strict=True) if run.place]
        counts = array("q", [run.count for _, run in kept])
        numbers = array("q", [run.number for _, run in kept])
        places = array("q", [run.place - 1 for _, run in kept])
        self.put_on_shelf([at for at, _ in kept], Shelf(counts, numbers, places))
        return True

    def put_on_shelf(self, starts: Sequence[int], shelf: Shelf) -> None:
        """Be shelved, with runs at these offsets."""
        self.starts = array("q", starts)
        self.shelf = shelf
        self.runs = []
        self.weight = 32 * len(self.starts)

    def places(self) -> Sequence[int]:
        """Return where the journal has its messages; nothing while it is in memory."""
        return () if self.shelf is None else self.shelf.places

    def drop_before(self, offset: int) -> None:
        """Forget shelved runs that end at an offset or before it."""
        shelf = self.shelf
        assert shelf is not None
        ends = map(add, self.starts, shelf.counts)
        gone = sum(end <= offset for end in ends)
        if gone:
            runs = self.runs[gone:]
            self.put_on_shelf(self.starts[gone:], Shelf(*(column[gone:] for column in shelf)))
            self.runs = runs

    def offset_of(self, number: int) -> int | None:
        """Return the offset of the first message from a number on; None if all are older."""
        if self.shelf is None:
            if not self.runs or self.runs[-1].number + self.runs[-1].count <= number:
                return None
            counts: Sequence[int] = [run.count for run in self.runs]
            numbers: Sequence[int] = [run.number for run in self.runs]
        else:
            counts, numbers = self.shelf.counts, self.shelf.numbers
        at = max(bisect_right(numbers, number) - 1, 0)
        while at < len(numbers) and numbers[at] + counts[at] <= number:
            at += 1
        return self.starts[at] + max(0, number - numbers[at]) if at < len(numbers) else None

    def find(self, offset: int) -> tuple[int, int] | None:
        """Return the first offset from this one on that is here, and the index of its run."""
        starts = self.starts
        index = bisect_right(starts, offset) - 1
        if self.shelf is None or (
            index >= 0 and offset < starts[index] + self.shelf.counts[index]
        ):
            return offset, index
        index += 1
        return (starts[index], index) if index < len(starts) else None


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


@dataclass(slots=True, eq=False, repr=False)
class DataLog(Generic[R]):
    """The log of a plain filter.

    Attributes:
        topic_filter: without any share.
        start: the offset of the oldest message that is there.
        end: the offset of the next one.
        is_swollen: whether more than half of its segments are in use; see `brake`.
        most: segments in memory, above which the oldest goes.
        has_shelves: whether segments are shelved when they go, for persistent sessions.
        shelved: how many are; they come first in `segments`.
        waiters: requests that have read everything, parked here until the next append.
        readers: requests there are in all, waiting or not, also those of clients that are away.
    """

    topic_filter: str
    segment_bytes: int = SEGMENT_BYTES
    segment_count: int = SEGMENT_COUNT
    has_shelves: bool = False
    is_swollen: bool = False
    segments: list[Segment] = field(default_factory=lambda: [Segment(0)])
    shelved: int = 0
    end: int = 0
    readers: int = 0
    #: Readers whose sessions survive the router, with QoS above 0.
    durable_readers: int = 0
    waiters: dict[R, None] = field(default_factory=dict)
    #: The newest messages, for who asks for the last one.
    last: Run | Passed | None = None
    most: int = field(init=False)

    def __post_init__(self) -> None:
        self.most = self.segment_count

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

    def shed(self) -> None:
        """Keep no message in memory: shelve what the journal has, and drop the rest."""
        if self.segments[-1].runs:
            self.segments.append(Segment(self.end))
        most, self.most = self.most, 1
        self.trim()
        self.most, self.is_swollen = most, False

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

    def park(self, reader: R) -> None:
        """Let a reader that has read everything wait for more."""
        self.waiters[reader] = None
        self.release()

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

    def offset_of(self, number: int) -> int:
        """Return the offset of the first message from a number on."""
        for segment in self.segments:
            offset = segment.offset_of(number)
            if offset is not None:
                return offset
        return self.end

    def behind(self, offset: int) -> list[tuple[Run, int]]:
        """Return the runs in memory with messages from an offset on, and their offsets."""
        return [
            (run, start)
            for segment in self.segments[self.shelved :]
            for run, start in zip(segment.runs, segment.starts, strict=True)
            if start + run.count > offset
        ]
