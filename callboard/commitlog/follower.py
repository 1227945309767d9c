"""Following a log that grows.

Who writes in this process wakes its followers at once. For writers in others the log is looked
at, at first each millisecond, then ever less often.
"""

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from callboard.commitlog.record import Cursor, Record

if TYPE_CHECKING:
    from callboard.commitlog.reader import LogReader

_SHORTEST: Final = 0.001
_LONGEST: Final = 0.02
"""Seconds between looks at a log where nothing comes: the writer may be another process."""

_LONGEST_OWN: Final = 1.0
"""Seconds between looks at a log that is written here: looks are not needed, but harmless."""


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
        pause, growth = _Pause(timeout, self._log.is_written_here), self._log.growth
        grown = threading.Event()
        try:
            growth.add(grown.set)  # before the look: what comes behind it wakes
            while not (records := self.poll(max_records)) and pause.goes_on():
                if grown.wait(pause.seconds()):
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

        pause, growth = _Pause(timeout, self._log.is_written_here), self._log.growth
        loop, grown = get_running_loop(), Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(grown.set)

        try:
            growth.add(wake)
            while not (records := self.poll(max_records)) and pause.goes_on():
                timer = loop.call_later(pause.seconds(), grown.set)
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


class _Pause:
    """How long to wait before the next look: longer the longer nothing came."""

    def __init__(self, timeout: float | None, is_written_here: bool) -> None:  # noqa: FBT001
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._longest = _LONGEST_OWN if is_written_here else _LONGEST
        self._next = self._longest if is_written_here else _SHORTEST

    def goes_on(self) -> bool:
        """Whether there is time left."""
        return self._deadline is None or time.monotonic() < self._deadline

    def seconds(self) -> float:
        """Return how long to wait."""
        pause, self._next = self._next, min(2 * self._next, self._longest)
        if self._deadline is None:
            return pause
        return max(0.0, min(pause, self._deadline - time.monotonic()))
