"""System calls that keep the interpreter's lock, for while another thread computes.

A thread that computes in Python gives the lock up only when it is asked for, and after a switch
interval (5 ms). Python's own calls for sockets let go of the lock even where they cannot wait,
so each of them costs an interval to come back: an answer takes one for the poll, one for the
read and one for the write, and whatever comes meanwhile starts anew. The calls below are made
with the lock held, so that a runner pays once, for the poll that really waits, and then does
all there is to do. They never wait themselves: sockets are set so before.

They take about half a microsecond more than Python's own. So they are used only while the
watcher has noticed that it comes late, be it that a handler computes or any thread of the
process. `gil_syscalls`, which makes them, loads ctypes: it is imported then.
"""

import os
import selectors
import socket
import sys
from functools import cache
from typing import Any, Final

#: Share of a switch interval that the watcher comes late when some thread computes.
LATE_SHARE: Final = 0.8

#: Looks of the watcher in time after which no thread computes any more.
CALM_LOOKS: Final = 25

#: Bytes that are written with the lock held; copying more takes a while, and others may run.
LARGEST_KEPT: Final = 65536

_EPOLLIN: Final = 0x001  # as in <sys/epoll.h>
_EPOLLOUT: Final = 0x004


@cache
def _held_calls() -> Any:
    """Return the module that makes the calls; it loads ctypes when it is first asked for."""
    from callboard.actors.runner import gil_syscalls

    return gil_syscalls


class Contention:
    """Whether another thread computes, as seen by how late the watcher comes."""

    def __init__(self) -> None:
        self.is_seen = False
        self._calm = 0

    def look(self, late: float) -> None:
        """Take note of how many seconds too late a sleep of the watcher's ended."""
        if late >= LATE_SHARE * sys.getswitchinterval():
            _held_calls()
            self.is_seen = True
            self._calm = 0
        elif self.is_seen:
            self._calm += 1
            self.is_seen = self._calm < CALM_LOOKS


CONTENTION: Final = Contention()


def receive(sock: Any, size: int) -> bytes:
    """Read as `sock.recv` does; what is not a socket of Python's own reads itself.

    Raises:
        BlockingIOError: there is nothing to read.
        OSError: the connection broke.
    """
    if not CONTENTION.is_seen or not isinstance(sock, socket.socket):
        data: bytes = sock.recv(size)
        return data
    received: bytes = _held_calls().receive(sock.fileno(), size)
    return received


def send(sock: Any, data: memoryview) -> int:
    """Write as `sock.send` does; what is not a socket of Python's own writes itself.

    Raises:
        BlockingIOError: there is no room.
        OSError: the connection broke.
    """
    if (
        not CONTENTION.is_seen
        or not isinstance(sock, socket.socket)
        or len(data) > LARGEST_KEPT
    ):
        count: int = sock.send(data)
        return count
    sent: int = _held_calls().send(sock.fileno(), bytes(data))
    return sent


def read(descriptor: int, size: int) -> bytes:
    """Read as `os.read` does.

    Raises:
        BlockingIOError: there is nothing to read.
        OSError: reading failed.
    """
    if not CONTENTION.is_seen:
        return os.read(descriptor, size)
    data: bytes = _held_calls().read(descriptor, size)
    return data


def write(descriptor: int, data: bytes) -> int:
    """Write as `os.write` does.

    Raises:
        BlockingIOError: there is no room.
        OSError: writing failed.
    """
    if not CONTENTION.is_seen:
        return os.write(descriptor, data)
    count: int = _held_calls().write(descriptor, data)
    return count


def select(
    selector: selectors.BaseSelector, timeout: float | None
) -> list[tuple[selectors.SelectorKey, int]]:
    """Poll as `selector.select` does, and give the lock up only when nothing is ready."""
    if CONTENTION.is_seen and isinstance(selector, selectors.EpollSelector):
        events = _ready(selector)
        if events or timeout == 0.0:
            return events
    return selector.select(timeout)


def _ready(selector: selectors.EpollSelector) -> list[tuple[selectors.SelectorKey, int]]:
    """Return what is ready now, without giving the lock up."""
    keys = selector.get_map()
    found = []
    for events, descriptor in _held_calls().poll(selector.fileno()):
        key = keys.get(descriptor)
        if key is not None:
            found.append((key, mask_of(events) & key.events))
    return found


def mask_of(events: int) -> int:
    """Return what epoll's events are for `selectors`: an error makes both directions ready."""
    mask = selectors.EVENT_WRITE if events & ~_EPOLLIN else 0
    return mask | selectors.EVENT_READ if events & ~_EPOLLOUT else mask
