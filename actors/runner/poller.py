"""The poller of a runner, and the pipe that interrupts its poll.

A runner polls once for each message of a sequential exchange, so the cost of a poll is part of
every answer. `RunnerPoller` takes half the time of its base class.
"""

import os
import select
import selectors
from typing import Any, Final, NoReturn

from callboard.actors.runner import contention
from callboard.support import after_fork
from callboard.support.platform.system import HAS_EPOLL, portable_selector

#: Limit of events per poll; the next poll returns the rest.
MOST_EVENTS: Final = 256


if HAS_EPOLL:
    _READ_ALONE: Final = select.EPOLLIN

    class RunnerPoller(selectors.EpollSelector):
        """An epoll selector with shortcuts for frequent calls."""

        def __init__(self) -> None:
            super().__init__()
            self._epoll: select.epoll = self._selector  # type: ignore[attr-defined]
            # The dictionary of `get_map`, for look-ups without two more calls.
            self._keys: dict[int, selectors.SelectorKey] = self._fd_to_key  # type: ignore[attr-defined]

        def register(
            self, fileobj: Any, events: int, data: Any = None
        ) -> selectors.SelectorKey:
            """Watch a file.

            There is a fast path for a descriptor that is only read, as links register it.
            """
            keys, is_read = self._keys, events == selectors.EVENT_READ
            if not is_read or type(fileobj) is not int or fileobj in keys:
                return super().register(fileobj, events, data)
            self._epoll.register(fileobj, _READ_ALONE)
            # The constructor of a named tuple is a Python function, which doubles the cost.
            fields = fileobj, fileobj, events, data
            key = keys[fileobj] = tuple.__new__(selectors.SelectorKey, fields)
            return key

        def select(
            self, timeout: float | None = None
        ) -> list[tuple[selectors.SelectorKey, int]]:
            """Wait for at most `timeout` seconds, rounded up to milliseconds."""
            keys = self._keys
            ready = []
            for descriptor, events in self._epoll.poll(timeout, MOST_EVENTS):
                key = keys.get(descriptor)
                if key is not None:
                    if events == _READ_ALONE:
                        mask = selectors.EVENT_READ
                    else:
                        mask = contention.mask_of(events)
                    ready.append((key, mask & key.events))
            return ready


def best_selector() -> selectors.BaseSelector:
    """Return the best poller of this system."""
    return RunnerPoller() if HAS_EPOLL else portable_selector()


def drop_poller(selector: selectors.BaseSelector) -> None:
    """Drop the poller that a forked process shares with its parent.

    Changes by this process would affect the parent.
    """
    # Other kinds of selectors share nothing with the parent.
    if hasattr(selectors, "EpollSelector") and isinstance(selector, selectors.EpollSelector):
        after_fork.drop(selector)


class NoSelector(selectors.SelectSelector):
    """The selector of a runner in a forked process, which ends the thread that polls."""

    def select(self, timeout: float | None = None) -> NoReturn:
        """End the thread."""
        raise SystemExit(1)


class WakeUp:
    """A pipe through which any thread interrupts the poll of a runner."""

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
        """Interrupt the current poll, or the next one."""
        try:
            contention.write(self._write, b"w")
        except OSError:  # the pipe is full, so the poll is interrupted anyway
            pass

    def close(self) -> None:
        """Close the pipe."""
        self._selector.unregister(self._read)
        os.close(self._read)
        os.close(self._write)

    def _woken(self, _: int) -> None:
        """Empty the pipe."""
        try:
            contention.read(self._read, 4096)
        except BlockingIOError:
            pass
