"""A future whose value belongs to the waiter from its arrival on, such as a job of a queue.

An ordinary answer that arrives while its waiter is cancelled may be dropped. A value that is
owned may not: it would belong to a waiter that never learns of it. So it is given back unless
it was **fetched**: returned by `await` or by `result()`. It is given back when

- the future is cancelled after the value has arrived and before it was fetched. asyncio cancels
  in this way: `wait_for` and `timeout` cancel the future when their time is over, and the task
  that awaits it may not have run since the value arrived.
- the `await` is interrupted by an exception.
- the future is dropped.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

from callboard import locks
from callboard.actors.future import Future

T = TypeVar("T")

#: Decides between an arrival, a cancellation and a fetch; held for a few operations. Reentrant:
#: the collector may run the finalizer of one future while this thread changes another.
_LOCK: Final = locks.lock("owned futures", 965, reentrant=True)


class OwnedFuture(Future[T]):
    """A future that gives its value back unless it is fetched."""

    __slots__ = ("_give_back", "_holds")

    def __init__(self, asked: object, give_back: Callable[[T], object]) -> None:
        """Make a pending future.

        Args:
            asked: the ref whose answer it stands for.
            give_back: called with a value that the waiter does not get; from any thread, also
                from a finalizer, so it has to be quick and must not block.
        """
        super().__init__(asked)
        self._give_back = give_back
        #: Whether it has a value that was not fetched.
        self._holds = False

    def set_result(self, value: T) -> bool:
        """Store the value; False (and no effect) when there was an outcome."""
        with _LOCK:
            if self.is_done:
                return False
            self._value, self._error = value, None
            self._holds = self.is_done = True
        self._wake_waiters()
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Store an error as the outcome; False (and no effect) when there was an outcome."""
        with _LOCK:
            if self.is_done:
                return False
            self._error = error
            self.is_done = True
        self._wake_waiters()
        return True

    def cancel(self, msg: object = None) -> bool:
        """Give the wait up; a value that arrived and was not fetched is given back.

        Returns False when it had an outcome that the waiter knows.
        """
        if super().cancel(msg):
            return True
        return self._return_value(*(() if msg is None else (msg,)))

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value, fetch and return it, or raise the error."""
        if not self.is_done:
            self._wait(timeout)
        self._fetch()
        return super().result(timeout)

    def as_concurrent(self) -> "concurrent.futures.Future[T]":
        """Return a future of `concurrent.futures`, which has the value from its arrival on."""
        twin = super().as_concurrent()

        def fetched(_: object) -> None:
            if twin.done() and not twin.cancelled():
                self._fetch()

        self.on_done(fetched)
        return twin

    def __await__(self) -> Generator[Any, None, T]:
        try:
            yield from super().__await__()
        except BaseException:
            self._return_value("the await was interrupted")
            raise
        self._fetch()
        if self._error is not None:  # it was cancelled just now
            raise self._error
        return self._value

    def __del__(self) -> None:
        """Give back what was not fetched.

        Without the lock: no other thread has the future any more, and the collector may run
        this while the thread holds a lock that may not be held when this one is taken.
        """
        if self._holds:
            self._holds = False
            self._give_back(self._value)

    def _wake_waiters(self) -> None:
        if self._task is not None:
            self._task.wake(self)
        if self._callbacks is not None:
            self._run_callbacks()

    def _fetch(self) -> None:
        """Let the value be the waiter's."""
        with _LOCK:
            self._holds = False

    def _return_value(self, *why: object) -> bool:
        """Give back a value that was not fetched; False if there is none.

        Whoever asks for the outcome later finds the future cancelled.
        """
        with _LOCK:
            if not self._holds:
                return False
            self._holds = False
            self._error = asyncio.CancelledError(*why)
        self._give_back(self._value)
        return True
