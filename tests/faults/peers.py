"""Helpers beside node processes: a relay that stops forwarding, and a peer that never reads."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from callboard.basp.handshake import LinkConfig
from callboard.basp.link import Link, LinkPairs, Transmit
from callboard.basp.node_id import NodeId, make_node_id
from tests.basp.wire import receive

_POLL_SECONDS = 0.05
"""Seconds between two looks at the flags."""


class Relay:
    """Forwards TCP connections until it is ordered to drop all bytes, without closing."""

    def __init__(self, to: str) -> None:
        host, _, port = to.removeprefix("basp://").rpartition(":")
        self._to = (host, int(port))
        self._is_open = True
        self._passes = threading.Event()
        self._passes.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.address = f"basp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def swallow(self) -> None:
        """Be a black hole: take nothing, give nothing, close nothing."""
        self._passes.clear()

    def forward(self) -> None:
        """Forward again, first of all what waited."""
        self._passes.set()

    def lead_to(self, port: int) -> None:
        """Lead new connections to another port."""
        self._to = (self._to[0], port)

    def cut(self) -> None:
        """Break all connections; new ones are forwarded."""
        sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def close(self) -> None:
        self._is_open = False
        self._passes.set()
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        while self._is_open:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            self._passes.wait()
            try:
                other = socket.create_connection(self._to)
            except OSError:  # nobody is there now
                one.close()
                continue
            self._sockets += [one, other]
            for source, target in ((one, other), (other, one)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                target.sendall(data)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def relay(to: str) -> Iterator[Relay]:
    """Run a relay in front of a node."""
    made = Relay(to)
    try:
        yield made
    finally:
        made.close()


class DeafPeer:
    """A node that is linked and sends heartbeats, but reads nothing once it is linked."""

    def __init__(self, to: str, number: int) -> None:
        host, _, port = to.removeprefix("basp://").rpartition(":")
        self.node_id: NodeId = make_node_id(b"deaf", 1, 2, number)
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self._sock.connect((host, int(port)))
        self._link = Link(
            LinkConfig(self.node_id),
            dialer=True,
            nonce=bytes(16),
            now=time.monotonic(),
            pairs=LinkPairs(),
        )
        while not self._link.is_established:
            self._send(receive(self._link, self._sock.recv(65536), time.monotonic()))
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _send(self, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, Transmit):
                self._sock.sendall(effect.data)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            while not self._gone.wait(_POLL_SECONDS):
                # As if something had been heard: it does not read, and does not mind silence.
                self._link.heard_at = time.monotonic()
                self._send(self._link.tick(time.monotonic()))

    def close(self) -> None:
        self._gone.set()
        self._thread.join()
        self._sock.close()


@contextlib.contextmanager
def deaf_peer(to: str, number: int) -> Iterator[DeafPeer]:
    """Link a peer that reads nothing with a node; each number is another node."""
    made = DeafPeer(to, number)
    try:
        yield made
    finally:
        made.close()
