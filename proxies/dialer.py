"""Dialing: the wish to be linked to an address, and how it is followed.

Only the side that dialed dials again: after 0.1 s, then twice as long each time up to 2 s (or
what the dial says), each time a random part more, so that nodes which lost the same peer do
not come back in one moment. With TLS, its handshake comes between connecting and the link.
"""

import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from actors.errors import NodeClosed
from actors.future import Future
from basp.errors import BaspError, LinkLost
from proxies.address import Endpoint, endpoint_text
from proxies.dial import Dial
from proxies.tls_handshake import HANDSHAKE_LIMIT, Handshake
from proxies.tls_socket import TlsSocket
from proxies.unix_socket import is_path

if TYPE_CHECKING:
    import ssl

    from actors.runner import Runner
    from basp.effects import Closed, PeerIdentity
    from basp.node_id import NodeId
    from proxies.surroundings import Network
    from proxies.wire import Wire

log = logging.getLogger("callboard.links")

FIRST_RETRY: Final = 0.1

CONNECT_LIMIT: Final = 10.0
"""Seconds that one address may take to answer; the system itself would try for minutes."""


class Dialer:
    """The dials of one node. Its methods run on the runner with its role."""

    def __init__(
        self,
        runner: "Runner",
        network: "Network",
        opened: "Callable[[Dial, socket.socket | TlsSocket], Wire]",
        is_linked: "Callable[[NodeId], bool]",
        is_paired: "Callable[[NodeId], bool]",
    ) -> None:
        """Make one without dials.

        Args:
            runner: whose selector and timers are used.
            network: makes the sockets.
            opened: begins a link on a connection.
            is_linked: whether a link with a node is established.
            is_paired: whether one is established, or in its handshake.
        """
        #: For connections that we make; None for plain ones.
        self.tls: ssl.SSLContext | None = None
        self._runner = runner
        self._network = network
        self._opened = opened
        self._is_linked = is_linked
        self._is_paired = is_paired
        self._dials: dict[Endpoint, Dial] = {}
        self._handshakes: set[Handshake] = set()
        self._closed = False

    def __len__(self) -> int:
        """Count the TLS handshakes under way: connections that are no links yet."""
        return len(self._handshakes)

    def dial(
        self, endpoint: Endpoint, waiter: Future[Dial], *, secret: bytes | None, keep: bool
    ) -> None:
        """Link with who listens there; `keep` dials again whenever the link is lost."""
        if self._closed:
            waiter.set_exception(NodeClosed("the node is closed"))
            return
        dial = self._dial_to(endpoint, secret)
        dial.keep = dial.keep or keep
        dial.waiters.append(waiter)
        self._follow(dial)

    def insist(
        self,
        endpoint: Endpoint,
        waiter: Future[Dial],
        *,
        secret: bytes | None,
        retry: float,
        on_failure: Callable[[str], object],
    ) -> None:
        """Link with who listens there, however long it takes, until `stop`.

        Args:
            endpoint: host and port.
            waiter: done when the link is there, or the dial is stopped.
            secret: shared secret to prove.
            retry: seconds between two attempts at most; 0 tries once and never again.
            on_failure: told of each attempt that failed, with the reason.
        """
        if self._closed:
            waiter.set_exception(NodeClosed("the node is closed"))
            return
        dial = self._dial_to(endpoint, secret)
        dial.on_failure = on_failure
        if retry > 0.0:
            dial.keep = True
            dial.longest_pause = retry
            dial.patient.append(waiter)
        else:
            dial.waiters.append(waiter)
        self._follow(dial)

    def _dial_to(self, endpoint: Endpoint, secret: bytes | None) -> Dial:
        dial = self._dials.get(endpoint)
        if dial is None:
            dial = self._dials[endpoint] = Dial(endpoint, secret=secret, keep=False)
        return dial

    def _follow(self, dial: Dial) -> None:
        if dial.peer is not None and self._is_linked(dial.peer):
            dial.succeed()
        elif not dial.is_busy:
            self._start(dial)

    def forget_waiter(self, endpoint: Endpoint, waiter: Future[Any]) -> None:
        """Whoever waited gave up."""
        dial = self._dials.get(endpoint)
        if dial is not None and waiter in dial.waiters:
            dial.waiters.remove(waiter)

    def stop(self, endpoint: Endpoint) -> Dial | None:
        """Give a dial up for good; returns it. What link came of it is the caller's to end."""
        dial = self._dials.pop(endpoint, None)
        if dial is None:
            return None
        self._let_go(dial)
        dial.stop(f"nobody dials {endpoint_text(endpoint)} any more")
        return dial

    def stop_all(self, peer: "NodeId") -> None:
        """Give up every dial that leads to a node, by whatever address."""
        for endpoint, dial in list(self._dials.items()):
            if dial.peer == peer:
                self.stop(endpoint)

    def kept(self) -> list[Dial]:
        """Return the dials that go on when their link is lost."""
        return [dial for dial in list(self._dials.values()) if dial.keep]

    def _let_go(self, dial: Dial) -> None:
        """Drop the timer and the half-made connection of a dial."""
        if dial.timer is not None:
            dial.timer.cancel()
            dial.timer = None
        if dial.sock is not None:
            self._runner.selector.unregister(dial.sock)
            dial.sock.close()
            dial.sock = None

    def _start(self, dial: Dial) -> None:
        if self._closed or dial.is_busy:
            return  # the timer of an attempt that is under way stays
        if dial.timer is not None:
            dial.timer.cancel()
            dial.timer = None
        dial.is_busy = True
        host, port = dial.endpoint
        found = self._network.resolve(host, port, numeric=True)
        if found is None:
            threading.Thread(target=self._resolve, args=(dial,), daemon=True).start()
        else:
            self._connect(dial, found)

    def _resolve(self, dial: Dial) -> None:
        """Look a host name up: that blocks, so on a thread of its own."""
        host, port = dial.endpoint
        try:
            found = self._network.resolve(host, port, numeric=False)
        except OSError as error:
            self._runner.post(self._failed, dial, f"host {host!r} is not known ({error})")
            return
        self._runner.post(self._connect, dial, found)

    def _connect(self, dial: Dial, found: list[Any]) -> None:
        """Connect to the first of the addresses that a host name stands for."""
        if self._closed or dial.is_stopped:
            return
        try:
            sock, code = self._network.connect(found[0])
        except OSError as error:  # no descriptor is free, or no such addresses on this machine
            self._refused(dial, found, error.strerror or str(error))
            return
        if code:
            sock.close()
            self._refused(dial, found, os.strerror(code))
            return
        dial.sock = sock
        dial.timer = self._runner.call_later(
            CONNECT_LIMIT, self._connected, dial, found, "timed out"
        )

        def connected(_: int) -> None:
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._connected(dial, found, os.strerror(code) if code else "")

        self._runner.selector.register(sock, selectors.EVENT_WRITE, connected)

    def _connected(self, dial: Dial, found: list[Any], error: str) -> None:
        sock, dial.sock = dial.sock, None
        assert sock is not None, "each attempt to connect ends once"
        if dial.timer is not None:
            dial.timer.cancel()
            dial.timer = None
        self._runner.selector.unregister(sock)
        if error:
            sock.close()
            self._refused(dial, found, error)
            return
        if self.tls is None or is_path(dial.endpoint[0]):
            dial.wire = self._opened(dial, sock)
        else:
            self._secure(dial, sock)

    def _secure(self, dial: Dial, sock: socket.socket) -> None:
        assert self.tls is not None
        try:
            secured = TlsSocket(sock, self.tls, dial.endpoint[0])
        except (OSError, ValueError) as error:
            sock.close()
            self._failed(dial, f"no link with {endpoint_text(dial.endpoint)}: {error}")
            return

        def ended(error: str) -> None:
            self._handshakes.discard(handshake)
            if dial.is_stopped:
                secured.close()
            elif error:
                secured.close()
                self._failed(dial, f"no link with {endpoint_text(dial.endpoint)}: {error}")
            else:
                dial.wire = self._opened(dial, secured)

        handshake = Handshake(self._runner, secured, HANDSHAKE_LIMIT, ended)
        self._handshakes.add(handshake)
        handshake.begin()

    def _refused(self, dial: Dial, found: list[Any], why: str) -> None:
        """Go on with the next address of the name, if there is one."""
        if len(found) > 1:
            self._connect(dial, found[1:])
            return
        where = endpoint_text(dial.endpoint)
        self._failed(dial, f"no node answers at {where} ({why}); see that it is running there")

    def _failed(
        self, dial: Dial, text: str, cause: BaspError | None = None, *, was_linked: bool = False
    ) -> None:
        if dial.is_stopped:
            return
        dial.is_busy = False
        dial.wire = None
        dial.fail("the node was closed" if self._closed else text, cause)
        if dial.on_failure is not None and not was_linked:
            dial.on_failure(text)
        if dial.keep and not self._closed:
            if text != dial.told:  # nobody may wait for it
                dial.told = text
                if cause is not None:
                    log.warning("%s", text)
                else:  # it may just start later than we do
                    log.info("%s; it is tried again until it answers", text)
            self._retry(dial)
        else:
            self._dials.pop(dial.endpoint, None)

    def _retry(self, dial: Dial) -> None:
        pause = min(dial.longest_pause, FIRST_RETRY * 2 ** min(dial.attempts, 10))
        dial.attempts += 1
        pause *= 1.0 + self._runner.random.random() / 2
        if dial.timer is not None:
            dial.timer.cancel()
        dial.timer = self._runner.call_later(pause, self._start, dial)

    # --- what became of connections ---

    def peer_known(self, wire: "Wire", peer: "NodeId") -> None:
        """Another connection of the pair is there or on its way: a dial may use that one."""
        for dial in self._dials.values():
            if dial.wire is wire:
                dial.peer = peer
                if wire.link.peer is not None:
                    dial.published = wire.link.peer.published
                if self._is_linked(peer):
                    dial.succeed()

    def link_established(self, wire: "Wire", peer: "PeerIdentity") -> None:
        """Whoever waits for this node has its link, whichever side dialed."""
        for dial in list(self._dials.values()):
            if dial.wire is wire:
                dial.peer = peer.node_id
                dial.published = peer.published
            if dial.peer == peer.node_id:
                dial.succeed()

    def wire_ended(self, wire: "Wire", closed: "Closed", *, was_established: bool) -> None:
        """A connection ended: its dial fails, or goes on, or relies on another one."""
        known = None if wire.link.peer is None else wire.link.peer.node_id
        for dial in list(self._dials.values()):
            if dial.wire is wire:
                self._wire_of_dial_ended(dial, closed, was_linked=was_established)
            elif known is None or dial.peer != known or dial.is_busy:
                continue
            elif dial.waiters or not was_established:  # it relied on this one's handshake
                self._wire_of_dial_ended(dial, closed, was_linked=was_established)
            elif dial.keep:
                self._retry(dial)

    def _wire_of_dial_ended(self, dial: Dial, closed: "Closed", *, was_linked: bool) -> None:
        wire, dial.wire = dial.wire, None
        dial.is_busy = False
        if dial.peer is not None and self._is_linked(dial.peer):
            dial.succeed()
            return
        if dial.peer is not None and self._is_paired(dial.peer):
            return  # another connection of the pair is in its handshake
        text = f"no link with {endpoint_text(dial.endpoint)}: {closed.reason}"
        if self.tls is None and wire is not None and not wire.bytes_received:
            text += "; it said nothing before: it may want TLS (Node(tls=…)) or be full"
        cause = None if isinstance(closed.error, LinkLost) else closed.error
        self._failed(dial, text, cause, was_linked=was_linked)

    def close(self) -> None:
        """End all dials; who waits is told."""
        self._closed = True
        for handshake in list(self._handshakes):
            handshake.cancel()
            handshake.sock.close()
        self._handshakes.clear()
        for dial in list(self._dials.values()):
            self._let_go(dial)
            dial.stop("the node was closed")
        self._dials.clear()
