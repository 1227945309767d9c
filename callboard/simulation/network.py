"""A simulated network between hosts: delays, partitions, crashes; all by seed.

Each direction between two hosts has a delay (with jitter) and may be cut. What was sent
into a cut direction is held and arrives after healing, as TCP would send it again; a stream
never loses, doubles or reorders bytes. Hosts that crash go silent; a killed process closes
its connections.
"""

import errno
import random
from typing import Final

from callboard.simulation.clock import Clock
from callboard.simulation.socket import Address, SimulatedListener, SimulatedSocket

DELAY: Final = 0.0005
"""Seconds from one host to another, unless set otherwise."""

FIRST_PORT: Final = 40000


class Network:
    """All hosts, the connections between them, and their faults."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        """Make a network without faults."""
        self.listeners: dict[Address, SimulatedListener] = {}
        self.delay = DELAY
        self.jitter = 0.1
        self._clock = clock
        self._random = rng
        self._cut: set[tuple[str, str]] = set()
        self._delays: dict[tuple[str, str], float] = {}
        self._sockets: list[SimulatedSocket] = []
        self._held: list[tuple[SimulatedSocket, bytes | None]] = []
        self._ports = FIRST_PORT

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
        self._sockets.append(sock)
        self._travel(sock, address[0], None)
        return sock

    def carry(self, sock: SimulatedSocket, data: bytes) -> None:
        """Bring bytes of a socket to its peer; none stands for the end of the stream."""
        self._travel(sock, sock.remote[0], data)

    # --- the way ---

    def _travel(self, sock: SimulatedSocket, to: str, data: bytes | None) -> None:
        way = (sock.host, to)
        if way in self._cut:
            self._held.append((sock, data))
            return
        delay = self._delays.get(way, self.delay)
        due = self._clock.now + delay * (1.0 + self.jitter * self._random.random())
        if sock.under_way:
            due = max(due, sock.under_way[-1][0])  # a stream keeps its order
        sock.under_way.append((due, data if data is not None else b"connect"))
        self._clock.plan_at(due, self._arrive, sock, data)

    def _arrive(self, sock: SimulatedSocket, data: bytes | None) -> None:
        if sock.under_way:
            sock.under_way.popleft()
        if data is None:
            self._arrive_connection(sock)
        elif sock.peer is not None:
            sock.peer.arrive(data)

    def _arrive_connection(self, sock: SimulatedSocket) -> None:
        listener = self.listeners.get(sock.remote)
        if sock.is_closed:
            return
        if listener is None:
            self._clock.plan(self.delay, self._refuse, sock)
            return
        other = SimulatedSocket(self, listener.host)
        other.remote = (sock.host, 0)
        other.peer = sock
        self._sockets.append(other)
        listener.offer(other)
        self._clock.plan(self.delay, self._accept, sock, other)

    @staticmethod
    def _refuse(sock: SimulatedSocket) -> None:
        sock.is_connecting = False
        sock.error = errno.ECONNREFUSED

    @staticmethod
    def _accept(sock: SimulatedSocket, other: SimulatedSocket) -> None:
        sock.is_connecting = False
        sock.peer = other

    # --- faults ---

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Let nothing through from `one` to `other`, and back unless `both` is False."""
        self._cut.add((one, other))
        if both:
            self._cut.add((other, one))

    def heal(self, one: str | None = None, other: str | None = None) -> None:
        """Let everything through again, between two hosts or everywhere."""
        if one is None or other is None:
            self._cut.clear()
        else:
            self._cut -= {(one, other), (other, one)}
        held, self._held = self._held, []
        for sock, data in held:
            self._travel(sock, sock.remote[0], data)

    def set_delay(self, one: str, other: str, seconds: float) -> None:
        """Set the delay of both directions between two hosts."""
        self._delays[one, other] = self._delays[other, one] = seconds

    def reset(self, one: str, other: str) -> None:
        """Break all connections between two hosts; both ends notice at once."""
        for sock in self._sockets:
            if {sock.host, sock.remote[0]} == {one, other} and not sock.is_closed:
                sock.reset()

    def kill_host(self, host: str) -> None:
        """End a process: its connections close, its ports refuse."""
        for address in [address for address in self.listeners if address[0] == host]:
            del self.listeners[address]
        for sock in self._sockets:
            if sock.host == host:
                sock.close()
        self._sockets = [sock for sock in self._sockets if not sock.is_closed]

    def silence_host(self, host: str) -> None:
        """Take a machine away: nothing comes from it any more, not even the end of a stream."""
        for address in [address for address in self.listeners if address[0] == host]:
            del self.listeners[address]
        for sock in self._sockets:
            if sock.host == host:
                sock.is_closed = True
                sock.peer = None
