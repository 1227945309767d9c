"""The driver of a connection over a plain socket, TCP or Unix, without asyncio streams.

A router has thousands of mostly idle connections. So a connection is one object and
one file descriptor. It passes on each read without copying, writes at once, and buffers only
the bytes that the system did not accept. To save system calls per connection, options are
inherited from the listener, or applied when they are needed.
"""

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import InitVar, field
from selectors import EVENT_READ, EVENT_WRITE
from typing import Final

from callboard.kernel.wire import ConnectionOwner, Parting, Runner
from callboard.mqtt.access.admission import Peer
from callboard.mqtt.port.remote_link import ClientConnections, RemoteLink
from callboard.mqtt.port.stream import MOST_ARRIVED, WRITE_BUFFER, Entrance, host_of
from callboard.support.dataclass import dataclass
from callboard.support.platform.system import defer_accept

#: Bytes of one read. A larger buffer costs a memory mapping per read; the socket stays ready,
#: so the rest is read next time.
READ_SIZE: Final = 64 * 1024

#: Connections accepted in a row before other sockets are served.
ACCEPTS: Final = 64

#: Seconds for which Linux holds back a new connection until data arrives. It is then accepted
#: together with its CONNECT, which saves a wake-up and a poll.
SILENCE: Final = 1


@dataclass(slots=True, eq=False)
class SocketStream(ConnectionOwner):
    """The `ClientWire` of a `RemoteLink` over a socket that does not block.

    It tries to read a CONNECT at once, before it waits for one. The descriptor is -1 after
    the socket was closed.
    """

    connections: InitVar[ClientConnections]
    peer: InitVar[Peer]
    _descriptor: int
    _runner: Runner
    _buffer: bytearray | None = None
    _is_closing: bool = False
    #: Whether the client has closed the connection, at least for writing.
    _has_ended: bool = False
    #: Owns the socket while it is closed in an orderly way.
    _parting: Parting | None = None
    #: Events for which the socket is registered with the selector.
    _watched: int = 0
    is_full: bool = False
    remote: RemoteLink = field(init=False)

    def __post_init__(self, connections: ClientConnections, peer: Peer) -> None:
        self.remote = RemoteLink(connections, self, peer)
        self._watched = EVENT_READ
        self._runner.selector.register(self._descriptor, EVENT_READ, self._ready)
        self._ready(EVENT_READ)

    # --- calls of the selector ---

    def _ready(self, events: int) -> None:
        """Process the events of a poll, unless an earlier event of it has closed the socket."""
        if events & self._watched & EVENT_WRITE:
            self._write_rest()
        if not events & self._watched & EVENT_READ:
            return
        try:
            data = os.read(self._descriptor, READ_SIZE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end()
            return
        if data:
            self.remote.receive(data)
        else:
            self._has_ended = True
            self.remote.hang_up()

    def broken(self, error: BaseException) -> None:
        """Close at once: the data of the last read may be only partly processed."""
        self._end()

    def _write_rest(self) -> None:
        """Write buffered bytes."""
        buffer = self._buffer
        assert buffer is not None
        try:
            count = os.write(self._descriptor, buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end()
            return
        del buffer[:count]
        if not buffer:
            self._buffer = None
            self._watch(self._watched & ~EVENT_WRITE)
        if self.is_full and len(buffer) < WRITE_BUFFER // 4:
            self.is_full = False
            self.remote.drained()

    def _watch(self, events: int) -> None:
        """Set the events to wait for; without any the socket is unregistered."""
        previous, self._watched = self._watched, events
        selector = self._runner.selector
        if not previous and events:
            selector.register(self._descriptor, events, self._ready)
        elif previous and not events:
            selector.unregister(self._descriptor)
        elif events != previous:
            selector.modify(self._descriptor, events, self._ready)

    def _end(self) -> None:
        """Close the socket, and notify the link; a second call does nothing."""
        descriptor = self._give_up()
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # the client has reset it
                os.close(descriptor)
            self._ended()

    def _part(self) -> None:
        """Close the socket after buffered bytes are sent.

        Notify the link when the client closed.
        """
        rest = self._buffer or b""
        if self._has_ended and not rest:  # the client sends nothing more that needs an answer
            self._end()
            return
        descriptor = self._give_up()
        if descriptor >= 0:
            # The family and the type are not used; without them the system would be asked.
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
            self._parting = Parting(self._runner, sock, self._ended, rest)
            self._parting.begin()

    def _give_up(self) -> int:
        """Return the descriptor and give up its ownership.

        Return -1 if that was done before.
        """
        descriptor = self._descriptor
        if descriptor >= 0:
            self._watch(0)
            self._descriptor = -1
            self._buffer = None
            self._is_closing = True
        return descriptor

    def _ended(self, _: object = None) -> None:
        """Notify the link that the socket is closed."""
        self._parting = None
        self.remote.lost()
        del self.remote  # breaks the reference cycle, so that both are freed at once

    # --- calls of the link ---

    def write(self, data: bytes) -> None:
        """Send bytes; buffer the rest that the socket does not accept."""
        buffer = self._buffer
        if buffer is not None:
            buffer += data
        elif self._is_closing:
            return
        else:
            try:
                count = os.write(self._descriptor, data)
            except (BlockingIOError, InterruptedError):
                count = 0
            except OSError:  # not `_end()` now: the link has called us, and is not done
                self._is_closing = True
                self._runner.loop.call_soon(self._end)
                return
            if count == len(data):
                return
            buffer = self._buffer = bytearray(memoryview(data)[count:])
            self._watch(self._watched | EVENT_WRITE)
        self.is_full = len(buffer) > WRITE_BUFFER

    def pause(self) -> None:
        """Stop reading."""
        self._watch(self._watched & ~EVENT_READ)

    def resume(self) -> None:
        """Resume reading."""
        if not self._is_closing:
            self._watch(self._watched | EVENT_READ)

    def read_arrived(self) -> None:
        """Read and pass on all data that has arrived, up to the system's buffer size."""
        for _ in range(MOST_ARRIVED // READ_SIZE):
            if self._is_closing:
                return
            try:
                data = os.read(self._descriptor, READ_SIZE)
            except OSError:  # no data is left, or the next poll reports the error
                return
            if not data:
                self._has_ended = True
                self.remote.hang_up()
                return
            self.remote.receive(data)

    def close(self) -> None:
        """Close after all bytes are sent and the client has closed."""
        if not self._is_closing:
            self._is_closing = True
            self.pause()
            self._runner.loop.call_soon(self._part)

    def abort(self) -> None:
        """Close at once, without the loop: it may have stopped already."""
        if self._parting is not None:
            self._parting.abort()
        else:
            self._end()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function once, after some seconds."""
        if seconds > 0:
            self._runner.loop.call_later(seconds, call)
        else:
            self._runner.loop.call_soon(call)


@dataclass(eq=False, repr=False)
class SocketServer:
    """Accepts connections of one port, on a bound socket."""

    _connections: ClientConnections
    _entrance: Entrance
    sock: InitVar[socket.socket]
    _runner: Runner
    #: Takes descriptor and host of each connection, if the port is not a plain one.
    _begin: Callable[[int, str], object] | None = None

    def __post_init__(self, sock: socket.socket) -> None:
        self.sockets = [sock]
        sock.setblocking(False)  # noqa: FBT003
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            defer_accept(sock, SILENCE)
        self._resume()

    def close(self) -> None:
        """Stop accepting connections."""
        sockets, self.sockets = self.sockets, []
        for sock in sockets:
            if sock in self._runner.selector.get_map():
                self._runner.selector.unregister(sock)
            sock.close()

    def _accept(self, _: int) -> None:
        """Accept a batch of connections."""
        for _ in range(ACCEPTS):
            if not self.sockets:
                return
            try:
                # `socket.accept` calls this, too. A descriptor is enough here; a socket object
                # costs as much as the system call.
                descriptor, address = self.sockets[0]._accept()  # type: ignore[attr-defined]  # noqa: SLF001
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except (
                OSError
            ):  # out of descriptors: the system queues connections until one is free
                self._rest()
                return
            source = host_of(address)
            if self._connections.is_full(source[1]):
                os.close(descriptor)
                continue
            os.set_blocking(descriptor, False)
            if self._begin is not None:
                self._begin(descriptor, source[1])
                continue
            peer = Peer(*source, self._entrance.address)
            SocketStream(self._connections, peer, descriptor, self._runner)

    def _rest(self) -> None:
        """Stop accepting connections for a second."""
        self._runner.selector.unregister(self.sockets[0])
        self._runner.loop.call_later(1.0, self._resume)

    def _resume(self) -> None:
        """Accept connections again."""
        if self.sockets:
            self._runner.selector.register(self.sockets[0], EVENT_READ, self._accept)
