"""What rooms built on nodes may know of links and paths: topics look at both."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from basp.node_id import NodeId

if TYPE_CHECKING:
    from proxies.broker import Broker


class LinkLoad(NamedTuple):
    """How full a link is.

    Attributes:
        peer: the neighbour's node id.
        waiting: bytes that it has not taken yet.
        bytes_sent: bytes that it took since the link was established.
    """

    peer: bytes
    waiting: int
    bytes_sent: int


class Overlay:
    """The links and paths of one node. To be asked on the node's thread."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def path(self, node_id: bytes) -> tuple[bytes, ...]:
        """Return the nodes on the way to a node, itself last; empty when none leads there."""
        return tuple(self._broker.router.path(NodeId(node_id)) or ())

    def link_towards(self, node_id: bytes) -> LinkLoad | None:
        """Return the link that messages to a node take first; None without a path."""
        wire = self._broker.outgoing.wire_to(node_id)
        if wire is None or wire.peer is None:
            return None
        return LinkLoad(wire.peer, wire.waiting, wire.bytes_sent)

    def links(self) -> list[LinkLoad]:
        """Return all established links."""
        return [
            LinkLoad(peer, wire.waiting, wire.bytes_sent)
            for peer, wire in self._broker.wires.items()
        ]

    def cut(self, peer: bytes, reason: str) -> None:
        """End the link with a neighbour; the side that dialed it dials again."""
        wire = self._broker.wires.get(peer)
        if wire is not None:
            wire.end(reason)

    def listen(self, told: Callable[[object], None]) -> Callable[[], None]:
        """Call `told(event)` for every event of the node; returns how to stop it."""
        stack = ExitStack()
        stack.enter_context(self._broker.runtime.subscribed(told))
        return stack.close
