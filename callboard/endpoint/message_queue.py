"""A queue between a node and a thread or task of the user: what subscribers read from.

The node appends runs and never waits. Whoever reads waits by future, so that the same code
serves threads, event loops and simulations. A reader that has ended or forgotten its queue
must not eat the machine's memory: beyond a limit the oldest messages are dropped, and counted.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from actors.errors import ResultTimeout
from actors.future import Future

__all__ = ["QUEUE_LIMIT", "MessageQueue"]

T = TypeVar("T")

QUEUE_LIMIT: Final = 262_144
"""Messages that wait for one reader; of small ones some 100 MB."""


class MessageQueue(Generic[T]):
    """Messages in the order in which they came. One side appends, any number may read."""

    def __init__(
        self, limit: int = QUEUE_LIMIT, on_drop: Callable[[int], object] | None = None
    ) -> None:
        """Make an empty queue.

        Args:
            limit: messages that may wait; older ones are dropped beyond it.
            on_drop: called with the number of messages that were dropped just then.
        """
        self.limit = limit
        #: Messages that were dropped because nobody read them.
        self.dropped = 0
        self._on_drop = on_drop
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._waiters: deque[Future[None]] = deque()
        #: The ends of a pipe that is readable while messages wait; made by `fd`.
        self._pipe: tuple[int, int] | None = None
        self._is_marked = False
        self._closed = False

    # --- the node's side ---

    def take(self, items: list[T]) -> None:
        """Append a run."""
        queue = self._items
        queue.extend(items)
        if len(queue) > self.limit:
            self._drop_oldest()
        if self._waiters or self._pipe is not None:
            self._tell_readers()

    def _drop_oldest(self) -> None:
        dropped = 0
        while len(self._items) > self.limit:
            self._items.popleft()
            dropped += 1
        self.dropped += dropped
        if self._on_drop is not None:
            self._on_drop(dropped)

    def _tell_readers(self) -> None:
        with self._lock:
            self._mark()
            waiters, self._waiters = self._waiters, deque()
        for waiter in waiters:
            waiter.set_result(None)

    # --- the reader's side ---

    def available(self) -> int:
        """Return how many messages wait."""
        return len(self._items)

    def poll(self) -> list[T]:
        """Return all messages that wait, without waiting for more."""
        found: list[T] = []
        items = self._items
        while items:
            found.append(items.popleft())
        self._unmark()
        return found

    def get(self, timeout: float | None = None) -> T | None:
        """Return the next message; None when none came within `timeout` seconds.

        Raises:
            WouldBlock: called on the thread of a running event loop.
            WouldDeadlock: called in a handler, whose node would stand still.
            EOFError: the queue was closed and is empty.
        """
        try:
            item = self._items.popleft()
        except IndexError:
            waiter = self._waiter()
            if waiter is not None:
                try:
                    waiter.result(timeout)
                except ResultTimeout:
                    return None
            # Another reader may have been quicker: then this one has waited for nothing.
            return self.get(timeout)
        if self._is_marked:
            self._unmark()
        return item

    async def aget(self) -> T:
        """Return the next message when there is one; to be awaited on any event loop.

        Raises:
            EOFError: the queue was closed and is empty.
        """
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                waiter = self._waiter()
                if waiter is not None:
                    await waiter
                continue
            if self._is_marked:
                self._unmark()
            return item

    def fd(self) -> int:
        """Return a file descriptor that is readable while messages wait, for `select`."""
        with self._lock:
            if self._pipe is None:
                self._pipe = os.pipe()
                for end in self._pipe:
                    os.set_blocking(end, False)
                self._mark()
            return self._pipe[0]

    def close(self) -> None:
        """Wake whoever waits; what is there can still be read."""
        with self._lock:
            self._closed = True
            waiters, self._waiters = self._waiters, deque()
            pipe, self._pipe = self._pipe, None
        for waiter in waiters:
            waiter.set_result(None)
        for end in pipe or ():
            os.close(end)

    def _waiter(self) -> Future[None] | None:
        """Return what to wait for, or None if there is something already."""
        with self._lock:
            if self._items:
                return None
            if self._closed:
                msg = "the subscriber was closed"
                raise EOFError(msg)
            waiter: Future[None] = Future()
            self._waiters.append(waiter)
            return waiter

    def _mark(self) -> None:
        """Make the descriptor readable; with the lock held."""
        if self._pipe is not None and self._items and not self._is_marked:
            os.write(self._pipe[1], b"x")
            self._is_marked = True

    def _unmark(self) -> None:
        with self._lock:
            if self._is_marked and not self._items and self._pipe is not None:
                os.read(self._pipe[0], 1)
                self._is_marked = False
