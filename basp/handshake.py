"""The handshake: both nodes of a new connection identify and authenticate each other.

::

    dialer                               acceptor
      │ ◄──────── server_handshake ──────── │
      │ ───────── client_handshake ───────► │   dialer identified
      │ ◄────────────── hello ───────────── │   acceptor identified
      │ ◄═════════ sealed batches ════════► │   with a secret

The acceptor speaks first. Until a peer has proved that it knows the secret, its bytes
are read at fixed offsets only; the CBOR tail is decoded after the proof. The seal is
:mod:`callboard.basp.seal`; the choice of one link for each pair is
:mod:`callboard.basp.link`.

server_handshake (operation data: protocol version):

====== ==== =======================================================
offset size field
====== ==== =======================================================
0      16   nonce of the acceptor
16     1    flags, see below
17     rest tail
====== ==== =======================================================

client_handshake (operation data: protocol version):

====== ==== =======================================================
0      16   nonce of the dialer
16     1    flags, see below
17     32   proof of the dialer; zeros without a secret
49     rest tail
====== ==== =======================================================

hello:

====== ==== =======================================================
0      16   nonce of the acceptor, repeated
16     32   proof of the acceptor; zeros without a secret
48     rest with a bound proof: the acceptor's name of the secret
====== ==== =======================================================

The flags (all other bits are ignored):

=== ===========================================================================
bit meaning
=== ===========================================================================
0   a proof is required
1   this side's proof is bound to the whole handshake
2   this side requests a seal; one request suffices
=== ===========================================================================

The tail is the CBOR array ``[application ids, published, [release, build], …]``; ``published``
is null or ``[actor number, [interface, …]]``. The third item may be missing, as in release
0.1; later items are ignored.

Bound proofs. The *transcript* is SHA-256 over four parts, each after its length in four bytes:
``callboard link``, the server_handshake with its header, the client_handshake with its header
and zeros for its proof, and the channel. The channel is empty on a sealed link. Otherwise it
is the binding value of the TLS connection, which differs on the two sides of a relay. The
*root* is HMAC-SHA256 with the secret over ``callboard link root`` and the transcript. The proof
of the dialer is HMAC-SHA256 with the root over ``dialer proves``, that of the acceptor over
``acceptor proves`` and the name of the secret. The keys of a sealed link are HMAC-SHA256 with
the root over ``dialer seals`` or ``acceptor seals`` and the name of the secret.

So a relay that changes a handshake makes its proofs wrong, and a relay that forwards it
unchanged does not have the keys.

Nodes of release 0.1 do not bind their proof: it is HMAC-SHA256 with the secret over role,
acceptor's nonce, dialer's nonce, acceptor's node id, dialer's node id; the role is ``server``
or ``client`` (six bytes each). A relay can forward such a proof, and then send its own frames
in the name of the peer. Therefore these nodes are refused, before this node proves anything to
them, unless ``allow_unsealed`` is set.

originator_syn is empty; responder_syn_ack and originator_ack carry the opaque state of
their senders (see :class:`PeerIdentity`).
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import IntEnum, StrEnum
from hashlib import sha256
from typing import Any, Final

from callboard.basp.errors import (
    AuthenticationFailed,
    ConnectedToItself,
    IncompatibleApplication,
    IncompatibleVersion,
    LinkLost,
    MalformedHandshake,
    MalformedPayload,
    NotSealed,
    RemoteProtocolError,
)
from callboard.basp.frame import DEFAULT_PAYLOAD_LIMIT, Frame, pack_frame, repack_frame
from callboard.basp.header import MAX_ACTOR, Operation, check_header
from callboard.basp.node_id import NO_NODE, NODE_ID_SIZE, NodeId, node_id_text
from callboard.basp.seal import never
from callboard.cbor.plain import is_natural, read_plain, write_plain
from callboard.support.dataclass import dataclass

#: Since version 2, dispatches have a sequence number, and delivery reports count messages that
#: were given up.
VERSION: Final = 0x43420002
MINIMUM_VERSION: Final = 0x43420002
NONCE_SIZE: Final = 16
PROOF_SIZE: Final = 32
#: Bytes of a handshake, which names applications and one actor. It bounds the memory that an
#: unknown peer can use.
HANDSHAKE_LIMIT: Final = 64 * 1024

_PROOF_DEMANDED: Final = 1
_BOUND: Final = 2
_SEAL: Final = 4
_SERVER_PREFIX: Final = NONCE_SIZE + 1
_CLIENT_PREFIX: Final = NONCE_SIZE + 1 + PROOF_SIZE
_HELLO_SIZE: Final = NONCE_SIZE + PROOF_SIZE
_NO_PROOF: Final = bytes(PROOF_SIZE)

#: Release of a node whose handshake has none.
FIRST_RELEASE: Final = "0.1"
#: Characters of the longest release, and of the longest build.
RELEASE_LIMIT: Final = 64

#: Named secrets of one node: an acceptor tries them all for each peer.
SECRET_LIMIT: Final = 64

#: Returns the standing of a peer by the name of the secret that it proved, the names in its
#: certificate and its node id; None refuses the peer.
Admit = Callable[[str, tuple[str, ...], NodeId], Any]


#: The actor that a node publishes at a port: its number, and the names of its message types.
Published = tuple[int, tuple[str, ...]]


class LinkGuard(StrEnum):
    """Protection of a link against frames that its peer did not send.

    Attributes:
        NONE: no protection, because there is no secret.
        SEAL: each batch has a MAC.
        TLS: both sides have certificates, and the proof is bound to the TLS connection.
        FIRST_WORDS: only the handshake proves a secret, as in release 0.1; a relay can send
            frames in the name of the peer.
    """

    NONE = "none"
    SEAL = "seal"
    TLS = "tls"
    FIRST_WORDS = "unsealed"


class DropReason(IntEnum):
    """Reason for dropping a connection: the operation data of ``drop_conn``."""

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
    """Settings that all links of one node, or of one port, share.

    Attributes:
        node_id: id of this node.
        application_ids: one or more application ids; peers must share one of them.
        secret: shared secret of the cluster; None = no proof is required or given.
        secrets: more secrets, with their names: a peer may prove any of them. The dialer proves
            ``secret``, or the first of these without it.
        allow_unsealed: whether a peer of release 0.1, which does not seal, may prove a secret.
        release: release and build of this node.
        is_contended: whether another thread computes, see :mod:`callboard.basp.seal`.
        admit: decides on a peer that has proven a secret; None = every peer is admitted.
        version: protocol version that this node announces.
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
    allow_unsealed: bool = False
    release: tuple[str, str] | None = None
    is_contended: Callable[[], bool] = never
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
            msg = f"{len(self.secrets)} secrets are too many; the limit is {SECRET_LIMIT}"
            raise ValueError(msg)
        if self.heartbeat <= 0 or self.missed < 1 or self.handshake_timeout <= 0:
            msg = "heartbeat, missed and handshake_timeout must be positive"
            raise ValueError(msg)

    @property
    def keys(self) -> tuple[tuple[str, bytes], ...]:
        """All secrets with their names; the name of ``secret`` is empty."""
        unnamed = () if self.secret is None else (("", self.secret),)
        return (*unnamed, *self.secrets)


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The peer as its handshake describes it.

    Attributes:
        node_id: id of the peer.
        version: protocol version of the peer.
        application_ids: applications of the peer; at least one is ours too.
        published: number and interface of the actor published at its port, if any; only
            the accepting side publishes.
        state: first state of the peer's upper layers (subscription filters, routes,
            endpoint UUID), opaque here; empty until the link is established.
        standing: result of ``LinkConfig.admit``, such as the peer's permissions; None if it is
            not set.
        release: release of the peer; 0.1 if its handshake has none.
        build: build of that release.
        guard: protection of the link.
    """

    node_id: NodeId
    version: int
    application_ids: tuple[str, ...]
    published: Published | None = None
    state: bytes = b""
    standing: Any = None
    release: str = FIRST_RELEASE
    build: str = ""
    guard: LinkGuard = LinkGuard.NONE


def pack_link_frame(
    operation: Operation, config: LinkConfig, peer: bytes, data: int = 0, payload: bytes = b""
) -> bytes:
    """Pack a frame from this node to the peer; ``data`` is its operation data."""
    return pack_frame(operation, data, config.node_id, peer, 0, 0, payload)


def prove(
    secret: bytes | None, role: bytes, nonces: tuple[bytes, bytes], nodes: tuple[bytes, bytes]
) -> bytes:
    """Return the proof of release 0.1, which is not bound to the handshake.

    Args:
        secret: the shared secret; None returns zeros.
        role: the side that proves: ``b"server"`` or ``b"client"``.
        nonces: the nonces of the acceptor and of the dialer.
        nodes: the node ids of the acceptor and of the dialer.
    """
    if secret is None:
        return _NO_PROOF
    return hmac.digest(secret, role + b"".join(nonces) + b"".join(nodes), sha256)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A handshake as one side saw it; proofs and keys are derived from it.

    Attributes:
        digest: SHA-256 of the transcript, see the top of this file.
    """

    digest: bytes

    @classmethod
    def of(cls, server: bytes, client: bytes, channel: bytes) -> "Transcript":
        """Return the transcript of two handshake frames; the second one without its proof."""
        digest = sha256()
        for part in (b"callboard link", server, client, channel):
            digest.update(len(part).to_bytes(4, "big") + part)
        return cls(digest.digest())

    def root(self, secret: bytes) -> bytes:
        """Return the root, from which the proofs and keys of a secret are derived."""
        return hmac.digest(secret, b"callboard link root" + self.digest, sha256)


def dialer_proof(root: bytes) -> bytes:
    """Return the bound proof of the dialer."""
    return hmac.digest(root, b"dialer proves", sha256)


def acceptor_proof(root: bytes, name: bytes) -> bytes:
    """Return the bound proof of the acceptor; ``name`` is its name of the secret."""
    return hmac.digest(root, b"acceptor proves" + name, sha256)


def seal_key(root: bytes, name: bytes, *, dialer: bool) -> bytes:
    """Return the key of the seal of one direction, named by its sender."""
    role = b"dialer seals" if dialer else b"acceptor seals"
    return hmac.digest(root, role + name, sha256)


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
        msg = (
            f"handshake of node {peer} must end with the application ids and the published "
            "actor"
        )
        raise MalformedHandshake(msg)
    applications = tuple(items[0])
    if not set(applications) & set(config.application_ids):
        msg = (
            f"node {peer} belongs to {applications!r:.200}, this node to "
            f"{config.application_ids!r:.200}: no application id in common"
        )
        raise IncompatibleApplication(msg)
    published = _read_published(peer, items[1])
    release, build = _read_release(items[2:3])
    return PeerIdentity(node_id, version, applications, published, release=release, build=build)


def _read_release(items: list[Any]) -> tuple[str, str]:
    """Return release and build of a peer, if both are short and printable."""
    texts = items[0] if items else None
    if type(texts) is list and len(texts) == 2 and _is_text_list(texts):
        release, build = texts
        if all(len(text) <= RELEASE_LIMIT and text.isprintable() for text in texts):
            return release or FIRST_RELEASE, build
    return FIRST_RELEASE, ""


def _read_published(peer: str, published: object) -> Published | None:
    """Return the actor that a peer publishes at its port, if any."""
    if published is None:
        return None
    if type(published) is list and len(published) == 2:
        actor, interface = published
        if is_natural(actor, MAX_ACTOR + 1) and _is_text_list(interface):
            return actor, tuple(interface)
    msg = f"handshake of node {peer}: published must be [actor number, [interface, ...]]"
    raise MalformedHandshake(msg)


def _is_text_list(value: object) -> bool:
    """Return whether a value is a list of texts."""
    return type(value) is list and all(type(item) is str for item in value)


class Introduction:
    """One side of the handshake of one connection, up to ``hello``.

    Attributes:
        peer_id: id that the peer claims, zero before its first frame; proven only when
            :meth:`take` returns its identity.
        secret: the secret that was proven; None if none was.
        seal_keys: keys of the sent and of the received direction, once both sides have proven
            the secret and the link is sealed; else None.
    """

    def __init__(
        self,
        config: LinkConfig,
        *,
        dialer: bool,
        nonce: bytes,
        certified: tuple[str, ...] = (),
        channel: bytes = b"",
    ) -> None:
        """Create one side.

        Args:
            config: settings of all links of the port.
            dialer: whether this side dialed.
            nonce: 16 unpredictable bytes.
            certified: names in the peer's certificate.
            channel: binding value of this TLS connection, different from that of every other
                one; empty if no certificate of the peer was verified: then the link is sealed.

        Raises:
            ValueError: the nonce has another length.
        """
        if len(nonce) != NONCE_SIZE:
            msg = f"nonce must have {NONCE_SIZE} bytes, not {len(nonce)}"
            raise ValueError(msg)
        self._config = config
        self._nonce = nonce
        self._is_dialer = dialer
        self._certified = certified
        self._channel = channel
        self._keys = config.keys[:1] if dialer else config.keys
        # Name and value of the secret; the dialer chooses it, the acceptor learns which it is.
        self._key: tuple[str, bytes | None] = (self._keys or (("", None),))[0]
        self._standing: Any = None
        self._peer_nonce = b""
        self._peer_flags = 0
        self._tail = b""
        self._version = 0
        self._transcript: Transcript | None = None
        self._awaited = Operation.SERVER_HANDSHAKE if dialer else Operation.CLIENT_HANDSHAKE
        self.peer_id = NO_NODE
        self.secret: bytes | None = None
        self.seal_keys: tuple[bytes, bytes] | None = None
        # The server_handshake as it is on the wire, for the transcript.
        self._server = b"" if dialer else self._greet(Operation.SERVER_HANDSHAKE, b"")

    def start(self) -> bytes:
        """Return the first bytes of this side; empty for the dialer."""
        return b"" if self._is_dialer else self._server

    def take(self, frame: Frame) -> tuple[bytes, PeerIdentity | None]:
        """Handle the peer's next frame; return the answer, and the peer once it is proven.

        Raises:
            RemoteProtocolError: the frame is out of order, malformed, or has a wrong proof.
        """
        awaited = self._awaited
        if frame.operation != awaited:
            name, source = Operation(frame.operation).name.lower(), node_id_text(frame.source)
            msg = f"{name} from node {source} instead of {awaited.name.lower()}"
            raise MalformedHandshake(msg)
        check_header(frame[:7])
        if awaited is Operation.SERVER_HANDSHAKE:
            return self._handle_server(frame), None
        if awaited is Operation.CLIENT_HANDSHAKE:
            return self._handle_client(frame)
        return b"", self._handle_hello(frame)

    @property
    def _flags(self) -> int:
        """The flags of this side."""
        if not self._keys:
            return 0
        return _PROOF_DEMANDED | _BOUND | (0 if self._channel else _SEAL)

    @property
    def _is_sealed(self) -> bool:
        """Whether the link will be sealed; valid once the flags of both sides are known."""
        return bool((self._flags | self._peer_flags) & _SEAL)

    @property
    def _guard(self) -> LinkGuard:
        """The protection of the link; valid once the peer is proven."""
        if not self._keys:
            return LinkGuard.NONE
        if self._transcript is None:
            return LinkGuard.FIRST_WORDS
        return LinkGuard.SEAL if self._is_sealed else LinkGuard.TLS

    def _greet(self, operation: Operation, proof: bytes) -> bytes:
        """Return the handshake of this side."""
        config = self._config
        items: list[Any] = [list(config.application_ids), None]
        if config.published is not None:
            actor, interface = config.published
            items[1] = [actor, list(interface)]
        if config.release is not None:
            items.append(list(config.release))
        payload = self._nonce + bytes((self._flags,)) + proof + write_plain(items)
        return pack_link_frame(operation, config, self.peer_id, config.version, payload)

    def _handle_server(self, frame: Frame) -> bytes:
        """Handle the acceptor's handshake; return the dialer's."""
        self._check_start(frame, _SERVER_PREFIX)
        self._version, self._tail = frame.data, frame.payload[_SERVER_PREFIX:]
        self._server = repack_frame(frame)
        self._awaited = Operation.HELLO
        unproven = self._greet(Operation.CLIENT_HANDSHAKE, _NO_PROOF)
        self._bind(unproven)
        return self._greet(Operation.CLIENT_HANDSHAKE, self._dialer_proof(self._key))

    def _handle_client(self, frame: Frame) -> tuple[bytes, PeerIdentity]:
        """Handle the dialer's handshake; return the hello, and the dialer's identity."""
        self._check_start(frame, _CLIENT_PREFIX)
        self._check_addressee(frame)
        start, tail = frame.payload[:_SERVER_PREFIX], frame.payload[_CLIENT_PREFIX:]
        self._bind(repack_frame(frame._replace(payload=start + _NO_PROOF + tail)))
        self._check_proof(self._dialer_proof, frame.payload[_SERVER_PREFIX:_CLIENT_PREFIX])
        self._admit()
        identity = self._read_tail(frame.data, tail)
        name = self._key[0].encode() if self._transcript is not None else b""
        payload = self._nonce + self._acceptor_proof(self._key, name) + name
        hello = pack_link_frame(Operation.HELLO, self._config, self.peer_id, 0, payload)
        self._agree(name)
        return hello, identity

    def _handle_hello(self, frame: Frame) -> PeerIdentity:
        """Handle the acceptor's hello; return the acceptor's identity."""
        peer, payload = node_id_text(self.peer_id), frame.payload
        if frame.source != self.peer_id:
            msg = (
                f"hello from node {node_id_text(frame.source)}, but the handshake came from "
                f"{peer}"
            )
            raise MalformedHandshake(msg)
        self._check_addressee(frame)
        name = payload[_HELLO_SIZE:]
        is_whole = len(payload) >= _HELLO_SIZE and not (name and self._transcript is None)
        if not is_whole or payload[:NONCE_SIZE] != self._peer_nonce:
            msg = f"hello of node {peer} does not repeat its nonce"
            raise MalformedHandshake(msg)
        self._check_proof(
            lambda key: self._acceptor_proof(key, name), payload[NONCE_SIZE:_HELLO_SIZE]
        )
        self._agree(name)
        self._admit()
        return self._read_tail(self._version, self._tail)

    def _read_tail(self, version: int, tail: bytes) -> PeerIdentity:
        """Return the identity of a proven peer."""
        identity = read_tail(self._config, self.peer_id, version, tail)
        return replace(identity, standing=self._standing, guard=self._guard)

    def _check_start(self, frame: Frame, prefix: int) -> None:
        """Check the common start of both handshakes; store the peer's id, nonce and flags."""
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
        flags = frame.payload[NONCE_SIZE]
        is_proof_demanded = bool(flags & _PROOF_DEMANDED)
        if is_proof_demanded != bool(self._keys):
            demand = f"node {peer} demands" if is_proof_demanded else "this node demands"
            msg = f"{demand} a shared secret that the other side lacks; set the same on both"
            raise AuthenticationFailed(msg)
        if self._keys and not flags & _BOUND and not config.allow_unsealed:
            msg = (
                f"node {peer} is of release {FIRST_RELEASE}, which does not seal links with a "
                "secret, or a relay between the nodes has changed its handshake; upgrade it, "
                "or "
                "pass allow_unsealed=True until it is"
            )
            raise NotSealed(msg)
        self._peer_nonce = frame.payload[:NONCE_SIZE]
        self._peer_flags = flags

    def _check_addressee(self, frame: Frame) -> None:
        """Refuse a frame that is addressed to another node."""
        me = self._config.node_id
        if frame.destination != me:
            msg = (
                f"handshake of node {node_id_text(frame.source)} is meant for node "
                f"{node_id_text(frame.destination)}, and this is node {node_id_text(me)}"
            )
            raise MalformedHandshake(msg)

    def _bind(self, client: bytes) -> None:
        """Compute the transcript if both sides bind their proofs to it."""
        if self._keys and self._peer_flags & _BOUND:
            channel = b"" if self._is_sealed else self._channel
            self._transcript = Transcript.of(self._server, client, channel)

    def _agree(self, name: bytes) -> None:
        """Store the proven secret, and derive the keys if the link is sealed."""
        self.secret = self._key[1]
        if self.secret is None or self._transcript is None or not self._is_sealed:
            return
        root = self._transcript.root(self.secret)
        keys = seal_key(root, name, dialer=True), seal_key(root, name, dialer=False)
        self.seal_keys = keys if self._is_dialer else keys[::-1]

    def _dialer_proof(self, key: tuple[str, bytes | None]) -> bytes:
        """Return the proof of the dialer for one secret."""
        if self._transcript is None or key[1] is None:
            return self._first_proof(b"client", key)
        return dialer_proof(self._transcript.root(key[1]))

    def _acceptor_proof(self, key: tuple[str, bytes | None], name: bytes) -> bytes:
        """Return the proof of the acceptor for one secret; ``name`` is its name of it."""
        if self._transcript is None or key[1] is None:
            return self._first_proof(b"server", key)
        return acceptor_proof(self._transcript.root(key[1]), name)

    def _first_proof(self, role: bytes, key: tuple[str, bytes | None]) -> bytes:
        """Return the unbound proof of release 0.1."""
        nodes, nonces = (self._config.node_id, self.peer_id), (self._nonce, self._peer_nonce)
        if self._is_dialer:
            nodes, nonces = nodes[::-1], nonces[::-1]
        return prove(key[1], role, nonces, nodes)

    def _check_proof(
        self, expected: Callable[[tuple[str, bytes | None]], bytes], proof: bytes
    ) -> None:
        """Refuse a wrong proof if this node has secrets.

        All secrets are tried, even after a match, so the time does not show a peer which
        secret matched.
        """
        proven = [key for key in self._keys if hmac.compare_digest(expected(key), proof)]
        if self._keys and not proven:
            msg = (
                f"node {node_id_text(self.peer_id)} has another shared secret than this node; "
                f"set the same one on both"
            )
            raise AuthenticationFailed(msg)
        if proven:
            self._key = proven[0]

    def _admit(self) -> None:
        """Refuse a proven peer without rights on this node."""
        admit = self._config.admit
        if admit is None:
            return
        self._standing = admit(self._key[0], self._certified, self.peer_id)
        if self._standing is None:
            peer = node_id_text(self.peer_id)
            name = self._key[0] or ", ".join(self._certified)
            proof = f"has proven to be {name!r}" if name else "has proven no name"
            msg = f"node {peer}, which {proof}, has no permissions here; add a rule for it"
            raise AuthenticationFailed(msg)


_DROPPED: Final[Mapping[DropReason, tuple[type[RemoteProtocolError], str]]] = {
    DropReason.VERSION: (
        IncompatibleVersion,
        "the peer speaks another version of the protocol",
    ),
    DropReason.APPLICATION: (IncompatibleApplication, "it belongs to another application"),
    DropReason.AUTHENTICATION: (
        AuthenticationFailed,
        "the shared secrets differ; set the same one on both nodes, and where it gives "
        "permissions, some for this node",
    ),
}


def drop_reason(error: RemoteProtocolError) -> DropReason:
    """Return the reason to send to a peer that is dropped because of ``error``."""
    reasons = (reason for reason, (kind, _) in _DROPPED.items() if isinstance(error, kind))
    return next(reasons, DropReason.MALFORMED)


def drop_error(peer: str, reason: int) -> RemoteProtocolError:
    """Return the error for a peer's ``drop_conn``; ``reason`` is its operation data."""
    if reason >= len(DropReason):
        return LinkLost(f"node {peer} dropped the connection: {reason}")
    drop = DropReason(reason)
    error, text = _DROPPED.get(drop, (LinkLost, drop.name.lower()))
    return error(f"node {peer} dropped the connection: {text}")
