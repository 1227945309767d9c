"""Sockets of programs: those of the simulated network, with all that asyncio asks of real ones.

A program gets one where it asks for `socket.socket`, and asyncio's own transports work on it,
so that buffers, pauses, half-closed and aborted connections are what they are elsewhere. They
have numbers in place of descriptors, which no real call knows.
"""

import asyncio
import errno
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NoReturn, Self

from callboard.simulation.network import Address, SimulatedListener, SimulatedSocket
from callboard.simulation.programs.here import ProgramLife

#: Part of the reads that return fewer bytes than have arrived: a stream has no messages.
SHORT_READS: Final = 1 / 8

#: Seconds after which Linux gives up to connect, and to send what nobody acknowledges.
CONNECT_LIMIT: Final = 127.0
SEND_LIMIT: Final = 924.6

#: Datagrams that wait to be read; more are dropped.
DATAGRAM_LIMIT: Final = 256

_LOOPBACK: Final = ("127.", "::1", "localhost")
_ANY: Final = ("", "0.0.0.0", "::")  # noqa: S104 - names of what a simulated host listens at


_INSTEAD: Final = "use asyncio: open_connection, start_server, loop.sock_sendall"


class HostSocket(SimulatedSocket):
    """A socket of a simulated program."""

    def __init__(
        self,
        loop: ProgramLife,
        family: int = socket.AF_INET,
        kind: int = socket.SOCK_STREAM,
        proto: int = 0,
    ) -> None:
        """Make a socket that is neither bound nor connected.

        Raises:
            OSError: the network has no such sockets.
        """
        super().__init__(loop.network, loop.host.address)
        if family not in (socket.AF_INET, socket.AF_INET6, -1):
            raise OSError(errno.EAFNOSUPPORT, "simulated hosts have sockets of IP only")
        self.family = socket.AddressFamily(socket.AF_INET if family == -1 else family)
        self.type = socket.SocketKind(socket.SOCK_STREAM if kind == -1 else kind)
        self.proto = max(proto, 0)
        self._takes_datagrams = self.type == socket.SOCK_DGRAM
        self.listener: HostListener | None = None
        self._loop = loop
        self._fd = loop.new_descriptor(self)
        self._bound: Address | None = None
        self._is_shut = False
        self._blocks = True
        self._chance = loop.chance
        self._datagrams: deque[tuple[bytes, Address]] = deque()

    # --- what asyncio asks of a socket ---

    def fileno(self) -> int:
        """Return its number; -1 once it is closed."""
        return -1 if self.is_closed else self._fd

    def gettimeout(self) -> float | None:
        """Return None while it would block."""
        return None if self._blocks else 0.0

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001  (the form of a real socket)
        """Take note whether it blocks, which is refused where it would."""
        self._blocks = flag

    def settimeout(self, seconds: float | None) -> None:
        """Take note whether it blocks."""
        self._blocks = seconds != 0.0

    def set_inheritable(self, inheritable: bool) -> None:  # noqa: FBT001
        """Do nothing: there are no children."""

    def bind(self, address: tuple[Any, ...]) -> None:
        """Take an address of the host; the loopback is seen by the host itself only.

        Raises:
            OSError: it is taken, or another host's.
        """
        name, port = str(address[0]), int(address[1])
        host = self._network.names.get(name, name)
        if not (name in _ANY or name.startswith(_LOOPBACK) or host == self.host):
            raise OSError(errno.EADDRNOTAVAIL, "cannot assign requested address")
        network = self._network
        taken: Mapping[Address, Any]
        taken = network.datagram_sockets if self._takes_datagrams else network.listeners
        self.port = port or network.free_port()
        if (self.host, self.port) in taken:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self._bound = (name, self.port)
        if self._takes_datagrams:
            network.datagram_sockets[self.host, self.port] = self

    def listen(self, backlog: int = 0) -> None:
        """Accept connections from now on."""
        if self._bound is None:
            self.bind(("", 0))
        assert self._bound is not None
        is_local = self._bound[0].startswith(_LOOPBACK)
        self.listener = HostListener(self._loop, (self.host, self.port), is_local=is_local)
        self.listener.touched = lambda: self.touched()
        self.listener.listen(backlog)

    def accept(self) -> tuple[SimulatedSocket, Address]:
        """Return the next connection and where it came from."""
        if self._blocks:
            self._refuse("socket.accept")
        if self.listener is None:
            raise OSError(errno.EINVAL, "the socket does not listen")
        made, source = self.listener.accept()
        if self.listener.is_readable:
            self.touched()
        return made, source

    def connect(self, address: tuple[Any, ...]) -> None:
        """Begin to connect.

        Raises:
            BlockingIOError: it is under way, which is not an error.
        """
        if self._takes_datagrams:
            if not self.port:
                self.bind(("", 0))
            self.remote = self._resolved(address)
            return
        if self._blocks:
            self._refuse("socket.connect")
        self.port = self.port or self._network.free_port()
        self._network.dial(self, self._resolved(address))
        self._loop.simulation.plan(CONNECT_LIMIT, self._connect_over)
        raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))

    def _resolved(self, address: tuple[Any, ...]) -> Address:
        """Return the address that is meant: names and the loopback are known."""
        name = str(address[0])
        if name in _ANY or name.startswith(_LOOPBACK):
            return self.host, int(address[1])
        return self._network.names.get(name, name), int(address[1])

    def connect_ex(self, address: tuple[Any, ...]) -> int:
        """Begin to connect; returns the error's number, which is that of "under way"."""
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or 0
        return 0

    def _connect_over(self) -> None:
        """Give up to connect."""
        if self.is_connecting and not self.is_closed:
            self.connected(None, errno.ETIMEDOUT)

    def send(self, data: memoryview | bytes, flags: int = 0) -> int:
        """Send as much as the window takes; returns the number of bytes."""
        if self._takes_datagrams:
            return self.sendto(data, self.remote)
        if self._blocks:
            self._refuse("socket.send")
        if self._is_shut:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        return SimulatedSocket.send(self, data)  # `super` costs as much as the rest

    def sendmsg(self, buffers: Iterable[Any], *_: object) -> int:
        """Send several pieces as one."""
        return self.send(b"".join(buffers))

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return what has arrived, up to `size` bytes; by chance only a part of it.

        With the flag `MSG_PEEK` it stays to be read.
        """
        if self._blocks:
            self._refuse("socket.recv")
        received = self._received
        if len(received) > 1:
            whole = b"".join(received)
            received.clear()
            received.append(whole)
        if received:
            if flags and flags & socket.MSG_PEEK:
                return received[0][:size]
            if self._chance() < SHORT_READS:
                size = min(size, 1 + int(self._chance() * len(received[0])))
        data = SimulatedSocket.recv(self, size)
        if received or self._received_end or self.error:
            self.touched()  # there is more to read
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """Read into a buffer; returns the number of bytes."""
        view = memoryview(buffer).cast("B")
        data = self.recv(size or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def sendto(self, data: Any, *where: Any) -> int:
        """Send a datagram to an address, the last argument."""
        if self.error:
            code, self.error = self.error, 0
            raise OSError(code, os.strerror(code))
        if not self.port:
            self.bind(("", 0))
        taken = bytes(data)
        self._network.datagram(self, self._resolved(where[-1]), taken)
        return len(taken)

    def recvfrom(self, size: int, flags: int = 0) -> tuple[bytes, Address]:
        """Return the next datagram and where it came from."""
        if self._blocks:
            self._refuse("socket.recvfrom")
        if self.error:
            code, self.error = self.error, 0
            raise OSError(code, os.strerror(code))
        if not self._datagrams:
            raise BlockingIOError(errno.EAGAIN, "nothing has arrived")
        data, source = self._datagrams.popleft()
        if self._datagrams:
            self.touched()
        return data[:size], source

    def recvfrom_into(self, buffer: Any, size: int = 0, flags: int = 0) -> tuple[int, Address]:
        """Read a datagram into a buffer; returns the number of bytes and where it came from."""
        view = memoryview(buffer).cast("B")
        data, source = self.recvfrom(size or len(view), flags)
        view[: len(data)] = data
        return len(data), source

    def datagram(self, data: bytes, source: Address) -> None:
        """Take a datagram, or drop it where too many wait."""
        is_wanted = not self.remote[0] or self.remote == source
        if is_wanted and not self.is_closed and len(self._datagrams) < DATAGRAM_LIMIT:
            self._datagrams.append((data, source))
            self.touched()

    def shutdown(self, how: int) -> None:
        """End one's own direction; the other one goes on."""
        if how != socket.SHUT_RD and not self._is_shut and not self.is_closed:
            self._is_shut = True
            if self.peer is not None:
                self._network.carry(self, b"")

    def close(self) -> None:
        """Close it. The peer reads to the end, or is reset if not all was read here."""
        if self.is_closed:
            return
        self._loop.drop_descriptor(self._fd)
        if self.listener is not None:
            self.listener.close()
        if self._network.datagram_sockets.get((self.host, self.port)) is self:
            del self._network.datagram_sockets[self.host, self.port]
        if self._is_shut or (self._received and self.peer is not None and not self.error):
            self.is_closed = True
            self._network.forget(self)
            if self._received and self.peer is not None:
                self._network.refuse(self, self.peer)
            return
        super().close()

    def detach(self) -> int:
        """Refuse: there is no descriptor."""
        self._refuse("socket.detach")

    def makefile(self, *_: Any, **__: Any) -> Any:
        """Refuse: a file would block."""
        self._refuse("socket.makefile")

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Refuse: it would block."""
        self._refuse("socket.sendall")

    def _refuse(self, what: str) -> NoReturn:
        """Say that sockets do not block here."""
        self._loop.refuse(f"{what} blocks", _INSTEAD)

    def getsockname(self) -> Address:
        """Return its own address."""
        name = self._bound[0] if self._bound is not None else self.host
        return ("127.0.0.1" if name == "localhost" else name or "0.0.0.0", self.port)  # noqa: S104

    def getpeername(self) -> Address:
        """Return the address of the other end."""
        if not self.remote[0] or (self.peer is None and not self._takes_datagrams):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self.remote

    def getsockopt(self, *which: object) -> int:
        """Return how the attempt to connect ended, its kind, or 0."""
        if socket.SO_TYPE in which[1:]:
            return int(self.type)
        return self.error if socket.SO_ERROR in which else 0

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    # --- what the network does to it ---

    def arrive(self, data: bytes) -> None:
        """Take bytes that came over the network; a closed socket answers with a reset."""
        if self.is_closed and data and self.peer is not None:
            self._network.refuse(self, self.peer)
            return
        super().arrive(data)

    def unreachable(self) -> None:
        """Tell a connected sender of datagrams that nobody takes them."""
        if self.remote[0]:
            self.error = errno.ECONNREFUSED
            self.touched()

    def held(self) -> None:
        """Give up after a while what does not get through."""
        self._loop.simulation.plan(SEND_LIMIT, self._give_up)

    def _give_up(self) -> None:
        """End the connection if what was sent still does not get through."""
        if not self.is_closed and self.window_used and self._network.is_held(self):
            self.connected(self.peer, errno.ETIMEDOUT)

    @property
    def is_readable(self) -> bool:
        """True when `recv`, `recvfrom` or `accept` would not block."""
        if self._received and not self.is_connecting:  # nearly always
            return True
        if self.listener is not None:
            return self.listener.is_readable
        return bool(self._datagrams) or super().is_readable

    @property
    def is_writable(self) -> bool:
        """True when `send` would not block, or the attempt to connect has ended."""
        return self._takes_datagrams or super().is_writable


def addresses(
    loop: ProgramLife,
    host: Any,
    port: Any,
    family: int = 0,
    type: int = 0,  # noqa: A002 - the keyword of the real one
    proto: int = 0,
    flags: int = 0,
) -> list[Any]:
    """Return what `socket.getaddrinfo` returns: the address of a host by its name.

    Raises:
        socket.gaierror: there is no host of that name.
    """
    names = loop.network.names
    name = host.decode() if isinstance(host, bytes) else host
    if name is None:
        name = "" if flags & socket.AI_PASSIVE else "localhost"
    name = names.get(name, {"": "0.0.0.0", "localhost": "127.0.0.1"}.get(name, name))  # noqa: S104
    is_number = name.replace(".", "").isdecimal() or ":" in name
    if not is_number or family == socket.AF_INET6:
        text = f"Name or service not known: {host!r}; the simulation has {', '.join(names)}"
        raise socket.gaierror(socket.EAI_NONAME, text)
    is_service = isinstance(port, str) and not port.isdecimal()
    number = socket.getservbyname(port) if is_service else int(port or 0)
    return [
        (socket.AF_INET, kind, own, "", (name, number))
        for kind, own in ((socket.SOCK_STREAM, 6), (socket.SOCK_DGRAM, 17))
        if type in (0, kind) and proto in (0, own)
    ]


def _nobody() -> None:
    """Tell nobody: no loop watches a socket."""


class HostListener(SimulatedListener):
    """What listens behind a socket of a program."""

    def __init__(self, loop: ProgramLife, address: Address, *, is_local: bool) -> None:
        """Bind to an address."""
        super().__init__(loop.network, address, is_local=is_local)
        self._loop = loop

    def accepting(self) -> SimulatedSocket:
        """Return this side's end of a connection."""
        made = HostSocket(self._loop)
        made.port = self.port
        return made


class HostSelector(selectors.BaseSelector):
    """Tells which sockets of a program are ready; it never waits.

    It tells once: a socket that has more to read after a read says so itself.
    """

    def __init__(self, wake: Callable[[], None], sockets: dict[int, Any]) -> None:
        """Begin with no socket; `wake` is called when one may have become ready."""
        #: Numbers of sockets that may be ready.
        self.touched: dict[int, None] = {}
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._wake = wake
        self._sockets = sockets

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Ask to be told of a socket.

        Raises:
            ValueError: it is not one of the simulation.
        """
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        sock = self._sockets.get(number)
        if not isinstance(sock, HostSocket):
            msg = (
                f"a simulated host has no real sockets, pipes or files to wait for: {fileobj!r}"
            )
            raise ValueError(msg)
        key = selectors.SelectorKey(sock, number, events, data)
        self._keys[number] = key
        touched, wake = self.touched, self._wake

        def touch() -> None:
            touched[number] = None
            wake()

        sock.touched = touch
        touch()
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Ask no more."""
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self.touched.pop(number, None)
        key = self._keys.pop(number)
        sock: Any = key.fileobj
        sock.touched = _nobody
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Ask for other events of a socket."""
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[number] = self._keys[number]._replace(events=events, data=data)
        self.touched[number] = None
        self._wake()
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Refuse: the loop of a host collects handles."""
        raise NotImplementedError

    def collect(self, handles: deque[asyncio.Handle]) -> None:
        """Add asyncio's handles of what is ready now, in the order in which it was touched."""
        keys = self._keys
        for number in self.touched:
            key = keys[number]
            sock: Any = key.fileobj
            reader, writer = key.data
            if reader is not None and sock.is_readable:
                handles.append(reader)
            if writer is not None and sock.is_writable:
                handles.append(writer)
        self.touched.clear()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        """Return what is known of a socket."""
        return self._keys[fileobj if isinstance(fileobj, int) else fileobj.fileno()]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return what is registered."""
        return self._keys

    def close(self) -> None:
        """Forget all."""
        self._keys.clear()
        self.touched.clear()
