"""The nodes in reach of one node, and the wires that lead to them.

All sends and receipts use and update this table. To send a message, a thread assigns its
position, counts it and writes it while it holds the table's lock. Routes also change only under
this lock. So messages are on the wire in the order of their positions.
"""

from collections.abc import Callable, Iterable
from typing import Final

from callboard import locks
from callboard.basp.accounting import Accounts
from callboard.basp.node_id import NodeId
from callboard.basp.routing.router import PORTION, Router
from callboard.proxies.address import Endpoint, actor_text, is_path
from callboard.proxies.ledger.tombstones import NodeTombstones
from callboard.proxies.link.wire import Wire
from callboard.proxies.rights.rights import Rights
from callboard.proxies.stats import ReachableNode

#: Abilities of a node that are kept, and characters of each.
ABILITIES_LIMIT: Final = 64
ABILITY_LENGTH: Final = 64

#: Seconds after which no frame arrives over an abandoned path.
#:
#: By then each of its links has delivered its frames, or was found dead after three heartbeats.
OLD_PATH_LIMIT: Final = 5.0


class RouteTable:
    """Routes, wires, accounts and addresses of one node."""

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.router = Router(node_id, PORTION)
        self.accounts = Accounts()
        self.lock = locks.lock("routes", 700)
        #: Names of other nodes, and the nodes that are tools.
        self.names, self.tools = self.router.names, self.router.tools
        #: Abilities that nodes have stated, see `callboard.proxies.messages`.
        self.abilities: dict[bytes, frozenset[str]] = {}
        #: The established links, by neighbor.
        self.wires: dict[bytes, Wire] = {}
        #: Rights of leaves, by node id; a full member is not listed. The entry of a leaf that
        #: left is kept for a while, because its messages may still be on their way to an actor
        #: here.
        self.rights: dict[bytes, Rights] = {}
        #: Called with a refusal: the leaf's node, the right, and the object's name.
        self.on_refused: Callable[[bytes, str, str], object] = lambda *_: None
        #: Address of this node, for the text of its refs.
        self.endpoint: Endpoint | None = None
        #: Known addresses of other nodes, from links and texts of refs.
        self.endpoints: dict[bytes, Endpoint] = {}
        #: Nodes out of reach that are not forgotten yet.
        self.departed = NodeTombstones()
        #: Frames without a path.
        self.undeliverable = 0
        #: Frames received on a link without a path from their source.
        self.refused = 0
        #: By former next hop and node: the time until which frames from the node are accepted
        #: there.
        self._former: dict[tuple[bytes, bytes], float] = {}
        #: Time of the last change of any route.
        self.changed_at = 0.0

    def listens_at(self, endpoint: Endpoint) -> None:
        """Record a port of this node; the first TCP port is used in the text of refs."""
        if self.endpoint is None or is_path(self.endpoint[0]):
            self.endpoint = endpoint

    def is_able(self, node: bytes, abilities: object) -> None:
        """Record the abilities that a node states, and ignore those beyond a limit."""
        named = abilities[:ABILITIES_LIMIT] if isinstance(abilities, list | tuple) else ()
        self.abilities[node] = frozenset(
            ability
            for ability in named
            if type(ability) is str and len(ability) <= ABILITY_LENGTH
        )

    def has_path(self, node: bytes) -> bool:
        """Return whether a path leads to a node, or a replacement for its path is sought."""
        return node in self.router.next_hops or node in self.router.active

    def brings(self, neighbor: bytes | None, node: bytes, now: float) -> bool:
        """Return whether a neighbor forwards frames from a node, or did so a moment ago."""
        return (
            neighbor in self.router.carriers.get(node, ())
            or self._former.get((neighbor or b"", node), now) > now
        )

    def changed(self, left: Iterable[tuple[bytes, bytes]], now: float) -> None:
        """Record a change of routes, and the neighbors that stopped forwarding for a node."""
        self.changed_at, former = now, self._former
        for pair in left:
            former.pop(pair, None)  # so that the latest entry is last
            former[pair] = now + OLD_PATH_LIMIT
        while former and next(iter(former.values())) <= now:
            del former[next(iter(former))]
        for wire in self.wires.values():
            wire.sources.clear()

    def wire_to(self, node: bytes) -> Wire | None:
        """Return the wire of the next hop to a node; None without a path."""
        hop = self.router.next_hops.get(node)
        return None if hop is None else self.wires.get(hop)

    def nodes(self) -> list[ReachableNode]:
        """List all nodes in reach, tools included, nearest first."""
        router, names = self.router, self.names
        nodes = [
            ReachableNode(node, names.get(node, ""), len(path), path[0])
            for node in router.reachable
            if (path := router.path(node))
        ]
        return sorted(nodes, key=lambda node: (node.hops, node.name, node.node_id))

    def send_to(self, node: bytes, frame: bytes) -> None:
        """Send a control frame; without a path it is dropped."""
        wire = self.wire_to(node)
        if wire is not None:
            wire.write(frame)

    def ref_text(self, node: bytes, number: int) -> str:
        """Return a ref's text, with an address if the node is known to listen at one."""
        endpoint = self.endpoint if node == self.node_id else self.endpoints.get(node)
        return actor_text(endpoint, node, number)

    @property
    def unsent(self) -> int:
        """Bytes that wait for neighbors to read."""
        return sum(wire.waiting for wire in list(self.wires.values()))
