"""An async iterator that can be used after a cancelled wait.

An async generator ends when a wait inside it is cancelled, and its next `__anext__` raises
`StopAsyncIteration`: `asyncio.wait_for(anext(events), 1)` would end the iteration if no event
arrives within one second. Therefore public iterators are never generators: `Items` awaits a new
coroutine for each item. `tests/test_waits.py` searches for generators.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class Items(AsyncIterator[T]):
    """Iterates over the results of a coroutine function.

    Exceptions of `next_item` are raised and do not end the iteration, except
    `StopAsyncIteration` and those in `ends`. `close` is called once: at the end, by `aclose`,
    or when the iterator is freed.
    """

    def __init__(
        self,
        next_item: Callable[[], Awaitable[T]],
        close: Callable[[], object] | None = None,
        *,
        ends: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Start an iteration.

        Args:
            next_item: returns the next item; if it is cancelled, no item may be lost.
            close: releases the resources of the iteration.
            ends: exceptions that end the iteration.
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
        """End the iteration when the iterator is freed."""
        self._end()

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            if self._close is not None:
                self._close()
