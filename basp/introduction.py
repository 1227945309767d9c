"""The first part of a handshake: two strangers learn and prove who they are.

::

    dialer                               acceptor
      │ ◄──────── server_handshake ──────── │
      │ ───────── client_handshake ───────► │   dialer identified
      │ ◄────────────── hello ───────────── │   acceptor identified

The layouts and the proof are in :mod:`basp.handshake`. What follows, the choice of one link
for each pair, is :mod:`basp.link`.
"""

from basp.effects import PeerIdentity
from basp.errors import MalformedHandshake
from basp.frame import Frame
from basp.handshake import (
    NONCE_SIZE,
    LinkConfig,
    pack_client_handshake,
    pack_hello,
    pack_server_handshake,
    read_client_handshake,
    read_hello,
    read_server_handshake,
    read_tail,
)
from basp.header import Operation, check_header
from basp.node_id import NO_NODE, NodeId, node_id_text

__all__ = ["Introduction"]


class Introduction:
    """One side of the introduction; made for one connection, thrown away after it.

    Attributes:
        peer_id: who the peer says it is, zero while it has said nothing; proven only when
            :meth:`take` returns its identity.
    """

    __slots__ = ("_config", "_nonce", "_peer_nonce", "_tail", "_version", "_wanted", "peer_id")

    def __init__(self, config: LinkConfig, *, dialer: bool, nonce: bytes) -> None:
        """Begin an introduction.

        Raises:
            ValueError: the nonce has another length.
        """
        if len(nonce) != NONCE_SIZE:
            msg = f"nonce must have {NONCE_SIZE} bytes, has {len(nonce)}"
            raise ValueError(msg)
        self._config = config
        self._nonce = nonce
        self._peer_nonce = b""
        self._tail = b""
        self._version = 0
        self._wanted = Operation.SERVER_HANDSHAKE if dialer else Operation.CLIENT_HANDSHAKE
        self.peer_id = NO_NODE

    def start(self) -> bytes:
        """Return what this side says first; the dialer says nothing."""
        if self._wanted is Operation.SERVER_HANDSHAKE:
            return b""
        return pack_server_handshake(self._config, self._nonce)

    def take(self, frame: Frame) -> tuple[bytes, PeerIdentity | None]:
        """Take the peer's next frame; return the answer, and the peer once it is known.

        Raises:
            RemoteProtocolError: the frame is out of order, malformed, or proves nothing.
        """
        wanted = self._wanted
        if frame[0] != wanted:
            msg = (
                f"{Operation(frame[0]).name.lower()} from node {node_id_text(frame[3])} "
                f"instead of {wanted.name.lower()}"
            )
            raise MalformedHandshake(msg)
        check_header(frame[:7])
        if wanted is Operation.SERVER_HANDSHAKE:
            return self._take_server(frame), None
        if wanted is Operation.CLIENT_HANDSHAKE:
            return self._take_client(frame)
        return b"", self._take_hello(frame)

    def _take_server(self, frame: Frame) -> bytes:
        self.peer_id = NodeId(frame[3])
        peer, self._peer_nonce, self._tail = read_server_handshake(self._config, frame)
        self._version = frame[2]
        self._wanted = Operation.HELLO
        return pack_client_handshake(self._config, peer, self._peer_nonce, self._nonce)

    def _take_client(self, frame: Frame) -> tuple[bytes, PeerIdentity]:
        self.peer_id = NodeId(frame[3])
        peer, nonce, tail = read_client_handshake(self._config, frame, self._nonce)
        identity = read_tail(self._config, peer, frame[2], tail)
        return pack_hello(self._config, peer, self._nonce, nonce), identity

    def _take_hello(self, frame: Frame) -> PeerIdentity:
        if frame[3] != self.peer_id:
            msg = (
                f"hello from node {node_id_text(frame[3])}, but the handshake came from "
                f"{node_id_text(self.peer_id)}"
            )
            raise MalformedHandshake(msg)
        read_hello(self._config, frame, self._peer_nonce, self._nonce)
        return read_tail(self._config, self.peer_id, self._version, self._tail)
