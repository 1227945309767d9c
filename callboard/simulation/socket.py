"""Sockets of a simulated network, with the methods of real ones that nodes use.

A connection is a pair of byte streams, reliable and in order as TCP is. Bytes that were
sent are under way for the link's delay, then wait in the receiver's buffer. A sender gets
as far ahead of its reader as the window allows; then its socket is full, as a real one
would be.
"""

import errno
import selectors
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from callboard.simulation.network import Network

WINDOW: Final = 256 * 1024
"""Bytes that may be under way or unread in one direction of a connection."""

Address = tuple[str, int]


class SimulatedSocket:
    """One end of a connection."""

    def __init__(self, network: "Network", host: str) -> None:
        """Make an end at `host` that is not connected yet."""
        self.host = host
        self.peer: SimulatedSocket | None = None
        self.remote: Address = ("", 0)
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
        taken = bytes(data[:room])
        self.window_used += len(taken)
        self._network.carry(self, taken)
        return len(taken)

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
        if self.peer is not None:
            self.peer.window_used -= len(data)
            self.peer.touched()
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

    def reset(self, code: int = errno.ECONNRESET) -> None:
        """Break the connection."""
        self.error = code
        self.touched()

    def vanish(self) -> None:
        """Be gone without a word, as the machine that held this end."""
        self.is_closed = True
        self.peer = None

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

    def __init__(self, network: "Network", address: Address) -> None:
        """Bind to an address."""
        self.host, self.port = self.address = address
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

    def offer(self, sock: SimulatedSocket) -> None:
        """Let a connection wait for `accept`."""
        self._waiting.append(sock)
        self.touched()

    @property
    def is_readable(self) -> bool:
        """True when somebody waits to be accepted."""
        return bool(self._waiting)

    @property
    def is_writable(self) -> bool:
        """Never."""
        return False


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
            mask = 0
            if key.events & selectors.EVENT_READ and fileobj.is_readable:
                mask |= selectors.EVENT_READ
            if key.events & selectors.EVENT_WRITE and fileobj.is_writable:
                mask |= selectors.EVENT_WRITE
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
