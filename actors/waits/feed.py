"""An async iterator over what other threads put, such as the events of a node.

As every public iterator (see `callboard.support.items`) it is not a generator: a cancelled wait
for the next item ends nothing, and loses none.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from callboard.actors.future import Future

T = TypeVar("T")


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
