"""One attempt to connect: resolve the host, connect to its addresses in turn, start TLS.

Dials of nodes and of foreign wires use this class, which does not depend on the protocol of the
connection.
"""

import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from callboard.actors.runner.runner import Runner
from callboard.actors.runner.timers import Timer
from callboard.proxies.address import Endpoint, is_path
from callboard.proxies.link.network import Network
from callboard.proxies.link.secret_tls import DialingEncryption
from callboard.proxies.link.tls_socket import HANDSHAKE_LIMIT, Handshake, TlsSocket

#: Seconds for one address to answer; the system itself would try for minutes.
CONNECT_LIMIT: Final = 10.0


class Obstacle(NamedTuple):
    """The reason of a failed attempt.

    Attributes:
        stage: the step that failed: resolving the host, connecting, or the TLS handshake.
        reason: the error text, in one line.
        secured: the connection, if TLS failed; the receiver of the obstacle closes it.
    """

    stage: Literal["host", "connect", "tls"]
    reason: str
    secured: TlsSocket | None = None


class Attempt:
    """An attempt to connect, which ends once: with a connection, an obstacle, or abandoned."""

    def __init__(
        self,
        runner: Runner,
        network: Network,
        endpoint: Endpoint,
        *,
        opened: Callable[["socket.socket | TlsSocket"], object],
        failed: Callable[[Obstacle], object],
        tls: DialingEncryption | None = None,
        server_name: str | None = None,
    ) -> None:
        """Create an attempt; `begin` starts it. All methods run with the runner's role.

        Args:
            runner: provides the selector and the timers.
            network: makes the sockets.
            endpoint: host and port.
            opened: called with the connection.
            failed: called with the obstacle.
            tls: encryption of the connection; a Unix socket is never encrypted.
            server_name: the name that a certificate must show, if it is not the host.
        """
        self.endpoint = endpoint
        self.handshake: Handshake | None = None
        self._runner = runner
        self._network = network
        self._opened = opened
        self._failed = failed
        self._tls = None if is_path(endpoint[0]) else tls
        self._server_name = server_name or endpoint[0]
        self._sock: Any = None
        self._late: Timer | None = None
        self._is_over = False

    def begin(self) -> None:
        """Resolve the host and start to connect."""
        host, port = self.endpoint
        addresses = self._network.resolve(host, port, numeric=True)
        if addresses is None:
            threading.Thread(target=self._resolve, daemon=True).start()
        else:
            self._connect(addresses)

    def abandon(self) -> None:
        """End the attempt without calling back. Idempotent."""
        self._is_over = True
        if self._late is not None:
            self._late.cancel()
        if self._sock is not None:
            self._runner.selector.unregister(self._sock)
            self._sock.close()
            self._sock = None
        if self.handshake is not None:
            self.handshake.abandon()
            self.handshake = None

    def _resolve(self) -> None:
        """Resolve a host name. Runs on a separate thread, because it blocks."""
        host, port = self.endpoint
        try:
            addresses = self._network.resolve(host, port, numeric=False)
        except OSError as error:
            message = f"the host name {host!r} cannot be resolved ({error})"
            self._runner.post(self._fail, Obstacle("host", message))
            return
        self._runner.post(self._connect, addresses)

    def _fail(self, obstacle: Obstacle) -> None:
        """End with an obstacle."""
        if not self._is_over:
            self._is_over = True
            self._failed(obstacle)

    def _connect(self, addresses: list[Any]) -> None:
        """Connect to the first of the host's addresses."""
        if self._is_over:
            return
        try:
            sock, code = self._network.connect(addresses[0])
        # There is no free descriptor, or this machine does not support the address family.
        except OSError as error:
            self._refused(addresses, error.strerror or str(error))
            return
        if code:
            sock.close()
            self._refused(addresses, os.strerror(code))
            return
        self._sock = sock
        self._late = self._runner.call_later(
            CONNECT_LIMIT, self._connected, addresses, "timed out"
        )

        def connected(_: int) -> None:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._connected(addresses, os.strerror(code) if code else "")

        self._runner.selector.register(sock, selectors.EVENT_WRITE, connected)

    def _refused(self, addresses: list[Any], reason: str) -> None:
        """Connect to the next address of the host, if there is one."""
        if len(addresses) > 1:
            self._connect(addresses[1:])
        else:
            self._fail(Obstacle("connect", reason))

    def _connected(self, addresses: list[Any], error: str) -> None:
        """Handle the outcome of connecting to one address."""
        sock, self._sock = self._sock, None
        assert sock is not None, "each attempt to connect ends once"
        if self._late is not None:
            self._late.cancel()
        self._runner.selector.unregister(sock)
        if error:
            sock.close()
            self._refused(addresses, error)
        elif self._tls is not None:
            self._secure(sock, self._tls)
        else:
            self._is_over = True
            self._opened(sock)

    def _secure(self, sock: socket.socket, tls: DialingEncryption) -> None:
        """Start a TLS handshake."""
        try:
            secured = TlsSocket(sock, tls.dialing(), self._server_name)
        except (OSError, ValueError) as error:
            sock.close()
            self._fail(Obstacle("tls", str(error)))
            return

        def ended(error: str) -> None:
            self.handshake = None
            if error:
                self._fail(Obstacle("tls", error, secured))
            else:
                self._is_over = True
                self._opened(secured)

        self.handshake = Handshake(self._runner, secured, HANDSHAKE_LIMIT, ended)
        self.handshake.begin()
