"""A future whose value belongs to the waiter from its arrival on, such as a job of a queue.

An ordinary answer that arrives while its waiter is cancelled may be dropped. An owned value may
not, because it would belong to a waiter that never receives it. So it is given back unless it
was **fetched**, that is, returned by `await` or by `result()`. It is given back when

- the future is cancelled between the arrival of the value and the fetch. asyncio does this:
  `wait_for` and `timeout` cancel the future when their time is over, and the task that awaits
  it may not have run since the value arrived.
- an exception interrupts the `await`.
- the future is garbage-collected.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Generator
from typing import Any, ClassVar, Final, TypeVar

from callboard import locks
from callboard.actors.future import Future

T = TypeVar("T")

#: Orders arrival, cancellation and fetch; held for a few operations. Reentrant, because the
#: collector may run the finalizer of one future while this thread changes another.
_LOCK: Final = locks.lock("owned futures", 965, reentrant=True)


class OwnedFuture(Future[T]):
    """A future that gives its value back unless it is fetched."""

    __slots__ = ("_give_back", "_holds")

    is_idle: ClassVar[bool] = True

    def __init__(self, asked: object, give_back: Callable[[T], object]) -> None:
        """Create a pending future.

        Args:
            asked: the ref that the value comes from.
            give_back: called with a value that the waiter does not receive. It is called from
                any thread, even from a finalizer, so it must be quick and must not block.
        """
        super().__init__(asked)
        self._give_back = give_back
        #: Whether there is a value that was not fetched.
        self._holds = False

    def set_result(self, value: T) -> bool:
        """Store the value; return False, without effect, if there was an outcome."""
        with _LOCK:
            if self.is_done:
                return False
            self._value, self._error = value, None
            self._holds = self.is_done = True
        self._wake_waiters()
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Store an error as the outcome; return False, without effect, if there was one."""
        with _LOCK:
            if self.is_done:
                return False
            self._error = error
            self.is_done = True
        self._wake_waiters()
        return True

    def cancel(self, msg: object = None) -> bool:
        """Cancel the wait; a value that was not fetched is given back.

        Returns False if there was an outcome that the waiter has received.
        """
        if super().cancel(msg):
            return True
        return self._return_value(*(() if msg is None else (msg,)))

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value, and fetch and return it, or raise the error."""
        if not self.is_done:
            self._wait(timeout)
        self._fetch()
        return super().result(timeout)

    def as_concurrent(self) -> "concurrent.futures.Future[T]":
        """Return a future of `concurrent.futures` that owns the value from its arrival on."""
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
        if self._error is not None:  # it was cancelled just before the fetch
            raise self._error
        return self._value

    def __del__(self) -> None:
        """Return an unfetched value to its source.

        Without the lock: no other thread has this future now, and the collector may run
        this while the thread holds a lock of a higher rank.
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
        """Transfer the value to the waiter."""
        with _LOCK:
            self._holds = False

    def _return_value(self, *reason: object) -> bool:
        """Return an unfetched value to its source; return False without one.

        Later reads of the outcome raise `CancelledError`.
        """
        with _LOCK:
            if not self._holds:
                return False
            self._holds = False
            self._error = asyncio.CancelledError(*reason)
        self._give_back(self._value)
        return True
