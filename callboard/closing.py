"""Base class of closable objects, and checks that calls do not block an event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar

from callboard import locks
from callboard.support import after_fork
from callboard.support.reentry import WouldBlock, WouldDeadlock

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

#: The result of calling an awaitable method.
Awaited = Coroutine[Any, Any, T]


_GUARDS: Final[dict[str, Callable[[Any], Any]]] = {
    "close": after_fork.nothing_in_copies,
    "aclose": after_fork.nothing_awaited_in_copies,
}


class Closing:
    """Base class of objects with `close()`; `with` and `async with` blocks close them.

    `aclose` calls `close` on another thread. Classes that can close without one override it.

    In a forked process, both ignore objects of the parent; see `callboard.support.after_fork`.
    """

    def __new__(cls, *_: object, **__: object) -> Self:
        """Create the object and register it, so that copies in forked processes are known."""
        instance = super().__new__(cls)
        after_fork.register(instance)
        return instance

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap `close` and `aclose` of a subclass, so that they ignore copies."""
        super().__init_subclass__(**options)
        own: dict[str, Any] = dict(cls.__dict__)
        for name, guard in _GUARDS.items():
            if name in own:
                setattr(cls, name, guard(own[name]))

    def close(self) -> None:
        """Release all resources."""

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

    The function may block. `asyncio.to_thread` would not do: it copies the context, so that the
    function would count as part of the handler that awaits it.
    """
    call = partial(function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(None, call)


def twin(
    method: Callable[Concatenate[S, P], T],
    *,
    after: Callable[[S], Awaitable[object]] | None = None,
) -> Callable[Concatenate[S, P], Awaited[T]]:
    """Return the awaitable twin of a blocking method.

    Used in the class body: `aflush = twin(flush)`.

    Args:
        method: The method; the twin calls it on another thread.
        after: Awaited first, for example until there is room. The method then does not block,
            and is called on this thread.
    """

    @wraps(method)
    async def awaitable(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        call: Callable[P, T] = getattr(self, name)  # a subclass may override the method
        if after is None:
            return await on_a_thread(call, *args, **kwargs)
        await after(self)
        return call(*args, **kwargs)

    name = method.__name__
    _name(awaitable, f"a{name}", method)
    awaitable.__doc__ = f"Awaitable twin of `{name}`."
    return awaitable


class Waiting(Protocol):
    """A class with blocking twins."""

    def _wait(self, coroutine: Awaited[T]) -> T:
        """Wait for the result of an awaitable method, if this thread may block."""


W = TypeVar("W", bound=Waiting)


def blocking_twin(
    method: Callable[Concatenate[W, P], Awaited[T]],
) -> Callable[Concatenate[W, P], T]:
    """Return the blocking twin of an awaitable method.

    Used in the class body: `connect = blocking_twin(aconnect)`. It takes over the docstring,
    because readers look for the plain name.
    """

    @wraps(method)
    def blocking(self: W, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # A subclass may override the method.
        call: Callable[P, Awaited[T]] = getattr(self, awaitable)
        return self._wait(call(*args, **kwargs))

    awaitable = method.__name__
    name = awaitable.removeprefix("a")
    _name(blocking, name, method)
    method.__doc__ = f"Awaitable twin of `{name}`."
    return blocking


def _name(function: Any, name: str, method: Callable[..., object]) -> None:
    """Name a twin of a method as if it were written in the class."""
    function.__name__ = name
    function.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{name}"


def refuse_loop(call: str, instead: str) -> None:
    """Raise an error if a blocking call cannot end on this thread.

    Args:
        call: the call, for the error text.
        instead: its awaitable twin, for the error text.

    Raises:
        WouldBlock: an event loop runs on this thread, and the call would block it.
        WouldDeadlock: the call happens inside another call of callboard on the same thread.
    """
    refuse_held_locks(call)
    refuse_running_loop(call, instead)


def refuse_held_locks(call: str) -> None:
    """Raise `WouldDeadlock` if this thread holds a lock of callboard; checks all of them.

    This takes microseconds. A call that usually ends soon waits for `PATIENCE` seconds first.
    """
    if locks.holds_any():
        msg = (
            f"{call} in a finalizer or signal handler, inside a call of callboard; "
            f"call it elsewhere"
        )
        raise WouldDeadlock(msg)


def refuse_running_loop(call: str, instead: str) -> None:
    """Raise `WouldBlock` if an event loop runs on this thread."""
    if asyncio._get_running_loop() is not None:  # noqa: SLF001 - raises nothing, so it is fast
        msg = f"{call} would block the event loop; await {instead} instead"
        raise WouldBlock(msg)
