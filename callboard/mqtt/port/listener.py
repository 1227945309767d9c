"""Ports of a router: TCP, TLS, WebSocket and Unix sockets.

The scheme of an address says which: `127.0.0.1:1883`, `tls://0.0.0.0:8883`,
`ws://127.0.0.1:9001`, `wss://0.0.0.0:9443`,
`unix:/run/mqtt.sock`. Without a scheme it is plain TCP. Port 0 picks a free port.
"""

import asyncio
import contextlib
import logging
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from callboard.kernel.ports import HANDSHAKE_LIMIT
from callboard.kernel.wire import Runner
from callboard.mqtt.port.remote_link import ClientConnections
from callboard.mqtt.port.socket_stream import SocketServer
from callboard.mqtt.port.stream import Entrance, TransportStream
from callboard.mqtt.wire.errors import ListenError
from callboard.support.after_fork import own_listener
from callboard.support.dataclass import dataclass
from callboard.support.host_guard import ANY_HOST, HostGuard
from callboard.support.redaction import redacted
from callboard.tls.certificates import Certificates
from callboard.tls.contexts import Tls

_log = logging.getLogger("callboard.mqtt")

UNIX: Final = "unix:"
_SCHEMES: Final = {"tcp": False, "tls": True, "ws": False, "wss": True}
#: Connections that may wait to be accepted, since thousands of clients may reconnect at once.
BACKLOG: Final = 1_024


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """One port.

    Attributes:
        address: as described in this module.
        tls: TLS for `tls://` and `wss://`; with `mutual`, clients must show certificates.
        tenants: whether the organisation in a client's certificate is its tenant, which
            prefixes its client id and topics.
        origins: for WebSocket, web sites whose pages may connect; empty for all.
        hosts: for WebSocket, names of this port, in addition to addresses, `localhost` and the
            name of the machine; `*` for all names. Over TLS, where the certificate has shown
            the name, empty means all.
        certificate_user: the part of a client's certificate that is its user name; `subject`
            is all of it, as text (RFC 4514).
        mount_point: the prefix of all topics of its clients, which do not see it.
        maximum_qos: the highest QoS of its clients; `Limits.maximum_qos` applies, too.
    """

    address: str = "127.0.0.1:1883"
    tls: Tls | None = None
    tenants: bool = False
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    certificate_user: Literal["common name", "subject"] = "common name"
    mount_point: str = ""
    maximum_qos: int = 2

    def parse(self) -> tuple[str, str, int]:
        """Return scheme, host or path, and port.

        Raises:
            ListenError: the address is malformed, or needs TLS settings.
        """
        if self.address.startswith(UNIX):
            return "unix", self.address.removeprefix(UNIX), 0
        scheme, colon, rest = self.address.rpartition("://")
        scheme = scheme if colon else "tcp"
        host, _, port = rest.rpartition(":")
        is_port = port.isdecimal() and len(port) <= 5 and int(port) <= 65_535
        if scheme not in _SCHEMES or not host or not is_port:
            message = (
                f"{redacted(self.address)!r} is not a listener address; write HOST:PORT, "
                "tls://HOST:PORT, ws://HOST:PORT, wss://HOST:PORT or unix:/PATH"
            )
            raise ListenError(message)
        if _SCHEMES[scheme] and self.tls is None:
            message = f"{redacted(self.address)} needs a certificate and a key"
            raise ListenError(message)
        return scheme, host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Listener:
    """One open port."""

    settings: ListenerSettings
    _servers: "list[SocketServer]"
    #: The path of a Unix socket.
    _path: str = ""
    #: For TLS and WebSocket.
    _handshakes: "Handshakes | None" = None

    @property
    def port(self) -> int:
        """The TCP port; 0 for a Unix socket."""
        if self._path:
            return 0
        port: int = self._servers[0].sockets[0].getsockname()[1]
        return port

    @property
    def address(self) -> str:
        """The address, with the real port in place of port 0."""
        if self._path:
            return self.settings.address
        return f"{self.settings.address.rpartition(':')[0]}:{self.port}"

    def check(self) -> None:
        """Reload replaced certificates; disconnect clients with revoked ones."""
        if self._handshakes is not None and self._handshakes.certificates is not None:
            self._handshakes.certificates.check()

    def close(self) -> None:
        """Stop accepting connections."""
        for server in self._servers:
            server.close()
        if self._handshakes is not None:
            self._handshakes.close()
        if self._path:
            with contextlib.suppress(OSError):
                Path(self._path).unlink()


async def listen(
    connections: ClientConnections, settings: ListenerSettings, runner: Runner
) -> Listener:
    """Open a port.

    Raises:
        ListenError: the port cannot be opened, or a package that it needs is missing.
        TlsError: a TLS file is unusable.
    """
    scheme, place, port = settings.parse()
    if runner.machine is not None and scheme != "tcp":
        message = (
            f"{redacted(settings.address)}: simulated ports are plain TCP; write HOST:PORT"
        )
        raise ListenError(message)
    loop = asyncio.get_running_loop()
    names_subjects = settings.certificate_user == "subject"
    entrance = Entrance(settings.address, settings.tenants, names_subjects)
    servers: list[SocketServer] = []
    try:
        if runner.machine is not None:
            servers.append(runner.machine.serve_mqtt(port, connections, entrance, runner))
            return Listener(settings, servers)
        if scheme == "unix":
            _remove_socket(Path(place))
            sock = own_listener(_bound(socket.socket(socket.AF_UNIX), place))
            return Listener(
                settings, [SocketServer(connections, entrance, sock, runner)], place
            )
        certificates = None
        if settings.tls and _SCHEMES[scheme]:
            certificates = Certificates(settings.tls, connections.report_certificates)
            certificates.listening()  # checks its files
        make = partial(TransportStream, connections, entrance, runner)
        if scheme in {"ws", "wss"}:
            hosts = settings.hosts or ((ANY_HOST,) if certificates is not None else ())
            guard, origins = HostGuard.of_port(place, hosts), settings.origins
            make = partial(_web_stream(settings), connections, entrance, runner, origins, guard)
        handshakes = (
            None if scheme == "tcp" else Handshakes(connections, make, loop, certificates)
        )
        begin = None if handshakes is None else handshakes.begin
        addresses = await loop.getaddrinfo(place, port, type=socket.SOCK_STREAM)
        for family, *_, address in addresses if begin else addresses[:1]:
            sock = socket.socket(family)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if begin and family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound = own_listener(_bound(sock, address))
            servers.append(SocketServer(connections, entrance, bound, runner, begin))
    except OSError as error:
        for server in servers:
            server.close()
        message = (
            f"{redacted(settings.address)} cannot be opened: {os.strerror(error.errno or 0)}"
        )
        raise ListenError(message) from error
    return Listener(settings, servers, _handshakes=handshakes)


@dataclass(eq=False)
class Handshakes:
    """Connections of one port during their TLS handshake; asyncio serves them."""

    _connections: ClientConnections
    _make: Callable[[], TransportStream]
    _loop: asyncio.AbstractEventLoop
    #: None without TLS.
    certificates: Certificates | None
    _under_way: dict[asyncio.Task[None], TransportStream] = field(default_factory=dict)

    def begin(self, descriptor: int, host: str) -> None:
        """Start the handshake of an accepted connection."""
        stream, sock = self._make(), socket.socket(fileno=descriptor)
        task = self._loop.create_task(self._secure(stream, sock, host))
        self._under_way[task] = stream
        task.add_done_callback(self._under_way.pop)

    def close(self) -> None:
        """End the pending handshakes."""
        for task, stream in list(self._under_way.items()):
            if stream.remote is None:
                task.cancel()

    async def _secure(self, stream: TransportStream, sock: socket.socket, host: str) -> None:
        """Do the TLS handshake within the time limit, then start the connection."""
        certificates, connections = self.certificates, self._connections
        context = None if certificates is None else certificates.listening()
        patience = min(HANDSHAKE_LIMIT, connections.limits.connect_timeout or HANDSHAKE_LIMIT)
        connections.arrive(sock, host)
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: stream,
                sock,
                ssl=context,
                ssl_handshake_timeout=None if context is None else patience,
            )
        except OSError as error:  # TLS errors are OSErrors, too
            _log.info("a connection from %s ended in its TLS handshake: %s", host, error)
        else:
            if certificates is not None:
                certificates.follow(stream, transport.get_extra_info("ssl_object"))
        finally:
            connections.depart(sock, host)


def _bound(sock: socket.socket, address: str | tuple[Any, ...]) -> socket.socket:
    """Bind a socket to an address, and listen."""
    try:
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _web_stream(settings: ListenerSettings) -> Callable[..., TransportStream]:
    """Return the class for connections over WebSocket."""
    try:
        from callboard.mqtt.port.websocket import WebSocketStream
    except ImportError as error:
        message = (
            f"{redacted(settings.address)} needs a package: pip install 'callboard[websocket]'"
        )
        raise ListenError(message) from error
    return WebSocketStream


def _remove_socket(path: Path) -> None:
    """Remove the socket file of a router that was killed; never another file."""
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
