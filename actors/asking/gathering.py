"""Waiting for many futures, ours and those of `concurrent.futures`, on threads or awaited."""

import asyncio
import concurrent.futures
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Any, Final, Generic, Literal, TypeVar

from callboard.actors import errors
from callboard.actors.future import Future, refuse_endless_wait
from callboard.actors.seconds import count as checked_count
from callboard.actors.seconds import limit as checked_limit
from callboard.support.items import Items
from callboard.support.text import safe_repr

#: What can be waited for.
AnyFuture = Future[Any] | concurrent.futures.Future[Any]

F = TypeVar("F", bound=AnyFuture)
R = TypeVar("R")
T = TypeVar("T")

ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]

_RETURN_WHEN: Final = ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION")


def gather(*futures: AnyFuture, return_exceptions: bool = False) -> Future[list[Any]]:
    """Return a future of all results, in the order of the futures: `.result(t)`, or await it.

    Args:
        futures: from `ask`, `call`, `find` …, or an executor's.
        return_exceptions: put errors among the results. Else it fails with the first one, and
            the others go on.

    To cancel it cancels all of them.

    Raises:
        WrongArgument: one is no future.
    """
    return _Gathered(_checked(futures, "gather"), return_exceptions=return_exceptions)


class _Gathered(Future[list[Any]]):
    """The results of many."""

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
        """Cancel all."""
        for part in self._parts:
            part.cancel()

    def _part_done(self, part: AnyFuture) -> None:
        """Take note of one that is done; any thread."""
        error = _error_of(part)
        if error is not None and not self._return_exceptions:
            self.set_exception(error)
        for _ in range(self._parts.count(part)):
            self._waiting.pop()  # each takes its own away, so the last one sees none left
        if not self._waiting and not self.is_done:
            self.set_result([_error_of(each) or each.result() for each in self._parts])


class WaitedFutures(Generic[F]):
    """What `wait` returns: `done, not_done = wait(…)`, and in coroutines `await wait(…)`."""

    def __init__(self, futures: list[F], over: Future[None]) -> None:
        self._futures = futures
        self._over = over
        #: Makes the wait of a coroutine.
        self.waiting: Generator[Any, None, object] | None = None

    @property
    def done(self) -> set[F]:
        """The futures that are done."""
        self._refuse_unawaited()
        return {future for future in self._futures if future.done()}

    @property
    def not_done(self) -> set[F]:
        """The futures that are not."""
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
        if self.waiting is not None:
            msg = "wait() here has to be awaited: done, not_done = await callboard.wait(…)"
            raise errors.WouldBlock(msg)


def wait(
    futures: Iterable[F],
    timeout: float | None = None,
    return_when: ReturnWhen = "ALL_COMPLETED",
) -> WaitedFutures[F]:
    """Wait until futures are done: a thread in the call, a coroutine with `await`.

    `done, not_done = wait(futures, 5)`, or `done, not_done = await wait(futures, 5)`.

    Args:
        futures: from `ask`, `call`, `find` …, or an executor's.
        timeout: seconds to wait at most; None for no limit. What is not done then goes on.
        return_when: `ALL_COMPLETED`, `FIRST_COMPLETED`, or `FIRST_EXCEPTION` (all, unless one
            fails before).

    Raises:
        WrongArgument: one is no future.
        WrongValue: `return_when` is none of those.
    """
    waited = list(dict.fromkeys(_checked(futures, "wait")))
    if return_when not in _RETURN_WHEN:
        msg = f"return_when={return_when!r:.80}: use one of {', '.join(_RETURN_WHEN)}"
        raise errors.WrongValue(msg)
    seconds = checked_limit(timeout)
    over: Future[None] = Future()
    left = list(waited)

    def note(part: AnyFuture) -> None:
        left.pop()
        is_first = return_when == "FIRST_COMPLETED"
        if not left or is_first or (return_when == "FIRST_EXCEPTION" and _error_of(part)):
            over.set_result(None)

    for each in waited:
        _on_done(each, note)
    if not waited:
        over.set_result(None)
    result = WaitedFutures(waited, over)
    if _may_block():
        _sleep_until(over, seconds)
        _forget(waited, note)
    else:
        result.waiting = _await_until(over, seconds, waited, note).__await__()
    return result


async def _await_until(
    over: Future[None], seconds: float | None, waited: Iterable[AnyFuture], note: Any
) -> None:
    await _await_done(over, seconds)
    _forget(waited, note)


def as_completed(futures: Iterable[F], timeout: float | None = None) -> "Completed[F]":
    """Iterate over futures as they are done, `for` on a thread and `async for` in a coroutine.

    Args:
        futures: from `ask`, `call`, `find` …, or an executor's.
        timeout: seconds from now for all of them; then `ResultTimeout` is raised.

    Raises:
        WrongArgument: one is no future.
    """
    return Completed(_checked(futures, "as_completed"), checked_limit(timeout))


class Completed(Generic[F]):
    """Futures in the order in which they are done; for one loop."""

    def __init__(self, futures: Iterable[F], timeout: float | None) -> None:
        self._end = None if timeout is None else time.monotonic() + timeout
        self._left = dict.fromkeys(futures)
        self._count = len(self._left)
        self._arrivals: DoneQueue[F] = DoneQueue()
        for future in list(self._left):
            _on_done(future, self._arrivals.note)

    def __iter__(self) -> Iterator[F]:
        while self._left:
            if not self._arrivals.done:
                _sleep_until(self._arrivals.next(), self._seconds())
            yield self._take()

    def __aiter__(self) -> AsyncIterator[F]:
        return Items(self._next)

    async def _next(self) -> F:
        if not self._left:
            raise StopAsyncIteration
        if not self._arrivals.done:
            await _await_done(self._arrivals.next(), self._seconds())
        return self._take()

    def _seconds(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def _take(self) -> F:
        """Take the one that was done first.

        Raises:
            ResultTimeout: there is none in time.
        """
        if not self._arrivals.done:
            msg = f"{len(self._left)} of {self._count} futures are not done in time; they go on"
            raise errors.ResultTimeout(msg)
        future = self._arrivals.done.popleft()
        del self._left[future]
        return future


class DoneQueue(Generic[T]):
    """What was done lately, and a future of the next one."""

    def __init__(self) -> None:
        self.done: deque[T] = deque()
        self._next: Future[None] | None = None

    def note(self, future: T) -> None:
        """Take one that is done; from any thread."""
        self.done.append(future)
        if self._next is not None:
            self._next.set_result(None)

    def next(self) -> Future[None]:
        """Return a future that is done when there is one."""
        waiter = self._next = Future()
        if self.done:
            waiter.set_result(None)
        return waiter


class Answers(Generic[R]):
    """The answers to many asks, in the order of the questions, so many under way at once.

    `for`, `async for`, `await` (a list) or `.result(timeout)` (a list); for one of them, once.
    The first error is raised, and what is under way then is cancelled.
    """

    def __init__(
        self, ask: Callable[[Any], Future[R]], items: Iterable[Any], limit: int
    ) -> None:
        checked_count(limit, "limit", least=1)
        given: object = items
        if not isinstance(given, Iterable) or isinstance(given, str | bytes):
            msg = f"map() takes the messages to ask, as a list, not {safe_repr(items):.80}"
            raise errors.WrongArgument(msg)
        self._ask = ask
        self._items = iter(items)
        self._limit = limit
        #: Answers that wait for an earlier one are as many again, and no more.
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
        while self._fill():
            if self._window[0].is_done:
                return self._next_answer()
            await self._arrivals.next()
        raise StopAsyncIteration

    def _next_answer(self) -> R:
        """Return the first answer, or raise its error, which ends it."""
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
            ResultTimeout: they are not there in time; what is under way was cancelled.
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
        try:
            return [answer async for answer in self]
        finally:
            self._cancel()

    def _fill(self) -> bool:
        """Ask as much as may be under way; returns whether answers are to come."""
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
            future.on_done(self._arrivals.note)
        return bool(self._window)

    def _cancel(self) -> None:
        """Give up what is under way."""
        while self._window:
            self._window.popleft().cancel()


def _checked(futures: Iterable[F], call: str) -> list[F]:
    """Return futures as a list.

    Raises:
        WrongArgument: one is none, or they are no list.
    """
    given: object = futures
    if isinstance(given, Future | concurrent.futures.Future) or not isinstance(given, Iterable):
        msg = f"{call}() takes several futures: {call}([first, second])"
        raise errors.WrongArgument(msg)
    checked = list(futures)
    anything: list[object] = [*checked]
    for each in anything:
        if not isinstance(each, Future | concurrent.futures.Future):
            msg = (
                f"{call}() takes futures, as ask() and an executor's submit() return them, not "
                f"{safe_repr(each):.80}; coroutines and asyncio's tasks go to asyncio.{call}()"
            )
            raise errors.WrongArgument(msg)
    return checked


def _on_done(future: AnyFuture, callback: Callable[[Any], object]) -> None:
    """Call back on the thread that completes a future; at once if it is done."""
    if isinstance(future, Future):
        future.on_done(callback)
    else:
        future.add_done_callback(callback)


def _forget(futures: Iterable[AnyFuture], callback: Callable[[Any], object]) -> None:
    """Take callbacks back that were not called; `concurrent.futures` cannot."""
    for future in futures:
        if isinstance(future, Future):
            future.remove_done_callback(callback)


def _error_of(future: AnyFuture) -> BaseException | None:
    """Return the error of a future that is done; a cancelled one has asyncio's."""
    return asyncio.CancelledError() if future.cancelled() else future.exception()


def _may_block() -> bool:
    """Return whether the code that runs here may block its thread."""
    try:
        refuse_endless_wait()
    except (errors.WouldBlock, errors.WouldDeadlock):
        return False
    return True


async def _await_done(over: Future[None], seconds: float | None) -> None:
    """Await a future until it is done, or the time is over."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over


def _sleep_until(over: Future[None], seconds: float | None) -> None:
    """Block this thread until a future is done, or the time is over."""
    with contextlib.suppress(errors.ResultTimeout):
        over.result(seconds)
