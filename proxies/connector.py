"""The connector: listens, dials, dials again, and hands established links to the broker.

Only the side that dialed dials again: after 0.1 s, then twice as long each time up to 2 s,
each time a random part more, so that nodes which lost the same peer do not come back in one
moment.

With TLS, its handshake comes between connecting and the link. What strangers may take is
bounded (`proxies.limits`): a connection that is too many is closed at once and counted.
"""

import errno
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from actors.errors import NodeClosed, NodeUnreachable
from actors.future import Future
from basp.effects import Closed, Deliver, Effect, Established, Parked, Redundant, Transmit, Wake
from basp.handshake import NONCE_SIZE, LinkConfig
from basp.link import Link
from basp.link_pairs import LinkPairs
from proxies.address import Endpoint, endpoint_text
from proxies.limits import ConnectionsRefused, Gate, Limits
from proxies.tls import FIRST_WORD_LIMIT, HANDSHAKE_LIMIT, Handshake, TlsSocket
from proxies.wire import Wire

if TYPE_CHECKING:
    import ssl

    from actors.runner import Runner, Timer
    from basp.effects import PeerIdentity
    from basp.frame import Frame
    from basp.node_id import NodeId
    from proxies.surroundings import Network

log = logging.getLogger("callboard.links")

FIRST_RETRY: Final = 0.1
LAST_RETRY: Final = 2.0
ACCEPT_BACKLOG: Final = 512

ACCEPT_PAUSE: Final = 1.0
"""Seconds without accepting when no descriptor is free: polls would report it without end."""

CONNECT_LIMIT: Final = 10.0
"""Seconds that one address may take to answer; the system itself would try for minutes."""

REFUSAL_INTERVAL: Final = 1.0
"""Seconds between events that tell of refused connections: a flood of them must not follow."""


class Dial:
    """The wish to be linked to whoever listens at an address."""

    def __init__(self, endpoint: Endpoint, *, secret: bytes | None, keep: bool) -> None:
        self.endpoint = endpoint
        self.secret = secret
        self.keep = keep
        self.attempts = 0
        self.peer: NodeId | None = None
        self.published: tuple[int, tuple[str, ...]] | None = None
        self.wire: Wire | None = None
        self.timer: Timer | None = None
        #: A connection that is being made.
        self.sock: socket.socket | None = None
        self.waiters: list[Future[Dial]] = []
        self.is_busy = False

    def succeed(self) -> None:
        """Tell who waits: the peer is linked."""
        self.attempts = 0
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.set_result(self)

    def fail(self, text: str) -> None:
        """Tell who waits: it did not work (a kept dial goes on all the same)."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter.set_exception(NodeUnreachable(text))


class LinkUser(Protocol):
    """Who uses established links: the broker."""

    def link_up(self, wire: Wire, peer: "PeerIdentity") -> None:
        """A link is established."""

    def link_down(self, wire: Wire, reason: str) -> None:
        """An established link ended."""

    def deliver(self, wire: Wire, frames: "list[Frame]") -> None:
        """Frames arrived, in order."""


class Connector:
    """All connections of one node. Its methods run on the runner with its role."""

    def __init__(
        self, runner: "Runner", network: "Network", node_id: "NodeId", user: LinkUser
    ) -> None:
        self._runner = runner
        self._network = network
        self._node_id = node_id
        self._user = user
        self._pairs = LinkPairs()
        self._wires: dict[Link, Wire] = {}
        self._dials: dict[Endpoint, Dial] = {}
        self._listeners: list[socket.socket] = []
        self._dirty: list[Wire] = []
        self._barred: dict[bytes, float] = {}
        self._closed = False
        self._handshakes: set[Handshake] = set()
        self._gate = Gate(Limits())
        #: Takes the events; the broker's node sets it.
        self.emit: Callable[[object], None] = log.debug
        #: For connections that we make; None for plain ones.
        self.tls: ssl.SSLContext | None = None
        #: What each new link tells its peer once it is proven.
        self.upper_state = b""
        runner.before_poll.append(self._flush)

    @property
    def limits(self) -> Limits:
        """What the node takes from others; set it before the first connection."""
        return self._gate.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._gate = Gate(limits)

    @property
    def refused(self) -> int:
        """Connections that were closed at once because of a limit."""
        return self._gate.refused

    # --- listening ---

    def listen(
        self, sock: socket.socket, config: LinkConfig, tls: "ssl.SSLContext | None" = None
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
        self, sock: socket.socket, config: LinkConfig, tls: "ssl.SSLContext | None"
    ) -> None:
        def accept(_: int) -> None:
            self._accept(sock, config, tls)

        if not self._closed:
            self._runner.selector.register(sock, selectors.EVENT_READ, accept)

    def _accept(
        self, listener: socket.socket, config: LinkConfig, tls: "ssl.SSLContext | None"
    ) -> None:
        try:
            sock, address = listener.accept()
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
        connections = len(self._wires) + len(self._handshakes)
        refusal = self._gate.refusal(connections, self._runner.now())
        if refusal:
            sock.close()
            if self._gate.untold == 1:
                log.warning("a connection from %s is refused: %s", address[0], refusal)
                self._runner.call_later(REFUSAL_INTERVAL, self._tell_refusals, refusal)
            return
        endpoint = (address[0], address[1])
        if tls is None:
            self._open_accepted(sock, config, endpoint)
        else:
            self._secure_accepted(TlsSocket(sock, tls, None), config, endpoint)

    def _tell_refusals(self, reason: str) -> None:
        count, self._gate.untold = self._gate.untold, 0
        self.emit(ConnectionsRefused(count, reason))

    # --- TLS ---

    def _secure_accepted(self, sock: TlsSocket, config: LinkConfig, endpoint: Endpoint) -> None:
        def ended(error: str) -> None:
            self._gate.ended(handshake)
            if error:
                log.info("connection from %s ended: %s", endpoint[0], error)
                sock.close()
                return
            self._open_accepted(sock, config, endpoint)

        handshake = self._shake_hands(sock, FIRST_WORD_LIMIT, ended)
        self._gate.strangers.add(handshake)
        handshake.begin()

    def _secure_dialed(self, dial: Dial, sock: socket.socket) -> None:
        assert self.tls is not None

        def ended(error: str) -> None:
            if error:
                secured.close()
                self._failed(dial, f"no link with {endpoint_text(dial.endpoint)}: {error}")
            else:
                self._dialed(dial, secured)

        try:
            secured = TlsSocket(sock, self.tls, dial.endpoint[0])
        except (OSError, ValueError) as error:
            sock.close()
            self._failed(dial, f"no link with {endpoint_text(dial.endpoint)}: {error}")
            return
        self._shake_hands(secured, HANDSHAKE_LIMIT, ended).begin()

    def _shake_hands(
        self, sock: TlsSocket, first_word: float, then: Callable[[str], None]
    ) -> Handshake:
        def ended(error: str) -> None:
            self._handshakes.discard(handshake)
            then(error)

        handshake = Handshake(self._runner, sock, first_word, ended)
        self._handshakes.add(handshake)
        return handshake

    # --- dialing ---

    def dial(
        self, endpoint: Endpoint, waiter: "Future[Dial]", *, secret: bytes | None, keep: bool
    ) -> None:
        """Link with who listens there; `keep` dials again whenever the link is lost."""
        if self._closed:
            waiter.set_exception(NodeClosed("the node is closed"))
            return
        dial = self._dials.get(endpoint)
        if dial is None:
            dial = self._dials[endpoint] = Dial(endpoint, secret=secret, keep=keep)
        dial.keep = dial.keep or keep
        dial.waiters.append(waiter)
        if dial.peer is not None and self._is_linked(dial.peer):
            dial.succeed()
        elif not dial.is_busy:
            self._start(dial)

    def forget_waiter(self, endpoint: Endpoint, waiter: "Future[Any]") -> None:
        """Whoever waited gave up."""
        dial = self._dials.get(endpoint)
        if dial is not None and waiter in dial.waiters:
            dial.waiters.remove(waiter)

    def _start(self, dial: Dial) -> None:
        dial.timer = None
        if self._closed or dial.is_busy:
            return
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
        if self._closed:
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
        if self.tls is None:
            self._dialed(dial, sock)
        else:
            self._secure_dialed(dial, sock)

    def _dialed(self, dial: Dial, sock: "socket.socket | TlsSocket") -> None:
        config = LinkConfig(
            self._node_id, secret=dial.secret, payload_limit=self.limits.payload
        )
        dial.wire = self._open(sock, config, dialer=True, endpoint=dial.endpoint)

    def _refused(self, dial: Dial, found: list[Any], why: str) -> None:
        """Go on with the next address of the name, if there is one."""
        if len(found) > 1:
            self._connect(dial, found[1:])
            return
        where = endpoint_text(dial.endpoint)
        self._failed(dial, f"no node answers at {where} ({why}); is it running there?")

    def _failed(self, dial: Dial, text: str) -> None:
        dial.is_busy = False
        dial.wire = None
        dial.fail("the node was closed" if self._closed else text)
        if dial.keep and not self._closed:
            self._retry(dial)
        else:
            self._dials.pop(dial.endpoint, None)

    def _retry(self, dial: Dial) -> None:
        pause = min(LAST_RETRY, FIRST_RETRY * 2 ** min(dial.attempts, 10))
        dial.attempts += 1
        pause *= 1.0 + self._runner.random.random() / 2
        if dial.timer is not None:
            dial.timer.cancel()
        dial.timer = self._runner.call_later(pause, self._start, dial)

    def _is_linked(self, peer: "NodeId") -> bool:
        holder = self._pairs.holder(peer)
        return holder is not None and holder.is_established

    # --- connections ---

    def _open(
        self,
        sock: "socket.socket | TlsSocket",
        config: LinkConfig,
        *,
        dialer: bool,
        endpoint: Endpoint,
    ) -> Wire:
        nonce = self._runner.random.randbytes(NONCE_SIZE)
        link = Link(
            config, dialer=dialer, nonce=nonce, now=self._runner.now(), pairs=self._pairs
        )
        link.upper_state = self.upper_state
        wire = Wire(
            self._runner, sock, link, endpoint if dialer else None, self._carry_out, self._dirty
        )
        wire.introduced = self._introduced
        self._wires[link] = wire
        wire.start()
        if isinstance(sock, TlsSocket):  # its handshake may have read more than its own bytes
            self._runner.post(wire.catch_up)
        return wire

    def _open_accepted(
        self, sock: "socket.socket | TlsSocket", config: LinkConfig, endpoint: Endpoint
    ) -> None:
        wire = self._open(sock, config, dialer=False, endpoint=endpoint)
        if wire.is_open:
            self._gate.strangers.add(wire)

    def _carry_out(self, wire: Wire, effects: list[Effect]) -> None:
        """Do what a link asks for, in its order."""
        wakes: list[Link] = []
        for effect in effects:
            if isinstance(effect, Deliver):
                self._user.deliver(wire, effect.frames)
            elif isinstance(effect, Transmit):
                wire.write(effect.data)
            elif isinstance(effect, Established):
                self._established(wire, effect.peer)
            elif isinstance(effect, Closed):
                self._ended(wire, effect)
            elif isinstance(effect, Wake):
                wakes.append(effect.link)
            elif isinstance(effect, Parked | Redundant):
                self._known(wire, effect.peer)
        for link in wakes:
            if link in self._wires:
                self._wires[link].resume()

    def _introduced(self, wire: Wire) -> None:
        """A connection that is not established was heard: its peer may be linked already."""
        if wire.is_open and wire.link.peer is not None:
            self._gate.proven(wire)
            self._known(wire, wire.link.peer.node_id)

    def _known(self, wire: Wire, peer: "NodeId") -> None:
        """Another connection of the pair is there or on its way: a dial may use that one."""
        for dial in self._dials.values():
            if dial.wire is wire:
                dial.peer = peer
                if wire.link.peer is not None:
                    dial.published = wire.link.peer.published
                if self._is_linked(peer):
                    dial.succeed()

    def _established(self, wire: Wire, peer: "PeerIdentity") -> None:
        if self._barred.get(peer.node_id, 0.0) > self._runner.now():
            self._runner.post(wire.end, "the link is cut on purpose")
            return
        wire.peer = peer.node_id
        self._gate.proven(wire)
        self._user.link_up(wire, peer)
        for dial in list(self._dials.values()):
            if dial.wire is wire:
                dial.peer = peer.node_id
                dial.published = peer.published
            if dial.peer == peer.node_id:
                dial.succeed()

    def _ended(self, wire: Wire, closed: Closed) -> None:
        wire.shut()
        self._wires.pop(wire.link, None)
        self._gate.ended(wire)
        peer, wire.peer = wire.peer, None
        if closed.error is not None and peer is None:
            log.info("connection with %s ended: %s", wire.endpoint or "a peer", closed.reason)
        if peer is not None:
            wire.peer = peer
            self._user.link_down(wire, closed.reason)
        known = None if wire.link.peer is None else wire.link.peer.node_id
        for dial in list(self._dials.values()):
            if dial.wire is wire:
                self._dial_ended(dial, closed)
            elif known is None or dial.peer != known or dial.is_busy:
                continue
            elif dial.waiters or peer is None:  # it relied on this one's handshake
                self._dial_ended(dial, closed)
            elif dial.keep:
                self._retry(dial)

    def _dial_ended(self, dial: Dial, closed: Closed) -> None:
        wire, dial.wire = dial.wire, None
        dial.is_busy = False
        if dial.peer is not None and self._is_linked(dial.peer):
            dial.succeed()
        elif dial.peer is not None and self._pairs.holder(dial.peer) is not None:
            return  # another connection of the pair is in its handshake
        else:
            where = endpoint_text(dial.endpoint)
            text = f"no link with {where}: {closed.reason}"
            if self.tls is None and wire is not None and not wire.bytes_received:
                text += "; it said nothing before: it may want TLS (Node(tls=…)) or be full"
            self._failed(dial, text)

    def bar(self, peer: "NodeId", seconds: float) -> bool:
        """Cut the link with a neighbour and refuse it for a time; False when there is none."""
        self._barred[peer] = self._runner.now() + seconds
        for wire in list(self._wires.values()):
            if wire.peer == peer:
                wire.end("the link is cut on purpose")
                return True
        return False

    # --- every turn, and the end ---

    def _flush(self) -> None:
        dirty = self._dirty
        while dirty:
            dirty.pop().flush()

    def close(self) -> None:
        """End all links and stop listening."""
        self._closed = True
        for listener in self._listeners:
            if listener in self._runner.selector.get_map():
                self._runner.selector.unregister(listener)
            listener.close()
        self._listeners.clear()
        for wire in list(self._wires.values()):
            wire.end("the node is closing")
        for handshake in list(self._handshakes):
            handshake.cancel()
            handshake.sock.close()
        self._handshakes.clear()
        for dial in list(self._dials.values()):
            if dial.timer is not None:
                dial.timer.cancel()
            if dial.sock is not None:
                self._runner.selector.unregister(dial.sock)
                dial.sock.close()
            dial.fail("the node was closed")
        self._dials.clear()
