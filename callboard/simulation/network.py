"""A simulated network between hosts: delays, narrow and lossy ways, partitions, crashes.

Each direction between two hosts is a `Way`. What was sent into a cut one is held and arrives
after healing, as TCP would send it again. A stream never loses, doubles or reorders bytes, so
a way that loses packets shows as TCP shows it: bytes come later by one or more retransmission
timeouts, and a connection whose packets are lost too often in a row is broken. Hosts that
crash go silent; a killed process closes its connections.
"""

import errno
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from callboard.simulation.clock import Clock
from callboard.simulation.socket import Address, SimulatedListener, SimulatedSocket
from callboard.simulation.trace import Trace

DELAY: Final = 0.0005
"""Seconds from one host to another, unless set otherwise."""

JITTER: Final = 0.1
"""Part of the delay by which a packet may come later than others."""

FIRST_RETRANSMISSION: Final = 0.2
"""Seconds until a lost packet is sent again; twice as long each time, as Linux does."""

TRANSMISSIONS: Final = 6
"""Times that a packet is sent before its connection counts as broken: after 12.6 s."""

FIRST_PORT: Final = 40000


@dataclass(slots=True)
class Way:
    """One direction between two hosts: seconds, bytes per second, part of packets lost."""

    delay: float = DELAY
    bytes_per_second: float = 0.0
    loss: float = 0.0
    is_cut: bool = False
    #: When a narrow way has carried what was sent into it before.
    free_at: float = 0.0


class Network:
    """All hosts, the connections between them, and their faults."""

    def __init__(self, clock: Clock, rng: random.Random, trace: Trace) -> None:
        """Make a network without faults."""
        self.listeners: dict[Address, SimulatedListener] = {}
        self._clock = clock
        self._random = rng
        self._trace = trace
        self._ways: dict[tuple[str, str], Way] = {}
        self._sockets: dict[SimulatedSocket, None] = {}
        #: What stands before a cut way: socket, size, and what happens when it gets through.
        self._held: list[tuple[SimulatedSocket, str, str, int, _Arrival]] = []
        self._silent: set[str] = set()
        self._ports = FIRST_PORT

    @property
    def now(self) -> float:
        """The simulation's time."""
        return self._clock.now

    def way(self, one: str, other: str) -> Way:
        """Return the direction from one host to another."""
        way = self._ways.get((one, other))
        if way is None:
            way = self._ways[one, other] = Way()
        return way

    # --- for nodes ---

    def bind(self, host: str, port: int) -> SimulatedListener:
        """Return a bound socket; port 0 picks one."""
        if port == 0:
            self._ports += 1
            port = self._ports
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, "address already in use")
        return SimulatedListener(self, (host, port))

    def connect(self, host: str, address: Address) -> SimulatedSocket:
        """Begin to connect; the socket becomes writable when that has ended."""
        sock = SimulatedSocket(self, host)
        sock.remote = address
        sock.is_connecting = True
        self._sockets[sock] = None
        self._trace.note(self._clock.now, host, "connects to", address[0])
        self._travel(sock, host, address[0], 0, (self._connection_arrives, (sock,)))
        return sock

    def carry(self, sock: SimulatedSocket, data: bytes) -> None:
        """Bring bytes of a socket to its peer; none stands for the end of the stream."""
        host, to = sock.host, sock.remote[0]
        self._trace.note(self._clock.now, host, "sends", to, len(data), zlib.crc32(data))
        if sock.peer is not None:
            self._travel(sock, host, to, len(data), (sock.peer.arrive, (data,)))

    def forget(self, sock: SimulatedSocket) -> None:
        """Take note that a socket was closed by its owner."""
        self._sockets.pop(sock, None)

    # --- the way ---

    def _travel(
        self, sock: SimulatedSocket, one: str, other: str, size: int, arrival: "_Arrival"
    ) -> None:
        way = self.way(one, other)
        if way.is_cut:
            self._held.append((sock, one, other, size, arrival))
            return
        now = self._clock.now
        due = now + way.delay * (1.0 + JITTER * self._random.random())
        if way.bytes_per_second:
            way.free_at = max(way.free_at, now) + size / way.bytes_per_second
            due += way.free_at - now
        if way.loss:
            due += self._stall(sock, way)
        sock.last_arrival = due = max(due, sock.last_arrival)
        self._clock.plan_at(due, arrival[0], *arrival[1])

    def _stall(self, sock: SimulatedSocket, way: Way) -> float:
        """Return by how many seconds a packet is late because it was lost, perhaps often."""
        late, timeout = 0.0, FIRST_RETRANSMISSION
        for _ in range(TRANSMISSIONS):
            if self._random.random() >= way.loss:
                return late
            late += timeout
            timeout *= 2
        self._trace.note(self._clock.now, sock.host, "loses its connection to", sock.remote[0])
        self._clock.plan(late, self._break, sock)
        return late

    @staticmethod
    def _break(sock: SimulatedSocket) -> None:
        for end in (sock, sock.peer):
            if end is not None and not end.is_closed:
                end.connected(end.peer, errno.ETIMEDOUT)

    def _connection_arrives(self, sock: SimulatedSocket) -> None:
        if sock.is_closed or sock.remote[0] in self._silent:
            return
        listener, host, to = self.listeners.get(sock.remote), sock.host, sock.remote[0]
        if listener is None:
            arrival: _Arrival = (sock.connected, (None, errno.ECONNREFUSED))
            self._travel(sock, to, host, 0, arrival)
            return
        other = SimulatedSocket(self, listener.host)
        other.remote = (host, 0)
        other.peer = sock
        self._sockets[other] = None
        listener.offer(other)
        self._travel(other, to, host, 0, (sock.connected, (other,)))

    # --- faults ---

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Let nothing through from `one` to `other`, and back unless `both` is False."""
        self.way(one, other).is_cut = True
        if both:
            self.way(other, one).is_cut = True

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Let everything through again, between two hosts or everywhere."""
        if one is None or other is None:
            ways = list(self._ways.values())
        else:
            ways = [self.way(one, other), self.way(other, one)]
        for way in ways:
            way.is_cut = False
        held, self._held = self._held, []
        for waiting in held:
            self._travel(*waiting)

    def reset(self, one: str, other: str) -> None:
        """Break all connections between two hosts; both ends notice at once."""
        for sock in list(self._sockets):
            if {sock.host, sock.remote[0]} == {one, other}:
                sock.connected(sock.peer, errno.ECONNRESET)

    def kill_host(self, host: str) -> None:
        """End a process: its connections close, its ports refuse."""
        self._close_ports(host)
        for sock in self._of(host):
            sock.close()

    def silence_host(self, host: str) -> None:
        """Take a machine away: nothing comes from it any more, not even the end of a stream."""
        self._close_ports(host)
        self._silent.add(host)
        self._held = [waiting for waiting in self._held if waiting[0].host != host]
        for sock in self._of(host):
            sock.vanish()
            self.forget(sock)

    def start_host(self, host: str) -> None:
        """Let a machine answer again: connections of its earlier life are reset."""
        self._silent.discard(host)
        for sock in list(self._sockets):
            if sock.remote[0] == host and sock.peer is not None and sock.peer.is_closed:
                self._travel(sock, host, sock.host, 0, (sock.reset, ()))

    def _of(self, host: str) -> list[SimulatedSocket]:
        return [sock for sock in self._sockets if sock.host == host]

    def _close_ports(self, host: str) -> None:
        for address in [address for address in self.listeners if address[0] == host]:
            del self.listeners[address]


_Arrival = tuple[Callable[..., object], tuple[Any, ...]]
"""What happens when something arrives, and with which arguments."""
