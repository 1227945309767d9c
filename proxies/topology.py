"""Access to a node's links and paths for packages above, such as topics."""

import ssl
from collections.abc import Callable, Mapping
from typing import NamedTuple

from callboard import locks
from callboard.actors.future import Future
from callboard.actors.runtime import Runtime
from callboard.actors.values import Event
from callboard.basp.node_id import NodeId
from callboard.proxies.address import Endpoint, endpoint_text
from callboard.proxies.link.connector import Connector
from callboard.proxies.link.dialer import Dial
from callboard.proxies.link.foreign import ForeignWires
from callboard.proxies.link.network import listen_at
from callboard.proxies.rights.rights import Rights
from callboard.proxies.route_table import RouteTable
from callboard.support.calls import Action
from callboard.support.dataclass import dataclass
from callboard.support.inspection_tables import Source
from callboard.tls.certificates import Certificates


class LinkLoad(NamedTuple):
    """Load of a link.

    Attributes:
        peer: the neighbor's node id.
        waiting: bytes that it has not received yet.
        bytes_sent: bytes sent since the link was established.
    """

    peer: bytes
    waiting: int
    bytes_sent: int


class DialState(NamedTuple):
    """A dial that continues when its link is lost.

    Attributes:
        address: host and port, as the user gave them.
        peer: the node that answered there last; None before the first answer.
        retry: longest pause between attempts, in seconds.
    """

    address: Endpoint
    peer: bytes | None
    retry: float


@dataclass(eq=False, repr=False)
class Topology:
    """The links and paths of one node. Call it on the node's thread."""

    _runtime: Runtime
    _routes: RouteTable
    _connector: Connector
    #: Ports, dials and links of foreign wires.
    foreign: ForeignWires

    def __post_init__(self) -> None:
        """Start without inspection tables."""
        #: Inspection tables of packages above, by name.
        self.parts: dict[str, list[Source]] = {}
        #: Starts to measure the round trips of the links, for the next `node.links()`.
        self.measure_links: Action = list

    def add_table(self, name: str, source: Source) -> Callable[[], None]:
        """Register an inspection table; return the function that removes it."""
        self.parts.setdefault(name, []).append(source)
        return lambda: self.parts[name].remove(source)

    def path(self, node_id: bytes) -> tuple[bytes, ...]:
        """Return the nodes on the path to a node, itself last; empty without a path."""
        return tuple(self._routes.router.path(NodeId(node_id)) or ())

    def nodes(self) -> list[bytes]:
        """Return all nodes in reach, tools included, nearest first."""
        return [node.node_id for node in self._routes.nodes()]

    @property
    def leaves(self) -> Mapping[bytes, Rights]:
        """Rights of leaves, by node; a live view, see `RouteTable.rights`."""
        return self._routes.rights

    def rights(self, node_id: bytes) -> Rights | None:
        """Return the rights of a leaf; None for full members."""
        return self._routes.rights.get(node_id)

    def refused(self, node_id: bytes, right: str, name: str) -> None:
        """Record that a request of a leaf was refused."""
        self._routes.on_refused(node_id, right, name)

    def link_towards(self, node_id: bytes) -> LinkLoad | None:
        """Return the link on which messages to a node leave this one; None without a path."""
        wire = self._routes.wire_to(node_id)
        if wire is None or wire.peer is None:
            return None
        return LinkLoad(wire.peer, wire.waiting, wire.bytes_sent)

    def takes_at_once(self, node_id: bytes, limit: int) -> bool:
        """Return whether a message to a node would be written immediately.

        Can be called from any thread. The result is also False while a thread sends. That
        thread may be this one, if the caller is a signal handler or a finalizer that
        interrupted a send.

        Args:
            node_id: the node.
            limit: bytes that may wait on the link towards it.
        """
        wire = self._routes.wire_to(node_id)
        if wire is None or wire.waiting >= limit:
            return False
        return not (locks.is_taken(self._routes.lock) or wire.is_busy)

    def pause_reading(self, node_id: bytes, seconds: float) -> None:
        """Pause reading for a time on the link towards a node that sends too fast."""
        wire = self._routes.wire_to(node_id)
        if wire is not None:
            wire.pause_reading(seconds)

    def links(self) -> list[LinkLoad]:
        """Return all established links."""
        return [
            LinkLoad(peer, wire.waiting, wire.bytes_sent)
            for peer, wire in self._routes.wires.items()
        ]

    def dial(
        self, address: Endpoint, *, retry: float, on_failure: Callable[[str], object]
    ) -> Future[Dial]:
        """Link with the node that listens at an address and stay linked, until `unlink`.

        The future is done when the link is established. It fails when the one attempt failed
        (`retry` 0), or when the dial was stopped.

        Args:
            address: host and port.
            retry: longest pause between attempts, in seconds: pauses start at 0.1 s and double.
            on_failure: called with the reason of each failed attempt.
        """
        waiter: Future[Dial] = Future()
        self._connector.dialer.dial(address, waiter, retry=retry, on_failure=on_failure)
        return waiter

    def find_out_tls(self, context: ssl.SSLContext) -> None:
        """Enable TLS for dials of a node without it, if a port speaks only TLS."""
        self._connector.dialer.either = Certificates(context)

    def unlink(self, address: Endpoint) -> bytes | None:
        """Stop the dial of an address and end its link for good; return the linked node.

        Raises:
            LookupError: neither a dial nor a link has this address.
        """
        return self._connector.unlink(address)

    def stop_dial(self, address: Endpoint) -> None:
        """Stop the dial of an address; an established link continues."""
        self._connector.dialer.stop(address)

    def listen_at_socket(self, path: str) -> None:
        """Accept links at a Unix socket that is not among the node's addresses.

        Can be called from any thread.

        Raises:
            OSError: the socket cannot be opened.
        """
        sock, access = listen_at(path), self._connector.options.access
        self._runtime.post(self._connector.acceptor.listen, sock, (access, None), None)

    def own_address(self) -> str:
        """Return the address of this node; empty if it has no port."""
        endpoint = self._routes.endpoint
        return "" if endpoint is None else endpoint_text(endpoint)

    def dials(self) -> list[DialState]:
        """Return the dials that continue when their link is lost."""
        return [
            DialState(dial.endpoint, dial.peer, dial.backoff.longest)
            for dial in self._connector.dialer.kept_dials()
        ]

    def address(self, peer: bytes) -> Endpoint | None:
        """Return the dialed address of a neighbor, or the source of its connection."""
        for dial in self.dials():
            if dial.peer == peer:
                return dial.address
        wire = self._routes.wires.get(peer)
        return None if wire is None else wire.remote

    def is_dialed_here(self, peer: bytes) -> bool:
        """Return whether this side made the connection with a neighbor."""
        wire = self._routes.wires.get(peer)
        return wire is not None and wire.endpoint is not None

    def cut(self, peer: bytes, reason: str) -> None:
        """End the link with a neighbor; the side that dialed it dials again."""
        wire = self._routes.wires.get(peer)
        if wire is not None:
            wire.end(reason)

    def listen(self, on_event: Callable[[Event], None]) -> Callable[[], None]:
        """Call a function with every event of the node; return the function that stops it."""
        return self._runtime.listen(on_event)
