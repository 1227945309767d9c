"""System calls that do not release the interpreter's lock, for use while a thread computes.

A thread that computes in Python releases the lock only on request, after a switch interval of
5 ms. Python's own socket calls release the lock even if they cannot block, and then wait for an
interval to get it back. An answer then takes one interval for the poll, one for the read and
one for the write. The calls of this module do not release the lock. A runner that uses them
waits only once, in the poll that really blocks, and then does all its work. The calls never
block, because the sockets are non-blocking.

These calls take about half a microsecond more than Python's own. So they are used only while
the watcher wakes up late, which shows that a handler or another thread of the process computes.
They are made by the module `gil_syscalls`, which is imported on first use because it loads
`ctypes`.
"""

import os
import selectors
import socket
import sys
from functools import cache
from typing import Any, Final

from callboard.support.platform.system import HAS_EPOLL

#: Minimum delay of the watcher, as a share of the switch interval, if a thread computes.
LATE_SHARE: Final = 0.8

#: Consecutive checks of the watcher without delay after which no thread computes.
CALM_CHECKS: Final = 25

#: Limit of bytes written with the lock held; copying more would delay other threads.
LARGEST_KEPT: Final = 65536

_EPOLLIN: Final = 0x001  # as in <sys/epoll.h>
_EPOLLOUT: Final = 0x004


@cache
def _gil_syscalls() -> Any:
    """Return the module that makes the calls."""
    from callboard.actors.runner import gil_syscalls

    return gil_syscalls


class Contention:
    """Detects that another thread computes, by the delay of the watcher."""

    def __init__(self) -> None:
        self.is_seen = False
        self._calm = 0

    def record_delay(self, late: float) -> None:
        """Record the delay of a sleep of the watcher in seconds."""
        if late >= LATE_SHARE * sys.getswitchinterval():
            _gil_syscalls()
            self.is_seen = True
            self._calm = 0
        elif self.is_seen:
            self._calm += 1
            self.is_seen = self._calm < CALM_CHECKS


CONTENTION: Final = Contention()


def receive(sock: Any, size: int) -> bytes:
    """Read like `sock.recv`. If `sock` is not a Python socket, its own `recv` is called.

    Raises:
        BlockingIOError: no data is available.
        OSError: the connection broke.
    """
    if not CONTENTION.is_seen or not isinstance(sock, socket.socket):
        data: bytes = sock.recv(size)
        return data
    received: bytes = _gil_syscalls().receive(sock.fileno(), size)
    return received


def send(sock: Any, data: memoryview) -> int:
    """Write like `sock.send`. If `sock` is not a Python socket, its own `send` is called.

    Raises:
        BlockingIOError: the send buffer is full.
        OSError: the connection broke.
    """
    if (
        not CONTENTION.is_seen
        or not isinstance(sock, socket.socket)
        or len(data) > LARGEST_KEPT
    ):
        count: int = sock.send(data)
        return count
    written: int = _gil_syscalls().send(sock.fileno(), bytes(data))
    return written


def read(descriptor: int, size: int) -> bytes:
    """Read like `os.read`.

    Raises:
        BlockingIOError: no data is available.
        OSError: reading failed.
    """
    if not CONTENTION.is_seen:
        return os.read(descriptor, size)
    data: bytes = _gil_syscalls().read(descriptor, size)
    return data


def write(descriptor: int, data: bytes) -> int:
    """Write like `os.write`.

    Raises:
        BlockingIOError: the buffer is full.
        OSError: writing failed.
    """
    if not CONTENTION.is_seen:
        return os.write(descriptor, data)
    count: int = _gil_syscalls().write(descriptor, data)
    return count


def select(
    selector: selectors.BaseSelector, timeout: float | None
) -> list[tuple[selectors.SelectorKey, int]]:
    """Poll like `selector.select`, but release the lock only if no event is ready."""
    if CONTENTION.is_seen and HAS_EPOLL and isinstance(selector, selectors.EpollSelector):
        events = _ready(selector)
        if events or timeout == 0.0:
            return events
    return selector.select(timeout)


def _ready(selector: selectors.EpollSelector) -> list[tuple[selectors.SelectorKey, int]]:
    """Return the ready events without releasing the lock."""
    keys = selector.get_map()
    ready = []
    for events, descriptor in _gil_syscalls().poll(selector.fileno()):
        key = keys.get(descriptor)
        if key is not None:
            ready.append((key, mask_of(events) & key.events))
    return ready


def mask_of(events: int) -> int:
    """Convert epoll's events to `selectors`' events; an error makes both directions ready."""
    mask = selectors.EVENT_WRITE if events & ~_EPOLLIN else 0
    return mask | selectors.EVENT_READ if events & ~_EPOLLOUT else mask
