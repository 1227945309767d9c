"""The handshake: two strangers learn and prove who they are.

::

    dialer                               acceptor
      │ ◄──────── server_handshake ──────── │
      │ ───────── client_handshake ───────► │   dialer identified
      │ ◄────────────── hello ───────────── │   acceptor identified

The acceptor speaks first. Until a peer has proved that it knows the secret, its bytes
are read at fixed offsets only; the CBOR tail is decoded after the proof. What follows, the
choice of one link for each pair, is :mod:`callboard.basp.link`.

server_handshake (operation data: protocol version):

====== ==== =======================================================
offset size field
====== ==== =======================================================
0      16   nonce of the acceptor
16     1    flags: bit 0 = proof is demanded; other bits are ignored
17     rest tail
====== ==== =======================================================

client_handshake (operation data: protocol version):

====== ==== =======================================================
0      16   nonce of the dialer
16     1    flags, as above
17     32   proof of the dialer; zeros without a secret
49     rest tail
====== ==== =======================================================

hello:

====== ==== =======================================================
0      16   nonce of the acceptor, again
16     32   proof of the acceptor; zeros without a secret
====== ==== =======================================================

The tail is the CBOR array ``[application ids, published, …]``; ``published`` is null
or ``[actor number, [interface, …]]``; later items are ignored. The proof is HMAC-SHA256 with
the secret over role, acceptor's nonce, dialer's nonce, acceptor's node id, dialer's node id;
the role is ``server`` or ``client`` (six bytes each). It authenticates; it does not encrypt.

originator_syn is empty; responder_syn_ack and originator_ack carry the opaque state of
their senders (see :class:`PeerIdentity`).
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import IntEnum
from hashlib import sha256
from typing import Any, Final

from callboard.basp.cbor.plain import is_natural, read_plain, write_plain
from callboard.basp.errors import (
    AuthenticationFailed,
    ConnectedToItself,
    IncompatibleApplication,
    IncompatibleVersion,
    LinkLost,
    MalformedHandshake,
    MalformedPayload,
    RemoteProtocolError,
)
from callboard.basp.frame import DEFAULT_PAYLOAD_LIMIT, Frame, pack_frame
from callboard.basp.header import MAX_ACTOR, Operation, check_header
from callboard.basp.node_id import NO_NODE, NODE_ID_SIZE, NodeId, node_id_text
from callboard.dataclass import dataclass

#: 2: dispatches carry a sequence number, delivery reports what was given up.
VERSION: Final = 0x43420002
MINIMUM_VERSION: Final = 0x43420002
NONCE_SIZE: Final = 16
PROOF_SIZE: Final = 32
#: A handshake names applications and one actor; 64 KiB bounds what a stranger can make us
#: hold.
HANDSHAKE_LIMIT: Final = 64 * 1024

_PROOF_DEMANDED: Final = 1
_SERVER_PREFIX: Final = NONCE_SIZE + 1
_CLIENT_PREFIX: Final = NONCE_SIZE + 1 + PROOF_SIZE
_HELLO_SIZE: Final = NONCE_SIZE + PROOF_SIZE
_NO_PROOF: Final = bytes(PROOF_SIZE)

#: Secrets that one node knows, each with its name: an acceptor tries them all.
SECRET_LIMIT: Final = 64

#: Says as whom a peer is let in, by the name of the secret that it proved, the names in its
#: certificate and its node id; None when it is not.
Admit = Callable[[str, tuple[str, ...], NodeId], Any]


#: An actor that a node shows to everybody: its number, and the names of what it takes.
Published = tuple[int, tuple[str, ...]]


class DropReason(IntEnum):
    """Why a node drops a connection: operation data of ``drop_conn``."""

    CLOSING = 0
    REDUNDANT = 1
    VERSION = 2
    APPLICATION = 3
    AUTHENTICATION = 4
    SELF = 5
    MALFORMED = 6
    TIMEOUT = 7


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """What all links of one node, or of one port, have in common.

    Attributes:
        node_id: our own id.
        application_ids: at least one; peers must share one of them.
        secret: shared secret of the cluster; None = no proof is asked or given.
        secrets: further ones, with their names: a peer may prove any of them. Who dials proves
            the first, or ``secret``.
        admit: decides on a peer that has proven a secret; None = everybody is let in.
        version: protocol version that we announce.
        published: number and interface of the actor published at this port.
        heartbeat: seconds between heartbeats, and the unit of silence.
        missed: silent heartbeats after which a peer is dead.
        handshake_timeout: seconds that each part of a handshake may take.
        payload_limit: bytes of the largest payload accepted.
    """

    node_id: NodeId
    application_ids: tuple[str, ...] = ("callboard",)
    secret: bytes | None = field(default=None, repr=False)
    secrets: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    admit: Admit | None = None
    version: int = VERSION
    published: Published | None = None
    heartbeat: float = 1.0
    missed: int = 3
    handshake_timeout: float = 10.0
    payload_limit: int = DEFAULT_PAYLOAD_LIMIT

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: a value cannot work.
        """
        if len(self.node_id) != NODE_ID_SIZE or self.node_id == NO_NODE:
            msg = f"node_id must be {NODE_ID_SIZE} bytes and not all zero: {self.node_id!r}"
            raise ValueError(msg)
        if not self.application_ids:
            msg = "application_ids must name at least one application"
            raise ValueError(msg)
        if self.secret == b"":
            msg = "secret must not be empty; pass None for no authentication"
            raise ValueError(msg)
        if len(self.secrets) > SECRET_LIMIT:
            msg = f"{len(self.secrets)} secrets are too many; at most {SECRET_LIMIT} are tried"
            raise ValueError(msg)
        if self.heartbeat <= 0 or self.missed < 1 or self.handshake_timeout <= 0:
            msg = "heartbeat, missed and handshake_timeout must be positive"
            raise ValueError(msg)

    @property
    def keys(self) -> tuple[tuple[str, bytes], ...]:
        """All secrets with their names; that of ``secret`` is empty."""
        unnamed = () if self.secret is None else (("", self.secret),)
        return (*unnamed, *self.secrets)


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """What the handshake told about the peer.

    Attributes:
        node_id: the peer.
        version: protocol version it speaks.
        application_ids: applications it belongs to; at least one is ours too.
        published: number and interface of the actor published at its port, if any; only
            the accepting side publishes.
        state: what the peer's upper layers say at the start (subscription filters, routes,
            endpoint UUID), opaque here; empty until the link is established.
        standing: what ``LinkConfig.admit`` said; None without it.
    """

    node_id: NodeId
    version: int
    application_ids: tuple[str, ...]
    published: Published | None = None
    state: bytes = b""
    standing: Any = None


def pack_link_frame(
    operation: Operation, config: LinkConfig, peer: bytes, data: int = 0, payload: bytes = b""
) -> bytes:
    """Write a frame from node to node; ``data`` is its operation data."""
    return pack_frame(operation, data, config.node_id, peer, 0, 0, payload)


def prove(
    secret: bytes | None, role: bytes, nonces: tuple[bytes, bytes], nodes: tuple[bytes, bytes]
) -> bytes:
    """Return the proof of ``role`` (``b"server"`` or ``b"client"``), zeros without a secret.

    Args:
        secret: the shared secret.
        role: who proves.
        nonces: of the acceptor and of the dialer.
        nodes: of the acceptor and of the dialer.
    """
    if secret is None:
        return _NO_PROOF
    return hmac.digest(secret, role + b"".join(nonces) + b"".join(nodes), sha256)


def read_tail(config: LinkConfig, node_id: NodeId, version: int, tail: bytes) -> PeerIdentity:
    """Decode the tail of a proven peer.

    Raises:
        MalformedHandshake: the tail has another shape.
        IncompatibleApplication: no application id in common.
    """
    peer = node_id_text(node_id)
    try:
        items = read_plain(tail)
    except MalformedPayload as cause:
        msg = f"handshake of node {peer}: {cause}"
        raise MalformedHandshake(msg) from None
    if type(items) is not list or len(items) < 2 or not _is_text_list(items[0]):
        msg = f"handshake of node {peer} must end with application ids and published actor"
        raise MalformedHandshake(msg)
    applications = tuple(items[0])
    if not set(applications) & set(config.application_ids):
        msg = (
            f"node {peer} belongs to {applications!r:.200}, this node to "
            f"{config.application_ids!r:.200}: no application id in common"
        )
        raise IncompatibleApplication(msg)
    return PeerIdentity(node_id, version, applications, _read_published(peer, items[1]))


def _read_published(peer: str, shown: object) -> Published | None:
    """Return the actor that a peer publishes at its port, if any."""
    if shown is None:
        return None
    if type(shown) is list and len(shown) == 2:
        actor, interface = shown
        if is_natural(actor, MAX_ACTOR + 1) and _is_text_list(interface):
            return actor, tuple(interface)
    msg = f"handshake of node {peer}: published must be [actor number, [interface, ...]]"
    raise MalformedHandshake(msg)


def _is_text_list(value: object) -> bool:
    """Return whether a value is a list of texts."""
    return type(value) is list and all(type(item) is str for item in value)


class Introduction:
    """One side of the introduction; made for one connection, thrown away after it.

    Attributes:
        peer_id: who the peer says it is, zero while it has said nothing; proven only when
            :meth:`take` returns its identity.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        dialer: bool,
        nonce: bytes,
        certified: tuple[str, ...] = (),
    ) -> None:
        """Begin an introduction.

        Args:
            config: what the links of the port have in common.
            dialer: whether we made the connection.
            nonce: 16 unpredictable bytes.
            certified: names in the peer's certificate.

        Raises:
            ValueError: the nonce has another length.
        """
        if len(nonce) != NONCE_SIZE:
            msg = f"nonce must have {NONCE_SIZE} bytes, has {len(nonce)}"
            raise ValueError(msg)
        self._config = config
        self._nonce = nonce
        self._is_dialer = dialer
        self._certified = certified
        self._keys = config.keys[:1] if dialer else config.keys
        # The secret that was proven, with its name; the dialer chooses it.
        self._key: tuple[str, bytes | None] = (self._keys or (("", None),))[0]
        self._standing: Any = None
        self._peer_nonce = b""
        self._tail = b""
        self._version = 0
        self._wanted = Operation.SERVER_HANDSHAKE if dialer else Operation.CLIENT_HANDSHAKE
        self.peer_id = NO_NODE

    def start(self) -> bytes:
        """Return what this side says first; the dialer says nothing."""
        return b"" if self._is_dialer else self._greet()

    def take(self, frame: Frame) -> tuple[bytes, PeerIdentity | None]:
        """Take the peer's next frame; return the answer, and the peer once it is known.

        Raises:
            RemoteProtocolError: the frame is out of order, malformed, or proves nothing.
        """
        wanted = self._wanted
        if frame.operation != wanted:
            name, source = Operation(frame.operation).name.lower(), node_id_text(frame.source)
            msg = f"{name} from node {source} instead of {wanted.name.lower()}"
            raise MalformedHandshake(msg)
        check_header(frame[:7])
        if wanted is Operation.SERVER_HANDSHAKE:
            return self._take_server(frame), None
        if wanted is Operation.CLIENT_HANDSHAKE:
            return self._take_client(frame)
        return b"", self._take_hello(frame)

    def _greet(self) -> bytes:
        """Return the handshake of this side; the dialer's has its proof."""
        config, peer = self._config, self.peer_id
        published = config.published
        shown = None if published is None else [published[0], list(published[1])]
        flags = bytes((_PROOF_DEMANDED if self._keys else 0,))
        tail = write_plain([list(config.application_ids), shown])
        operation, proof = Operation.SERVER_HANDSHAKE, b""
        if self._is_dialer:
            operation, proof = Operation.CLIENT_HANDSHAKE, self._proof(b"client")
        payload = self._nonce + flags + proof + tail
        return pack_link_frame(operation, config, peer, config.version, payload)

    def _take_server(self, frame: Frame) -> bytes:
        """Take the acceptor's handshake; return the dialer's."""
        self._check_start(frame, _SERVER_PREFIX)
        self._version, self._tail = frame.data, frame.payload[_SERVER_PREFIX:]
        self._wanted = Operation.HELLO
        return self._greet()

    def _take_client(self, frame: Frame) -> tuple[bytes, PeerIdentity]:
        """Take the dialer's handshake; return the hello, and who the dialer is."""
        self._check_start(frame, _CLIENT_PREFIX)
        self._check_addressee(frame)
        self._check_proof(b"client", frame.payload[_SERVER_PREFIX:_CLIENT_PREFIX])
        tail = frame.payload[_CLIENT_PREFIX:]
        identity = self._read_tail(frame.data, tail)
        payload = self._nonce + self._proof(b"server")
        hello = pack_link_frame(Operation.HELLO, self._config, self.peer_id, 0, payload)
        return hello, identity

    def _take_hello(self, frame: Frame) -> PeerIdentity:
        """Take the acceptor's hello; return who the acceptor is."""
        peer, payload = node_id_text(self.peer_id), frame.payload
        if frame.source != self.peer_id:
            msg = (
                f"hello from node {node_id_text(frame.source)}, but the handshake came from "
                f"{peer}"
            )
            raise MalformedHandshake(msg)
        self._check_addressee(frame)
        if len(payload) != _HELLO_SIZE or payload[:NONCE_SIZE] != self._peer_nonce:
            msg = f"hello of node {peer} does not repeat its nonce"
            raise MalformedHandshake(msg)
        self._check_proof(b"server", payload[NONCE_SIZE:])
        return self._read_tail(self._version, self._tail)

    def _read_tail(self, version: int, tail: bytes) -> PeerIdentity:
        """Return who a proven peer is."""
        found = read_tail(self._config, self.peer_id, version, tail)
        return replace(found, standing=self._standing)

    def _check_start(self, frame: Frame, prefix: int) -> None:
        """Check what both handshakes have in common, and take who sent it and its nonce."""
        version, config = frame.data, self._config
        self.peer_id = NodeId(frame.source)
        peer = node_id_text(self.peer_id)
        if version < MINIMUM_VERSION:
            msg = (
                f"node {peer} speaks protocol version {version:#x}, at least "
                f"{MINIMUM_VERSION:#x} is needed; upgrade it"
            )
            raise IncompatibleVersion(msg)
        if frame.length < prefix:
            msg = f"handshake of node {peer} has {frame.length} B, at least {prefix} are needed"
            raise MalformedHandshake(msg)
        if self.peer_id == config.node_id:
            msg = f"node {peer} is connected to itself; check the address that was dialed"
            raise ConnectedToItself(msg)
        is_proof_demanded = bool(frame.payload[NONCE_SIZE] & _PROOF_DEMANDED)
        if is_proof_demanded != bool(self._keys):
            who = f"node {peer} demands" if is_proof_demanded else "this node demands"
            msg = f"{who} a shared secret, the other side has none; set the same one on both"
            raise AuthenticationFailed(msg)
        self._peer_nonce = frame.payload[:NONCE_SIZE]

    def _check_addressee(self, frame: Frame) -> None:
        """Refuse a frame that is meant for another node."""
        me = self._config.node_id
        if frame.destination != me:
            msg = (
                f"handshake of node {node_id_text(frame.source)} is meant for node "
                f"{node_id_text(frame.destination)}, this is {node_id_text(me)}"
            )
            raise MalformedHandshake(msg)

    def _proof(self, role: bytes, key: tuple[str, bytes | None] | None = None) -> bytes:
        """Return the proof of one side of this introduction, ours or the peer's."""
        nodes, nonces = (self._config.node_id, self.peer_id), (self._nonce, self._peer_nonce)
        if self._is_dialer:
            nodes, nonces = nodes[::-1], nonces[::-1]
        return prove((key or self._key)[1], role, nonces, nodes)

    def _check_proof(self, role: bytes, proof: bytes) -> None:
        """Refuse a wrong proof where one is demanded, in a time that does not depend on it.

        Then refuse whom nothing is permitted here. All secrets are tried, also behind the one.
        """
        peer, admit = node_id_text(self.peer_id), self._config.admit
        proven = [
            key for key in self._keys if hmac.compare_digest(self._proof(role, key), proof)
        ]
        if self._keys and not proven:
            msg = (
                f"node {peer} has another shared secret than this node; "
                f"set the same one on both"
            )
            raise AuthenticationFailed(msg)
        if proven:
            self._key = proven[0]
        if admit is not None:
            self._standing = admit(self._key[0], self._certified, self.peer_id)
            if self._standing is None:
                who = self._key[0] or ", ".join(self._certified) or "nobody"
                msg = f"nothing is permitted to node {peer}, which has proven to be {who!r}"
                raise AuthenticationFailed(msg)


_DROPPED: Final[Mapping[DropReason, tuple[type[RemoteProtocolError], str]]] = {
    DropReason.VERSION: (IncompatibleVersion, "it speaks another version of the protocol"),
    DropReason.APPLICATION: (IncompatibleApplication, "it belongs to another application"),
    DropReason.AUTHENTICATION: (
        AuthenticationFailed,
        "the shared secrets differ; set the same one on both nodes, and where it gives "
        "permissions, some for this node",
    ),
}


def drop_reason(error: RemoteProtocolError) -> DropReason:
    """Return what to tell a peer that is dropped because of ``error``."""
    reasons = (reason for reason, (kind, _) in _DROPPED.items() if isinstance(error, kind))
    return next(reasons, DropReason.MALFORMED)


def drop_error(peer: str, reason: int) -> RemoteProtocolError:
    """Return what the ``drop_conn`` of a peer means; ``reason`` is its operation data."""
    if reason >= len(DropReason):
        return LinkLost(f"node {peer} dropped the connection: {reason}")
    known = DropReason(reason)
    error, why = _DROPPED.get(known, (LinkLost, known.name.lower()))
    return error(f"node {peer} dropped the connection: {why}")
