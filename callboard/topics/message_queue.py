"""The queue of a subscriber, between a node and a thread or task of the user.

The node appends runs of messages and never waits. A reading thread sleeps until the node wakes
it; in event loops and simulations, a reader waits for a future. A queue that is no longer read
must not exhaust the memory: above a limit, the oldest messages are dropped and counted.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

from callboard import locks
from callboard.arguments import limit
from callboard.closing import refuse_held_locks
from callboard.kernel.errors import NodeClosed, ResultTimeout
from callboard.kernel.reply import Future, refuse_endless_wait, waiting
from callboard.support import after_fork
from callboard.support.reentry import PATIENCE, WouldDeadlock

T = TypeVar("T")

#: Messages in one queue: some 100 MB of small ones.
QUEUE_LIMIT: Final = 262_144


class _Sleeper:
    """A waiting thread; has the interface of a future, and is much cheaper."""

    __slots__ = ("_woken",)

    def __init__(self) -> None:
        self._woken = threading.Lock()
        self._woken.acquire()

    def set_result(self, _: None) -> None:
        """Wake the thread; called once."""
        self._woken.release()

    def sleep(self, timeout: float) -> bool:
        """Wait until woken; return False after the timeout."""
        return self._woken.acquire(timeout=min(timeout, threading.TIMEOUT_MAX))


_Waiter = Future[None] | _Sleeper


class MessageQueue(Generic[T]):
    """Messages in the order of their arrival, with one writer and any number of readers.

    Messages are counted, but not measured, so each append and removal is one call of a deque:
    0.02 µs for each message, of the 0.4 to 1.5 µs that a receiver needs. A `BoundedQueue` would
    take 0.12 µs.
    """

    def __init__(
        self, limit: int = QUEUE_LIMIT, on_drop: Callable[[int], object] | None = None
    ) -> None:
        """Create an empty queue.

        Args:
            limit: maximum number of messages; above it the oldest are dropped.
            on_drop: called with the number of messages that were just dropped.
        """
        self.limit = limit
        #: Number of messages dropped because they were not read in time.
        self.dropped = 0
        self._on_drop = on_drop
        self._items: deque[T] = deque()
        self._lock = locks.lock("message queue", 440)
        self._waiters: deque[_Waiter] = deque()
        #: The ends of a pipe that is readable while the queue has messages; created by `fd`.
        self._pipe: tuple[int, int] | None = None
        self._is_marked = False
        self._closed = False
        after_fork.register(self, MessageQueue._leave_process)

    # --- the node's side ---

    def take(self, items: list[T]) -> None:
        """Append a run of messages, and wake the readers."""
        queue = self._items
        queue.extend(items)
        if len(queue) > self.limit:
            self._drop_oldest()
        if self._waiters or self._pipe is not None:
            self._wake_readers()

    def put_back(self, items: list[T]) -> None:
        """Return messages that a reader has taken but not processed to the front."""
        self._items.extendleft(reversed(items))
        if items:
            self._wake_readers()

    def _drop_oldest(self) -> None:
        """Drop the oldest messages until the limit is met, and count them."""
        dropped = 0
        while len(self._items) > self.limit:
            self._items.popleft()
            dropped += 1
        self.dropped += dropped
        if self._on_drop is not None:
            self._on_drop(dropped)

    def _wake_readers(self) -> None:
        """Wake all waiting readers, and make the file descriptor readable."""
        with self._lock:
            self._mark()
            waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.set_result(None)

    # --- the reader's side ---

    def available(self) -> int:
        """Return the number of messages in the queue."""
        return len(self._items)

    def poll(self) -> list[T]:
        """Return all messages in the queue without waiting."""
        messages: list[T] = []
        items = self._items
        while items:
            messages.append(items.popleft())
        self._unmark()
        return messages

    def pop(self) -> T:
        """Return the next message.

        Raises:
            IndexError: the queue is empty.
        """
        item = self._items.popleft()
        if self._is_marked:
            self._unmark()
        return item

    def get(self, timeout: float | None = None) -> T | None:
        """Return the next message; None if none arrives within `timeout` seconds.

        Raises:
            InvalidSeconds: the timeout is invalid.
            WouldBlock: called on the thread of a running event loop.
            WouldDeadlock: called in a handler, which would block its node, or inside another
                call of callboard on the same thread.
            EOFError: the queue was closed and is empty.
        """
        timeout = limit(timeout)
        is_simulated = waiting.get() is not None
        deadline = math.inf if timeout is None or is_simulated else time.monotonic() + timeout
        while True:
            try:
                return self.pop()
            except IndexError:
                pass
            # After a wake-up, another reader may take the message first; then this one retries.
            if not (self._wait_by_future(timeout) if is_simulated else self._sleep(deadline)):
                return None

    def _sleep(self, deadline: float) -> bool:
        """Block the thread until a message arrives; return False after the deadline."""
        refuse_endless_wait()
        if locks.is_owned(self._lock):
            refuse_held_locks("get()")
        sleeper = _Sleeper()
        if not self._enter(sleeper):
            return True
        left = max(deadline - time.monotonic(), 0.0) if deadline < math.inf else deadline
        if sleeper.sleep(min(left, PATIENCE)):
            return True
        if left > PATIENCE:
            try:
                refuse_held_locks("get()")
            except WouldDeadlock:
                self._leave(sleeper)
                raise
            if sleeper.sleep(left - PATIENCE):
                return True
        self._leave(sleeper)
        return bool(self._items)

    def _wait_by_future(self, timeout: float | None) -> bool:
        """Wait for a message with a future, as in a simulation; False after the timeout."""
        future: Future[None] = Future()
        if self._enter(future):
            try:
                future.result(timeout)
            except ResultTimeout:
                self._leave(future)
                return False
        return True

    async def aget(self) -> T:
        """Return the next message, waiting for it on any event loop.

        Raises:
            EOFError: the queue was closed and is empty.
        """
        while True:
            try:
                return self.pop()
            except IndexError:
                pass
            future: Future[None] = Future()
            if self._enter(future):
                try:
                    await future
                except BaseException:  # the reader was cancelled
                    self._leave(future)
                    raise

    def fd(self) -> int:
        """Return a file descriptor for `select` that is readable while there are messages."""
        with self._lock:
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
                self._mark()
            return self._pipe[0]

    def close(self) -> None:
        """Close the queue and wake all readers; remaining messages can still be read."""
        with self._lock:
            self._closed = True
            waiters, self._waiters = self._waiters, deque()
            pipe, self._pipe = self._pipe, None
        for waiter in waiters:
            waiter.set_result(None)
        for end in pipe or ():
            os.close(end)

    def _leave_process(self) -> None:
        """Clear the copy in a forked process, where messages do not arrive."""
        after_fork.drop(*(self._pipe or ()))
        self._items.clear()

    def _enter(self, waiter: _Waiter) -> bool:
        """Register a waiter for the next message; return False if one is available.

        Raises:
            NodeClosed: this is a copy in a forked process.
            EOFError: the queue was closed and is empty.
        """
        with self._lock:
            if self._items:
                return False
            if after_fork.is_copy(self):
                raise NodeClosed(after_fork.refusal("the subscriber", "make another one here"))
            if self._closed:
                msg = "the subscriber was closed"
                raise EOFError(msg)
            self._waiters.append(waiter)
            return True

    def _leave(self, waiter: _Waiter) -> None:
        """Remove a waiter that gave up."""
        with self._lock, suppress(ValueError):
            self._waiters.remove(waiter)

    def _mark(self) -> None:
        """Make the descriptor readable; the caller holds the lock."""
        if self._pipe is not None and self._items and not self._is_marked:
            os.write(self._pipe[1], b"x")
            self._is_marked = True

    def _unmark(self) -> None:
        with self._lock:
            if self._is_marked and not self._items and self._pipe is not None:
                os.read(self._pipe[0], 1)
                self._is_marked = False
