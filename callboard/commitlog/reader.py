"""Reading a log and following it, from any process, also while another one writes it.

A writer and the readers of one folder in one process share a `Growth`, which wakes followers at
once. A reader of another process's log looks at it: each millisecond at first, then ever less
often.
"""

import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakValueDictionary

from callboard.commitlog.batch import times_of
from callboard.commitlog.disk import Disk, RealDisk
from callboard.commitlog.folder import Folder, read_mark
from callboard.commitlog.reading import LogReading, OnDamage, RunReader
from callboard.commitlog.record import Cursor, Record, Run
from callboard.commitlog.segment import LogSegmentTable, SegmentInfo
from callboard.seconds import checked_seconds

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-not-found,import-untyped,unused-ignore]


class Growth:
    """Calls once, at the next growth, whoever waits."""

    __slots__ = ("__weakref__", "_waiters", "is_awaited")

    def __init__(self) -> None:
        """Begin with nobody who waits."""
        #: Looked at for each append, so a plain attribute.
        self.is_awaited = False
        self._waiters: set[Callable[[], object]] = set()

    def tell(self) -> None:
        """Wake all who wait; from any thread."""
        with _LOCK:
            waiters, self._waiters = self._waiters, set()
            self.is_awaited = False
        for wake in waiters:
            wake()

    def add(self, wake: Callable[[], object]) -> None:
        """Call `wake` at the next growth, on the thread that appends; look once more then."""
        with _LOCK:
            self._waiters.add(wake)
            self.is_awaited = True

    def discard(self, wake: Callable[[], object]) -> None:
        """Wait no more."""
        with _LOCK:
            self._waiters.discard(wake)
            self.is_awaited = bool(self._waiters)


def growth_of(folder: str) -> Growth:
    """Return what all who use a folder in this process share."""
    place = str(Path(folder).resolve())
    with _LOCK:
        return _KNOWN.setdefault(place, Growth())


_LOCK: Final = threading.Lock()
#: By folder: two objects that know nothing of each other meet here.
_KNOWN: Final[WeakValueDictionary[str, Growth]] = WeakValueDictionary()


class LogReader:
    """Reads the log in a folder; any number of them may, beside one `CommitLog` that writes.

    It needs no closing. Methods may be called from any thread; a `Follower` or an iterator
    belongs to one at a time.

    Attributes:
        growth: Tells of records that were appended in this process.
        is_written_here: Whether nobody but this object appends.
    """

    is_written_here = False

    def __init__(self, folder: str | Path, *, disk: Disk | None = None) -> None:
        """Look at the log in a folder.

        Args:
            folder: Where it is.
            disk: The file system it is on, for tests; the machine's own by default.

        Raises:
            LogFailed: there is no log.
        """
        place = open_folder(folder, disk)
        with place.reading():
            self._table = LogSegmentTable(place)
        self.growth = growth_of(self._table.folder.path) if disk is None else Growth()
        self._runs = RunReader(self._table)

    @property
    def folder(self) -> str:
        """The path of the log; empty in memory."""
        return self._table.folder.path

    @property
    def start(self) -> int:
        """The offset of the oldest record that is kept."""
        self._table.refresh()
        return self._table.segments[0].base

    @property
    def end(self) -> int:
        """The offset behind the newest record."""
        self._table.refresh()
        last, folder = self._table.segments[-1], self._table.folder
        with folder.reading():
            index = self._table.cover(last)
            end = max(index.end, self._table.marked)
            if folder.disk.size(folder.segment(last.base)) == index.size:
                return end
            return max(end, read_mark(folder, last.base).end)  # it may be damaged further on

    @property
    def segments(self) -> list[SegmentInfo]:
        """The files of the log, oldest first."""
        self._table.refresh()
        with self._table.folder.reading():
            return self._table.infos()

    def size_of(self, segment: SegmentInfo) -> int:
        """Return the size of a file, with what may follow the last whole batch in it."""
        with self._table.folder.reading():
            return self._table.folder.disk.size(segment.path)

    def read(
        self, offset: int | Cursor = 0, *, on_damage: OnDamage | None = None
    ) -> LogReading:
        """Iterate over the records from an offset on, up to the newest there is.

        If retention has removed the first of them, it begins with the oldest one that is kept;
        `lost` of what is returned tells how many there were.

        Args:
            offset: Where to begin.
            on_damage: Called with each `LogCorrupt` in place of raising it: all records that
                are readable are read.

        Raises:
            LogCorrupt: durable bytes are damaged; its `next_offset` says where to go on.
            ValueError: the offset is negative.
        """
        return LogReading(self._table, self.cursor(offset), on_damage)

    def readv(
        self, cursor: int | Cursor, max_records: int = 100, max_bytes: int | None = None
    ) -> Run:
        """Return up to so many records from a cursor on, over the borders of segments.

        Args:
            cursor: Where to begin; an offset serves as well.
            max_records: How many at most.
            max_bytes: Payloads have so many bytes together at most, but one record is
                always returned.

        Raises:
            LogCorrupt: the next record is damaged; those before it were returned first.
            ValueError: the offset is negative, or a limit is below 1.
        """
        if max_records < 1 or (max_bytes is not None and max_bytes < 1):
            what = f"max_records={max_records}, max_bytes={max_bytes}: give at least 1"
            raise ValueError(what)
        return self._runs.read(self.cursor(cursor), max_records, max_bytes)

    def cursor(self, offset: int | Cursor = 0) -> Cursor:
        """Return the place of a record; one that is not there yet is fine.

        Raises:
            ValueError: the offset is negative.
        """
        place = offset if isinstance(offset, Cursor) else Cursor(offset)
        if place.offset < 0:
            what = f"offset {place.offset} is negative; the first record of a log is 0"
            raise ValueError(what)
        return place

    def offset_at(self, time: int) -> int:
        """Return the offset of the first record that is not older; `end` if all are.

        Args:
            time: Nanoseconds since 1970.
        """
        self._table.refresh()
        folder = self._table.folder
        for segment in self._table.segments:
            with folder.reading():
                index = self._table.cover(segment)
                offset = index.find_time(time)
                if offset is None:
                    if folder.disk.size(folder.segment(segment.base)) == index.size:
                        continue
                    offset = index.end  # newer ones may stand behind damage
            reading = LogReading(self._table, Cursor(offset), lambda _: None)
            for batch in reading.batches():
                if batch.header.latest_time >= time:
                    times = enumerate(times_of(batch), batch.base)
                    return next(found for found, each in times if each >= time)
        return self.end

    def follow(
        self, offset: int | Cursor | None = None, *, timeout: float | None = None
    ) -> "Follower":
        """Iterate over records as they come, also from another process; `for` and `async for`.

        Args:
            offset: Where to begin; None is the end there is.
            timeout: Seconds without a record after which the iteration ends; None is never.
        """
        return Follower(self, self.cursor(self.end if offset is None else offset), timeout)

    def to_arrow(
        self,
        start: int = 0,
        end: int | None = None,
        *,
        topic: str = "",
        on_damage: OnDamage | None = None,
    ) -> "pa.Table":
        """Return records up to, not with, `end` as a table of pyarrow.

        Args:
            start: The first offset; older ones than are kept are left out.
            end: The offset behind the last one; None is the end there is.
            topic: Only records whose topic begins so.
            on_damage: As for `read`.

        Raises:
            ExtraMissing: pyarrow is not installed.
            LogCorrupt: durable bytes are damaged.
        """
        from callboard.commitlog.arrow import arrow_schema, load_pyarrow

        pieces = self.arrow_batches(start, end, topic=topic, on_damage=on_damage)
        return load_pyarrow().Table.from_batches(pieces, arrow_schema())

    def arrow_batches(
        self,
        start: int | Cursor = 0,
        end: int | None = None,
        *,
        topic: str = "",
        rows: int | None = None,
        on_damage: OnDamage | None = None,
    ) -> "Iterator[pa.RecordBatch]":
        """Iterate over records as Arrow's record batches, of at least `rows` but the last.

        The columns are those of `arrow_schema`. Several million records a second: batches
        of the log are put together, and no record is looked at.

        Raises:
            ExtraMissing: pyarrow is not installed.
            LogCorrupt: durable bytes are damaged; what stands before comes first.
        """
        from callboard.commitlog.arrow import ROWS, record_batches

        reading = self.read(start, on_damage=on_damage)
        return record_batches(reading, end, topic, rows or ROWS)

    def __iter__(self) -> Iterator[Record]:
        """Iterate over all records."""
        return iter(self.read(self.start))

    def __enter__(self) -> Self:
        """Return the log."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: a reader holds nothing."""


def open_folder(folder: str | Path, disk: Disk | None) -> Folder:
    """Return a folder of the machine, or of a disk that was given."""
    if disk is None:
        return Folder(RealDisk("/"), str(Path(folder).absolute()))
    return Folder(disk, "/" + str(folder).strip("/"))


_SHORTEST: Final = 0.001
#: Seconds between looks at a log where nothing comes: the writer may be another process.
_LONGEST: Final = 0.02

#: Seconds between looks at a log that is written here: looks are not needed, but harmless.
_LONGEST_OWN: Final = 1.0


class Follower:
    """Iterates over records as they come; blocking with `for`, or with `async for`.

    Attributes:
        cursor: The next record; keep it to go on later.
        lost: How many records retention removed before they were read.
    """

    def __init__(self, log: "LogReader", cursor: Cursor, timeout: float | None) -> None:
        """Begin at a place; `timeout` is in seconds."""
        self.cursor = cursor
        self.lost = 0
        self._log = log
        self._timeout = timeout

    def poll(self, max_records: int = 1000) -> list[Record]:
        """Return what is there, perhaps nothing, without waiting.

        Raises:
            LogCorrupt: the next record is damaged.
        """
        run = self._log.readv(self.cursor, max_records)
        self.cursor = run.cursor
        self.lost += run.lost
        return run.records

    def read(self, max_records: int = 1000, timeout: float | None = None) -> list[Record]:
        """Return what is there, or wait for it; an empty list after `timeout` seconds.

        Raises:
            LogCorrupt: the next record is damaged.
        """
        records = self.poll(max_records)
        if records:
            return records
        pauses, growth = _pauses(timeout, self._log.is_written_here), self._log.growth
        grown = threading.Event()
        try:
            growth.add(grown.set)  # before the look: what comes behind it wakes
            while not (records := self.poll(max_records)) and (pause := next(pauses, 0.0)):
                if grown.wait(pause):
                    grown.clear()
                    growth.add(grown.set)
        finally:
            growth.discard(grown.set)
        return records

    async def aread(
        self, max_records: int = 1000, timeout: float | None = None
    ) -> list[Record]:
        """Return what is there, or wait for it without blocking the loop."""
        records = self.poll(max_records)
        if records:
            return records
        from asyncio import Event, get_running_loop  # here: who only reads starts sooner

        pauses, growth = _pauses(timeout, self._log.is_written_here), self._log.growth
        loop, grown = get_running_loop(), Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(grown.set)

        try:
            growth.add(wake)
            while not (records := self.poll(max_records)) and (pause := next(pauses, 0.0)):
                timer = loop.call_later(pause, grown.set)
                await grown.wait()
                timer.cancel()
                grown.clear()
                growth.add(wake)
        finally:
            growth.discard(wake)
        return records

    def __iter__(self) -> Iterator[Record]:
        """Iterate until nothing came for the timeout."""
        while records := self.read(timeout=self._timeout):
            yield from records

    async def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate until nothing came for the timeout, without blocking the loop."""
        while records := await self.aread(timeout=self._timeout):
            for record in records:
                yield record


def _pauses(timeout: float | None, is_written_here: bool) -> Iterator[float]:  # noqa: FBT001
    """Iterate over how long to wait before each look: longer the longer nothing came."""
    deadline = math.inf
    if timeout is not None:
        deadline = time.monotonic() + checked_seconds(timeout)
    longest = _LONGEST_OWN if is_written_here else _LONGEST
    pause = longest if is_written_here else _SHORTEST
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(2 * pause, longest)
