"""Following a log that grows."""

import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final

from callboard.commitlog.record import Cursor, Record

if TYPE_CHECKING:
    from callboard.commitlog.reader import LogReader

_SHORTEST: Final = 0.001
_LONGEST: Final = 0.02
"""Seconds between looks at a log where nothing comes: the writer may be another process."""


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
        pause = _Pause(timeout)
        while not (records := self.poll(max_records)) and pause.goes_on():
            time.sleep(pause.seconds())
        return records

    async def aread(
        self, max_records: int = 1000, timeout: float | None = None
    ) -> list[Record]:
        """Return what is there, or wait for it without blocking the loop."""
        import asyncio  # here: programs that only read start twice as fast without

        pause = _Pause(timeout)
        while not (records := self.poll(max_records)) and pause.goes_on():  # noqa: ASYNC110
            await asyncio.sleep(pause.seconds())
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

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._next = _SHORTEST

    def goes_on(self) -> bool:
        """Whether there is time left."""
        return self._deadline is None or time.monotonic() < self._deadline

    def seconds(self) -> float:
        """Return how long to wait."""
        pause, self._next = self._next, min(2 * self._next, _LONGEST)
        if self._deadline is None:
            return pause
        return max(0.0, min(pause, self._deadline - time.monotonic()))
