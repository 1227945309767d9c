"""A thread that works for a node, and handles all waiting items as one group.

Calls of a database block, so each database has a thread. Groups make commits cheap: all changes
that were added while the thread committed share the next transaction.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from callboard import locks
from callboard.support import after_fork

T = TypeVar("T")


def call_all(calls: Iterable[Callable[[], object]]) -> None:
    """Call some functions in their order, for workers whose items are calls."""
    for call in calls:
        call()


class GroupWorker(Generic[T]):
    """A thread with a queue of items."""

    def __init__(
        self,
        name: str,
        handle: Callable[[deque[T]], object],
        tick: Callable[[], float | None] | None = None,
    ) -> None:
        """Start the thread.

        Args:
            name: name of the thread.
            handle: called on the thread with all waiting items, at least one.
            tick: called on the thread after each group, and when its time has passed; returns
                the seconds until the next call, or None to wait for items only.
        """
        self._handle, self._tick = handle, tick
        self._waiting: deque[T] = deque()
        self._changed = locks.condition("items of a worker", 590)
        self._is_closing = False
        after_fork.register(self)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, item: T) -> None:
        """Queue an item; may be called from any thread, and never blocks."""
        with self._changed:
            self._waiting.append(item)
            self._changed.notify()

    def close(self) -> None:
        """Handle the queued items, and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        """Handle groups until the worker is closed."""
        pause: float | None = None
        while True:
            with self._changed:
                if not self._waiting and not self._is_closing:
                    self._changed.wait(pause)
                group, self._waiting = self._waiting, deque()
                is_closing = self._is_closing
            if group:
                self._handle(group)
            elif is_closing:
                return
            if self._tick is not None and not is_closing:
                pause = self._tick()
