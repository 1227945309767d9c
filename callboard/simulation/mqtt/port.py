"""MQTT over the simulated network: the port of a router, and streams for both ends."""

from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, Final, Protocol

from callboard.kernel.wire import Runner
from callboard.mqtt.access.admission import Peer
from callboard.mqtt.port.remote_link import ClientConnections, RemoteLink
from callboard.mqtt.port.stream import WRITE_BUFFER, Entrance
from callboard.simulation.network import SimulatedListener, SimulatedSocket

READ_SIZE: Final = 64 * 1024


class Owner(Protocol):
    """The user of a stream: a link of the router, or a client."""

    def receive(self, data: bytes, /) -> None:
        """Receive bytes."""

    def hang_up(self) -> None:
        """Called when the peer has closed its end."""

    def lost(self) -> None:
        """Called when the connection has ended."""

    def drained(self) -> None:
        """Called when the write buffer has space again."""


class SimulatedStream:
    """A byte stream over a simulated socket; a router uses it as its `ClientWire`."""

    owner: Owner

    def __init__(self, runner: Runner, sock: SimulatedSocket) -> None:
        """Create a stream; it starts reading with `resume`."""
        self.is_full = False
        self._runner = runner
        self._sock = sock
        self._buffer = bytearray()
        self._watched = 0
        self._is_closing = self._is_over = False

    def _watch(self, events: int) -> None:
        """Change the events that are watched."""
        if not self._is_over:
            old_events, self._watched = self._watched, events
            self._runner.watch(self._sock, old_events, events, self._ready)

    def _ready(self, events: int) -> None:
        """Handle events of the socket."""
        if events & self._watched & EVENT_WRITE:
            self._flush()
        if events & self._watched & EVENT_READ:
            self._read()

    def _read(self) -> bool:
        """Read once and pass the bytes to the owner; return whether more may be readable."""
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
        """Write as much of the buffer as the socket accepts."""
        if self._buffer and not self._sock.is_connecting:
            try:
                del self._buffer[: self._sock.send(bytes(self._buffer))]
            except BlockingIOError:
                pass
            except OSError:  # aborted later, because the owner may be in the middle of a call
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
        """Send bytes; buffer those that the socket does not accept."""
        if not self._is_closing:
            self._buffer += data
            self._flush()
            self.is_full = len(self._buffer) > WRITE_BUFFER

    def pause(self) -> None:
        """Stop reading."""
        self._watch(self._watched & ~EVENT_READ)

    def resume(self) -> None:
        """Resume reading."""
        if not self._is_closing:
            self._watch(self._watched | EVENT_READ)

    def read_arrived(self) -> None:
        """Read everything that has arrived."""
        while not self._is_closing and self._read():
            pass

    def close(self) -> None:
        """Close after the buffer has been written."""
        if not self._is_closing:
            self.pause()
            self._is_closing = True
            self._flush()

    def abort(self) -> None:
        """Close immediately and notify the owner. Idempotent."""
        if not self._is_over:
            self._watch(0)
            self._is_over = self._is_closing = True
            self._sock.close()
            self.owner.lost()

    def later(self, seconds: float, call: Any) -> None:
        """Schedule a call."""
        self._runner.loop.call_later(seconds, call)


class SimulatedServer:
    """Accepts connections of one port of a router."""

    def __init__(
        self,
        connections: ClientConnections,
        entrance: Entrance,
        runner: Runner,
        sock: SimulatedListener,
    ) -> None:
        """Start listening."""
        self.sockets = [sock]
        self._connections, self._entrance, self._runner = connections, entrance, runner
        sock.listen(0)
        runner.watch(sock, 0, EVENT_READ, self._accept)

    def _accept(self, _: int) -> None:
        """Accept a connection."""
        sock, (host, port) = self.sockets[0].accept()
        if self._connections.is_full(host):
            sock.close()
            return
        stream = SimulatedStream(self._runner, sock)
        peer = Peer(f"{host}:{port}", host, self._entrance.address)
        stream.owner = RemoteLink(self._connections, stream, peer)
        stream.resume()

    def close(self) -> None:
        """Stop accepting connections."""
        for sock in self.sockets:
            self._runner.watch(sock, EVENT_READ, 0, self._accept)
            sock.close()
        self.sockets = []
