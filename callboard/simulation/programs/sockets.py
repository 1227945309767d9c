"""Sockets of simulated programs, with the interface that asyncio needs.

A program that calls `socket.socket` gets one of these. asyncio's own transports use them, so
buffering, pausing, half-closed and aborted connections behave as in production. They have
simulated descriptors, which are invalid in real system calls.
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
from callboard.simulation.programs.current_program import ProgramLife

#: Fraction of reads that return fewer bytes than have arrived, because streams do not
#: preserve message boundaries.
SHORT_READS: Final = 1 / 8

#: Seconds after which Linux gives up connecting, and sending unacknowledged bytes.
CONNECT_LIMIT: Final = 127.0
SEND_LIMIT: Final = 924.6

#: Maximum unread datagrams; further ones are dropped.
DATAGRAM_LIMIT: Final = 256

_LOOPBACK: Final = ("127.", "::1", "localhost")
_ANY: Final = ("", "0.0.0.0", "::")  # noqa: S104 - of a simulated host


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
        """Create a socket that is neither bound nor connected.

        Raises:
            OSError: the address family is not supported.
        """
        super().__init__(loop.network, loop.host.address)
        if family not in (socket.AF_INET, socket.AF_INET6, -1):
            raise OSError(errno.EAFNOSUPPORT, "simulated hosts support IP sockets only")
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

    # --- the interface of a socket ---

    def fileno(self) -> int:
        """Return the simulated descriptor; -1 after `close`."""
        return -1 if self.is_closed else self._fd

    def gettimeout(self) -> float | None:
        """Return None for a blocking socket, else 0."""
        return None if self._blocks else 0.0

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001  (the form of a real socket)
        """Set the blocking mode; calls that would block are refused later."""
        self._blocks = flag

    def settimeout(self, seconds: float | None) -> None:
        """Set the blocking mode by a timeout."""
        self._blocks = seconds != 0.0

    def set_inheritable(self, inheritable: bool) -> None:  # noqa: FBT001
        """Do nothing: there are no child processes."""

    def bind(self, address: tuple[Any, ...]) -> None:
        """Bind to an address of the host; only the host itself can reach the loopback.

        Raises:
            OSError: the address is in use or belongs to another host.
        """
        name, port = str(address[0]), int(address[1])
        host = self._network.names.get(name, name)
        if not (name in _ANY or name.startswith(_LOOPBACK) or host == self.host):
            raise OSError(errno.EADDRNOTAVAIL, "cannot assign requested address")
        network = self._network
        sockets: Mapping[Address, Any]
        sockets = network.datagram_sockets if self._takes_datagrams else network.listeners
        self.port = port or network.free_port()
        if (self.host, self.port) in sockets:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self._bound = (name, self.port)
        if self._takes_datagrams:
            network.datagram_sockets[self.host, self.port] = self

    def listen(self, backlog: int = 0) -> None:
        """Start accepting connections."""
        if self._bound is None:
            self.bind(("", 0))
        assert self._bound is not None
        is_local = self._bound[0].startswith(_LOOPBACK)
        self.listener = HostListener(self._loop, (self.host, self.port), is_local=is_local)
        self.listener.touched = lambda: self.touched()
        self.listener.listen(backlog)

    def accept(self) -> tuple[SimulatedSocket, Address]:
        """Return the next connection and its remote address."""
        if self._blocks:
            self._refuse("socket.accept")
        if self.listener is None:
            raise OSError(errno.EINVAL, "the socket is not listening")
        accepted, source = self.listener.accept()
        if self.listener.is_readable:
            self.touched()
        return accepted, source

    def connect(self, address: tuple[Any, ...]) -> None:
        """Start connecting.

        Raises:
            BlockingIOError: always, because the connection is in progress.
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
        """Resolve names and the loopback to the address of a host."""
        name = str(address[0])
        if name in _ANY or name.startswith(_LOOPBACK):
            return self.host, int(address[1])
        return self._network.names.get(name, name), int(address[1])

    def connect_ex(self, address: tuple[Any, ...]) -> int:
        """Start connecting; return an error number, normally EINPROGRESS."""
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or 0
        return 0

    def _connect_over(self) -> None:
        """Give up connecting after the time limit."""
        if self.is_connecting and not self.is_closed:
            self.connected(None, errno.ETIMEDOUT)

    def send(self, data: memoryview | bytes, flags: int = 0) -> int:
        """Send as much as fits in the window; return the number of bytes."""
        if self._takes_datagrams:
            return self.sendto(data, self.remote)
        if self._blocks:
            self._refuse("socket.send")
        if self._is_shut:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        return SimulatedSocket.send(self, data)  # `super()` would double the cost

    def sendmsg(self, buffers: Iterable[Any], *_: object) -> int:
        """Send several buffers as one."""
        return self.send(b"".join(buffers))

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Return up to `size` of the arrived bytes, and randomly fewer.

        With `MSG_PEEK`, the bytes remain unread.
        """
        if self._blocks:
            self._refuse("socket.recv")
        received = self._received
        if len(received) > 1:
            data_received = b"".join(received)
            received.clear()
            received.append(data_received)
        if received:
            if flags and flags & socket.MSG_PEEK:
                return received[0][:size]
            if self._chance() < SHORT_READS:
                size = min(size, 1 + int(self._chance() * len(received[0])))
        data = SimulatedSocket.recv(self, size)
        if received or self._received_end or self.error:
            self.touched()  # more can be read
        return data

    def recv_into(self, buffer: Any, size: int = 0, flags: int = 0) -> int:
        """Read into a buffer; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        data = self.recv(size or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def sendto(self, data: Any, *arguments: Any) -> int:
        """Send a datagram; the last argument is the address."""
        if self.error:
            code, self.error = self.error, 0
            raise OSError(code, os.strerror(code))
        if not self.port:
            self.bind(("", 0))
        datagram = bytes(data)
        self._network.datagram(self, self._resolved(arguments[-1]), datagram)
        return len(datagram)

    def recvfrom(self, size: int, flags: int = 0) -> tuple[bytes, Address]:
        """Return the next datagram and its source."""
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
        """Read a datagram into a buffer; return the number of bytes and the source."""
        view = memoryview(buffer).cast("B")
        data, source = self.recvfrom(size or len(view), flags)
        view[: len(data)] = data
        return len(data), source

    def datagram(self, data: bytes, source: Address) -> None:
        """Receive a datagram; drop it if the queue is full or its source is not the peer."""
        is_accepted = not self.remote[0] or self.remote == source
        if is_accepted and not self.is_closed and len(self._datagrams) < DATAGRAM_LIMIT:
            self._datagrams.append((data, source))
            self.touched()

    def shutdown(self, how: int) -> None:
        """End the sending direction; the receiving one stays open."""
        if how != socket.SHUT_RD and not self._is_shut and not self.is_closed:
            self._is_shut = True
            if self.peer is not None:
                self._network.carry(self, b"")

    def close(self) -> None:
        """Close the socket.

        The peer can read everything sent; it gets a reset if bytes remained unread here.
        """
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
        """Refuse: there is no real descriptor."""
        self._refuse("socket.detach")

    def makefile(self, *_: Any, **__: Any) -> Any:
        """Refuse: the file object would block."""
        self._refuse("socket.makefile")

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Refuse: it would block."""
        self._refuse("socket.sendall")

    def _refuse(self, call: str) -> NoReturn:
        """Refuse a blocking call."""
        self._loop.refuse(f"{call} blocks", _INSTEAD)

    def getsockname(self) -> Address:
        """Return the local address."""
        name = self._bound[0] if self._bound is not None else self.host
        return ("127.0.0.1" if name == "localhost" else name or "0.0.0.0", self.port)  # noqa: S104

    def getpeername(self) -> Address:
        """Return the remote address."""
        if not self.remote[0] or (self.peer is None and not self._takes_datagrams):
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self.remote

    def getsockopt(self, *options: object) -> int:
        """Return SO_TYPE or SO_ERROR; 0 for other options."""
        if socket.SO_TYPE in options[1:]:
            return int(self.type)
        return self.error if socket.SO_ERROR in options else 0

    def __enter__(self) -> Self:
        """Return the socket itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the socket."""
        self.close()

    # --- called by the network ---

    def arrive(self, data: bytes) -> None:
        """Receive bytes from the network; a closed socket answers with a reset."""
        if self.is_closed and data and self.peer is not None:
            self._network.refuse(self, self.peer)
            return
        super().arrive(data)

    def unreachable(self) -> None:
        """Report ECONNREFUSED to a connected datagram socket."""
        if self.remote[0]:
            self.error = errno.ECONNREFUSED
            self.touched()

    def held(self) -> None:
        """Schedule a timeout for held bytes."""
        self._loop.simulation.plan(SEND_LIMIT, self._give_up)

    def _give_up(self) -> None:
        """Break the connection if sent bytes are still held."""
        if not self.is_closed and self.window_used and self._network.is_held(self):
            self.connected(self.peer, errno.ETIMEDOUT)

    @property
    def is_readable(self) -> bool:
        """True when `recv`, `recvfrom` or `accept` would not block."""
        if self._received and not self.is_connecting:  # the common case
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
    type: int = 0,  # noqa: A002 - as in `socket.getaddrinfo`
    proto: int = 0,
    flags: int = 0,
) -> list[Any]:
    """Replace `socket.getaddrinfo`: resolve the name of a host.

    Raises:
        socket.gaierror: no host has that name.
    """
    names = loop.network.names
    name = host.decode() if isinstance(host, bytes) else host
    if name is None:
        name = "" if flags & socket.AI_PASSIVE else "localhost"
    name = names.get(name, {"": "0.0.0.0", "localhost": "127.0.0.1"}.get(name, name))  # noqa: S104
    is_number = name.replace(".", "").isdecimal() or ":" in name
    if not is_number or family == socket.AF_INET6:
        text = (
            f"Name or service not known: {host!r}; the simulated hosts are {', '.join(names)}"
        )
        raise socket.gaierror(socket.EAI_NONAME, text)
    is_service = isinstance(port, str) and not port.isdecimal()
    number = socket.getservbyname(port) if is_service else int(port or 0)
    return [
        (socket.AF_INET, kind, protocol, "", (name, number))
        for kind, protocol in ((socket.SOCK_STREAM, 6), (socket.SOCK_DGRAM, 17))
        if type in (0, kind) and proto in (0, protocol)
    ]


def _nobody() -> None:
    """Do nothing: no loop watches the socket."""


class HostListener(SimulatedListener):
    """The listener of a program's listening socket."""

    def __init__(self, loop: ProgramLife, address: Address, *, is_local: bool) -> None:
        """Bind to an address."""
        super().__init__(loop.network, address, is_local=is_local)
        self._loop = loop

    def accepting(self) -> SimulatedSocket:
        """Create this side's socket of a new connection."""
        accepted = HostSocket(self._loop)
        accepted.port = self.port
        return accepted


class HostSelector(selectors.BaseSelector):
    """A selector for the sockets of a program; it never blocks.

    It is edge-triggered: a socket that is still readable after a read calls `touched` itself.
    """

    def __init__(self, wake: Callable[[], None], sockets: dict[int, Any]) -> None:
        """Create an empty selector; `wake` is called when a socket may be ready."""
        #: Numbers of sockets that may be ready.
        self.touched: dict[int, None] = {}
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._wake = wake
        self._sockets = sockets

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Register a socket.

        Raises:
            ValueError: the socket is not simulated.
        """
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        sock = self._sockets.get(number)
        if not isinstance(sock, HostSocket):
            msg = f"a simulated host cannot wait for real sockets, pipes or files: {fileobj!r}"
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
        """Unregister a socket."""
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        self.touched.pop(number, None)
        key = self._keys.pop(number)
        sock: Any = key.fileobj
        sock.touched = _nobody
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Change the events of a socket."""
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[number] = self._keys[number]._replace(events=events, data=data)
        self.touched[number] = None
        self._wake()
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Refuse: the loop of a host calls `collect` instead."""
        raise NotImplementedError

    def collect(self, handles: deque[asyncio.Handle]) -> None:
        """Append asyncio's handles of the ready sockets, in the order of their touches."""
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
        """Return the key of a socket."""
        return self._keys[fileobj if isinstance(fileobj, int) else fileobj.fileno()]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return the registered sockets and their keys."""
        return self._keys

    def close(self) -> None:
        """Unregister all sockets."""
        self._keys.clear()
        self.touched.clear()
