"""Follows a log: woken by appends of this process, polling for appends of others."""

import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakValueDictionary

from callboard import locks
from callboard.backoff import Backoff
from callboard.commitlog.errors import LogCorrupt
from callboard.commitlog.identity.position import LogIdentity, Position
from callboard.commitlog.identity.watch import IdentityWatch
from callboard.commitlog.reading import OnDamage
from callboard.commitlog.record import Cursor, Record, Run
from callboard.support.items import Items
from callboard.support.seconds import checked_seconds


class Growth:
    """Notifies waiters of the next growth of a log, each of them once.

    It uses no lock: a finalizer may append to the log while another append is in progress on
    the same thread. Each access to the table is a single operation of the interpreter, which is
    atomic because of its global lock.
    """

    __slots__ = ("__weakref__", "_waiters", "is_awaited")

    def __init__(self) -> None:
        """Start without waiters."""
        #: Whether there are waiters; a plain attribute, because each append checks it.
        self.is_awaited = False
        self._waiters: dict[Callable[[], object], None] = {}

    def notify(self) -> None:
        """Wake all waiters; may be called from any thread."""
        self.is_awaited = False  # first: a waiter that is added from now on sets it again
        waiting: list[Callable[[], object]] = []
        for _ in range(len(self._waiters)):
            with suppress(KeyError):  # another thread was faster
                waiting += self._waiters.popitem()[:1]
        for wake in waiting:
            wake()

    def add(self, wake: Callable[[], object]) -> None:
        """Call `wake` at the next growth, on the appending thread.

        Read the log once more after this call: records appended just before it do not wake.
        """
        self._waiters[wake] = None
        self.is_awaited = True

    def discard(self, wake: Callable[[], object]) -> None:
        """Remove a waiter."""
        self._waiters.pop(wake, None)
        if not self._waiters:
            self.is_awaited = False
            if self._waiters:  # one was added in between
                self.is_awaited = True


def growth_of(folder: str) -> Growth:
    """Return the `Growth` that all users of a folder in this process share."""
    place = str(Path(folder).resolve())
    with _LOCK:
        return _KNOWN.setdefault(place, Growth())


_LOCK: Final = locks.lock("followers of logs", 603)
#: By folder, so that a writer and readers that were created separately share one.
_KNOWN: Final[WeakValueDictionary[str, Growth]] = WeakValueDictionary()


class Followed(Protocol):
    """The interface of a log that a follower needs."""

    growth: Growth
    is_written_here: bool
    is_elsewhere: bool

    @property
    def folder(self) -> str:
        """The path of the log; empty in memory."""

    @property
    def identity(self) -> LogIdentity:
        """The id of the log and its epochs."""

    @property
    def identity_mark(self) -> object:
        """A value that changes with the identity."""

    def make_durable(self, offset: int) -> None:
        """Make the records before an offset durable."""

    @property
    def start(self) -> int:
        """Offset of the oldest record."""

    @property
    def end(self) -> int:
        """First offset after the newest record."""

    def readv(
        self, cursor: int | Cursor, max_records: int = 100, max_bytes: int | None = None
    ) -> Run:
        """Return records from a cursor on, up to the limits."""


#: Seconds between polls of an idle log, at first and at most. The writer may be in another
#: process, which does not wake this one.
_SHORTEST: Final = 0.001
_LONGEST: Final = 0.02

#: Seconds between polls of a log that is written here; growth wakes, so polls are a precaution.
_LONGEST_OWN: Final = 1.0


class Follower:
    """Iterates over records as they arrive; blocks with `for`, or works with `async for`.

    Attributes:
        cursor: Cursor of the next record.
        lost: Number of records that retention removed before they were read.
    """

    def __init__(
        self,
        log: Followed,
        cursor: Cursor,
        timeout: float | None,
        on_damage: OnDamage | None = None,
    ) -> None:
        """Start at a cursor; `timeout` is in seconds, `on_damage` as for `LogReader.read`."""
        self.cursor = cursor
        self.lost = 0
        self._watch = IdentityWatch(log, cursor.offset, self._label)
        self._log = log
        self._timeout = timeout
        self._on_damage = on_damage

    #: Name of the reader in errors.
    _label = "the follower"

    @property
    def position(self) -> Position:
        """The position of the next record; store it to resume later with `log.follow`.

        Raises:
            PositionRefused: the log was replaced, or records that were read were.
        """
        return self._watch.position(self._place().offset)

    def poll(self, max_records: int = 1000) -> list[Record]:
        """Return the available records, perhaps none, without waiting.

        Raises:
            LogCorrupt: the next record is damaged, and there is no `on_damage`.
            PositionRefused: the log was replaced, or records that were read were.
        """
        return self._take(self._next_run(max_records))

    def _next_run(self, max_records: int) -> Run:
        """Return the next records; report damage to `on_damage`, and read on after it.

        Without `on_damage`, one damaged record would stop a consumer for ever: each new attempt
        starts at the same record.
        """
        cursor = self._place()
        self._watch.check(cursor.offset)
        while True:
            try:
                run = self._log.readv(cursor, max_records)
                if not self._watch.is_changed:
                    self._watch.check(run.cursor.offset)
                    return run
                self._watch.check(cursor.offset)  # then it is not known which records it read
            except LogCorrupt as error:
                if self._on_damage is None or error.next_offset <= cursor.offset:
                    raise
                self._on_damage(error)
                cursor = Cursor(error.next_offset)

    def _place(self) -> Cursor:
        """Return the cursor of the next record."""
        return self.cursor

    def _take(self, run: Run) -> list[Record]:
        """Advance the cursor past a run, and return its records."""
        self.cursor = run.cursor
        self.lost += run.lost
        return run.records

    def _hand_out(self, record: Record) -> Record:
        """Return a record to the iterating loop."""
        return record

    def read(self, max_records: int = 1000, timeout: float | None = None) -> list[Record]:
        """Return the next records, waiting for the first; none after `timeout` seconds.

        Raises:
            LogCorrupt: the next record is damaged.
        """
        records = self.poll(max_records)
        if records:
            return records
        pauses, growth = _pauses(timeout, self._log.is_written_here), self._log.growth
        grown = threading.Event()
        try:
            growth.add(grown.set)  # before the poll, so that later records wake
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
        """Return the next records, waiting for the first without blocking the loop."""
        from asyncio import Event, get_running_loop, to_thread  # late, to load faster

        async def poll() -> list[Record]:
            if self._log.is_elsewhere:  # a remote read would block the loop
                # The cursor advances only after the await, so cancelling it loses no records.
                run = await to_thread(self._next_run, max_records)
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
        """Iterate until no record arrives within the timeout."""
        while records := self.read(timeout=self._timeout):
            left = iter(records)
            try:
                yield from map(self._hand_out, left)
            finally:
                self._rewind(left)

    def __aiter__(self) -> AsyncIterator[Record]:
        """Iterate until no record arrives within the timeout, without blocking the loop."""
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

        return Items(next_record, lambda: self._rewind(left))

    def _rewind(self, left: Iterator[Record]) -> None:
        """Set the cursor back to the first record that was read but not returned."""
        if (first := next(left, None)) is not None:
            self.cursor = Cursor(first.offset)


def _pauses(timeout: float | None, is_written_here: bool) -> Iterator[float]:  # noqa: FBT001
    """Yield the seconds to wait before each poll: growing, until the timeout."""
    deadline = math.inf
    if timeout is not None:
        deadline = time.monotonic() + checked_seconds(timeout)
    backoff = Backoff(_SHORTEST, _LONGEST)
    if is_written_here:
        backoff = Backoff.fixed(_LONGEST_OWN)
    while (left := deadline - time.monotonic()) > 0:
        yield min(backoff.next_pause(), left)
