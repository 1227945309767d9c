"""One attempt to connect: look the host up, connect to its addresses in turn, begin TLS.

Dials of nodes and of foreign wires make their connections so. What is spoken on a connection
is not known here.
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

#: Seconds that one address may take to answer; the system itself would try for minutes.
CONNECT_LIMIT: Final = 10.0


class Obstacle(NamedTuple):
    """Why an attempt came to nothing.

    Attributes:
        stage: what failed: looking the host up, connecting, or the handshake of TLS.
        why: one line for people.
        secured: where TLS failed, the connection; whoever is told closes it.
    """

    stage: Literal["host", "connect", "tls"]
    why: str
    secured: TlsSocket | None = None


class Attempt:
    """An attempt; it ends once: with a connection, with an obstacle, or abandoned."""

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
        """Make one; `begin` starts it. All methods run with the runner's role.

        Args:
            runner: whose selector and timers are used.
            network: makes the sockets.
            endpoint: host and port.
            opened: takes the connection.
            failed: told why there is none.
            tls: what the connection is secured with; Unix sockets never are.
            server_name: the name that a certificate has to show, where it is not the host.
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
        """Look the host up, and go on as far as it goes at once."""
        host, port = self.endpoint
        found = self._network.resolve(host, port, numeric=True)
        if found is None:
            threading.Thread(target=self._resolve, daemon=True).start()
        else:
            self._connect(found)

    def abandon(self) -> None:
        """End the attempt; nobody is told. Idempotent."""
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
        """Look a host name up: that blocks, so on a thread of its own."""
        host, port = self.endpoint
        try:
            found = self._network.resolve(host, port, numeric=False)
        except OSError as error:
            why = f"host {host!r} is not known ({error})"
            self._runner.post(self._fail, Obstacle("host", why))
            return
        self._runner.post(self._connect, found)

    def _fail(self, obstacle: Obstacle) -> None:
        """End with an obstacle."""
        if not self._is_over:
            self._is_over = True
            self._failed(obstacle)

    def _connect(self, found: list[Any]) -> None:
        """Connect to the first of the addresses that a host name stands for."""
        if self._is_over:
            return
        try:
            sock, code = self._network.connect(found[0])
        except OSError as error:  # no descriptor is free, or no such addresses on this machine
            self._refused(found, error.strerror or str(error))
            return
        if code:
            sock.close()
            self._refused(found, os.strerror(code))
            return
        self._sock = sock
        self._late = self._runner.call_later(CONNECT_LIMIT, self._connected, found, "timed out")

        def connected(_: int) -> None:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._connected(found, os.strerror(code) if code else "")

        self._runner.selector.register(sock, selectors.EVENT_WRITE, connected)

    def _refused(self, found: list[Any], why: str) -> None:
        """Go on with the next address of the name, if there is one."""
        if len(found) > 1:
            self._connect(found[1:])
        else:
            self._fail(Obstacle("connect", why))

    def _connected(self, found: list[Any], error: str) -> None:
        """Go on with a connection that was made, or refused."""
        sock, self._sock = self._sock, None
        assert sock is not None, "each attempt to connect ends once"
        if self._late is not None:
            self._late.cancel()
        self._runner.selector.unregister(sock)
        if error:
            sock.close()
            self._refused(found, error)
        elif self._tls is not None:
            self._secure(sock, self._tls)
        else:
            self._is_over = True
            self._opened(sock)

    def _secure(self, sock: socket.socket, tls: DialingEncryption) -> None:
        """Begin a TLS handshake."""
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
