"""MQTT over the simulated network: a port for a router, and both ends of a connection."""

from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, Final, Protocol

from callboard.kernel.wire import Runner
from callboard.mqtt.access.admission import Peer
from callboard.mqtt.port.remote_link import Door, RemoteLink
from callboard.mqtt.port.stream import WRITE_BUFFER, Entrance
from callboard.simulation.network import SimulatedListener, SimulatedSocket

READ_SIZE: Final = 64 * 1024


class Owner(Protocol):
    """What a stream brings bytes to: the link of a router, or a client."""

    def receive(self, data: bytes, /) -> None:
        """Take bytes."""

    def hang_up(self) -> None:
        """Take note that the other side has closed."""

    def lost(self) -> None:
        """Take note that the connection is over."""

    def drained(self) -> None:
        """Take note that more can be written."""


class SimulatedStream:
    """Carries bytes over a simulated socket; to a router it is the `ClientWire`."""

    owner: Owner

    def __init__(self, runner: Runner, sock: SimulatedSocket) -> None:
        """Read nothing before `resume`."""
        self.is_full = False
        self._runner = runner
        self._sock = sock
        self._buffer = bytearray()
        self._watched = 0
        self._is_closing = self._is_over = False

    def _watch(self, events: int) -> None:
        """Wait for these events from here on."""
        if not self._is_over:
            before, self._watched = self._watched, events
            self._runner.watch(self._sock, before, events, self._ready)

    def _ready(self, events: int) -> None:
        """Write what waits, or hand a read on."""
        if events & self._watched & EVENT_WRITE:
            self._flush()
        if events & self._watched & EVENT_READ:
            self._read()

    def _read(self) -> bool:
        """Hand a read on; False when nothing more can be read."""
        try:
            data = self._sock.recv(READ_SIZE)
        except BlockingIOError:
            return False
        except OSError:
            self.abort()
            return False
        if data:
            self.owner.receive(data)
        else:
            self.pause()
            self.owner.hang_up()
        return bool(data) and not self._is_closing

    def _flush(self) -> None:
        """Write what the socket takes."""
        if self._buffer and not self._sock.is_connecting:
            try:
                del self._buffer[: self._sock.send(bytes(self._buffer))]
            except BlockingIOError:
                pass
            except OSError:  # its owner may be in the middle of something
                self._is_closing = True
                self._buffer.clear()
        if not self._buffer and self._is_closing:
            self._runner.loop.call_soon(self.abort)
            return
        self._watch(self._watched & EVENT_READ | (EVENT_WRITE if self._buffer else 0))
        if self.is_full and len(self._buffer) < WRITE_BUFFER // 4:
            self.is_full = False
            self.owner.drained()

    def write(self, data: bytes) -> None:
        """Send bytes; what the socket does not take waits."""
        if not self._is_closing:
            self._buffer += data
            self._flush()
            self.is_full = len(self._buffer) > WRITE_BUFFER

    def pause(self) -> None:
        """Stop reading."""
        self._watch(self._watched & ~EVENT_READ)

    def resume(self) -> None:
        """Read on."""
        if not self._is_closing:
            self._watch(self._watched | EVENT_READ)

    def read_arrived(self) -> None:
        """Hand on what has arrived by now."""
        while not self._is_closing and self._read():
            pass

    def close(self) -> None:
        """Close once everything has left."""
        if not self._is_closing:
            self.pause()
            self._is_closing = True
            self._flush()

    def abort(self) -> None:
        """Close at once, and tell the owner; a second call does nothing."""
        if not self._is_over:
            self._watch(0)
            self._is_over = self._is_closing = True
            self._sock.close()
            self.owner.lost()

    def later(self, seconds: float, call: Any) -> None:
        """Call something once, in a while."""
        self._runner.loop.call_later(seconds, call)


class SimulatedServer:
    """Accepts connections of one port of a router."""

    def __init__(
        self, door: Door, entrance: Entrance, runner: Runner, sock: SimulatedListener
    ) -> None:
        """Listen."""
        self.sockets = [sock]
        self._door, self._entrance, self._runner = door, entrance, runner
        sock.listen(0)
        runner.watch(sock, 0, EVENT_READ, self._accept)

    def _accept(self, _: int) -> None:
        """Accept a connection."""
        sock, (host, port) = self.sockets[0].accept()
        if self._door.is_full(host):
            sock.close()
            return
        stream = SimulatedStream(self._runner, sock)
        peer = Peer(f"{host}:{port}", host, self._entrance.address)
        stream.owner = RemoteLink(self._door, stream, peer)
        stream.resume()

    def close(self) -> None:
        """Accept no connection any more."""
        for sock in self.sockets:
            self._runner.watch(sock, EVENT_READ, 0, self._accept)
            sock.close()
        self.sockets = []
