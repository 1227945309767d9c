"""Links and paths of one node: who is in reach, what a change of a path makes necessary.

On the runner, with its role.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from actors.errors import NodeUnreachable
from actors.future import Future
from basp.errors import BaspError
from basp.frame import Frame, pack_frame
from basp.header import DIRECTORY, Operation
from basp.node_id import NodeId
from basp.path_order import pack_path_end
from basp.plain_cbor import read_plain
from basp.routing import Changes
from proxies.events import LinkDown, LinkUp, MessagesLost, NodeDown, NodeUp, PathMoved
from proxies.lifetimes import OLD_PATH_LIMIT
from proxies.messages import Describe
from proxies.unrouted import DIAL_TIMEOUT
from proxies.wire import Wire

if TYPE_CHECKING:
    from basp.effects import PeerIdentity
    from proxies.broker import Broker

PATH_ENDS: Final = 8
"""Ends of old paths told again with each change: one may be lost with the next path."""


class Paths:
    """What one node knows of links and other nodes."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._node_id = broker.node_id
        self._router = broker.router
        self._accounts = broker.accounts
        self._lock = broker.lock
        self._wires = broker.wires
        self._names = broker.names
        self._watchers: dict[bytes, list[Future[NodeDown]]] = {}
        #: Neighbours that lead to nodes, as of the last change of their paths.
        self._hops: dict[bytes, NodeId] = {}
        #: The latest `path_end` frames for each node.
        self._path_ends: dict[bytes, deque[bytes]] = {}
        #: Nodes that the router is active for, and why their path was lost.
        self.sought: dict[NodeId, str] = {}
        #: Hops to nodes that were found and did not say their name yet.
        self._unnamed: dict[NodeId, int] = {}

    def link_up(self, wire: Wire, peer: "PeerIdentity") -> None:
        """A link is established: exchange routes."""
        node = peer.node_id
        wire.peer_name = self._names[node] = _read_name(peer.state)
        self._wires[node] = wire
        if wire.endpoint is not None:
            self._broker.endpoints[node] = wire.endpoint
        self._runtime.emit(LinkUp(node, wire.peer_name))
        with self._lock:
            changes = self._router.add_peer(node)
        self._routes_changed(changes, "")

    def link_down(self, wire: Wire, reason: str) -> None:
        """An established link ended: find other paths, and tell what is out of reach."""
        node = wire.peer
        if node is None or self._wires.get(node) is not wire:
            return
        with self._lock:  # no sender sees a route without its wire
            del self._wires[node]
            changes = self._router.remove_peer(node)
        self._runtime.emit(LinkDown(node, wire.peer_name, reason))
        self._routes_changed(changes, reason)

    def close(self) -> None:
        """Know no path any more, all at once: the links end next, one by one."""
        with self._lock:
            changes = self._router.close()
        self._routes_changed(changes, "the node is closing")

    def take_routes(self, frame: Frame) -> None:
        """Take a `routing_update` of a neighbour.

        Raises:
            MalformedPayload: its payload breaks the layout.
        """
        with self._lock:  # nobody begins to wait for what is just found or lost
            changes = self._router.receive(NodeId(frame[3]), frame[7])
        self._routes_changed(changes, "routes changed")

    def _routes_changed(self, changes: Changes, reason: str) -> None:
        for peer, payload in changes.updates:
            wire = self._wires.get(peer)
            if wire is not None:
                wire.write(
                    pack_frame(Operation.ROUTING_UPDATE, 0, self._node_id, peer, 0, 0, payload)
                )
        active = self._router.active
        for node in sorted(active):  # by no hash: the same seed gives the same run
            self.sought.setdefault(node, reason)
        for node in changes.lost:
            self._node_lost(node, self.sought.get(node, reason))
        for node in changes.moved:
            self._path_moved(node)
        for node in changes.gained:
            self._node_found(node)
        for node in [node for node in self.sought if node not in active]:
            del self.sought[node]
            self._broker.unrouted.search_over(node)

    def _path_moved(self, node: NodeId) -> None:
        """What was under way on the old path may be lost: say what matters again."""
        with self._lock:
            account = self._accounts.account(node)
            epoch = account.epoch
            is_open = self._hops.get(node) in self._wires
            self._end_epoch(node, is_open=is_open)
            self._accounts.path_moved(node)
            self._tell_path_ends(node)
        self._runtime.runner.call_later(OLD_PATH_LIMIT, self._old_path_over, node, epoch)
        self._accounts.repeat_report(node)
        self._broker.lifetimes.renew(node)
        self._runtime.emit(PathMoved(node, len(self._router.path(node))))

    def _end_epoch(self, node: NodeId, *, is_open: bool) -> None:
        """Note how many dispatches the epoch had that ends now; with the lock held."""
        account = self._accounts.accounts.get(node)
        if account is not None and account.sent_in_epoch:
            ends = self._path_ends.setdefault(node, deque(maxlen=PATH_ENDS))
            ends.append(
                pack_path_end(
                    self._node_id, node, account.epoch, account.sent_in_epoch, is_open=is_open
                )
            )

    def _tell_path_ends(self, node: NodeId) -> None:
        """Say over the new path what the old ones carried; with the lock held."""
        self._hops[node] = self._router.next_hops[node]
        for frame in self._path_ends.get(node, ()):
            self._broker.outgoing.send_to(node, frame)

    def _old_path_over(self, node: NodeId, epoch: int) -> None:
        """Whatever has not arrived on an old path by now never will."""
        with self._lock:
            account = self._accounts.accounts.get(node)
            lost = 0 if account is None else account.expire(epoch)
        if lost:
            self._runtime.emit(MessagesLost(node, self._names.get(node, ""), lost))

    def _node_found(self, node: NodeId) -> None:
        self._broker.departed.found(node)
        with self._lock:
            self._tell_path_ends(node)
        self._accounts.repeat_report(node)
        self._broker.lifetimes.renew(node)
        self._unnamed[node] = len(self._router.path(node))
        if node in self._names:
            self._tell_node_up(node)
            return
        described = self._broker.remote_ref(node, DIRECTORY).ask(
            Describe(), timeout=DIAL_TIMEOUT
        )
        described.add_done_callback(lambda future: self._described(node, future))

    def _described(self, node: NodeId, future: Future[Any]) -> None:
        if future.exception() is None and isinstance(future.result(), str):
            self._names[node] = future.result()
        self._tell_node_up(node)

    def _tell_node_up(self, node: NodeId) -> None:
        hops = self._unnamed.pop(node, None)
        if hops is not None:
            self._runtime.emit(NodeUp(node, self._names.get(node, ""), hops))

    def _node_lost(self, node: NodeId, reason: str) -> None:
        self._tell_node_up(node)  # nobody hears of an end before its beginning
        with self._lock:
            self._end_epoch(node, is_open=False)
            lost = self._accounts.node_lost(node)
        self._broker.departed.lost(node, self._runtime.runner.now())
        name = self._names.get(node, "")
        down = NodeDown(node, name, reason, lost)
        text = f"no path leads to node {name or node.hex()} any more ({reason})"
        pending = self._broker.outgoing.pending
        for message_id, (future, asked) in list(pending.items()):
            if asked == node:
                pending.pop(message_id, None)
                future.set_exception(NodeUnreachable(text))
        self._broker.lifetimes.node_lost(node, text)
        for watcher in self._watchers.pop(node, ()):
            watcher.set_result(down)
        self._runtime.emit(down)

    def monitor_node(self, node: bytes, future: Future[NodeDown]) -> None:
        """Complete the future when the node is out of reach; at once if it is."""
        if node in self._router.next_hops or node in self._router.active:
            self._watchers.setdefault(node, []).append(future)
        else:
            future.set_result(NodeDown(node, self._names.get(node, ""), "not in reach"))

    def forget(self, node: bytes) -> None:
        """Forget the old paths to a node that is out of reach for long."""
        self._hops.pop(node, None)
        self._path_ends.pop(node, None)


def _read_name(state: bytes) -> str:
    """Read what a peer says about itself; what is not there or odd counts as no name."""
    try:
        said = read_plain(state)
    except BaspError:
        return ""
    return said[0] if isinstance(said, list) and said and isinstance(said[0], str) else ""
