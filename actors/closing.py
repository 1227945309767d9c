"""What is closed: context managers, and calls that must not block an event loop."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar

from callboard import locks
from callboard.actors.errors import WouldBlock, WouldDeadlock
from callboard.support import after_fork

P = ParamSpec("P")
T = TypeVar("T")


_GUARDS: Final[dict[str, Callable[[Any], Any]]] = {
    "close": after_fork.nothing_in_copies,
    "aclose": after_fork.nothing_awaited_in_copies,
}


class Closing:
    """A base of what has `close()`: leaving a `with` or `async with` block closes it.

    `aclose` calls `close` on another thread; what can close without a thread has its own.

    In a forked process neither does anything to an object of the parent, see
    `callboard.support.after_fork`.
    """

    def __new__(cls, *_: object, **__: object) -> Self:
        """Make an object that knows whether it is a copy in a forked process."""
        made = super().__new__(cls)
        after_fork.register(made)
        return made

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a class close no copies."""
        super().__init_subclass__(**options)
        own: dict[str, Any] = dict(cls.__dict__)
        for name, guard in _GUARDS.items():
            if name in own:
                setattr(cls, name, guard(own[name]))

    def close(self) -> None:
        """Release what is held."""

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        await on_a_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


async def on_a_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function on another thread, and await its result.

    The function may wait: unlike one that `asyncio.to_thread` calls, it does not take itself
    for a turn of the actor whose handler awaits it.
    """
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(None, call)


def refuse_loop(call: str, instead: str) -> None:
    """Raise `WouldBlock` on the thread of a running event loop.

    Args:
        call: what was called, for the error's text.
        instead: what to await there.

    Raises:
        WouldBlock: an event loop runs on this thread, and the call would stop it.
        WouldDeadlock: the call runs inside another one of callboard, on its thread.
    """
    if locks.holds_any():
        msg = f"{call} in a finalizer or signal handler that runs inside a call of callboard"
        raise WouldDeadlock(msg)
    if asyncio._get_running_loop() is not None:
        what = f"{call} would block the event loop; await {instead} instead"
        raise WouldBlock(what)
