"""Accepting connections: ports, what strangers may take, and TLS before a link begins.

What strangers may take is bounded (`proxies.limits`): a connection that is too many is closed
at once and counted.
"""

import errno
import logging
import selectors
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from proxies.address import Endpoint
from proxies.events import ConnectionsRefused
from proxies.limits import Gate, Limits
from proxies.tls_handshake import FIRST_WORD_LIMIT, Handshake
from proxies.tls_socket import TlsSocket

if TYPE_CHECKING:
    import ssl

    from actors.runner import Runner
    from basp.handshake import LinkConfig
    from proxies.wire import Wire

log = logging.getLogger("callboard.links")

ACCEPT_BACKLOG: Final = 512

ACCEPT_PAUSE: Final = 1.0
"""Seconds without accepting when no descriptor is free: polls would report it without end."""

REFUSAL_INTERVAL: Final = 1.0
"""Seconds between events that tell of refused connections: a flood of them must not follow."""


class Acceptor:
    """The ports of one node. Its methods run on the runner with its role."""

    def __init__(
        self,
        runner: "Runner",
        opened: "Callable[[socket.socket | TlsSocket, LinkConfig, Endpoint], Wire]",
        connections: Callable[[], int],
    ) -> None:
        """Make one without ports.

        Args:
            runner: whose selector and timers are used.
            opened: begins a link on a connection.
            connections: counts those that the node has, without handshakes of TLS here.
        """
        self.gate = Gate(Limits())
        #: Takes the events; the broker's node sets it.
        self.emit: Callable[[object], None] = log.debug
        self._runner = runner
        self._opened = opened
        self._connections = connections
        self._listeners: list[socket.socket] = []
        self._handshakes: set[Handshake] = set()
        self._closed = False

    def listen(
        self, sock: socket.socket, config: "LinkConfig", tls: "ssl.SSLContext | None" = None
    ) -> None:
        """Accept connections on a bound socket."""
        if self._closed:
            sock.close()
            return
        sock.listen(ACCEPT_BACKLOG)
        sock.setblocking(False)  # noqa: FBT003  # its signature
        self._listeners.append(sock)
        self._watch_listener(sock, config, tls)

    def _watch_listener(
        self, sock: socket.socket, config: "LinkConfig", tls: "ssl.SSLContext | None"
    ) -> None:
        def accept(_: int) -> None:
            self._accept(sock, config, tls)

        if not self._closed:
            self._runner.selector.register(sock, selectors.EVENT_READ, accept)

    def _accept(
        self, listener: socket.socket, config: "LinkConfig", tls: "ssl.SSLContext | None"
    ) -> None:
        try:
            sock, address = listener.accept()
            address = address or (listener.getsockname(), 0)  # of Unix sockets it says nothing
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                log.warning(
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
            if self.gate.untold == 1:
                log.warning("a connection from %s is refused: %s", address[0], refusal)
                self._runner.call_later(REFUSAL_INTERVAL, self._tell_refusals, refusal)
            return
        endpoint = (address[0], address[1])
        if tls is None:
            self._open(sock, config, endpoint)
        else:
            self._secure(TlsSocket(sock, tls, None), config, endpoint)

    def _tell_refusals(self, reason: str) -> None:
        count, self.gate.untold = self.gate.untold, 0
        self.emit(ConnectionsRefused(count, reason))

    def _secure(self, sock: TlsSocket, config: "LinkConfig", endpoint: Endpoint) -> None:
        def ended(error: str) -> None:
            self._handshakes.discard(handshake)
            self.gate.ended(handshake)
            if error:
                log.info("connection from %s ended: %s", endpoint[0], error)
                sock.close()
                return
            self._open(sock, config, endpoint)

        handshake = Handshake(self._runner, sock, FIRST_WORD_LIMIT, ended)
        self._handshakes.add(handshake)
        self.gate.begun(handshake, endpoint[0])
        handshake.begin()

    def _open(
        self, sock: "socket.socket | TlsSocket", config: "LinkConfig", endpoint: Endpoint
    ) -> None:
        wire = self._opened(sock, config, endpoint)
        if wire.is_open:
            self.gate.begun(wire, endpoint[0])

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        for listener in self._listeners:
            if listener in self._runner.selector.get_map():
                self._runner.selector.unregister(listener)
            listener.close()
        self._listeners.clear()
        for handshake in list(self._handshakes):
            handshake.cancel()
            handshake.sock.close()
        self._handshakes.clear()
