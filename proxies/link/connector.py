"""The connector: all connections of one node, and the links on them.

The acceptor and the dialer make connections; here a link is begun on each, its effects are
carried out, and established links are handed to their user.
"""

import logging
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from callboard.actors.runner.contention import CONTENTION
from callboard.actors.runner.runner import Runner
from callboard.actors.runner.timers import Timer
from callboard.basp import errors
from callboard.basp.frame import RawFrame
from callboard.basp.handshake import NONCE_SIZE, LinkConfig, LinkGuard, PeerIdentity
from callboard.basp.link import (
    Closed,
    Deliver,
    Effect,
    Established,
    Link,
    LinkPairs,
    Parked,
    Redundant,
    Seal,
    Transmit,
    Wake,
)
from callboard.basp.node_id import NodeId, node_id_text
from callboard.proxies.address import Endpoint, endpoint_text
from callboard.proxies.events import LinkRefused
from callboard.proxies.link.acceptor import REFUSAL_INTERVAL, Acceptor
from callboard.proxies.link.certificates import LOOK_INTERVAL, Certificates
from callboard.proxies.link.dialer import Dial, Dialer
from callboard.proxies.link.limits import AcceptLimiter, Limits
from callboard.proxies.link.network import Network
from callboard.proxies.link.secret_tls import Encryption
from callboard.proxies.link.stream import Parting, Turns
from callboard.proxies.link.tls_socket import TlsSocket
from callboard.proxies.link.wire import CLOSING, Wire, Wiring
from callboard.proxies.rights.permissions import OPEN, LinkAccess, Permissions, Principal
from callboard.support.dataclass import dataclass

_log = logging.getLogger("callboard.links")

REMOVED: Final = "the user removed it"
WITHDRAWN: Final = "the secret that was proven is not accepted any more"

#: Errors of a peer that is a node, but not one of ours: people should hear of these.
_UNFIT: Final = (
    errors.AuthenticationFailed,
    errors.IncompatibleApplication,
    errors.IncompatibleVersion,
    errors.SpeaksTls,
)


class LinkUser(Protocol):
    """What established links are handed to."""

    def link_up(self, wire: Wire, peer: PeerIdentity) -> None:
        """Take note that a link is established."""

    def link_down(self, wire: Wire, reason: str, *, is_wanted: bool) -> None:
        """Take note that an established link ended; wanted by one of its nodes, or not."""

    def deliver(self, wire: Wire, frames: list[RawFrame]) -> None:
        """Take frames that arrived, in order."""

    def objection(self, peer: NodeId, standing: Principal) -> str:
        """Return why a peer may not have its id, with what it has proven; empty if it may."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """What the links of one node have in common.

    Attributes:
        node_id: of the node.
        access: what guards the links; one of its secrets is proved on each that is dialed.
        tls: for connections that this node dials; None for plain ones.
        limits: what the node takes from others.
        state: what each link tells its peer once it is proven.
        limited_state: what it tells a peer that may not send to all of the node.
        release: of the node's program, and its build, as every peer is told.
    """

    node_id: NodeId
    access: LinkAccess = OPEN
    tls: Encryption | None = None
    limits: Limits = Limits()
    state: bytes = b""
    limited_state: bytes = b""
    release: tuple[str, str] | None = None

    def state_of(self, standing: Principal | None) -> bytes:
        """Return what a peer of a standing is told."""
        is_member = standing is None or standing.rights.is_member
        return self.state if is_member else self.limited_state

    def config(self, access: LinkAccess, published: int | None = None) -> LinkConfig:
        """Return the configuration of links that are guarded so, and show a published actor."""
        return LinkConfig(
            self.node_id,
            secrets=access.keys,
            allow_unsealed=access.allow_unsealed,
            release=self.release,
            is_contended=_is_contended,
            published=None if published is None else (published, ()),
            payload_limit=self.limits.payload,
        )


def _carry_over(wire: Wire, effect: Deliver | Transmit | Seal) -> None:
    """Hand frames to the node, or bytes to the connection."""
    if isinstance(effect, Deliver):
        wire.frames_received += len(effect.frames)
        wire.deliver(effect.frames)
    elif isinstance(effect, Transmit):
        wire.write(effect.data)
    else:
        wire.seal(effect.sealer, effect.opener)


def _is_contended() -> bool:
    return CONTENTION.is_seen


#: Seconds in which peers of a node that closes have time to read what it wrote at last.
LINGER: Final = 0.5

#: Seconds that a peer has to read why its connection ends, and to close it as well.
PARTING_LIMIT: Final = 2.0


@dataclass(eq=False, repr=False)
class Connector:
    """All connections of one node. Its methods run on the runner with its role."""

    _runner: Runner
    _network: Network
    #: Of all links.
    options: LinkOptions
    #: Takes the events.
    _emit: Callable[[object], None]

    def __post_init__(self) -> None:
        """Begin without connections; `start` it before the first one."""
        self._pairs = LinkPairs()
        self._wires: dict[Link, Wire] = {}
        self._barred: dict[bytes, float] = {}
        self._quiet_until = 0.0
        #: Connections that have ended, until their peers have closed them too.
        self._partings: dict[Parting, object] = {}
        self._pauses = 0  # of links that ended
        #: Writes what all connections of the node collected in a turn.
        self.turns = Turns(self._runner)
        self._certificates: list[Certificates] = []
        self._looking: Timer | None = None
        options = self.options
        #: Counts the connections that were closed at once because of a limit.
        self.gate = AcceptLimiter(self.options.limits)
        #: Makes links that this side wants.
        self.dialer = Dialer(
            self._runner,
            self._network,
            options.tls,
            self._open_dialed,
            self.part_with,
            self._pairs,
            len(options.access.keys),
        )
        #: Takes links that others want.
        self.acceptor = Acceptor(
            self._runner,
            self.gate,
            self._emit,
            self._open_accepted,
            self.part_with,
            self._connections,
        )

    def start(self, user: LinkUser) -> None:
        """Begin to serve a user of links."""
        self._user = user
        self._wiring = Wiring(self.turns, user.deliver, self._carry_out, self.options.limits)
        if isinstance(self.options.tls, Certificates):
            self.options.tls.report = self._emit
            self._runner.post(self.watch, self.options.tls)

    def watch(self, certificates: Certificates) -> None:
        """Look at the files of certificates from here on."""
        if certificates.is_fixed or certificates in self._certificates:
            return
        self._certificates.append(certificates)
        if self._looking is None:
            self._look()

    def _look(self) -> None:
        """Look at the files of all certificates, and at those links again in a second."""
        self._looking = self._runner.call_later(LOOK_INTERVAL, self._look)
        for certificates in self._certificates:
            certificates.look()

    @property
    def pauses(self) -> int:
        """How often reading was put off because a link brought more than it may."""
        return self._pauses + sum(wire.pauses for wire in list(self._wires.values()))

    def unlink(self, endpoint: Endpoint) -> NodeId | None:
        """Give up the dial of an address and end its link for good; returns who was linked.

        The address is that of a dial, or the other end of a link that a peer dialed.

        Raises:
            LookupError: neither dial nor link has this address.
        """
        dial = self.dialer.stop(endpoint)
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
        if peer is None or not self._pairs.is_linked(peer):
            return None
        self.dialer.stop_all(peer)
        for wire in wires:
            if wire.peer == peer:
                wire.end(REMOVED)
        return peer

    def config(self, access: LinkAccess, published: int | None = None) -> LinkConfig:
        """Return the configuration of the links of a port, or of dials."""
        config = self.options.config(access, published)
        if access.permissions is None:
            return config
        return replace(config, admit=partial(self._admit, access.permissions))

    def _admit(
        self,
        permissions: Permissions,
        secret_name: str,
        certified: tuple[str, ...],
        peer: NodeId,
    ) -> Principal | None:
        """Return what is permitted to a peer.

        Raises:
            AuthenticationFailed: it has the id of another node.
        """
        standing = permissions.admit(secret_name, certified)
        objection = standing and self._user.objection(peer, standing)
        if objection:
            raise errors.AuthenticationFailed(objection)
        return standing

    def adopt(
        self, sock: socket.socket, *, dialer: bool, patience: float | None = None
    ) -> None:
        """Make a link of a connection that is there already, such as one of a socket pair.

        Args:
            sock: the connection.
            dialer: True on exactly one of its two ends.
            patience: seconds that its other end has to begin; as any by default.
        """
        config = self.config(OPEN)
        if patience is not None:
            config = replace(config, handshake_timeout=patience)
        self._open(sock, config, None, dialer=dialer)

    def _connections(self) -> int:
        """Count the connections of the node, TLS handshakes of dials included."""
        return len(self._wires) + len(self._partings) + len(self.dialer)

    # --- connections ---

    def change_keys(self, keys: tuple[tuple[str, bytes], ...]) -> int:
        """Take other secrets; return how many links end because theirs is not among them."""
        self.options = replace(self.options, access=replace(self.options.access, keys=keys))
        self.dialer.change_keys(len(keys))
        wires = [wire for wire in self._wires.values() if wire.peer is not None]
        refused = [wire for wire in wires if not self._is_accepted(wire)]
        for wire in refused:
            wire.end(WITHDRAWN)
        return len(refused)

    def _is_accepted(self, wire: Wire) -> bool:
        """Return whether the node accepts what was proven on a link."""
        if not wire.has_node_keys:
            return True
        keys = self.options.access.keys
        secrets = [secret for _, secret in keys]
        return wire.link.secret in secrets if keys else wire.link.secret is None

    def _open_accepted(
        self,
        sock: "socket.socket | TlsSocket",
        port: tuple[LinkAccess, int | None],
        remote: Endpoint,
    ) -> Wire:
        """Begin a link on a connection to a port, which is guarded so and shows an actor."""
        access, shown = port
        if not access.has_own_keys:
            access = replace(access, keys=self.options.access.keys)
        wire = self._open(sock, self.config(access, shown), remote)
        wire.has_node_keys = not access.has_own_keys
        return wire

    def _open_dialed(self, dial: Dial, sock: "socket.socket | TlsSocket") -> Wire:
        access = self.options.access
        first = self.dialer.key_of(dial)
        chosen = replace(access, keys=access.keys[first : first + 1])
        wire = self._open(sock, self.config(chosen), dial.endpoint, dialer=True)
        wire.has_node_keys = True
        return wire

    def _open(
        self,
        sock: "socket.socket | TlsSocket",
        config: LinkConfig,
        remote: Endpoint | None,
        *,
        dialer: bool = False,
    ) -> Wire:
        """Begin a link on a connection."""
        nonce = self._runner.random.randbytes(NONCE_SIZE)
        link = Link(
            config,
            dialer=dialer,
            nonce=nonce,
            now=self._runner.now(),
            pairs=self._pairs,
            certified=sock.names() if isinstance(sock, TlsSocket) else (),
            channel=sock.channel() if isinstance(sock, TlsSocket) else b"",
        )
        link.state_of = self.options.state_of
        wire = self._wires[link] = Wire(self._wiring, sock, link, remote, dialer=dialer)
        wire.after_read = partial(self._introduced, wire)
        wire.let_go = partial(self.part_with, wire)
        wire.start()
        if isinstance(sock, TlsSocket):  # its handshake may have read more than its own bytes
            self._runner.post(wire.catch_up)
        return wire

    def _carry_out(self, wire: Wire, effects: list[Effect]) -> None:
        """Do what a link asks for, in its order."""
        wakes: list[Link] = []
        for effect in effects:
            if isinstance(effect, Deliver | Transmit | Seal):
                _carry_over(wire, effect)
            elif isinstance(effect, Established):
                self._established(wire, effect.peer)
            elif isinstance(effect, Closed):
                self._ended(wire, effect)
            elif isinstance(effect, Wake):
                wakes.append(effect.link)
            elif isinstance(effect, Parked | Redundant):
                self.dialer.peer_known(wire, effect.peer)
        for link in wakes:
            if link in self._wires:
                self._carry_out(self._wires[link], link.resume(self._runner.now()))

    def _introduced(self, wire: Wire) -> None:
        """A connection that is not established was heard: its peer may be linked already."""
        if wire.is_open and wire.link.peer is not None:
            self.gate.proven(wire)
            self.dialer.peer_known(wire, wire.link.peer.node_id)

    def _established(self, wire: Wire, peer: PeerIdentity) -> None:
        """Hand a link to its user, unless the peer is barred."""
        if self._barred.get(peer.node_id, 0.0) > self._runner.now():
            self._runner.post(wire.end, "the link is cut on purpose")
            return
        if not self._is_accepted(wire):  # its secret went while it was in its handshake
            self._runner.post(wire.end, WITHDRAWN)
            return
        objection = peer.standing and self._user.objection(peer.node_id, peer.standing)
        if objection:  # another node came between
            self._runner.post(wire.end, objection)
            return
        if peer.guard is LinkGuard.FIRST_WORDS:
            _log.warning(
                "the link with node %s of release %s is not sealed, as allow_unsealed permits: "
                "whoever stands between may speak in its name; upgrade it",
                node_id_text(peer.node_id),
                peer.release,
            )
        wire.peer = peer.node_id
        wire.after_read = None
        self.gate.proven(wire)
        self._user.link_up(wire, peer)
        self.dialer.link_established(wire, peer)

    def _ended(self, wire: Wire, closed: Closed) -> None:
        """Let go of a connection, and tell the user if its link was established."""
        wire.shut()
        if self._wires.pop(wire.link, None) is not None:
            self._pauses += wire.pauses
        was_established = wire.peer is not None
        if was_established:
            self._user.link_down(wire, closed.reason, is_wanted=closed.error is None)
        elif closed.error is not None and not self.dialer.tries_another_key(wire, closed):
            self._refused(wire, closed)
        self.dialer.wire_ended(wire, closed, was_established=was_established)

    def _refused(self, wire: Wire, closed: Closed) -> None:
        """Tell that no link came of a connection, and loudly what only people can mend."""
        where = "a peer" if wire.remote is None else endpoint_text(wire.remote)
        now = self._runner.now()
        if not isinstance(closed.error, _UNFIT) or now < self._quiet_until:
            _log.debug("connection with %s ended: %s", where, closed.reason)
            return
        self._quiet_until = now + REFUSAL_INTERVAL
        if wire.endpoint is None:  # whoever dials gets an error instead
            _log.warning("no link with %s: %s", where, closed.reason)
        self._emit(LinkRefused(where, closed.reason))

    def bar(self, peer: NodeId, seconds: float) -> bool:
        """Cut the link with a neighbor and refuse it for a time; False when there is none."""
        self._barred[peer] = self._runner.now() + seconds
        for wire in list(self._wires.values()):
            if wire.peer == peer:
                wire.end("the link is cut on purpose")
                return True
        return False

    def close(self) -> None:
        """End all links and stop listening; `linger` afterwards."""
        if self._looking is not None:
            self._looking.cancel()
        self.acceptor.close()
        self.dialer.close()
        for wire in list(self._wires.values()):
            wire.end(CLOSING)
        for parting, connection in list(self._partings.items()):
            if getattr(connection, "peer", None) is None:
                parting.abort()  # strangers hold nothing up

    def part_with(
        self, connection: object, sock: Any, gate: AcceptLimiter | None = None
    ) -> None:
        """Close a connection so that its last words arrive; it counts for limits until then.

        Args:
            connection: whose socket it is.
            sock: the socket.
            gate: what let it in; by default that of the ports of nodes.
        """
        let_in_by = gate or self.gate

        def ended(parting: Parting) -> None:
            timer.cancel()
            self._partings.pop(parting)
            let_in_by.ended(connection)

        if not isinstance(sock, socket.socket | TlsSocket):  # a simulated one resets nothing
            sock.close()
            let_in_by.ended(connection)
            return
        parting = Parting(self._runner, sock, ended)
        self._partings[parting] = connection
        timer = self._runner.call_later(PARTING_LIMIT, parting.abort)
        parting.begin()

    def linger(self) -> None:
        """Wait until peers have read the last words and closed, for a moment; on any thread."""
        until = time.monotonic() + LINGER
        for parting in self._partings:
            parting.wait(until)
        self._partings.clear()
