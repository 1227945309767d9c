"""An async iterator that survives a cancelled wait.

An async generator ends for good when a wait inside it is cancelled, and its next `__anext__`
raises `StopAsyncIteration`: `asyncio.wait_for(anext(events), 1)` would end the iteration when
one second passes without an event. So no public iterator is a generator: `Items` asks for each
item anew. `tests/test_waits.py` finds generators.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

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
