"""Following a log: woken by its growth in this process, looking at it from another one."""

import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakValueDictionary

from callboard import locks
from callboard.commitlog.record import Cursor, Record, Run
from callboard.support.items import Items
from callboard.support.seconds import checked_seconds


class Growth:
    """Calls once, at the next growth, whoever waits.

    No lock: an append may be made by a finalizer inside another one. Each step on the table is
    one of the interpreter.
    """

    __slots__ = ("__weakref__", "_waiters", "is_awaited")

    def __init__(self) -> None:
        """Begin with nobody who waits."""
        #: Looked at for each append, so a plain attribute.
        self.is_awaited = False
        self._waiters: dict[Callable[[], object], None] = {}

    def tell(self) -> None:
        """Wake all who wait; from any thread."""
        self.is_awaited = False  # first: who comes from here on sets it again
        waiting: list[Callable[[], object]] = []
        for _ in range(len(self._waiters)):
            with suppress(KeyError):  # another thread was faster
                waiting += self._waiters.popitem()[:1]
        for wake in waiting:
            wake()

    def add(self, wake: Callable[[], object]) -> None:
        """Call `wake` at the next growth, on the thread that appends; look once more then."""
        self._waiters[wake] = None
        self.is_awaited = True

    def discard(self, wake: Callable[[], object]) -> None:
        """Wait no more."""
        self._waiters.pop(wake, None)
        if not self._waiters:
            self.is_awaited = False
            if self._waiters:  # one came in between
                self.is_awaited = True


def growth_of(folder: str) -> Growth:
    """Return what all who use a folder in this process share."""
    place = str(Path(folder).resolve())
    with _LOCK:
        return _KNOWN.setdefault(place, Growth())


_LOCK: Final = locks.lock("followers of logs", 603)
#: By folder: two objects that know nothing of each other meet here.
_KNOWN: Final[WeakValueDictionary[str, Growth]] = WeakValueDictionary()


class Followed(Protocol):
    """What a follower needs of a log."""

    growth: Growth
    is_written_here: bool
    is_elsewhere: bool

    @property
    def folder(self) -> str:
        """The path of the log; empty in memory."""

    @property
    def start(self) -> int:
        """The offset of the oldest record that is kept."""

    @property
    def end(self) -> int:
        """The offset behind the newest record."""

    def readv(
        self, cursor: int | Cursor, max_records: int = 100, max_bytes: int | None = None
    ) -> Run:
        """Return up to so many records from a cursor on."""


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

    def __init__(self, log: Followed, cursor: Cursor, timeout: float | None) -> None:
        """Begin at a place; `timeout` is in seconds."""
        self.cursor = cursor
        self.lost = 0
        self._log = log
        self._timeout = timeout

    def poll(self, max_records: int = 1000) -> list[Record]:
        """Return the records that are there, perhaps none, without waiting.

        Raises:
            LogCorrupt: the next record is damaged.
        """
        return self._take(self._log.readv(self._place(), max_records))

    def _place(self) -> Cursor:
        """Return where the next record is read."""
        return self.cursor

    def _take(self, run: Run) -> list[Record]:
        """Move on behind the records that were read, and return them."""
        self.cursor = run.cursor
        self.lost += run.lost
        return run.records

    def _hand_out(self, record: Record) -> Record:
        """Return a record to the loop that iterates."""
        return record

    def read(self, max_records: int = 1000, timeout: float | None = None) -> list[Record]:
        """Return the next records, or wait for them; an empty list after `timeout` seconds.

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
        """Return the next records, or wait for them without blocking the loop."""
        from asyncio import Event, get_running_loop, to_thread  # who only reads starts sooner

        async def poll() -> list[Record]:
            if self._log.is_elsewhere:  # an answer takes as long as the way
                # The cursor moves when this is awaited to its end: cancelled, nothing was read.
                run = await to_thread(self._log.readv, self._place(), max_records)
                return self._take(run)
            return self.poll(max_records)

        records = await poll()
        if records:
            return records

        pauses, growth = _pauses(timeout, self._log.is_written_here), self._log.growth
        loop, grown = get_running_loop(), Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(grown.set)

        try:
            growth.add(wake)
            while not (records := await poll()) and (pause := next(pauses, 0.0)):
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
            left = iter(records)
            try:
                yield from map(self._hand_out, left)
            finally:
                self._leave(left)

    def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate until nothing came for the timeout, without blocking the loop."""
        left: Iterator[Record] = iter(())

        async def next_record() -> Record:
            nonlocal left
            record = next(left, None)
            if record is None:
                left = iter(await self.aread(timeout=self._timeout))
                record = next(left, None)
            if record is None:
                raise StopAsyncIteration
            return self._hand_out(record)

        return Items(next_record, lambda: self._leave(left))

    def _leave(self, left: Iterator[Record]) -> None:
        """Go back to the first record that was read and not handed out."""
        if (first := next(left, None)) is not None:
            self.cursor = Cursor(first.offset)


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
