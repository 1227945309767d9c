"""What tells a runner which sockets are ready, and what wakes it from its poll.

A runner polls once for each message of a sequential exchange, so what one poll costs is part of
every answer. `RunnerPoller` takes half the time of the class that it stands for.
"""

import os
import select
import selectors
from typing import Any, Final, NoReturn

from callboard.actors.runner import contention
from callboard.support import after_fork

#: Events that one poll tells of; the next one tells of the rest.
MOST_EVENTS: Final = 256


if hasattr(select, "epoll"):  # not on macOS
    _READ_ALONE: Final = select.EPOLLIN

    class RunnerPoller(selectors.EpollSelector):
        """An epoll selector that keeps what a poll needs at hand."""

        def __init__(self) -> None:
            super().__init__()
            self._epoll: select.epoll = self._selector  # type: ignore[attr-defined]
            # The same dictionary that `get_map` leads to, for look-ups without two calls.
            self._keys: dict[int, selectors.SelectorKey] = self._fd_to_key  # type: ignore[attr-defined]

        def register(
            self, fileobj: Any, events: int, data: Any = None
        ) -> selectors.SelectorKey:
            """Watch a file; a descriptor that is read, as of a connection, goes a short way."""
            keys, is_read = self._keys, events == selectors.EVENT_READ
            if not is_read or type(fileobj) is not int or fileobj in keys:
                return super().register(fileobj, events, data)
            self._epoll.register(fileobj, _READ_ALONE)
            # A named tuple's own constructor is a function of Python, and costs as much again.
            fields = fileobj, fileobj, events, data
            key = keys[fileobj] = tuple.__new__(selectors.SelectorKey, fields)
            return key

        def select(
            self, timeout: float | None = None
        ) -> list[tuple[selectors.SelectorKey, int]]:
            """Wait for at most `timeout` seconds, rounded up to milliseconds."""
            keys = self._keys
            found = []
            for descriptor, events in self._epoll.poll(timeout, MOST_EVENTS):
                key = keys.get(descriptor)
                if key is not None:
                    if events == _READ_ALONE:
                        mask = selectors.EVENT_READ
                    else:
                        mask = contention.mask_of(events)
                    found.append((key, mask & key.events))
            return found


def best_selector() -> selectors.BaseSelector:
    """Return a poller of this system's best kind."""
    return RunnerPoller() if hasattr(select, "epoll") else selectors.DefaultSelector()


def drop_poller(selector: selectors.BaseSelector) -> None:
    """Drop the poller that a forked process shares with its parent.

    What this process would add to it or remove from it, the parent would see.
    """
    if isinstance(selector, selectors.EpollSelector):  # others hold no descriptor of their own
        after_fork.drop(selector)


class NoSelector(selectors.SelectSelector):
    """The selector of a copied runner: the thread that polls ends."""

    def select(self, timeout: float | None = None) -> NoReturn:
        """End the thread."""
        raise SystemExit(1)


class WakeUp:
    """A pipe that ends the poll of a runner from any thread."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._selector.register(self._read, selectors.EVENT_READ, self._woken)

    def leave(self) -> None:
        """Drop the pipe, which a forked process shares with its parent."""
        after_fork.drop(self._read, self._write)

    def ring(self) -> None:
        """End the current poll, or the next one."""
        try:
            contention.write(self._write, b"w")
        except OSError:  # full: it is awake anyway
            pass

    def close(self) -> None:
        """Free the pipe."""
        self._selector.unregister(self._read)
        os.close(self._read)
        os.close(self._write)

    def _woken(self, _: int) -> None:
        """Empty the pipe."""
        try:
            contention.read(self._read, 4096)
        except BlockingIOError:
            pass
