"""Which frames may come on an established link, and between whom."""

from typing import Final

from basp.errors import (
    AuthenticationFailed,
    IncompatibleApplication,
    IncompatibleVersion,
    LinkLost,
    MalformedFrame,
    MalformedHandshake,
    RemoteProtocolError,
)
from basp.frame import Frame
from basp.handshake import DropReason
from basp.header import Operation, check_header
from basp.node_id import node_id_text

__all__ = ["check_neighbor", "drop_error", "is_for_node"]

#: Handed to the node; the rest is the link's own.
_FOR_NODE: Final = frozenset({2, 3, 4, 11, 12, 13, 14})
#: Meant for the next node only, never forwarded.
_BETWEEN_NEIGHBORS: Final = frozenset(range(15)) - {2, 3, 4, 12, 13, 14}
_IN_MIDLIFE: Final = _FOR_NODE | {Operation.HEARTBEAT, Operation.DROP_CONN}


def check_neighbor(frame: Frame, own: bytes, peer: bytes) -> None:
    """Refuse a frame that is not from ``peer`` to ``own``.

    Raises:
        MalformedFrame: source or destination is another node.
    """
    if frame[3] != peer or frame[4] != own:
        msg = (
            f"{Operation(frame[0]).name.lower()} between nodes {node_id_text(frame[3])} "
            f"and {node_id_text(frame[4])} on the link of node {node_id_text(peer)}"
        )
        raise MalformedFrame(msg)


def is_for_node(frame: Frame, own: bytes, peer: bytes) -> bool:
    """Check a frame of an established link; False for those of the link itself.

    Raises:
        MalformedFrame: fields contradict the operation, or the wrong nodes are named.
        MalformedHandshake: a handshake frame, which has no place any more.
    """
    operation = frame[0]
    if operation not in _IN_MIDLIFE:
        name = Operation(operation).name.lower()
        msg = f"{name} from node {node_id_text(frame[3])} on an established link"
        raise MalformedHandshake(msg)
    check_header(frame[:7])
    if operation in _BETWEEN_NEIGHBORS:
        check_neighbor(frame, own, peer)
    return operation in _FOR_NODE


_DROPPED: Final[dict[int, tuple[type[RemoteProtocolError], str]]] = {
    DropReason.VERSION: (IncompatibleVersion, "it speaks another version of the protocol"),
    DropReason.APPLICATION: (IncompatibleApplication, "it belongs to another application"),
    DropReason.AUTHENTICATION: (
        AuthenticationFailed,
        "the shared secrets differ; set the same one on both nodes",
    ),
}


def drop_error(peer: str, reason: int) -> RemoteProtocolError:
    """Return what the ``drop_conn`` of a peer means; ``reason`` is its operation data."""
    known = DropReason(reason).name.lower() if reason < len(DropReason) else str(reason)
    error, why = _DROPPED.get(reason, (LinkLost, known))
    return error(f"node {peer} dropped the connection: {why}")
