"""A simulated network between hosts, and its sockets: delays, losses, partitions, crashes.

Each direction between two hosts is a `Way`. What was sent into a cut one is held and arrives
after healing, as TCP would send it again. A stream never loses, doubles or reorders bytes, so
a way that loses packets shows as TCP shows it: bytes come later by one or more retransmission
timeouts, and a connection whose packets are lost too often in a row is broken. Hosts that
crash go silent; a killed process closes its connections.

Sockets have the methods of real ones that nodes use. Bytes that were sent are under way for the
way's delay, then wait in the receiver's buffer. A sender gets as far ahead of its reader as the
window allows; then its socket is full, as a real one would be.
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

#: Bytes that may be under way or unread in one direction of a connection.
WINDOW: Final = 256 * 1024

_READ: Final = selectors.EVENT_READ
_WRITE: Final = selectors.EVENT_WRITE

Address = tuple[str, int]


class SimulatedSocket:
    """One end of a connection."""

    def __init__(self, network: "SimulatedNetwork", host: str) -> None:
        """Make an end at `host` that is not connected yet."""
        self.host = host
        self.peer: SimulatedSocket | None = None
        self.remote: Address = ("", 0)
        #: Its own port; nodes that dial need none.
        self.port = 0
        self.is_connecting = False
        self.is_closed = False
        self.error = 0
        self.window_used = 0
        #: When the last bytes that were sent arrive: a stream keeps its order.
        self.last_arrival = 0.0
        #: Called when the socket may have become readable or writable.
        self.touched: Callable[[], None] = _nobody_waits
        self._network = network
        self._received: deque[bytes] = deque()
        self._received_end = False

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001  (the name and form of a real socket)
        """Do nothing: these sockets never block."""

    def setsockopt(self, *_: object) -> None:
        """Do nothing: there is nothing to set."""

    def getsockopt(self, *_: object) -> int:
        """Return how the attempt to connect ended: 0 is fine."""
        return self.error

    def send(self, data: memoryview | bytes) -> int:
        """Send as much as the window takes; returns the number of bytes."""
        peer = self.peer
        if self.error:
            raise OSError(self.error, "connection reset by the simulation")
        if peer is None or self.is_closed:
            raise OSError(errno.EPIPE, "broken pipe")
        room = WINDOW - self.window_used
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "the window is full")
        taken = bytes(data)
        size = len(taken)
        if size > room:
            taken, size = taken[:room], room
        self.window_used += size
        self._network.carry(self, taken)
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
            if used >= WINDOW:  # else it was writable before
                peer.touched()
        return data

    def close(self) -> None:
        """Close this end; the other one reads to the end of the stream."""
        if not self.is_closed:
            self.is_closed = True
            self._network.forget(self)
            self._network.carry(self, b"")

    # --- what the network does to it ---

    def arrive(self, data: bytes) -> None:
        """Take bytes that came over the network; none means the end of the stream."""
        if self.is_closed:
            return
        if data:
            self._received.append(data)
        else:
            self._received_end = True
        self.touched()

    def connected(self, peer: "SimulatedSocket | None", code: int = 0) -> None:
        """Take note of how the attempt to connect ended."""
        self.is_connecting = False
        self.peer = peer
        self.error = self.error or code
        self.touched()

    def reset(self) -> None:
        """Break the connection."""
        self.error = errno.ECONNRESET
        self.touched()

    def vanish(self) -> None:
        """Be gone without a word, as the machine that held this end."""
        self.is_closed = True
        self.peer = None

    def held(self) -> None:
        """Be told that what was sent stands before a cut way."""

    def datagram(self, data: bytes, source: Address) -> None:
        """Take a datagram, or drop it."""

    def unreachable(self) -> None:
        """Be told that nobody takes a datagram of it."""

    # --- what the selector asks ---

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

    def __init__(
        self, network: "SimulatedNetwork", address: Address, *, is_local: bool = False
    ) -> None:
        """Bind to an address, or with `is_local` to the loopback of its host."""
        self.host, self.port = self.address = address
        self.is_local = is_local
        self.is_closed = False
        #: Called when somebody waits to be accepted.
        self.touched: Callable[[], None] = _nobody_waits
        self._network = network
        self._waiting: deque[SimulatedSocket] = deque()

    def listen(self, backlog: int) -> None:
        """Accept connections from now on."""
        self._network.listeners[self.address] = self

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001
        """Do nothing: these sockets never block."""

    def getsockname(self) -> Address:
        """Return the address."""
        return self.address

    def accept(self) -> tuple[SimulatedSocket, Address]:
        """Return the next connection and where it came from."""
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, "nobody connects")
        sock = self._waiting.popleft()
        return sock, sock.remote

    def close(self) -> None:
        """Refuse connections from now on."""
        self.is_closed = True
        self._network.listeners.pop(self.address, None)

    def accepting(self) -> SimulatedSocket:
        """Return this side's end of a connection."""
        return SimulatedSocket(self._network, self.host)

    def offer(self, sock: SimulatedSocket) -> None:
        """Let a connection wait for `accept`."""
        self._waiting.append(sock)
        self.touched()

    @property
    def is_readable(self) -> bool:
        """True when somebody waits to be accepted."""
        return bool(self._waiting)


class SimulatedSelector(selectors.BaseSelector):
    """Tells which simulated sockets are ready; it never waits.

    Only sockets that were touched are looked at, until they are found not ready.
    """

    def __init__(self, touched: Callable[[], None]) -> None:
        """Begin with no socket; `touched` is called when one may have become ready."""
        self._keys: dict[Any, selectors.SelectorKey] = {}
        #: Sockets that may be ready.
        self.touched: dict[Any, None] = {}
        self._tell = touched

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Ask to be told of a socket."""
        if not isinstance(fileobj, SimulatedSocket | SimulatedListener):
            msg = "a simulated node has no real sockets, pipes or files to wait for"
            raise TypeError(msg)
        key = selectors.SelectorKey(fileobj, -1, events, data)  # type: ignore[arg-type]
        self._keys[fileobj] = key

        def touched() -> None:
            self.touched[fileobj] = None
            self._tell()

        fileobj.touched = touched
        touched()
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Ask no more."""
        fileobj.touched = _nobody_waits
        self.touched.pop(fileobj, None)
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready now, in the order in which it was touched."""
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
        """Return what is registered."""
        return self._keys


def _nobody_waits() -> None:
    """Be told of nothing: no selector watches this socket."""


#: Seconds from one host to another, unless set otherwise.
DELAY: Final = 0.0005

#: Part of the delay by which a packet may come later than others.
JITTER: Final = 0.1

#: Seconds until a lost packet is sent again; twice as long each time, as Linux does.
FIRST_RETRANSMISSION: Final = 0.2

#: Times that a packet is sent before its connection counts as broken: after 12.6 s.
TRANSMISSIONS: Final = 6

FIRST_PORT: Final = 40000


@dataclass(slots=True)
class Way:
    """One direction between two hosts: seconds, bytes per second, part of packets lost.

    A part of those that arrive get no answer: the connection breaks, and is `doubling`, since
    who has no answer says again what had arrived.
    """

    delay: float = DELAY
    bytes_per_second: float = 0.0
    loss: float = 0.0
    doubling: float = 0.0
    is_cut: bool = False
    #: When a narrow way has carried what was sent into it before.
    free_at: float = 0.0


class SimulatedNetwork:
    """All hosts, the connections between them, and their faults."""

    def __init__(self, clock: Clock, rng: random.Random, trace: EventTrace) -> None:
        """Make a network without faults."""
        self.listeners: dict[Address, SimulatedListener] = {}
        self._clock = clock
        self._random = rng
        self._trace = trace
        #: Who takes datagrams.
        self.datagram_sockets: dict[Address, SimulatedSocket] = {}
        #: The addresses of hosts by their names.
        self.names: dict[str, str] = {}
        #: Up to so many seconds more is each packet under way, drawn for each.
        self.jitter = 0.0
        self._ways: defaultdict[tuple[str, str], Way] = defaultdict(Way)
        self._sockets: dict[SimulatedSocket, None] = {}
        #: What stands before a cut way: socket, size, and what happens when it gets through.
        self._held: list[tuple[SimulatedSocket, str, str, int, _Arrival]] = []
        self._silent: set[str] = set()
        #: Until when hosts wait for their disks, and send nothing.
        self.busy: dict[str, float] = {}
        #: What frozen hosts were about to send in the turn in which they were frozen.
        self._frozen: dict[str, list[tuple[SimulatedSocket, bytes]]] = {}
        #: Told of each host that is about to send, as long as somebody waits for that.
        self.sending: Callable[[str], object] | None = None
        self._ports = FIRST_PORT

    def way(self, one: str, other: str) -> Way:
        """Return the direction from one host to another."""
        return self._ways[one, other]

    # --- for nodes ---

    def bind(self, host: str, port: int) -> SimulatedListener:
        """Return a bound socket; port 0 picks one."""
        port = port or self.free_port()
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, "address already in use")
        return SimulatedListener(self, (host, port))

    def free_port(self) -> int:
        """Return a port that nobody has."""
        self._ports += 1
        return self._ports

    def connect(self, host: str, address: Address) -> SimulatedSocket:
        """Begin to connect; the socket becomes writable when that has ended."""
        sock = SimulatedSocket(self, host)
        self.dial(sock, address)
        return sock

    def dial(self, sock: SimulatedSocket, address: Address) -> None:
        """Begin to connect a socket."""
        sock.remote = address
        sock.is_connecting = True
        self._sockets[sock] = None
        self._trace.note(self._clock.now, sock.host, "connects to", address[0])
        self._travel(sock, sock.host, address[0], 0, (self._connection_arrives, (sock,)))

    def carry(self, sock: SimulatedSocket, data: bytes) -> None:
        """Bring bytes of a socket to its peer; none stands for the end of the stream."""
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
        """Let nothing leave a host that is frozen, perhaps in the middle of its turn."""
        self._frozen.setdefault(host, [])

    def thaw(self, host: str) -> None:
        """Let it leave."""
        sending, self.sending = self.sending, None  # it was about to be sent before
        for sock, data in self._frozen.pop(host, ()):
            self.carry(sock, data)
        self.sending = sending

    def forget(self, sock: SimulatedSocket) -> None:
        """Take note that a socket was closed by its owner."""
        self._sockets.pop(sock, None)

    def refuse(self, sock: SimulatedSocket, peer: SimulatedSocket) -> None:
        """Answer bytes for a socket that is closed: TCP resets the connection."""
        self._trace.note(self._clock.now, sock.host, "resets", sock.remote[0])
        self._travel(sock, sock.host, sock.remote[0], 0, (peer.reset, ()))

    def datagram(self, sock: SimulatedSocket, to: Address, data: bytes) -> None:
        """Bring a datagram to an address, or lose it; datagrams overtake each other."""
        host = sock.host
        self._trace.note(self._clock.now, host, "sends to", to[0], len(data), zlib.crc32(data))
        way = self.way(host, to[0])
        is_lost = bool(way.loss) and self._random.random() < way.loss
        if not (way.is_cut or is_lost):
            late = way.delay * (1.0 + JITTER * self._random.random())
            if self.jitter and host != to[0]:
                late += self.jitter * self._random.random()
            if way.bytes_per_second:
                way.free_at = (
                    max(way.free_at, self._clock.now) + len(data) / way.bytes_per_second
                )
                late += way.free_at - self._clock.now
            self._clock.plan(late, self._datagram_arrives, sock, to, data)

    def _datagram_arrives(self, sock: SimulatedSocket, to: Address, data: bytes) -> None:
        """Hand a datagram to whom it is for; without one its sender is told."""
        found = self.datagram_sockets.get(to)
        if found is not None:
            found.datagram(data, (sock.host, sock.port))
        elif to[0] not in self._silent:
            sock.unreachable()

    # --- the way ---

    @property
    def late_until(self) -> float:
        """When the last bytes arrive that are under way, however often they were lost."""
        arrivals = (sock.last_arrival for sock in self._sockets if not sock.is_closed)
        return max(arrivals, default=0.0)

    def _travel(
        self, sock: SimulatedSocket, one: str, other: str, size: int, arrival: "_Arrival"
    ) -> None:
        """Let bytes arrive when delay, rate and losses of their way say so."""
        way = self._ways[one, other]
        if way.is_cut:
            self._held.append((sock, one, other, size, arrival))
            sock.held()
            return
        now = self._clock.now
        if self.busy:
            now = max(now, self.busy.get(one, 0.0))
        due = now + way.delay * (1.0 + JITTER * self._random.random())
        if self.jitter and one != other:
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
            self._trace.note(now, one, "hears no answer of", other)
            answered = due + self.way(other, one).delay / 2  # the receiver reads it before
            self._clock.plan_at(answered, self._break, sock, errno.ECONNRESET)

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
    def _break(sock: SimulatedSocket, code: int = errno.ETIMEDOUT) -> None:
        """Break a connection at both ends."""
        for end in (sock, sock.peer):
            if end is not None and not end.is_closed:
                end.connected(end.peer, code)

    def _connection_arrives(self, sock: SimulatedSocket) -> None:
        """Let a dial reach its listener, or be refused."""
        if sock.is_closed or sock.remote[0] in self._silent:
            return
        listener, host, to = self.listeners.get(sock.remote), sock.host, sock.remote[0]
        if listener is None or (listener.is_local and host != to):
            arrival: _Arrival = (sock.connected, (None, errno.ECONNREFUSED))
            self._travel(sock, to, host, 0, arrival)
            return
        other = listener.accepting()
        other.remote = (host, sock.port)
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

    def heal(self) -> None:
        """Let everything through again."""
        for way in self._ways.values():
            way.is_cut = False
        held, self._held = self._held, []
        for waiting in held:
            self._travel(*waiting)

    def is_held(self, sock: SimulatedSocket) -> bool:
        """Return whether bytes of a socket stand before a cut way."""
        return any(waiting[0] is sock for waiting in self._held)

    def mend(self, one: str, other: str) -> None:
        """Let everything through again between two hosts, and leave others as they are."""
        self.way(one, other).is_cut = self.way(other, one).is_cut = False
        held, self._held = self._held, []
        for waiting in held:
            if {waiting[1], waiting[2]} == {one, other}:
                self._travel(*waiting)
            else:
                self._held.append(waiting)

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
        self._close_ports(host)  # of a process that came to its end while it opened one
        for sock in list(self._sockets):
            if sock.remote[0] == host and sock.peer is not None and sock.peer.is_closed:
                self._travel(sock, host, sock.host, 0, (sock.reset, ()))

    def _of(self, host: str) -> list[SimulatedSocket]:
        """Return the sockets of a host."""
        return [sock for sock in self._sockets if sock.host == host]

    def _close_ports(self, host: str) -> None:
        """Close the listeners of a host, which is neither frozen nor waits for its disk."""
        self.busy.pop(host, None)
        self._frozen.pop(host, None)
        for taken in (self.listeners, self.datagram_sockets):
            for address in [address for address in taken if address[0] == host]:
                del taken[address]


#: What happens when something arrives, and with which arguments.
_Arrival = tuple[Callable[..., object], tuple[Any, ...]]
