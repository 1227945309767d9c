"""The connector: all connections of one node, and the links on them.

The acceptor and the dialer make connections; here a link is begun on each, its effects are
carried out, and established links are handed to the broker.
"""

import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from actors.future import Future
from basp.effects import Closed, Deliver, Effect, Established, Parked, Redundant, Transmit, Wake
from basp.errors import AuthenticationFailed, IncompatibleApplication, IncompatibleVersion
from basp.handshake import NONCE_SIZE, LinkConfig
from basp.link import Link
from basp.link_pairs import LinkPairs
from proxies.acceptor import REFUSAL_INTERVAL, Acceptor
from proxies.address import Endpoint, endpoint_text
from proxies.dial import Dial
from proxies.dialer import Dialer
from proxies.events import LinkRefused
from proxies.limits import Gate, Limits
from proxies.throttle import Throttle
from proxies.tls_socket import TlsSocket
from proxies.wire import READ_SIZE, Wire

if TYPE_CHECKING:
    import ssl

    from actors.runner import Runner
    from basp.effects import PeerIdentity
    from basp.frame import Frame
    from basp.node_id import NodeId
    from proxies.surroundings import Network

__all__ = ["Connector", "Dial", "LinkUser"]

log = logging.getLogger("callboard.links")

REMOVED: Final = "the user removed it"

#: Errors of a peer that is a node, but not one of ours: people should hear of these.
_UNFIT: Final = (AuthenticationFailed, IncompatibleApplication, IncompatibleVersion)


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
        self._node_id = node_id
        self._user = user
        self._pairs = LinkPairs()
        self._wires: dict[Link, Wire] = {}
        self._dirty: list[Wire] = []
        self._barred: dict[bytes, float] = {}
        self._quiet_until = 0.0
        self._pauses = 0  # of links that ended
        self._dialer = Dialer(
            runner, network, self._open_dialed, self._is_linked, self._is_paired
        )
        self._acceptor = Acceptor(runner, self._open_accepted, self._connections)
        #: Bytes of the largest payload; also at hand for every message that leaves.
        self.payload_limit = self.limits.payload
        #: What each new link tells its peer once it is proven.
        self.upper_state = b""
        runner.before_poll.append(self._flush)

    @property
    def limits(self) -> Limits:
        """What the node takes from others; set it before the first connection."""
        return self._acceptor.gate.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._acceptor.gate = Gate(limits)
        self.payload_limit = limits.payload

    @property
    def tls(self) -> "ssl.SSLContext | None":
        """For connections that we make; None for plain ones."""
        return self._dialer.tls

    @tls.setter
    def tls(self, context: "ssl.SSLContext | None") -> None:
        self._dialer.tls = context

    @property
    def emit(self) -> Callable[[object], None]:
        """Takes the events."""
        return self._acceptor.emit

    @emit.setter
    def emit(self, emit: Callable[[object], None]) -> None:
        self._acceptor.emit = emit

    @property
    def refused(self) -> int:
        """Connections that were closed at once because of a limit."""
        return self._acceptor.gate.refused

    @property
    def pauses(self) -> int:
        """How often reading was put off because a link brought more than it may."""
        return self._pauses + sum(wire.pauses for wire in list(self._wires.values()))

    def listen(
        self, sock: socket.socket, config: LinkConfig, tls: "ssl.SSLContext | None" = None
    ) -> None:
        """Accept connections on a bound socket."""
        self._acceptor.listen(sock, config, tls)

    def dial(
        self, endpoint: Endpoint, waiter: Future[Dial], *, secret: bytes | None, keep: bool
    ) -> None:
        """Link with who listens there; `keep` dials again whenever the link is lost."""
        self._dialer.dial(endpoint, waiter, secret=secret, keep=keep)

    def insist(
        self,
        endpoint: Endpoint,
        waiter: Future[Dial],
        *,
        secret: bytes | None,
        retry: float,
        on_failure: Callable[[str], object],
    ) -> None:
        """Link with who listens there, however long it takes, until `unlink`."""
        self._dialer.insist(endpoint, waiter, secret=secret, retry=retry, on_failure=on_failure)

    def kept_dials(self) -> list[Dial]:
        """Return the dials that go on when their link is lost."""
        return self._dialer.kept()

    def unlink(self, endpoint: Endpoint) -> "NodeId | None":
        """Give up the dial of an address and end its link for good; returns who was linked.

        The address is that of a dial, or the other end of a link that a peer dialed.

        Raises:
            LookupError: neither dial nor link has this address.
        """
        dial = self._dialer.stop(endpoint)
        wires = list(self._wires.values())
        if dial is None:
            peer = next((wire.peer for wire in wires if wire.remote == endpoint), None)
            if peer is None:
                msg = f"{endpoint_text(endpoint)} is the address of no link"
                raise LookupError(msg)
        else:
            peer = dial.peer
            if dial.wire is not None and dial.wire.peer is None:  # in its handshake
                dial.wire.end(REMOVED)
        if peer is None or not self._is_linked(peer):
            return None
        self._dialer.stop_all(peer)
        for wire in wires:
            if wire.peer == peer:
                wire.end(REMOVED)
        return peer

    def forget_waiter(self, endpoint: Endpoint, waiter: Future[Any]) -> None:
        """Whoever waited gave up."""
        self._dialer.forget_waiter(endpoint, waiter)

    def adopt(self, sock: socket.socket, *, dialer: bool) -> None:
        """Make a link of a connection that is there already, such as one of a socket pair."""
        config = LinkConfig(self._node_id, payload_limit=self.payload_limit)
        self._open(sock, config, None, dialer=dialer)

    def _is_linked(self, peer: "NodeId") -> bool:
        holder = self._pairs.holder(peer)
        return holder is not None and holder.is_established

    def _is_paired(self, peer: "NodeId") -> bool:
        return self._pairs.holder(peer) is not None

    def _connections(self) -> int:
        return len(self._wires) + len(self._dialer)

    # --- connections ---

    def _open_dialed(self, dial: Dial, sock: "socket.socket | TlsSocket") -> Wire:
        config = LinkConfig(self._node_id, secret=dial.secret, payload_limit=self.payload_limit)
        return self._open(sock, config, dial.endpoint, dialer=True)

    def _open_accepted(
        self, sock: "socket.socket | TlsSocket", config: LinkConfig, endpoint: Endpoint
    ) -> Wire:
        return self._open(sock, config, endpoint, dialer=False)

    def _open(
        self,
        sock: "socket.socket | TlsSocket",
        config: LinkConfig,
        endpoint: Endpoint | None,
        *,
        dialer: bool,
    ) -> Wire:
        nonce = self._runner.random.randbytes(NONCE_SIZE)
        link = Link(
            config, dialer=dialer, nonce=nonce, now=self._runner.now(), pairs=self._pairs
        )
        link.upper_state = self.upper_state
        wire = Wire(
            self._runner, sock, link, endpoint if dialer else None, self._carry_out, self._dirty
        )
        wire.remote = endpoint
        limits = self.limits
        if limits.messages_per_second or limits.bytes_per_second:
            wire.throttle = Throttle(
                limits.messages_per_second,
                limits.bytes_per_second,
                now=self._runner.now(),
                read_size=READ_SIZE,
            )
        wire.introduced = self._introduced
        wire.deliver = self._user.deliver
        self._wires[link] = wire
        wire.start()
        if isinstance(sock, TlsSocket):  # its handshake may have read more than its own bytes
            self._runner.post(wire.catch_up)
        return wire

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
                self._dialer.peer_known(wire, effect.peer)
        for link in wakes:
            if link in self._wires:
                self._wires[link].resume()

    def _introduced(self, wire: Wire) -> None:
        """A connection that is not established was heard: its peer may be linked already."""
        if wire.is_open and wire.link.peer is not None:
            self._acceptor.gate.proven(wire)
            self._dialer.peer_known(wire, wire.link.peer.node_id)

    def _established(self, wire: Wire, peer: "PeerIdentity") -> None:
        if self._barred.get(peer.node_id, 0.0) > self._runner.now():
            self._runner.post(wire.end, "the link is cut on purpose")
            return
        wire.peer = peer.node_id
        self._acceptor.gate.proven(wire)
        self._user.link_up(wire, peer)
        self._dialer.link_established(wire, peer)

    def _ended(self, wire: Wire, closed: Closed) -> None:
        wire.shut()
        if self._wires.pop(wire.link, None) is not None:
            self._pauses += wire.pauses
        self._acceptor.gate.ended(wire)
        was_established = wire.peer is not None
        if was_established:
            self._user.link_down(wire, closed.reason)
        elif closed.error is not None:
            self._refused(wire, closed)
        self._dialer.wire_ended(wire, closed, was_established=was_established)

    def _refused(self, wire: Wire, closed: Closed) -> None:
        """Tell that no link came of a connection, and loudly what only people can mend."""
        where = "a peer" if wire.remote is None else endpoint_text(wire.remote)
        now = self._runner.now()
        if not isinstance(closed.error, _UNFIT) or now < self._quiet_until:
            log.info("connection with %s ended: %s", where, closed.reason)
            return
        self._quiet_until = now + REFUSAL_INTERVAL
        if wire.endpoint is None:  # whoever dials gets an error instead
            log.warning("no link with %s: %s", where, closed.reason)
        self.emit(LinkRefused(where, closed.reason))

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
        self._acceptor.close()
        self._dialer.close()
        for wire in list(self._wires.values()):
            wire.end("the node is closing")
