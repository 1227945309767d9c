"""System calls that keep the interpreter's lock, for while another thread computes.

A thread that computes in Python gives the lock up only when it is asked for, and after a switch
interval (5 ms). Python's own calls for sockets let go of the lock even where they cannot wait,
so each of them costs an interval to come back: an answer takes one for the poll, one for the
read and one for the write, and whatever comes meanwhile starts anew. The calls below are made
with the lock held, so that a runner pays once, for the poll that really waits, and then does
all there is to do. They never wait themselves: sockets are set so before.

They take about half a microsecond more than Python's own. So they are used only while the
watcher has noticed that it comes late, be it that a handler computes or any thread of the
process.
"""

import ctypes
import os
import platform
import selectors
import socket
import struct
import sys
import threading
from typing import Any, Final

#: Share of a switch interval that the watcher comes late when some thread computes.
LATE_SHARE: Final = 0.8

#: Looks of the watcher in time after which no thread computes any more.
CALM_LOOKS: Final = 25

#: Bytes that are written with the lock held; copying more takes a while, and others may run.
LARGEST_KEPT: Final = 65536

_MOST_EVENTS: Final = 64  # that one poll tells of; the next one tells of the rest

_EPOLLIN: Final = 0x001  # as in <sys/epoll.h>
_EPOLLOUT: Final = 0x004

# The lock stays held in calls of a PyDLL, unlike in those of a CDLL.
_libc: Final = ctypes.PyDLL(None, use_errno=True)


def _declared(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of the C library with its types; None where there is none."""
    function = getattr(_libc, name, None)
    if function is not None:
        function.argtypes, function.restype = arguments, result
    return function


_Int, _Room, _Size, _Count = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_ssize_t
_recv: Final = _declared("recv", _Count, _Int, _Room, _Size, _Int)
_send: Final = _declared("send", _Count, _Int, ctypes.c_char_p, _Size, _Int)
_read: Final = _declared("read", _Count, _Int, _Room, _Size)
_epoll_wait: Final = _declared("epoll_wait", _Int, _Int, _Room, _Int, _Int)  # None but on Linux
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)

# `struct epoll_event` of <sys/epoll.h>: 4 bytes of events, then 8 of data, the first 4 of them
# the descriptor; on x86 without a gap between events and data.
_EVENT: Final = struct.Struct(
    "=Ii4x" if platform.machine() in {"x86_64", "i686"} else "=I4xi4x"
)


class Contention:
    """Whether another thread computes, as seen by how late the watcher comes."""

    def __init__(self) -> None:
        self.is_seen = False
        self._calm = 0
        self._room = threading.local()

    def look(self, late: float) -> None:
        """Take note of how many seconds too late a sleep of the watcher's ended."""
        if late >= LATE_SHARE * sys.getswitchinterval():
            self.is_seen = True
            self._calm = 0
        elif self.is_seen:
            self._calm += 1
            self.is_seen = self._calm < CALM_LOOKS

    def room(self, size: int) -> Any:
        """Return a buffer of this thread's that holds `size` bytes."""
        room = getattr(self._room, "bytes", None)
        if room is None or len(room) < size:
            room = self._room.bytes = ctypes.create_string_buffer(size)
        return room


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
    room = CONTENTION.room(size)
    return ctypes.string_at(room, _checked(_recv(sock.fileno(), room, size, 0)))


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
    return _checked(_send(sock.fileno(), bytes(data), len(data), _NO_SIGNAL))


def read(descriptor: int, size: int) -> bytes:
    """Read as `os.read` does.

    Raises:
        BlockingIOError: there is nothing to read.
        OSError: reading failed.
    """
    if not CONTENTION.is_seen:
        return os.read(descriptor, size)
    room = CONTENTION.room(size)
    return ctypes.string_at(room, _checked(_read(descriptor, room, size)))


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
    room = CONTENTION.room(_EVENT.size * _MOST_EVENTS)
    count = max(0, _epoll_wait(selector.fileno(), room, _MOST_EVENTS, 0))  # EINTR is no event
    keys = selector.get_map()
    found = []
    for events, descriptor in _EVENT.iter_unpack(ctypes.string_at(room, count * _EVENT.size)):
        key = keys.get(descriptor)
        if key is not None:
            found.append((key, mask_of(events) & key.events))
    return found


def mask_of(events: int) -> int:
    """Return what epoll's events are for `selectors`: an error makes both directions ready."""
    mask = selectors.EVENT_WRITE if events & ~_EPOLLIN else 0
    return mask | selectors.EVENT_READ if events & ~_EPOLLOUT else mask


def _checked(count: int) -> int:
    """Return the count of a system call, or raise its error."""
    if count < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))  # BlockingIOError and the like by its number
    return count
