"""The driver of a connection over a plain socket, TCP or Unix: nothing between it and the loop.

A router has thousands of them, most of which wait. So a connection is one object, which reads
into what it hands on, writes at once, and keeps only what the socket did not take.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from callboard.mqtt.door import Door, Peer
from callboard.mqtt.remote_link import RemoteLink
from callboard.mqtt.stream import WRITE_BUFFER, Place

READ_SIZE: Final = 64 * 1024
"""Bytes of one read. Larger ones cost a mapping of memory each, and the rest is read anyway,
as the socket stays ready."""

ACCEPTS: Final = 64
"""Connections that are accepted before others have their turn."""


class SocketStream:
    """Carries the bytes of a `RemoteLink`; it is the `Wire`."""

    __slots__ = (
        "_buffer",
        "_descriptor",
        "_is_closing",
        "_is_reading",
        "_loop",
        "_socket",
        "is_full",
        "remote",
    )

    def __init__(
        self, door: Door, peer: Peer, sock: socket.socket, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Begin to wait for a CONNECT on a socket that does not block."""
        self._socket = sock
        #: The loop is asked by number: asked by socket it looks at its addresses each time.
        self._descriptor = sock.fileno()
        self._loop = loop
        self._buffer: bytearray | None = None
        self._is_closing = False
        self._is_reading = False
        self.is_full = False
        self.remote = RemoteLink(door, self, peer)
        self.resume()

    # --- what the loop calls ---

    def _readable(self) -> None:
        try:
            data = self._socket.recv(READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end()
            return
        if data:
            self.remote.receive(data)
        else:
            self.close()

    def _writable(self) -> None:
        buffer = self._buffer
        if buffer is None:
            return
        try:
            sent = self._socket.send(buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end()
            return
        del buffer[:sent]
        if not buffer:
            self._buffer = None
            self._loop.remove_writer(self._descriptor)
            if self._is_closing:
                self._end()
                return
        if self.is_full and len(buffer) < WRITE_BUFFER // 4:
            self.is_full = False
            self.remote.drained()

    def _end(self) -> None:
        """Close the socket, and tell the link; a second call does nothing."""
        if self._socket.fileno() < 0:
            return
        self.pause()
        if self._buffer is not None:
            self._buffer = None
            self._loop.remove_writer(self._descriptor)
        self._is_closing = True
        self._socket.close()
        self.remote.lost()

    # --- what the link calls ---

    def write(self, data: bytes) -> None:
        """Send bytes; what the socket does not take waits."""
        buffer = self._buffer
        if buffer is not None:
            buffer += data
        elif self._is_closing:
            return
        else:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:  # the link is in the middle of something
                self._is_closing = True
                self._loop.call_soon(self._end)
                return
            if sent == len(data):
                return
            buffer = self._buffer = bytearray(memoryview(data)[sent:])
            self._loop.add_writer(self._descriptor, self._writable)
        self.is_full = len(buffer) > WRITE_BUFFER

    def pause(self) -> None:
        """Stop reading."""
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        """Read on."""
        if not self._is_reading and not self._is_closing:
            self._is_reading = True
            self._loop.add_reader(self._descriptor, self._readable)

    def close(self) -> None:
        """Close once everything has left."""
        if not self._is_closing:
            self._is_closing = True
            self.pause()
            if self._buffer is None:
                self._loop.call_soon(self._end)

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self.pause()
        self._loop.call_soon(self._end)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something once, in a while."""
        if seconds > 0:
            self._loop.call_later(seconds, call)
        else:
            self._loop.call_soon(call)


class SocketServer:
    """Accepts connections of one port."""

    def __init__(
        self, door: Door, place: Place, sock: socket.socket, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Listen on a socket that is bound."""
        self.sockets = [sock]
        self._door = door
        self._place = place
        self._loop = loop
        sock.setblocking(False)  # noqa: FBT003
        loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Accept nobody any more."""
        sockets, self.sockets = self.sockets, []
        for sock in sockets:
            self._loop.remove_reader(sock)
            sock.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            if not self.sockets:
                return
            try:
                sock, address = self.sockets[0].accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is free: the system keeps them until one is
                self._rest()
                return
            if self._door.is_full():
                sock.close()
                continue
            sock.setblocking(False)  # noqa: FBT003
            if isinstance(address, tuple):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            SocketStream(self._door, self._peer(address), sock, self._loop)

    def _rest(self) -> None:
        """Accept nobody for a second."""
        sock = self.sockets[0]
        self._loop.remove_reader(sock)

        def go_on() -> None:
            if self.sockets:
                self._loop.add_reader(sock, self._accept)

        self._loop.call_later(1.0, go_on)

    def _peer(self, address: object) -> Peer:
        if isinstance(address, tuple):
            host, port = address[0], address[1]
            text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            return Peer(text, host, self._place.address)
        return Peer("unix", "", self._place.address)
