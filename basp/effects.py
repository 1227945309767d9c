"""What a link asks its driver to do, in the order given.

Effects are values: the driver owns the socket, the clock and the actors.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from basp.errors import BaspError
from basp.frame import Frame
from basp.node_id import NodeId

if TYPE_CHECKING:
    from basp.link import Link

__all__ = [
    "Closed",
    "Deliver",
    "Effect",
    "Established",
    "Parked",
    "PeerIdentity",
    "Redundant",
    "Transmit",
    "Wake",
]


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
    """

    node_id: NodeId
    version: int
    application_ids: tuple[str, ...]
    published: tuple[int, tuple[str, ...]] | None = None
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class Transmit:
    """Write ``data`` to the connection, behind everything written before."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Established:
    """The link to ``peer`` is up; frames may be sent from here on."""

    peer: PeerIdentity


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand ``frames`` to the node, in order: operations 2, 3, 4, 11, 12 and 13 only."""

    frames: list[Frame]


@dataclass(frozen=True, slots=True)
class Parked:
    """The pair has a link or a handshake already; this one waits for its end.

    Whoever asked for this connection may use that link.
    """

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Redundant:
    """Another link of the pair is established; ``Closed`` follows and is no failure."""

    peer: NodeId


@dataclass(frozen=True, slots=True)
class Wake:
    """Call ``link.resume(now)`` and carry out its effects after the rest of these."""

    link: "Link"


@dataclass(frozen=True, slots=True)
class Closed:
    """Write what is pending, close the connection, forget the link.

    Attributes:
        reason: one line for a log or an error message.
        error: what went wrong; None when the end was wanted by either side.
    """

    reason: str
    error: BaspError | None = None


Effect = Transmit | Established | Deliver | Parked | Redundant | Wake | Closed
