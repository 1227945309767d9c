"""A simulated network between hosts, and its sockets: delays, losses, partitions, crashes.

Each direction between two hosts is a `Direction`. Bytes sent during a partition are held and
arrive after healing, like TCP retransmissions. A stream never loses, duplicates or reorders
bytes, so packet loss has the effects it has on TCP: bytes arrive one or more retransmission
timeouts late, and a connection breaks when a packet is lost too often in a row. Crashed hosts
go silent; a killed process closes its connections.

Sockets have the methods of real sockets that nodes use. Sent bytes travel for the way's delay
and then wait in the receiver's buffer. A sender may be ahead of its reader by the size of the
window; then its socket is full, like a real one.
"""

import errno
import random
import selectors
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from callboard.simulation.clock import Clock
from callboard.simulation.trace import EventTrace
from callboard.support.dataclass import dataclass

#: Maximum bytes in flight or unread in one direction of a connection.
WINDOW: Final = 256 * 1024

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE

Address = tuple[str, int]


class SimulatedSocket:
    """One end of a connection."""

    def __init__(self, network: "SimulatedNetwork", host: str) -> None:
        """Create an unconnected socket on `host`."""
        self.host = host
        self.peer: SimulatedSocket | None = None
        self.remote: Address = ("", 0)
        #: The local port; dialing nodes need none.
        self.port = 0
        self.is_connecting = False
        self.is_closed = False
        self.error = 0
        self.window_used = 0
        #: Arrival time of the last bytes sent; later bytes must not arrive before it.
        self.last_arrival = 0.0
        #: Called when the socket may have become readable or writable.
        self.touched: Callable[[], None] = _nobody_waits
        self._network = network
        self._received: deque[bytes] = deque()
        self._received_end = False

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001  (the name and form of a real socket)
        """Do nothing: these sockets never block."""

    def setsockopt(self, *_: object) -> None:
        """Do nothing: there are no options."""

    def getsockopt(self, *_: object) -> int:
        """Return the error number of the connection attempt; 0 for success."""
        return self.error

    def send(self, data: memoryview | bytes) -> int:
        """Send as much as fits in the window; return the number of bytes."""
        peer = self.peer
        if self.error:
            raise OSError(self.error, "connection reset by the simulation")
        if peer is None or self.is_closed:
            raise OSError(errno.EPIPE, "broken pipe")
        room = WINDOW - self.window_used
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "the window is full")
        chunk = bytes(data)
        size = len(chunk)
        if size > room:
            chunk, size = chunk[:room], room
        self.window_used += size
        self._network.carry(self, chunk)
        return size

    def recv(self, size: int) -> bytes:
        """Return up to `size` bytes; empty at the end of the stream."""
        if not self._received:
            if self.error:
                raise OSError(self.error, "connection reset by the simulation")
            if self._received_end:
                return b""
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        data = self._received.popleft()
        if len(data) > size:
            self._received.appendleft(data[size:])
            data = data[:size]
        peer = self.peer
        if peer is not None:
            used = peer.window_used
            peer.window_used = used - len(data)
            if used >= WINDOW:  # the peer was not writable before
                peer.touched()
        return data

    def close(self) -> None:
        """Close this end; the peer can still read everything that was sent."""
        if not self.is_closed:
            self.is_closed = True
            self._network.forget(self)
            self._network.carry(self, b"")

    # --- called by the network ---

    def arrive(self, data: bytes) -> None:
        """Receive bytes from the network; empty bytes are the end of the stream."""
        if self.is_closed:
            return
        if data:
            self._received.append(data)
        else:
            self._received_end = True
        self.touched()

    def connected(self, peer: "SimulatedSocket | None", code: int = 0) -> None:
        """Finish the connection attempt: with a peer, or with an error number."""
        self.is_connecting = False
        self.peer = peer
        self.error = self.error or code
        self.touched()

    def reset(self) -> None:
        """Break the connection."""
        self.error = errno.ECONNRESET
        self.touched()

    def vanish(self) -> None:
        """Disappear silently, along with the crashed host."""
        self.is_closed = True
        self.peer = None

    # --- called by the selector ---

    @property
    def is_readable(self) -> bool:
        """True when `recv` would not block."""
        return not self.is_connecting and bool(
            self._received or self._received_end or self.error
        )

    @property
    def is_writable(self) -> bool:
        """True when `send` would not block, or the attempt to connect has ended."""
        return bool(self.error) or (
            not self.is_connecting and self.peer is not None and self.window_used < WINDOW
        )


class SimulatedListener:
    """A listening socket."""

    is_writable: Final = False

    def __init__(self, network: "SimulatedNetwork", address: Address) -> None:
        """Bind to an address."""
        self.host, self.port = self.address = address
        self.is_closed = False
        #: Called when a connection waits to be accepted.
        self.touched: Callable[[], None] = _nobody_waits
        self._network = network
        self._waiting: deque[SimulatedSocket] = deque()

    def listen(self, backlog: int) -> None:
        """Start accepting connections."""
        self._network.listeners[self.address] = self

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001
        """Do nothing: these sockets never block."""

    def getsockname(self) -> Address:
        """Return the bound address."""
        return self.address

    def accept(self) -> tuple[SimulatedSocket, Address]:
        """Return the next connection and its remote address."""
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "no connection is waiting")
        sock = self._waiting.popleft()
        return sock, sock.remote

    def close(self) -> None:
        """Stop listening; further connections are refused."""
        self.is_closed = True
        self._network.listeners.pop(self.address, None)

    def offer(self, sock: SimulatedSocket) -> None:
        """Queue a connection for `accept`."""
        self._waiting.append(sock)
        self.touched()

    @property
    def is_readable(self) -> bool:
        """True when a connection waits to be accepted."""
        return bool(self._waiting)


class SimulatedSelector(selectors.BaseSelector):
    """A selector for simulated sockets; it never blocks.

    It checks only touched sockets, and each of them until it is no longer ready.
    """

    def __init__(self, touched: Callable[[], None]) -> None:
        """Create an empty selector; `touched` is called when a socket may be ready."""
        self._keys: dict[Any, selectors.SelectorKey] = {}
        #: Sockets that may be ready.
        self.touched: dict[Any, None] = {}
        self._on_touched = touched

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Register a socket.

        Raises:
            TypeError: the object is not a simulated socket.
        """
        if not isinstance(fileobj, SimulatedSocket | SimulatedListener):
            msg = "a simulated node cannot wait for real sockets, pipes or files"
            raise TypeError(msg)
        key = selectors.SelectorKey(fileobj, -1, events, data)  # type: ignore[arg-type]
        self._keys[fileobj] = key

        def touched() -> None:
            self.touched[fileobj] = None
            self._on_touched()

        fileobj.touched = touched
        touched()
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Unregister a socket."""
        fileobj.touched = _nobody_waits
        self.touched.pop(fileobj, None)
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the ready sockets, in the order in which they were touched."""
        ready = []
        for fileobj in list(self.touched):
            key = self._keys[fileobj]
            events = key.events
            mask = 0
            if events & _READ and fileobj.is_readable:
                mask = _READ
            if events & _WRITE and fileobj.is_writable:
                mask |= _WRITE
            if mask:
                ready.append((key, mask))
            else:
                del self.touched[fileobj]
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return the registered sockets and their keys."""
        return self._keys


def _nobody_waits() -> None:
    """Do nothing: no selector watches this socket."""


#: Default latency between two hosts, in seconds.
DELAY: Final = 0.0005

#: Maximum random addition to the delay of a packet, as a fraction of the delay.
JITTER: Final = 0.1

#: Seconds until the first retransmission of a lost packet; doubled each time, as in Linux.
FIRST_RETRANSMISSION: Final = 0.2

#: Transmissions of one packet before its connection breaks, which is after 12.6 s.
TRANSMISSIONS: Final = 6

FIRST_PORT: Final = 40000


@dataclass(slots=True)
class Direction:
    """One direction between two hosts.

    Attributes:
        delay: latency in seconds.
        bytes_per_second: bandwidth; 0 is unlimited.
        loss: fraction of packets lost.
        doubling: fraction of deliveries after which the connection breaks. A sender that
            repeats unanswered messages then delivers them twice.
        is_cut: whether traffic is blocked.
        free_at: time at which a way with limited bandwidth has sent all earlier bytes.
    """

    delay: float = DELAY
    bytes_per_second: float = 0.0
    loss: float = 0.0
    doubling: float = 0.0
    is_cut: bool = False
    free_at: float = 0.0


class SimulatedNetwork:
    """All hosts, the connections between them, and their faults."""

    def __init__(self, clock: Clock, rng: random.Random, trace: EventTrace) -> None:
        """Create a network without faults."""
        self.listeners: dict[Address, SimulatedListener] = {}
        self._clock = clock
        self._random = rng
        self._trace = trace
        #: Addresses of hosts by name.
        self.names: dict[str, str] = {}
        #: Maximum random extra delay of each packet between hosts, in seconds.
        self.jitter = 0.0
        self._ways: defaultdict[tuple[str, str], Direction] = defaultdict(Direction)
        self._sockets: dict[SimulatedSocket, None] = {}
        #: Packets held at cut ways: socket, source, target, size, and the arrival callback.
        self._held: list[tuple[SimulatedSocket, str, str, int, _Arrival]] = []
        self._silent: set[str] = set()
        #: Times until which hosts are blocked by their disks and send nothing.
        self.busy: dict[str, float] = {}
        #: Bytes that frozen hosts tried to send in the turn in which they were frozen.
        self._frozen: dict[str, list[tuple[SimulatedSocket, bytes]]] = {}
        #: Called with each host that is about to send; None if no fault waits for that.
        self.sending: Callable[[str], object] | None = None
        self._ports = FIRST_PORT

    def way(self, one: str, other: str) -> Direction:
        """Return the direction from one host to another."""
        return self._ways[one, other]

    # --- called by nodes ---

    def bind(self, host: str, port: int) -> SimulatedListener:
        """Return a bound socket; port 0 picks a free port."""
        if not port:
            self._ports += 1
            port = self._ports
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, "address already in use")
        return SimulatedListener(self, (host, port))

    def connect(self, host: str, address: Address) -> SimulatedSocket:
        """Start connecting; the socket becomes writable when the attempt has ended."""
        sock = SimulatedSocket(self, host)
        sock.remote = address
        sock.is_connecting = True
        self._sockets[sock] = None
        self._trace.note(self._clock.now, sock.host, "connects to", address[0])
        self._travel(sock, sock.host, address[0], 0, (self._connection_arrives, (sock,)))
        return sock

    def carry(self, sock: SimulatedSocket, data: bytes) -> None:
        """Send bytes of a socket to its peer; empty bytes are the end of the stream."""
        host, to = sock.host, sock.remote[0]
        if self.sending is not None and data:
            self.sending(host)
        if self._frozen and host in self._frozen:
            self._frozen[host].append((sock, data))
            return
        size, peer = len(data), sock.peer
        self._trace.note(self._clock.now, host, "sends", to, size, zlib.crc32(data))
        if peer is not None:
            self._travel(sock, host, to, size, (peer.arrive, (data,)))

    def freeze(self, host: str) -> None:
        """Hold everything that a host sends; it may be frozen in the middle of its turn."""
        self._frozen.setdefault(host, [])

    def thaw(self, host: str) -> None:
        """Send the bytes that were held while the host was frozen."""
        sending, self.sending = self.sending, None  # already reported when it was held
        for sock, data in self._frozen.pop(host, ()):
            self.carry(sock, data)
        self.sending = sending

    def forget(self, sock: SimulatedSocket) -> None:
        """Remove a socket that its owner has closed."""
        self._sockets.pop(sock, None)

    # --- transmission ---

    @property
    def late_until(self) -> float:
        """The time at which all bytes in flight will have arrived, after retransmissions."""
        arrivals = (sock.last_arrival for sock in self._sockets if not sock.is_closed)
        return max(arrivals, default=0.0)

    def _travel(
        self, sock: SimulatedSocket, source: str, target: str, size: int, arrival: "_Arrival"
    ) -> None:
        """Schedule an arrival by the delay, bandwidth and losses of the way."""
        way = self._ways[source, target]
        if way.is_cut:
            self._held.append((sock, source, target, size, arrival))
            return
        now = self._clock.now
        if self.busy:
            now = max(now, self.busy.get(source, 0.0))
        due = now + way.delay * (1.0 + JITTER * self._random.random())
        if self.jitter and source != target:
            due += self.jitter * self._random.random()
        if way.bytes_per_second:
            way.free_at = max(way.free_at, now) + size / way.bytes_per_second
            due += way.free_at - now
        if way.loss:
            due += self._stall(sock, way)
        if due < sock.last_arrival:
            due = sock.last_arrival
        sock.last_arrival = due
        self._clock.plan_at(due, arrival[0], *arrival[1])
        if way.doubling and size and self._random.random() < way.doubling:
            self._trace.note(now, source, "hears no answer of", target)
            answered = (
                due + self.way(target, source).delay / 2
            )  # after the receiver has read it
            self._clock.plan_at(answered, self._break, sock, errno.ECONNRESET)

    def _stall(self, sock: SimulatedSocket, way: Direction) -> float:
        """Return the delay of a packet by retransmissions, in seconds."""
        delay, timeout = 0.0, FIRST_RETRANSMISSION
        for _ in range(TRANSMISSIONS):
            if self._random.random() >= way.loss:
                return delay
            delay += timeout
            timeout *= 2
        self._trace.note(self._clock.now, sock.host, "loses its connection to", sock.remote[0])
        self._clock.plan(delay, self._break, sock)
        return delay

    @staticmethod
    def _break(sock: SimulatedSocket, code: int = errno.ETIMEDOUT) -> None:
        """Break a connection at both ends."""
        for end in (sock, sock.peer):
            if end is not None and not end.is_closed:
                end.connected(end.peer, code)

    def _connection_arrives(self, sock: SimulatedSocket) -> None:
        """Pass a connection attempt to its listener, or refuse it."""
        if sock.is_closed or sock.remote[0] in self._silent:
            return
        listener, host, to = self.listeners.get(sock.remote), sock.host, sock.remote[0]
        if listener is None:
            arrival: _Arrival = (sock.connected, (None, errno.ECONNREFUSED))
            self._travel(sock, to, host, 0, arrival)
            return
        accepted = SimulatedSocket(self, listener.host)
        accepted.remote = (host, sock.port)
        accepted.peer = sock
        self._sockets[accepted] = None
        listener.offer(accepted)
        self._travel(accepted, to, host, 0, (sock.connected, (accepted,)))

    # --- faults ---

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Block traffic from `one` to `other`, and back unless `both` is False."""
        self.way(one, other).is_cut = True
        if both:
            self.way(other, one).is_cut = True

    def heal(self) -> None:
        """Remove all cuts, and send the held bytes."""
        for way in self._ways.values():
            way.is_cut = False
        packets, self._held = self._held, []
        for waiting in packets:
            self._travel(*waiting)

    def mend(self, one: str, other: str) -> None:
        """Remove the cuts between two hosts, and send the held bytes."""
        self.way(one, other).is_cut = self.way(other, one).is_cut = False
        packets, self._held = self._held, []
        for waiting in packets:
            if {waiting[1], waiting[2]} == {one, other}:
                self._travel(*waiting)
            else:
                self._held.append(waiting)

    def reset(self, one: str, other: str) -> None:
        """Break all connections between two hosts; both ends notice immediately."""
        for sock in list(self._sockets):
            if {sock.host, sock.remote[0]} == {one, other}:
                sock.connected(sock.peer, errno.ECONNRESET)

    def kill_host(self, host: str) -> None:
        """Close all connections and ports of a host whose process was killed."""
        self._close_ports(host)
        for sock in self._of(host):
            sock.close()

    def silence_host(self, host: str) -> None:
        """Make a host vanish: it sends nothing more, not even the end of its streams."""
        self._close_ports(host)
        self._silent.add(host)
        self._held = [waiting for waiting in self._held if waiting[0].host != host]
        for sock in self._of(host):
            sock.vanish()
            self.forget(sock)

    def start_host(self, host: str) -> None:
        """Make a host respond again, and reset the connections of its earlier process."""
        self._silent.discard(host)
        self._close_ports(host)  # of a process that ended while it was opening one
        for sock in list(self._sockets):
            if sock.remote[0] == host and sock.peer is not None and sock.peer.is_closed:
                self._travel(sock, host, sock.host, 0, (sock.reset, ()))

    def _of(self, host: str) -> list[SimulatedSocket]:
        """Return the sockets of a host."""
        return [sock for sock in self._sockets if sock.host == host]

    def _close_ports(self, host: str) -> None:
        """Close the listeners of a host, and forget that it was frozen or blocked."""
        self.busy.pop(host, None)
        self._frozen.pop(host, None)
        for address in [address for address in self.listeners if address[0] == host]:
            del self.listeners[address]


#: The callback of an arrival, and its arguments.
_Arrival = tuple[Callable[..., object], tuple[Any, ...]]
