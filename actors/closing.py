"""What is closed: context managers, and calls that must not block an event loop."""

import asyncio
from typing import Self

from callboard.actors.errors import WouldBlock


class Closing:
    """A base of what has `close()`: leaving a `with` or `async with` block closes it.

    `aclose` calls `close` on another thread; what can close without a thread has its own.
    """

    def close(self) -> None:
        """Release what is held."""

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def refuse_loop(call: str, instead: str) -> None:
    """Raise `WouldBlock` on the thread of a running event loop.

    Args:
        call: what was called, for the error's text.
        instead: what to await there.

    Raises:
        WouldBlock: an event loop runs on this thread, and the call would stop it.
    """
    if asyncio._get_running_loop() is not None:
        what = f"{call} would block the event loop; await {instead} instead"
        raise WouldBlock(what)
