"""Async iterators that survive a cancelled wait.

An async generator ends for good when a wait inside it is cancelled, and its next `__anext__`
raises `StopAsyncIteration`: `asyncio.wait_for(anext(events), 1)` would end the iteration when
one second passes without an event. So no public iterator is a generator: `Items` asks for each
item anew, and `Feed` keeps items until they are read. `tests/test_waits.py` finds generators.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from callboard.actors.future import Future

T = TypeVar("T")


class Items(AsyncIterator[T]):
    """Asks for one item after the other.

    An exception of `next_item` is raised and does not end the iteration, except
    `StopAsyncIteration`. The end, `aclose` and dropping the iterator call `close` once.
    """

    def __init__(
        self,
        next_item: Callable[[], Awaitable[T]],
        close: Callable[[], object] | None = None,
        *,
        ends: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Begin an iteration.

        Args:
            next_item: returns the next item; cancelled, it has taken none.
            close: releases what the iteration holds.
            ends: exceptions that mean the end.
        """
        self._is_closed = False
        self._next_item, self._close, self._ends = next_item, close, ends

    def __aiter__(self) -> "Items[T]":
        return self

    async def __anext__(self) -> T:
        if self._is_closed:
            raise StopAsyncIteration
        try:
            return await self._next_item()
        except StopAsyncIteration:
            self._end()
            raise
        except self._ends:
            self._end()
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """End the iteration."""
        self._end()

    def __del__(self) -> None:
        """End an iteration that was dropped."""
        self._end()

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._close is not None:
                self._close()


class Source(Generic[T]):
    """Items that were put on any thread and not read yet; `put` and `end` never block."""

    def __init__(self) -> None:
        """Begin without items."""
        self._items: deque[T] = deque()
        self._readers: deque[Future[None]] = deque()
        self._has_ended = False

    def put(self, item: T) -> None:
        """Append an item, unless the end was told."""
        if not self._has_ended:
            self._items.append(item)
            self._wake()

    def end(self) -> None:
        """Let readers come to an end behind the items that are there."""
        self._has_ended = True
        self._wake()

    def drop(self) -> None:
        """End, and drop what was not read."""
        self._has_ended = True
        self._items.clear()
        self._wake()

    async def next(self) -> T:
        """Return the next item as soon as there is one; on any event loop.

        A cancelled wait takes none: an item is taken out in the step that returns it.

        Raises:
            StopAsyncIteration: the end was told, and all items were read.
        """
        while True:
            with suppress(IndexError):
                return self._items.popleft()
            if self._has_ended:
                raise StopAsyncIteration
            reader: Future[None] = Future()
            self._readers.append(reader)
            if self._items or self._has_ended:  # put since: nobody may have seen the reader
                reader.set_result(None)
            try:
                await reader
            finally:
                with suppress(ValueError):
                    self._readers.remove(reader)

    def _wake(self) -> None:
        """Wake every reader; the first of them gets the item."""
        with suppress(IndexError):  # another thread was faster
            while self._readers:
                self._readers.popleft().set_result(None)


class Feed(AsyncIterator[T]):
    """What a source is fed with, read by a coroutine on any event loop, in its order.

    Feeding begins with the first item that is asked for, and ends with the iteration: at the
    end of the source, with `aclose`, or when the feed is dropped.
    """

    def __init__(self, begin: Callable[[Source[T]], Callable[[], object]]) -> None:
        """Make a feed.

        Args:
            begin: called once, with the source to be fed; returns what ends that. It must not
                refer to the feed, which would not be dropped then.
        """
        self._begin: Callable[[Source[T]], Callable[[], object]] | None = begin
        self._stop: Callable[[], object] = _nothing
        self._source: Source[T] = Source()

    def __aiter__(self) -> "Feed[T]":
        return self

    async def __anext__(self) -> T:
        begin, self._begin = self._begin, None
        if begin is not None:
            self._stop = begin(self._source)
        try:
            return await self._source.next()
        except StopAsyncIteration:
            self._end()
            raise

    async def aclose(self) -> None:
        """End the iteration; items that were not read are dropped."""
        self._begin = None
        self._source.drop()
        self._end()

    def __del__(self) -> None:
        """End an iteration that was dropped."""
        self._end()

    def _end(self) -> None:
        stop, self._stop = self._stop, _nothing
        stop()


def _nothing() -> None:
    """What ends a feed that was not begun."""
