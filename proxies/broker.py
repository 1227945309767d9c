"""The BASP broker: one node's end of the protocol, put together.

- `outgoing`: from proxies and answers to wires
- `incoming`: the frames of one read, to mailboxes
- `forwarding`: … or on to other nodes
- `lifetimes`: announce, release and down keep the proxies of all nodes true
- `paths`: links, routes, and what follows from their changes
- `unrouted`: what waits for a path or for a dial

`outgoing` and `remote_ref` may be used from any thread. Everything else runs on the runner
with its role, so routes, proxies and accounts change on one thread at a time.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from actors.errors import NodeUnreachable
from actors.future import Future
from actors.reference import ActorRef
from basp.accounting import Accounts
from basp.frame import pack_frame
from basp.handshake import LinkConfig
from basp.header import NODE_ACTOR, Operation
from basp.node_id import NodeId
from basp.plain_cbor import write_plain
from basp.routing import Router
from proxies.address import Endpoint, actor_text
from proxies.connector import Connector
from proxies.departed import Departed
from proxies.events import NodeDown
from proxies.forwarding import Forwarding
from proxies.incoming import Incoming
from proxies.lifetimes import Lifetimes
from proxies.outgoing import Outgoing
from proxies.paths import Paths
from proxies.proxy import Proxy
from proxies.stats import Passage
from proxies.unrouted import Unrouted
from proxies.wire import Wire

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from basp.effects import PeerIdentity
    from basp.frame import Frame
    from proxies.surroundings import Network

REPORT_INTERVAL: Final = 0.1
"""Seconds between delivery reports while there is something to report."""
TEND_INTERVAL: Final = 1.0
"""Seconds between looks for proxies that nobody uses, and between reports at most."""


class Broker:
    """The node's end of BASP; it is the runtime's way to other nodes."""

    def __init__(
        self, runtime: "Runtime", network: "Network", node_id: NodeId, name: str
    ) -> None:
        self.runtime = runtime
        self.node_id = node_id
        self.name = name
        self.accounts = Accounts()
        self.router = Router(node_id)
        #: Order of position, count and write of one dispatch; routes change under it too.
        self.lock = threading.Lock()
        #: What other nodes call themselves.
        self.names = self.router.names
        #: Where this node listens, for the text of its refs.
        self.endpoint: Endpoint | None = None
        #: Where other nodes listen, as far as links and texts told.
        self.endpoints: dict[bytes, Endpoint] = {}
        self.wires: dict[bytes, Wire] = {}
        #: Nodes out of reach that are not forgotten yet.
        self.departed = Departed()
        self.secret: bytes | None = None
        self.connector = Connector(runtime.runner, network, node_id, self)
        self.connector.upper_state = write_plain([name])
        self.outgoing = Outgoing(self)
        self.forwarding = Forwarding(self)
        self.incoming = Incoming(self)
        #: Takes the frames of one read; for the connector.
        self.deliver: Callable[[Wire, list[Frame]], None] = self.incoming.deliver
        self.lifetimes = Lifetimes(self)
        self.paths = Paths(self)
        self.unrouted = Unrouted(self)
        runtime.remote = self
        runtime.on_end.append(self.lifetimes.actor_ended)
        self._pause = TEND_INTERVAL
        self._tend_at = runtime.runner.now() + TEND_INTERVAL
        runtime.runner.call_later(TEND_INTERVAL, self._look_around)

    # --- for the runtime and its proxies ---

    def ref_text(self, node: bytes, number: int) -> str:
        """Return a ref's text, with an address where the node is known to listen."""
        endpoint = self.endpoint if node == self.node_id else self.endpoints.get(node)
        return actor_text(endpoint, node, number)

    def remote_ref(self, node: bytes, number: int) -> ActorRef[Any]:
        """Return the ref of an actor elsewhere; its proxy is made, and announced, when new."""
        return self.lifetimes.remote_ref(node, number)

    def command(self, proxy: Proxy, command: object) -> None:
        """Send a message to a proxy's node itself."""
        node_ref = self.remote_ref(proxy.node, NODE_ACTOR)  # held until it is under way
        node_proxy = node_ref.target
        if isinstance(node_proxy, Proxy):
            node_proxy.endpoint = proxy.endpoint
            self.outgoing.dispatch(node_proxy, command, None)

    def ensure_watched(self, proxy: Proxy) -> None:
        """A monitor was set: the host knows of the proxy, unless no path leads there."""
        if proxy.node not in self.router.next_hops:
            self.runtime.runner.post(self.unrouted.watch, proxy)

    # --- for the connector ---

    def link_up(self, wire: Wire, peer: "PeerIdentity") -> None:
        """A link is established."""
        self.paths.link_up(wire, peer)

    def link_down(self, wire: Wire, reason: str) -> None:
        """An established link ended."""
        self.paths.link_down(wire, reason)

    # --- nodes that come and go ---

    def is_admitted(self, node: bytes) -> bool:
        """Tell whether something of a node may be kept: not of ever more unknown ones."""
        if node in self.router.next_hops or node in self.router.active:
            return True
        return self.departed.admits(node, self.runtime.runner.now())

    def forget_departed(self) -> None:
        """Forget nodes that are out of reach for long."""
        arrivals, rest = self.departed.due(self.runtime.runner.now())
        for node in arrivals:
            self.accounts.forget_arrivals(node)
            self.incoming.forget(node)
            self.lifetimes.holders.node_lost(node)
        for node in rest:
            with self.lock:
                self.accounts.close(node)
            self.paths.forget(node)
            self.names.pop(node, None)
            if not self.lifetimes.proxies_of(node):  # they may still dial it
                self.endpoints.pop(node, None)

    # --- for the node ---

    @property
    def proxy_count(self) -> int:
        """How many remote actors this node knows."""
        return self.lifetimes.count

    @property
    def passages(self) -> deque[Passage]:
        """The latest asks that were forwarded for others."""
        return self.forwarding.passages

    @property
    def forwarded(self) -> int:
        """Frames that went on to other nodes."""
        return self.forwarding.forwarded

    @property
    def undeliverable(self) -> int:
        """Frames that no path was there for."""
        return self.outgoing.undeliverable

    @property
    def awaited(self) -> int:
        """Asks to other nodes without an answer, and messages that wait for a path."""
        asked = sum(not asker.done_ for asker, _ in list(self.outgoing.pending.values()))
        return asked + sum(len(proxy.waiting or ()) for proxy in self.lifetimes.proxies())

    @property
    def unsent(self) -> int:
        """Bytes that wait for neighbours to read."""
        return sum(wire.waiting for wire in list(self.wires.values()))

    @property
    def waiting_asks(self) -> int:
        """Asks that wait for an answer of another node."""
        return len(self.outgoing.pending)

    def monitor_node(self, node: bytes, future: Future[NodeDown]) -> None:
        """Complete the future when the node is out of reach; at once if it is."""
        self.paths.monitor_node(node, future)

    def listening_config(
        self, secret: bytes | None, published: ActorRef[Any] | None
    ) -> LinkConfig:
        """Return what the links of one port have in common."""
        shown = None if published is None else (published.actor_id, ())
        return LinkConfig(self.node_id, secret=secret, published=shown)

    def report(self) -> bool:
        """Tell the other nodes what arrived from them; False when nothing did."""
        reports = self.accounts.reports()
        for node, payload in reports:
            frame = pack_frame(Operation.DELIVERY_REPORT, 0, self.node_id, node, 0, 0, payload)
            self.outgoing.send_to(node, frame)
        return bool(reports)

    def close(self) -> None:
        """End all links; asks that wait for other nodes fail."""
        self.report()
        pending = self.outgoing.pending
        for _, (future, _) in list(pending.items()):
            future.set_exception(NodeUnreachable("the node was closed"))
        pending.clear()
        self.paths.close()
        self.connector.close()
        for proxy in self.lifetimes.proxies():
            self.unrouted.refuse_waiting(proxy, "the node was closed")

    def _look_around(self) -> None:
        """Report often while messages arrive: the rest would count as lost with a path."""
        self._pause = REPORT_INTERVAL if self.report() else min(2 * self._pause, TEND_INTERVAL)
        now = self.runtime.runner.now()
        if now >= self._tend_at:
            self._tend_at = now + TEND_INTERVAL
            self._tend()
        self.runtime.runner.call_later(self._pause, self._look_around)

    def _tend(self) -> None:
        """Let go of what nobody needs any more."""
        self.lifetimes.release_unused()
        self.forget_departed()
        pending = self.outgoing.pending
        for message_id, (future, _) in list(pending.items()):
            if future.done_:  # it timed out or was cancelled
                pending.pop(message_id, None)
