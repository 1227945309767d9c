"""An async iterator over items that other threads put, such as the events of a node.

Like every public iterator (see `callboard.support.items`) it is not a generator: a cancelled
wait for the next item neither ends the iteration nor loses an item.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from callboard.actors.future import Future
from callboard.support.calls import Action

T = TypeVar("T")


class Source(Generic[T]):
    """A queue of items from any thread; `put` and `end` never block."""

    def __init__(self) -> None:
        """Create an empty source."""
        self._items: deque[T] = deque()
        self._readers: deque[Future[None]] = deque()
        self._has_ended = False

    def put(self, item: T) -> None:
        """Append an item, unless the source has ended."""
        if not self._has_ended:
            self._items.append(item)
            self._wake()

    def end(self) -> None:
        """End the source; readers still receive the items that it has."""
        self._has_ended = True
        self._wake()

    def drop(self) -> None:
        """End the source, and drop the items that were not read."""
        self._has_ended = True
        self._items.clear()
        self._wake()

    async def next(self) -> T:
        """Return the next item when there is one; on any event loop.

        A cancelled wait loses no item: an item is removed in the step that returns it.

        Raises:
            StopAsyncIteration: the source has ended, and all items were read.
        """
        while True:
            with suppress(IndexError):
                return self._items.popleft()
            if self._has_ended:
                raise StopAsyncIteration
            reader: Future[None] = Future()
            self._readers.append(reader)
            if self._items or self._has_ended:  # a `put` before `append` saw no reader to wake
                reader.set_result(None)
            try:
                await reader
            finally:
                with suppress(ValueError):
                    self._readers.remove(reader)

    def _wake(self) -> None:
        """Wake every reader; the first of them receives the item."""
        with suppress(IndexError):  # another thread was faster
            while self._readers:
                self._readers.popleft().set_result(None)


class Feed(AsyncIterator[T]):
    """The items of a source, read by a coroutine on any event loop.

    The first read starts the feed. It ends with the iteration: at the end of the source, with
    `aclose`, or when the feed is garbage-collected.
    """

    def __init__(self, begin: Callable[[Source[T]], Action]) -> None:
        """Create a feed.

        Args:
            begin: called once, with the source to fill; returns a function that stops the
                filling. It must not refer to the feed, or the feed is never collected.
        """
        self._begin: Callable[[Source[T]], Action] | None = begin
        self._stop: Action = _nothing
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
        """End the iteration; unread items are dropped."""
        self._begin = None
        self._source.drop()
        self._end()

    def __del__(self) -> None:
        """Stop the filling of a feed that was not closed."""
        self._end()

    def _end(self) -> None:
        stop, self._stop = self._stop, _nothing
        stop()


def _nothing() -> None:
    """Stop a feed that has not begun."""
