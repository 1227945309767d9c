"""System calls that keep the interpreter's lock, by way of the C library.

A module of its own, because `ctypes` takes long to import and few programs need these calls.
"""

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any, Final

_MOST_EVENTS: Final = 64  # that one poll tells of; the next one tells of the rest

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
_write: Final = _declared("write", _Count, _Int, ctypes.c_char_p, _Size)
_epoll_wait: Final = _declared("epoll_wait", _Int, _Int, _Room, _Int, _Int)  # None but on Linux
_NO_SIGNAL: Final = getattr(socket, "MSG_NOSIGNAL", 0)

# `struct epoll_event` of <sys/epoll.h>: 4 bytes of events, then 8 of data, the first 4 of them
# the descriptor; on x86 without a gap between events and data.
_EVENT: Final = struct.Struct(
    "=Ii4x" if os.uname().machine in {"x86_64", "i686"} else "=I4xi4x"
)

_ROOM: Final = threading.local()


def _room(size: int) -> Any:
    """Return a buffer of this thread's that holds `size` bytes."""
    room = getattr(_ROOM, "bytes", None)
    if room is None or len(room) < size:
        room = _ROOM.bytes = ctypes.create_string_buffer(size)
    return room


def receive(descriptor: int, size: int) -> bytes:
    """Read from a socket.

    Raises:
        OSError: reading failed.
    """
    room = _room(size)
    return ctypes.string_at(room, _checked(_recv(descriptor, room, size, 0)))


def send(descriptor: int, data: bytes) -> int:
    """Write to a socket, and return how many bytes it took.

    Raises:
        OSError: writing failed.
    """
    return _checked(_send(descriptor, data, len(data), _NO_SIGNAL))


def read(descriptor: int, size: int) -> bytes:
    """Read from a descriptor.

    Raises:
        OSError: reading failed.
    """
    room = _room(size)
    return ctypes.string_at(room, _checked(_read(descriptor, room, size)))


def write(descriptor: int, data: bytes) -> int:
    """Write to a descriptor, and return how many bytes it took.

    Raises:
        OSError: writing failed.
    """
    return _checked(_write(descriptor, data, len(data)))


def poll(descriptor: int) -> Iterator[tuple[int, int]]:
    """Return the events and descriptors that are ready in an epoll."""
    room = _room(_EVENT.size * _MOST_EVENTS)
    count = max(0, _epoll_wait(descriptor, room, _MOST_EVENTS, 0))  # EINTR is no event
    return _EVENT.iter_unpack(ctypes.string_at(room, count * _EVENT.size))


def _checked(count: int) -> int:
    """Return the count of a system call, or raise its error."""
    if count < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))  # BlockingIOError and the like by its number
    return count
