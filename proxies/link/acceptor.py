"""Ports of a node: accepts connections, limits unproven peers, and does the TLS handshakes.

Unproven peers are limited (`callboard.proxies.link.limits`): a connection over a limit is
closed at once and counted.
"""

import errno
import logging
import selectors
import socket
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, Generic, TypeVar

from callboard.actors.runner.runner import Runner
from callboard.actors.values import Event
from callboard.proxies.address import Endpoint, endpoint_text
from callboard.proxies.events import ConnectionsRefused, LinkRefused
from callboard.proxies.link.limits import AcceptLimiter
from callboard.proxies.link.secret_tls import Encryption
from callboard.proxies.link.stream import Stream
from callboard.proxies.link.tls_socket import FIRST_WORD_LIMIT, Handshake, TlsSocket
from callboard.support.dataclass import dataclass

_log = logging.getLogger("callboard.links")

ACCEPT_BACKLOG: Final = 512

#: Seconds without accepting when no descriptor is free, because polls would report the port
#: endlessly.
ACCEPT_PAUSE: Final = 1.0

#: Seconds between reports of refused connections, so that a flood of them does not flood the
#: log.
REFUSAL_INTERVAL: Final = 1.0


#: Configuration that a port passes to its links.
C = TypeVar("C")


@dataclass(eq=False, repr=False)
class Acceptor(Generic[C]):
    """The ports of one node. Its methods run on the thread with the runner's role."""

    _runner: Runner
    #: Decides which connections are accepted.
    gate: AcceptLimiter
    #: Receives the events.
    _emit: Callable[[Event], None]
    #: Starts a link on a connection.
    _opened: Callable[[socket.socket | TlsSocket, C, Endpoint], Stream[Any, Any]]
    #: Closes a connection after its last bytes are sent, and informs the gate.
    _part_with: Callable[[object, TlsSocket], None]
    #: Counts the connections of the node, except the TLS handshakes here.
    _connections: Callable[[], int]
    _listeners: list[socket.socket] = field(default_factory=list)
    _handshakes: set[Handshake] = field(default_factory=set)
    _closed: bool = False
    #: Until then, connections that do not fit are logged at debug level.
    _quiet_until: float = 0.0

    def listen(self, sock: socket.socket, config: C, tls: Encryption | None = None) -> None:
        """Accept connections on a bound socket."""
        if self._closed:
            sock.close()
            return
        sock.listen(ACCEPT_BACKLOG)
        sock.setblocking(False)  # noqa: FBT003  # the signature of `setblocking`
        self._listeners.append(sock)
        self._watch_listener(sock, config, tls)

    def _watch_listener(self, sock: socket.socket, config: C, tls: Encryption | None) -> None:
        """Poll a socket for connections."""
        if not self._closed:
            self._runner.selector.register(
                sock, selectors.EVENT_READ, lambda _: self._accept(sock, config, tls)
            )

    def _accept(self, listener: socket.socket, config: C, tls: Encryption | None) -> None:
        """Accept one connection, unless a limit refuses it."""
        try:
            sock, address = listener.accept()
            # Accept() returns an empty address for Unix sockets.
            address = address or (listener.getsockname(), 0)
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                _log.warning(
                    "no descriptor is free for a connection; raise the limit (ulimit -n)"
                )
                self._runner.selector.unregister(listener)
                self._runner.call_later(
                    ACCEPT_PAUSE, self._watch_listener, listener, config, tls
                )
                return
            raise
        connections = self._connections() + len(self._handshakes)
        refusal = self.gate.refusal(address[0], connections, self._runner.now())
        if refusal:
            sock.close()
            if self.gate.unreported == 1:
                _log.warning("a connection from %s is refused: %s", address[0], refusal)
                self._runner.call_later(REFUSAL_INTERVAL, self._report_refusals, refusal)
            return
        endpoint = (address[0], address[1])
        if tls is None:
            self._open(sock, config, endpoint)
        else:
            self._secure(TlsSocket(sock, tls.listening(), None), tls, config, endpoint)

    def _report_refusals(self, reason: str) -> None:
        """Report the connections refused since the last report."""
        count, self.gate.unreported = self.gate.unreported, 0
        self._emit(ConnectionsRefused(count, reason))

    def _secure(self, sock: TlsSocket, tls: Encryption, config: C, endpoint: Endpoint) -> None:
        """Start a TLS handshake; the link starts when it has succeeded."""

        def ended(error: str) -> None:
            self._handshakes.discard(handshake)
            if error:
                self._not_secured(sock, endpoint, error)
                self._part_with(handshake, sock)
                return
            self.gate.ended(handshake)
            sock.follow(tls, self._open(sock, config, endpoint))

        handshake = Handshake(self._runner, sock, FIRST_WORD_LIMIT, ended)
        self._handshakes.add(handshake)
        self.gate.begin(handshake, endpoint[0])
        handshake.begin()

    def _not_secured(self, sock: TlsSocket, endpoint: Endpoint, error: str) -> None:
        """Report why no link was started on a connection.

        The report is a warning if a person has to fix the reason, such as a wrong certificate.
        """
        now = self._runner.now()
        if not (sock.is_unfit or sock.is_silent) or now < self._quiet_until:
            _log.debug("connection from %s ended: %s", endpoint[0], error)
            return
        self._quiet_until = now + REFUSAL_INTERVAL
        _log.warning("no link with %s: %s", endpoint_text(endpoint), error)
        self._emit(LinkRefused(endpoint_text(endpoint), error))

    def _open(
        self, sock: "socket.socket | TlsSocket", config: C, endpoint: Endpoint
    ) -> Stream[Any, Any]:
        """Start a link on a connection."""
        wire = self._opened(sock, config, endpoint)
        if wire.is_open:
            self.gate.begin(wire, endpoint[0])
        return wire

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        for listener in self._listeners:
            if listener in self._runner.selector.get_map():
                self._runner.selector.unregister(listener)
            listener.close()
        self._listeners.clear()
        for handshake in list(self._handshakes):
            handshake.abandon()
        self._handshakes.clear()
