"""The driver of a connection over a plain socket, TCP or Unix: nothing between it and the poll.

A router has thousands of them, most of which wait. So a connection is one object and a file
descriptor, which reads into what it hands on, writes at once, and keeps only what the system
did not take. Whatever would cost each connection a system call of its own is inherited from the
listener, or asked for when it is needed.
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
from callboard.mqtt.port.remote_link import Door, RemoteLink
from callboard.mqtt.port.stream import MOST_ARRIVED, WRITE_BUFFER, Entrance, host_of
from callboard.support.dataclass import dataclass

#: Bytes of one read. Larger ones cost a mapping of memory each, and the rest is read anyway,
#: as the socket stays ready.
READ_SIZE: Final = 64 * 1024

#: Connections that are accepted before others have their turn.
ACCEPTS: Final = 64

#: Seconds for which the system (Linux) keeps a connection to itself until something comes: it
#: is accepted together with its CONNECT then, which saves a wake-up and a poll.
SILENCE: Final = 1


@dataclass(slots=True, eq=False)
class SocketStream(ConnectionOwner):
    """Carries the bytes of a `RemoteLink`; it is the `Wire`.

    It takes a CONNECT, or begins to wait for it, on a socket that does not block. The
    descriptor is -1 once it is closed.
    """

    door: InitVar[Door]
    peer: InitVar[Peer]
    _descriptor: int
    _runner: Runner
    _buffer: bytearray | None = None
    _is_closing: bool = False
    #: Whether the client has closed, at least for writing.
    _has_ended: bool = False
    #: Has the socket once nothing follows.
    _parting: Parting | None = None
    #: Events that the poller is asked for.
    _watched: int = 0
    is_full: bool = False
    remote: RemoteLink = field(init=False)

    def __post_init__(self, door: Door, peer: Peer) -> None:
        self.remote = RemoteLink(door, self, peer)
        self._watched = EVENT_READ
        self._runner.selector.register(self._descriptor, EVENT_READ, self._ready)
        self._ready(EVENT_READ)

    # --- what the poll calls ---

    def _ready(self, events: int) -> None:
        """Hand a read on, unless another connection of the same poll has ended this one."""
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
        """Close at once: what was read may be handled by half."""
        self._end()

    def _write_rest(self) -> None:
        """Write what waits."""
        buffer = self._buffer
        assert buffer is not None
        try:
            sent = os.write(self._descriptor, buffer)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._end()
            return
        del buffer[:sent]
        if not buffer:
            self._buffer = None
            self._watch(self._watched & ~EVENT_WRITE)
        if self.is_full and len(buffer) < WRITE_BUFFER // 4:
            self.is_full = False
            self.remote.drained()

    def _watch(self, events: int) -> None:
        """Ask the poller for these events from here on; without any it forgets the socket."""
        before, self._watched = self._watched, events
        selector = self._runner.selector
        if not before and events:
            selector.register(self._descriptor, events, self._ready)
        elif before and not events:
            selector.unregister(self._descriptor)
        elif events != before:
            selector.modify(self._descriptor, events, self._ready)

    def _end(self) -> None:
        """Close the socket, and tell the link; a second call does nothing."""
        descriptor = self._give_up()
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # the other side has reset it
                os.close(descriptor)
            self._ended()

    def _part(self) -> None:
        """Close the socket behind what waits, and tell the link when the client has too."""
        rest = self._buffer or b""
        if self._has_ended and not rest:  # nothing can come any more that would be answered
            self._end()
            return
        descriptor = self._give_up()
        if descriptor >= 0:
            # With a family and a kind, whichever, the system is not asked for them.
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
            self._parting = Parting(self._runner, sock, self._ended, rest)
            self._parting.begin()

    def _give_up(self) -> int:
        """Return the descriptor, which is no longer ours; -1 for the second time."""
        descriptor = self._descriptor
        if descriptor >= 0:
            self._watch(0)
            self._descriptor = -1
            self._buffer = None
            self._is_closing = True
        return descriptor

    def _ended(self, _: object = None) -> None:
        """Tell the link that the socket is closed."""
        self._parting = None
        self.remote.lost()
        del self.remote  # it refers back, and both are to go at once

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
                sent = os.write(self._descriptor, data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:  # the link is in the middle of something
                self._is_closing = True
                self._runner.loop.call_soon(self._end)
                return
            if sent == len(data):
                return
            buffer = self._buffer = bytearray(memoryview(data)[sent:])
            self._watch(self._watched | EVENT_WRITE)
        self.is_full = len(buffer) > WRITE_BUFFER

    def pause(self) -> None:
        """Stop reading."""
        self._watch(self._watched & ~EVENT_READ)

    def resume(self) -> None:
        """Read on."""
        if not self._is_closing:
            self._watch(self._watched | EVENT_READ)

    def read_arrived(self) -> None:
        """Hand on what has arrived by now, as much as the system keeps of a connection."""
        for _ in range(MOST_ARRIVED // READ_SIZE):
            if self._is_closing:
                return
            try:
                data = os.read(self._descriptor, READ_SIZE)
            except OSError:  # there is no more, or the poll will find out
                return
            if not data:
                self._has_ended = True
                self.remote.hang_up()
                return
            self.remote.receive(data)

    def close(self) -> None:
        """Close once everything has left, and the client has closed."""
        if not self._is_closing:
            self._is_closing = True
            self.pause()
            self._runner.loop.call_soon(self._part)

    def abort(self) -> None:
        """Close at once: there may be no loop any more that would do it later."""
        if self._parting is not None:
            self._parting.abort()
        else:
            self._end()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something once, in a while."""
        if seconds > 0:
            self._runner.loop.call_later(seconds, call)
        else:
            self._runner.loop.call_soon(call)


@dataclass(eq=False, repr=False)
class SocketServer:
    """Accepts connections of one port, on a socket that is bound."""

    _door: Door
    _entrance: Entrance
    sock: InitVar[socket.socket]
    _runner: Runner
    #: Takes descriptor and host of each connection, where it is more than a plain one.
    _begin: Callable[[int, str], object] | None = None

    def __post_init__(self, sock: socket.socket) -> None:
        self.sockets = [sock]
        sock.setblocking(False)  # noqa: FBT003
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_DEFER_ACCEPT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, SILENCE)
        self._go_on()

    def close(self) -> None:
        """Accept no connection any more."""
        sockets, self.sockets = self.sockets, []
        for sock in sockets:
            if sock in self._runner.selector.get_map():
                self._runner.selector.unregister(sock)
            sock.close()

    def _accept(self, _: int) -> None:
        """Accept a run of connections."""
        for _ in range(ACCEPTS):
            if not self.sockets:
                return
            try:
                # What `accept` itself calls: a descriptor is enough here, and an object of
                # the module `socket` costs as much as the system call.
                descriptor, address = self.sockets[0]._accept()  # type: ignore[attr-defined]  # noqa: SLF001
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is free: the system keeps them until one is
                self._rest()
                return
            where = host_of(address)
            if self._door.is_full(where[1]):
                os.close(descriptor)
                continue
            os.set_blocking(descriptor, False)
            if self._begin is not None:
                self._begin(descriptor, where[1])
                continue
            peer = Peer(*where, self._entrance.address)
            SocketStream(self._door, peer, descriptor, self._runner)

    def _rest(self) -> None:
        """Accept no connection for a second."""
        self._runner.selector.unregister(self.sockets[0])
        self._runner.loop.call_later(1.0, self._go_on)

    def _go_on(self) -> None:
        """Accept connections from here on."""
        if self.sockets:
            self._runner.selector.register(self.sockets[0], EVENT_READ, self._accept)
