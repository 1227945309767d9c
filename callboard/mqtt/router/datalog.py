"""The log of one filter: a segmented log in memory, and the readers that wait for more.

Each message is appended to the log of each filter that matches its topic; readers keep offsets.
A segment is complete at a size. When there are too many segments, the oldest is dropped. A
reader that had not reached it jumps; the messages that it missed are counted and reported
(`CursorJump`). When all readers have read everything, the log is emptied, so it takes no memory
while readers keep up. With a journal, the oldest segments are shelved for persistent sessions,
and read back from the journal. A shelved segment keeps only numbers in memory, 32 bytes for
each run. Messages with QoS 0 are not in the journal, so they are gaps in a shelved segment.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import field
from operator import add, attrgetter
from typing import Final, Generic, NamedTuple, TypeVar

from callboard.mqtt.router.message import MessageRun
from callboard.support.dataclass import dataclass

#: The type of a log's readers.
R = TypeVar("R")

#: Bytes at which a segment is complete, including Python's objects.
SEGMENT_BYTES: Final = 1 << 20

#: Segments of a filter. The default of rumqttd, but its 100 MiB per segment would be too much.
SEGMENT_COUNT: Final = 10


_base_of = attrgetter("base")

#: Packets that bypassed a log: all bytes, the size of one packet, whether they are of MQTT 5.
Passed = tuple[bytes, int, bool]


#: The place of a run that is not yet in the journal.
UNWRITTEN: Final = -1


class Shelf(NamedTuple):
    """The columns of a shelved segment, one entry per run.

    Attributes:
        counts: numbers of messages.
        numbers: the numbers of the first messages.
        places: the places of the records in the journal.
    """

    counts: Sequence[int]
    numbers: Sequence[int]
    places: Sequence[int]


@dataclass(slots=True, eq=False, repr=False)
class Segment:
    """Runs, and the offsets of their first messages.

    Attributes:
        base: the offset of its first message.
        runs: empty in a shelved segment until it is fetched.
        starts: offsets of the runs' first messages.
        weight: estimated bytes of memory.
        shelf: None if it was never shelved.
    """

    base: int
    runs: list[MessageRun] = field(default_factory=list)
    starts: Sequence[int] = field(default_factory=list)
    weight: int = 0
    shelf: Shelf | None = None

    def shelve(self) -> bool:
        """Drop messages that the journal has; return False if some are not written yet."""
        if any(run.place == UNWRITTEN for run in self.runs):
            return False
        pairs = zip(self.starts, self.runs, strict=True)
        durable = [(start, run) for start, run in pairs if run.place]
        counts = array("q", [run.count for _, run in durable])
        numbers = array("q", [run.number for _, run in durable])
        places = array("q", [run.place - 1 for _, run in durable])
        self.put_on_shelf([start for start, _ in durable], Shelf(counts, numbers, places))
        return True

    def put_on_shelf(self, starts: Sequence[int], shelf: Shelf) -> None:
        """Replace the messages by the columns of their shelf."""
        self.starts = array("q", starts)
        self.shelf = shelf
        self.runs = []
        self.weight = 32 * len(self.starts)

    def places(self) -> Sequence[int]:
        """Return its positions in the journal; empty for a segment in memory."""
        return () if self.shelf is None else self.shelf.places

    def drop_before(self, offset: int) -> None:
        """Remove shelved runs that end at an offset or before it."""
        shelf = self.shelf
        assert shelf is not None
        ends = map(add, self.starts, shelf.counts)
        count = sum(end <= offset for end in ends)
        if count:
            runs = self.runs[count:]
            self.put_on_shelf(self.starts[count:], Shelf(*(column[count:] for column in shelf)))
            self.runs = runs

    def drop_unreadable(self, places: set[int]) -> None:
        """Remove shelved runs at other positions than these: their records cannot be read.

        Their offsets become gaps, which readers skip and report as lost.
        """
        shelf = self.shelf
        if shelf is None or len(places) == len(shelf.places):
            return
        kept = [index for index, place in enumerate(shelf.places) if place in places]
        columns = (array("q", [column[index] for index in kept]) for column in shelf)
        self.put_on_shelf([self.starts[index] for index in kept], Shelf(*columns))

    def offset_of(self, number: int) -> int | None:
        """Return the offset of the first message from a number on; None if all are older."""
        if self.shelf is None:
            if not self.runs or self.runs[-1].number + self.runs[-1].count <= number:
                return None
            counts: Sequence[int] = [run.count for run in self.runs]
            numbers: Sequence[int] = [run.number for run in self.runs]
        else:
            counts, numbers = self.shelf.counts, self.shelf.numbers
        index = max(bisect_right(numbers, number) - 1, 0)
        while index < len(numbers) and numbers[index] + counts[index] <= number:
            index += 1
        return (
            self.starts[index] + max(0, number - numbers[index])
            if index < len(numbers)
            else None
        )

    def find(self, offset: int) -> tuple[int, int] | None:
        """Return the first existing offset from this one on, and the index of its run."""
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
    """Alert: a reader was too slow, and messages that it had not read were dropped.

    Attributes:
        client_id: the client id of the reader; empty for the group of a shared subscription.
        topic_filter: the topic filter of the reader.
        lost: number of messages.
    """

    client_id: str
    topic_filter: str
    lost: int


@dataclass(slots=True, eq=False, repr=False)
class DataLog(Generic[R]):
    """The log of a plain filter.

    Attributes:
        topic_filter: without a share.
        start: the offset of the oldest message.
        end: the offset of the next message.
        is_swollen: whether more than half of its segments are in use; see `brake`.
        most: segments in memory above which the oldest is shelved or dropped.
        has_shelves: whether segments are shelved for persistent sessions, or just dropped.
        shelved: the number of shelved segments, which are the first in `segments`.
        waiters: requests that have read everything, parked here until the next append.
        blocked: requests that a full window stops, until a message with QoS 0 is appended; None
            without any.
        plain_end: the offset after the newest message with QoS 0.
        readers: the number of all requests, waiting or not, connected or not.
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
    #: Readers with QoS above 0 whose sessions survive a restart.
    durable_readers: int = 0
    waiters: dict[R, None] = field(default_factory=dict)
    blocked: dict[R, None] | None = None
    plain_end: int = 0
    #: The newest messages, for queries of the last one.
    last: MessageRun | Passed | None = None
    most: int = field(init=False)

    def __post_init__(self) -> None:
        self.most = self.segment_count

    @property
    def start(self) -> int:
        """The offset of the oldest message."""
        return self.segments[0].base

    @property
    def in_memory(self) -> int:
        """The number of segments that are not shelved."""
        return len(self.segments) - self.shelved

    @property
    def head(self) -> int:
        """The offset of the oldest message in memory."""
        return self.segments[self.shelved].base

    @property
    def weight(self) -> int:
        """Estimated bytes of memory."""
        return sum(segment.weight for segment in self.segments)

    def append(self, run: MessageRun) -> None:
        """Add messages; first empty the log if all readers have read everything."""
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
        """Count messages that reached all readers without the log; the log is empty then."""
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
        """Empty the memory: shelve messages that the journal has, and drop the rest."""
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
        """Append a shelved segment to a log without messages in memory."""
        segment = Segment(self.end)
        segment.put_on_shelf([self.end + start for start in starts], shelf)
        self.segments.insert(self.shelved, segment)
        self.shelved += 1
        self.end += span
        self.segments[-1].base = self.end

    def relax(self) -> None:
        """Return to the normal number of segments, after a brake."""
        self.is_swollen = False
        self.most = self.segment_count
        self.trim()

    def clear(self) -> None:
        """Remove all messages."""
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
        """Add a reader that has read everything to the waiters."""
        self.waiters[reader] = None
        self.release()

    def block(self, reader: R) -> None:
        """Add a reader that sends nothing but messages with QoS 0, and has sent all of them."""
        if self.blocked is None:
            self.blocked = {}
        self.blocked[reader] = None

    def unblock(self, reader: R) -> None:
        """Remove a reader that is not stopped by a window, or ends."""
        if self.blocked is not None:
            self.blocked.pop(reader, None)
            self.blocked = self.blocked or None

    def release(self) -> None:
        """Remove all messages if every reader has read them."""
        if self.segments[-1].runs and len(self.waiters) == self.readers:
            self.clear()

    def find(self, offset: int) -> tuple[int, Segment, int]:
        """Return the first existing offset from this one on, its segment, and its run.

        The run is given as its index in the segment. The offset must be below `end`.
        """
        segments = self.segments
        segment = segments[0]
        if offset < segment.base:
            return segment.base, segment, 0
        if len(segments) > 1:
            index = bisect_right(segments, offset, key=_base_of) - 1
            segment = segments[index]
            if segment.shelf is not None:
                match = segment.find(offset)
                if match is None:
                    return self.find(segments[index + 1].base)
                return match[0], segment, match[1]
        return offset, segment, bisect_right(segment.starts, offset) - 1

    def offset_of(self, number: int) -> int:
        """Return the offset of the first message from a number on."""
        for segment in self.segments:
            offset = segment.offset_of(number)
            if offset is not None:
                return offset
        return self.end

    def after(self, offset: int) -> Iterator[tuple[MessageRun, int]]:
        """Iterate over runs that are not shelved, from the one at an offset on.

        Yields each run and the offset of its first message.
        """
        segments = self.segments
        first = bisect_right(segments, offset, lo=self.shelved, key=_base_of) - 1
        for segment in segments[max(first, self.shelved) :]:
            index = max(bisect_right(segment.starts, offset) - 1, 0)
            yield from zip(segment.runs[index:], segment.starts[index:], strict=True)

    def tail(self, count: int, size: int) -> tuple[int, int]:
        """Return the offset of the newest messages within two limits, and their bytes.

        Args:
            count: the most messages.
            size: the most bytes of memory; shelved messages have none.
        """
        first, weight, start = max(self.end - count, self.start), 0, self.end
        for segment in reversed(self.segments):
            is_whole = segment.base >= first and weight + segment.weight <= size
            if not is_whole and segment.runs:
                for run, offset in zip(segment.runs[::-1], segment.starts[::-1], strict=True):
                    if weight + run.weight > size or start <= first:
                        return max(start, first), weight
                    weight, start = weight + run.weight, offset
            weight, start = weight + (segment.weight if is_whole else 0), segment.base
        return max(start, first), weight

    def behind(self, offset: int) -> list[tuple[MessageRun, int]]:
        """Return the runs in memory with messages from an offset on, and their offsets."""
        return [
            (run, start)
            for segment in self.segments[self.shelved :]
            for run, start in zip(segment.runs, segment.starts, strict=True)
            if start + run.count > offset
        ]
