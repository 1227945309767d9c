"""All connections of one node, and the links on them.

The acceptor and the dialer make connections. The connector starts a link on each connection,
carries out the effects of the link's machine, and passes an established link to the user of
links, which is the node's broker.
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
from callboard.actors.values import Event
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
from callboard.proxies.link.dialer import Dial, Dialer
from callboard.proxies.link.limits import AcceptLimiter, Limits
from callboard.proxies.link.network import Network
from callboard.proxies.link.secret_tls import Encryption
from callboard.proxies.link.stream import Parting, Turns
from callboard.proxies.link.tls_socket import TlsSocket
from callboard.proxies.link.wire import CLOSING, Wire, Wiring
from callboard.proxies.rights.permissions import OPEN, LinkAccess, Permissions, Principal
from callboard.support.dataclass import dataclass
from callboard.tls.certificates import CERTIFICATE_POLL_SECONDS, Certificates

_log = logging.getLogger("callboard.links")

REMOVED: Final = "the user removed it"
WITHDRAWN: Final = "the proven secret is no longer accepted"

#: Errors of a peer that is a node but cannot join this one; people should learn of these.
_UNFIT: Final = (
    errors.AuthenticationFailed,
    errors.IncompatibleApplication,
    errors.IncompatibleVersion,
    errors.SpeaksTls,
)


class LinkUser(Protocol):
    """Receives the established links."""

    def link_up(self, wire: Wire, peer: PeerIdentity) -> None:
        """Handle an established link."""

    def link_down(self, wire: Wire, reason: str, *, is_wanted: bool) -> None:
        """Handle the end of an established link; `is_wanted` if one of its nodes ended it."""

    def deliver(self, wire: Wire, frames: list[RawFrame]) -> None:
        """Handle frames that arrived, in order."""

    def objection(self, peer: NodeId, standing: Principal) -> str:
        """Return why a peer may not use its node id; empty if it may."""


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """Settings shared by the links of one node.

    Attributes:
        node_id: the id of the node.
        access: authentication of links; each dialed link proves one of its secrets.
        tls: TLS for connections that this node dials; None for plain ones.
        limits: limits for peers.
        state: the node's description, sent to each peer after its proof.
        limited_state: the description for a peer with limited rights.
        greeting: the facts about the node in its handshakes, such as the release; it has no
            secrets and limits, which are those of `access` and `limits`.
    """

    node_id: NodeId
    access: LinkAccess = OPEN
    tls: Encryption | None = None
    limits: Limits = Limits()
    state: bytes = b""
    limited_state: bytes = b""
    greeting: LinkConfig | None = None

    def state_of(self, standing: Principal | None) -> bytes:
        """Return the description that is sent to a peer."""
        is_member = standing is None or standing.rights.is_member
        return self.state if is_member else self.limited_state

    def config(self, access: LinkAccess, published: int | None = None) -> LinkConfig:
        """Return the configuration of links with an access and a published actor."""
        return replace(
            self.greeting or LinkConfig(self.node_id),
            secrets=access.keys,
            allow_unsealed=access.allow_unsealed,
            is_contended=_is_contended,
            published=None if published is None else (published, ()),
            payload_limit=self.limits.payload,
        )


def _carry_over(wire: Wire, effect: Deliver | Transmit | Seal) -> None:
    """Pass frames to the node, or bytes to the connection."""
    if isinstance(effect, Deliver):
        wire.frames_received += len(effect.frames)
        wire.deliver(effect.frames)
    elif isinstance(effect, Transmit):
        wire.write(effect.data)
    else:
        wire.seal(effect.sealer, effect.opener)


def _is_contended() -> bool:
    return CONTENTION.is_seen


#: Seconds for peers of a closing node to read its last bytes.
LINGER: Final = 0.5

#: Seconds for a peer to read why its connection ends, and to close it too.
PARTING_LIMIT: Final = 2.0


@dataclass(eq=False, repr=False)
class Connector:
    """All connections of one node. Its methods run on the thread with the runner's role."""

    _runner: Runner
    _network: Network
    #: Options of all links.
    options: LinkOptions
    #: Receives the events.
    _emit: Callable[[Event], None]

    def __post_init__(self) -> None:
        """Start without connections; call `start` before the first one."""
        self._pairs = LinkPairs()
        self._wires: dict[Link, Wire] = {}
        self._barred: dict[bytes, float] = {}
        self._quiet_until = 0.0
        #: Closed connections whose peers have not closed them yet.
        self._partings: dict[Parting, object] = {}
        self._pauses = 0  # of ended links
        #: Writes the output that all connections collected in a turn.
        self.turns = Turns(self._runner)
        self._certificates: list[Certificates] = []
        self._certificate_timer: Timer | None = None
        options = self.options
        #: Counts the connections closed at once because of a limit.
        self.gate = AcceptLimiter(self.options.limits)
        #: Makes links that this node wants.
        self.dialer = Dialer(
            self._runner,
            self._network,
            options.tls,
            self._open_dialed,
            self.part_with,
            self._pairs,
            len(options.access.keys),
        )
        #: Accepts links that other nodes want.
        self.acceptor = Acceptor(
            self._runner,
            self.gate,
            self._emit,
            self._open_accepted,
            self.part_with,
            self._connections,
        )

    def start(self, user: LinkUser) -> None:
        """Start serving a user of links."""
        self._user = user
        self._wiring = Wiring(self.turns, user.deliver, self._carry_out, self.options.limits)
        if isinstance(self.options.tls, Certificates):
            self.options.tls.report = self._emit
            self._runner.post(self.watch, self.options.tls)

    def watch(self, certificates: Certificates) -> None:
        """Start checking regularly whether the files of certificates have changed."""
        if certificates.is_fixed or certificates in self._certificates:
            return
        self._certificates.append(certificates)
        if self._certificate_timer is None:
            self._check_certificates()

    def _check_certificates(self) -> None:
        """Check the files of all certificates, and schedule the next check."""
        self._certificate_timer = self._runner.call_later(
            CERTIFICATE_POLL_SECONDS, self._check_certificates
        )
        for certificates in self._certificates:
            certificates.check()

    @property
    def pauses(self) -> int:
        """Number of pauses in reading because a link sent more than it may."""
        return self._pauses + sum(wire.pauses for wire in list(self._wires.values()))

    def unlink(self, endpoint: Endpoint) -> NodeId | None:
        """Stop the dial of an address and end its link for good; return the linked node.

        The address may be one that this node dials, or the remote address of a link that a peer
        dialed.

        Raises:
            LookupError: no dial and no link has this address.
        """
        dial = self.dialer.stop(endpoint)
        wires = list(self._wires.values())
        if dial is None:
            peer = next((wire.peer for wire in wires if wire.remote == endpoint), None)
            if peer is None:
                msg = f"no link has the address {endpoint_text(endpoint)}"
                raise LookupError(msg)
        else:
            peer = dial.peer
            if dial.wire is not None and dial.wire.peer is None:  # still in its handshake
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
        """Return the identity and the rights of a peer; None if it has no permissions.

        Raises:
            AuthenticationFailed: the peer has the id of another node.
        """
        standing = permissions.admit(secret_name, certified)
        objection = standing and self._user.objection(peer, standing)
        if objection:
            raise errors.AuthenticationFailed(objection)
        return standing

    def adopt(
        self, sock: socket.socket, *, dialer: bool, patience: float | None = None
    ) -> None:
        """Make a link of an existing connection, such as one end of a socket pair.

        Args:
            sock: the connection.
            dialer: True on exactly one of its two ends.
            patience: seconds for the other end to start its handshake; the default is that of
                all links.
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
        """Replace the secrets.

        Returns the number of links that were ended because their secret was removed.
        """
        self.options = replace(self.options, access=replace(self.options.access, keys=keys))
        self.dialer.change_keys(len(keys))
        wires = [wire for wire in self._wires.values() if wire.peer is not None]
        refused = [wire for wire in wires if not self._is_accepted(wire)]
        for wire in refused:
            wire.end(WITHDRAWN)
        return len(refused)

    def _is_accepted(self, wire: Wire) -> bool:
        """Return whether the node still accepts the secret that was proven on a link."""
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
        """Start a link on a connection to a port, with its access and published actor."""
        access, published = port
        if not access.has_own_keys:
            access = replace(access, keys=self.options.access.keys)
        wire = self._open(sock, self.config(access, published), remote)
        wire.has_node_keys = not access.has_own_keys
        return wire

    def _open_dialed(self, dial: Dial, sock: "socket.socket | TlsSocket") -> Wire:
        """Start a link on a connection that this node dialed, with one of its secrets."""
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
        """Start a link on a connection."""
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
        if isinstance(sock, TlsSocket):  # the TLS handshake may have read bytes of the link
            self._runner.post(wire.catch_up)
        return wire

    def _carry_out(self, wire: Wire, effects: list[Effect]) -> None:
        """Carry out the effects of a link, in order."""
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
        """Check after the first bytes of a connection whether its peer is linked already."""
        if wire.is_open and wire.link.peer is not None:
            self.gate.proven(wire)
            self.dialer.peer_known(wire, wire.link.peer.node_id)

    def _established(self, wire: Wire, peer: PeerIdentity) -> None:
        """Pass a link to its user, unless the peer is barred."""
        if self._barred.get(peer.node_id, 0.0) > self._runner.now():
            self._runner.post(wire.end, "the link is cut on purpose")
            return
        if not self._is_accepted(wire):  # the secret was removed during the handshake
            self._runner.post(wire.end, WITHDRAWN)
            return
        objection = peer.standing and self._user.objection(peer.node_id, peer.standing)
        if objection:  # another node with this id was linked during the handshake
            self._runner.post(wire.end, objection)
            return
        if peer.guard is LinkGuard.FIRST_WORDS:
            _log.warning(
                "the link with node %s of release %s is not sealed, as allow_unsealed "
                "permits: an intermediary could send in its name; upgrade it",
                node_id_text(peer.node_id),
                peer.release,
            )
        wire.peer = peer.node_id
        wire.after_read = None
        self.gate.proven(wire)
        self._user.link_up(wire, peer)
        self.dialer.link_established(wire, peer)

    def _ended(self, wire: Wire, closed: Closed) -> None:
        """Release a connection, and notify the user if its link was established."""
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
        """Report why a connection became no link: as a warning if only people can fix it."""
        remote = "a peer" if wire.remote is None else endpoint_text(wire.remote)
        now = self._runner.now()
        if not isinstance(closed.error, _UNFIT) or now < self._quiet_until:
            _log.debug("connection with %s ended: %s", remote, closed.reason)
            return
        self._quiet_until = now + REFUSAL_INTERVAL
        if wire.endpoint is None:  # the caller of a dial gets an error instead
            _log.warning("no link with %s: %s", remote, closed.reason)
        self._emit(LinkRefused(remote, closed.reason))

    def bar(self, peer: NodeId, seconds: float) -> bool:
        """End the link with a neighbor and refuse new ones for a time.

        Returns False if there is no link.
        """
        self._barred[peer] = self._runner.now() + seconds
        for wire in list(self._wires.values()):
            if wire.peer == peer:
                wire.end("the link is cut on purpose")
                return True
        return False

    def close(self) -> None:
        """End all links and stop listening. The caller calls `linger` afterwards."""
        if self._certificate_timer is not None:
            self._certificate_timer.cancel()
        self.acceptor.close()
        self.dialer.close()
        for wire in list(self._wires.values()):
            wire.end(CLOSING)
        for parting, connection in list(self._partings.items()):
            if getattr(connection, "peer", None) is None:
                parting.abort()  # unproven peers must not delay the close

    def part_with(
        self, connection: object, sock: Any, gate: AcceptLimiter | None = None
    ) -> None:
        """Close a connection so that its last bytes arrive.

        Until it is closed, the connection counts for the limits.

        Args:
            connection: the object that owns the socket.
            sock: the socket.
            gate: the limiter that accepted the connection; by default that of the node's BASP
                ports.
        """
        let_in_by = gate or self.gate

        def ended(parting: Parting) -> None:
            timer.cancel()
            self._partings.pop(parting)
            let_in_by.ended(connection)

        # A simulated connection cannot lose its last bytes.
        if not isinstance(sock, socket.socket | TlsSocket):
            sock.close()
            let_in_by.ended(connection)
            return
        parting = Parting(self._runner, sock, ended)
        self._partings[parting] = connection
        timer = self._runner.call_later(PARTING_LIMIT, parting.abort)
        parting.begin()

    def linger(self) -> None:
        """Wait briefly until the peers have read the last bytes and closed their ends.

        Can be called from any thread.
        """
        until = time.monotonic() + LINGER
        for parting in self._partings:
            parting.wait(until)
        self._partings.clear()
