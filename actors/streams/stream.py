"""The reader of a stream, which `ref.stream(query)` returns.

A stream belongs to the thread or task that reads it. It sends its pulls itself when it needs
items, so nothing runs in the background, and no lock is needed.
"""

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from types import TracebackType
from typing import Final, Generic, Self, TypeVar, cast

from callboard.actors.errors import CallboardError, StreamFailed, WrongValue
from callboard.actors.future import Future
from callboard.actors.streams.machine import ReaderEnd
from callboard.actors.streams.messages import (
    CloseStream,
    PullItems,
    StreamOpened,
    StreamRequest,
)
from callboard.actors.values import Answer, Message
from callboard.arguments import count as checked_count
from callboard.arguments import period as checked_period

T_co = TypeVar("T_co", covariant=True)

#: Limit of `buffer`.
BUFFER_LIMIT: Final = 1_000_000

_CLOSED: Final = "the stream was closed; call ref.stream(…) again to open another one"

_SHARED: Final = "another thread or task reads the stream; open one for each reader"


class Stream(Generic[T_co]):
    """The items of a `StreamQuery`: `async for` in a coroutine, `for` on a thread.

    Leaving the loop closes the stream and its generator, as do `close()`, the end of a `with`
    block, and dropping the stream. It is read once, by one thread or task.

    Reading fails with `ActorDown` when the actor ends, with `NodeUnreachable` when its node is
    lost, with the refusal or the `RemoteError` of the generator, and with `StreamFailed` when
    items were lost. All items before the error have been returned.
    """

    __slots__ = ("_ask", "_items", "_opening", "_reader", "_source", "_start")

    def __init__(
        self, ask: Callable[[StreamRequest], Future], query: Message, buffer: int, idle: float
    ) -> None:
        """Prepare a stream; `ref.stream(…)` does."""
        count = checked_count(buffer, "stream(): buffer", 1)
        if count > BUFFER_LIMIT:
            msg = f"stream(): buffer={count:,}: must be at most {BUFFER_LIMIT:,}"
            raise WrongValue(msg)
        self._start = StreamRequest(query, checked_period(idle, "stream(): idle"))
        self._ask = ask
        self._reader = ReaderEnd(count)
        self._opening: Future | None = None
        self._source: StreamOpened | None = None
        #: The items of the latest answer.
        self._items: Iterator[T_co] = iter(())

    # --- iteration ---

    def __iter__(self) -> Generator[T_co, None, None]:
        """Yield the items; blocks this thread while none has arrived."""
        try:
            while True:
                yield from self._items
                if not self._wait():
                    return
        finally:
            self.close()

    async def __aiter__(self) -> AsyncGenerator[T_co, None]:
        """Yield the items."""
        try:
            while True:
                for item in self._items:
                    yield item
                if not await self._await():
                    return
        finally:
            self.close()

    def __next__(self) -> T_co:
        """Return the next item."""
        while True:
            for item in self._items:
                return item
            if not self._wait():
                raise StopIteration

    async def __anext__(self) -> T_co:
        """Return the next item."""
        while True:
            for item in self._items:
                return item
            if not await self._await():
                raise StopAsyncIteration

    def _wait(self) -> bool:
        """Wait for more items on this thread; return False at the end of the stream."""
        try:
            if self._source is None:
                self._opened(self._open().result())
            future = self._pull()
            if future is not None:
                self._items = self._received(future.result())
        except BaseException:
            self.close()
            raise
        return future is not None

    async def _await(self) -> bool:
        """Wait for more items in a coroutine; return False at the end of the stream."""
        try:
            if self._source is None:
                self._opened(await self._open())
            future = self._pull()
            if future is not None:
                self._items = self._received(await future)
        except BaseException:
            self.close()
            raise
        return future is not None

    # --- the source ---

    def _open(self) -> Future:
        """Ask for the stream, once."""
        if self._opening is None:
            if self._reader.is_over:
                raise StreamFailed(_CLOSED)
            self._opening = self._ask(self._start)
        return self._opening

    def _opened(self, answer: Answer) -> None:
        """Record the source of the items."""
        if not isinstance(answer, StreamOpened):
            name = type(self._start.query).__name__
            msg = f"a {type(answer).__name__} answered {name}, and not a stream; use ask()"
            raise StreamFailed(msg)
        self._source = answer

    def _received(self, answer: Answer) -> Iterator[T_co]:
        """Return the items of the answer to a pull."""
        return iter(cast("list[T_co]", self._reader.receive(answer)))

    def _pull(self) -> Future | None:
        """Ask for the next items; return None at the end of the stream."""
        source, reader = self._source, self._reader
        assert source is not None, "a stream is opened before it is read"
        pull = reader.next_pull()
        if pull is not None:
            return source.source.ask(PullItems(source.stream, *pull))
        if not reader.is_over or reader.is_closed:
            raise StreamFailed(_CLOSED if reader.is_closed else _SHARED)
        return None

    # --- the end ---

    def close(self) -> None:
        """Close the stream and its generator; no effect at its end. Never blocks."""
        reader, opening = self._reader, self._opening
        if not reader.is_over:
            reader.close()
            self._items = iter(())
            if opening is not None:
                opening.on_done(_close_source)

    async def aclose(self) -> None:
        """Close the stream: `close` for `contextlib.aclosing`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        """Close the generator of a stream that is no longer used."""
        with contextlib.suppress(AttributeError):  # the constructor raised
            self.close()


def _close_source(opening: Future) -> None:
    """Have the actor close a generator, if the stream was opened."""
    if opening.cancelled() or opening.exception() is not None:
        return
    opened = opening.result()
    if isinstance(opened, StreamOpened):
        with contextlib.suppress(CallboardError):  # the node is closed, so the stream is, too
            opened.source.tell(CloseStream(opened.stream))
