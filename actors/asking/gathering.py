"""Waits for many futures, also of `concurrent.futures`, on threads or in coroutines.

`concurrent.futures.wait` is not used for two reasons. It accepts only futures with a condition
variable of their own, which would cost each ask 1.5 µs instead of 0.2. And it would block a
simulation, whose time passes only in callboard's own waits.
"""

import asyncio
import concurrent.futures
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Any, Final, Generic, Literal, TypeVar

from callboard.actors import errors
from callboard.actors.future import Future, refuse_endless_wait
from callboard.arguments import count as checked_count
from callboard.arguments import limit as checked_limit
from callboard.support.items import Items
from callboard.support.text import safe_repr

#: A future that can be waited for.
AnyFuture = Future | concurrent.futures.Future[Any]

F = TypeVar("F", bound=AnyFuture)
R = TypeVar("R")
T = TypeVar("T")

ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]

_RETURN_WHEN: Final = ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION")


def gather(*futures: AnyFuture, return_exceptions: bool = False) -> Future[list[Any]]:
    """Return a future of all results, in the order of the futures: `.result(t)`, or await it.

    Args:
        futures: futures from `ask`, `call`, `find` …, or from an executor.
        return_exceptions: put errors among the results. Otherwise the first error fails the
            returned future, and the other futures continue.

    Cancelling the returned future cancels all the given futures.

    Raises:
        WrongArgument: one argument is not a future.
    """
    return _Gathered(_checked(futures, "gather"), return_exceptions=return_exceptions)


class _Gathered(Future[list[Any]]):
    """The future of many results."""

    __slots__ = ("_parts", "_return_exceptions", "_waiting")

    def __init__(self, parts: list[AnyFuture], *, return_exceptions: bool) -> None:
        super().__init__()
        self._parts = parts
        self._return_exceptions = return_exceptions
        self._waiting = list(parts)
        for part in dict.fromkeys(parts):
            _on_done(part, self._part_done)
        if not parts:
            self.set_result([])

    def give_up(self) -> None:
        """Cancel all parts."""
        for part in self._parts:
            part.cancel()

    def _part_done(self, part: AnyFuture) -> None:
        """Record that a part is done. Can be called from any thread."""
        error = _error_of(part)
        if error is not None and not self._return_exceptions:
            self.set_exception(error)
        for _ in range(self._parts.count(part)):
            # Pop one entry for each occurrence of this part. Which entries are popped does not
            # matter, as only their number counts. Two threads may do this at the same time, and
            # only one of them pops the last entry.
            self._waiting.pop()
        if not self._waiting and not self.is_done:
            self.set_result([_error_of(part) or part.result() for part in self._parts])


class WaitedFutures(Generic[F]):
    """The result of `wait`: `done, not_done = wait(…)`; in coroutines `await wait(…)`."""

    def __init__(self, futures: list[F], over: Future[None]) -> None:
        self._futures = futures
        self._over = over
        #: The generator that a coroutine awaits; None after the wait.
        self.waiting: Generator[Any, None, object] | None = None

    @property
    def done(self) -> set[F]:
        """The completed futures."""
        self._refuse_unawaited()
        return {future for future in self._futures if future.done()}

    @property
    def not_done(self) -> set[F]:
        """The pending futures."""
        self._refuse_unawaited()
        return {future for future in self._futures if not future.done()}

    def __iter__(self) -> Iterator[set[F]]:
        done = self.done
        return iter((done, {future for future in self._futures if future not in done}))

    def __await__(self) -> Generator[Any, None, "WaitedFutures[F]"]:
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            yield from waiting
        return self

    def _refuse_unawaited(self) -> None:
        """Raise `WouldBlock` in a coroutine that has not awaited the result."""
        if self.waiting is not None:
            msg = "wait() here has to be awaited: done, not_done = await callboard.wait(…)"
            raise errors.WouldBlock(msg)


def wait(
    futures: Iterable[F],
    timeout: float | None = None,
    return_when: ReturnWhen = "ALL_COMPLETED",
) -> WaitedFutures[F]:
    """Wait until futures are done.

    A thread calls `done, not_done = wait(futures, 5)`, which blocks. A coroutine writes `done,
    not_done = await wait(futures, 5)`.

    Args:
        futures: futures from `ask`, `call`, `find` …, or from an executor.
        timeout: seconds to wait at most; None for no limit. Pending futures then continue.
        return_when: `ALL_COMPLETED`, `FIRST_COMPLETED`, or `FIRST_EXCEPTION` (all, unless one
            fails before).

    Raises:
        WrongArgument: an argument is not a future.
        WrongValue: `return_when` is not one of the three.
    """
    waited = list(dict.fromkeys(_checked(futures, "wait")))
    if return_when not in _RETURN_WHEN:
        msg = f"return_when={return_when!r:.80}: use one of {', '.join(_RETURN_WHEN)}"
        raise errors.WrongValue(msg)
    seconds = checked_limit(timeout)
    over: Future[None] = Future()
    left = list(waited)

    def record(part: AnyFuture) -> None:
        left.pop()
        is_first = return_when == "FIRST_COMPLETED"
        if not left or is_first or (return_when == "FIRST_EXCEPTION" and _error_of(part)):
            over.set_result(None)

    for future in waited:
        _on_done(future, record)
    if not waited:
        over.set_result(None)
    result = WaitedFutures(waited, over)
    if _may_block():
        _sleep_until(over, seconds)
        _forget(waited, record)
    else:
        result.waiting = _await_until(over, seconds, waited, record).__await__()
    return result


async def _await_until(
    over: Future[None], seconds: float | None, waited: Iterable[AnyFuture], record: Any
) -> None:
    """Await the end of a wait, and then remove the callbacks from the futures."""
    await _await_done(over, seconds)
    _forget(waited, record)


def as_completed(futures: Iterable[F], timeout: float | None = None) -> "Completed[F]":
    """Iterate over futures as they complete: `for` on a thread, `async for` in a coroutine.

    Args:
        futures: futures from `ask`, `call`, `find` …, or from an executor.
        timeout: seconds from now for all of the futures, after which `ResultTimeout` is raised.

    Raises:
        WrongArgument: an argument is not a future.
    """
    return Completed(_checked(futures, "as_completed"), checked_limit(timeout))


class Completed(Generic[F]):
    """Futures in the order of their completion, for one loop."""

    def __init__(self, futures: Iterable[F], timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout
        self._left = dict.fromkeys(futures)
        self._count = len(self._left)
        self._arrivals: DoneQueue[F] = DoneQueue()
        for future in list(self._left):
            _on_done(future, self._arrivals.put)

    def __iter__(self) -> Iterator[F]:
        while self._left:
            if not self._arrivals.done:
                _sleep_until(self._arrivals.next(), self._seconds())
            yield self._pop()

    def __aiter__(self) -> AsyncIterator[F]:
        return Items(self._next)

    async def _next(self) -> F:
        """Return the future that completes next."""
        if not self._left:
            raise StopAsyncIteration
        if not self._arrivals.done:
            await _await_done(self._arrivals.next(), self._seconds())
        return self._pop()

    def _seconds(self) -> float | None:
        """Return the seconds left; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def _pop(self) -> F:
        """Pop the future that completed first.

        Raises:
            ResultTimeout: no future completed in time.
        """
        if not self._arrivals.done:
            left = f"{len(self._left)} of {self._count} futures"
            msg = f"{left} were not done in time; they continue"
            raise errors.ResultTimeout(msg)
        future = self._arrivals.done.popleft()
        del self._left[future]
        return future


class DoneQueue(Generic[T]):
    """A queue of completed items, with a future for the next one."""

    def __init__(self) -> None:
        self.done: deque[T] = deque()
        self._next: Future[None] | None = None

    def put(self, future: T) -> None:
        """Append a completed item. Can be called from any thread."""
        self.done.append(future)
        if self._next is not None:
            self._next.set_result(None)

    def next(self) -> Future[None]:
        """Return a future that is done as soon as the queue has an item."""
        waiter = self._next = Future()
        if self.done:
            waiter.set_result(None)
        return waiter


class Answers(Generic[R]):
    """The answers to many asks in the order of the questions, with a limit of pending asks.

    Use `for`, `async for`, `await` (a list) or `.result(timeout)` (a list); one of them, once.
    The first error is raised, and the pending asks are cancelled.
    """

    def __init__(
        self, ask: Callable[[Any], Future[R]], items: Iterable[Any], limit: int
    ) -> None:
        checked_count(limit, "limit", least=1)
        argument: object = items
        if not isinstance(argument, Iterable) or isinstance(argument, str | bytes):
            msg = f"map() takes the messages to ask, as a list, not {safe_repr(items):.80}"
            raise errors.WrongArgument(msg)
        self._ask = ask
        self._items = iter(items)
        self._limit = limit
        #: Pending asks, and as many answers at most that wait for an earlier one.
        self._window: deque[Future[R]] = deque()
        self._busy = 0
        self._arrivals: DoneQueue[Future[R]] = DoneQueue()

    def __iter__(self) -> Iterator[R]:
        try:
            while self._fill():
                if not self._window[0].is_done:
                    _sleep_until(self._arrivals.next(), None)
                while self._window and self._window[0].is_done:
                    yield self._window.popleft().result()
        finally:
            self._cancel()

    def __aiter__(self) -> AsyncIterator[R]:
        return Items(self._next, self._cancel)

    async def _next(self) -> R:
        """Return the next answer."""
        while self._fill():
            if self._window[0].is_done:
                return self._next_answer()
            await self._arrivals.next()
        raise StopAsyncIteration

    def _next_answer(self) -> R:
        """Return the first answer, or raise its error, which ends the iteration."""
        try:
            return self._window.popleft().result()
        except BaseException:
            self._items = iter(())
            self._cancel()
            raise

    def __await__(self) -> Generator[Any, None, list[R]]:
        return self._all().__await__()

    def result(self, timeout: float | None = None) -> list[R]:
        """Return all answers.

        Raises:
            ResultTimeout: not all arrived in time; the pending asks were cancelled.
        """
        seconds = checked_limit(timeout)
        end = None if seconds is None else time.monotonic() + seconds
        answers: list[R] = []
        try:
            while self._fill():
                left = None if end is None else max(0.0, end - time.monotonic())
                answers.append(self._window[0].result(left))
                self._window.popleft()
        finally:
            self._cancel()
        return answers

    async def _all(self) -> list[R]:
        """Return all answers as a list."""
        try:
            return [answer async for answer in self]
        finally:
            self._cancel()

    def _fill(self) -> bool:
        """Send asks up to the limit; return whether answers are outstanding."""
        arrived = self._arrivals.done
        while arrived:
            arrived.popleft()
            self._busy -= 1
        while self._busy < self._limit and len(self._window) < 2 * self._limit:
            try:
                item = next(self._items)
            except StopIteration:
                break
            future = self._ask(item)
            self._busy += 1
            self._window.append(future)
            future.on_done(self._arrivals.put)
        return bool(self._window)

    def _cancel(self) -> None:
        """Cancel the pending asks."""
        while self._window:
            self._window.popleft().cancel()


def _checked(futures: Iterable[F], call: str) -> list[F]:
    """Return futures as a list.

    Raises:
        WrongArgument: an item is not a future, or the argument is not a collection.
    """
    argument: object = futures
    if isinstance(argument, Future | concurrent.futures.Future) or not isinstance(
        argument, Iterable
    ):
        msg = f"{call}() takes several futures: {call}([first, second])"
        raise errors.WrongArgument(msg)
    checked = list(futures)
    anything: list[object] = [*checked]
    for item in anything:
        if not isinstance(item, Future | concurrent.futures.Future):
            msg = (
                f"{call}() takes futures, as ask() and an executor's submit() return them, not "
                f"{safe_repr(item):.80}; coroutines and asyncio's tasks go to asyncio.{call}()"
            )
            raise errors.WrongArgument(msg)
    return checked


def _on_done(future: AnyFuture, callback: Callable[[Any], object]) -> None:
    """Call `callback` on the thread that completes a future, or now if the future is done."""
    if isinstance(future, Future):
        future.on_done(callback)
    else:
        future.add_done_callback(callback)


def _forget(futures: Iterable[AnyFuture], callback: Callable[[Any], object]) -> None:
    """Remove callbacks that were not called; `concurrent.futures` cannot remove any."""
    for future in futures:
        if isinstance(future, Future):
            future.remove_done_callback(callback)


def _error_of(future: AnyFuture) -> BaseException | None:
    """Return the error of a completed future; asyncio's `CancelledError` if cancelled."""
    return asyncio.CancelledError() if future.cancelled() else future.exception()


def _may_block() -> bool:
    """Return whether the running code may block its thread."""
    try:
        refuse_endless_wait()
    except (errors.WouldBlock, errors.WouldDeadlock):
        return False
    return True


async def _await_done(over: Future[None], seconds: float | None) -> None:
    """Await a future until it is done or the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over


def _sleep_until(over: Future[None], seconds: float | None) -> None:
    """Block this thread until a future is done or the time is over."""
    with contextlib.suppress(errors.ResultTimeout):
        over.result(seconds)
