"""Links and paths of one node: reachable nodes, and the effects of changed paths.

Must be used on the thread with the runner's role.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import field
from typing import Final

from callboard.actors.errors import NodeClosed, NodeUnreachable
from callboard.actors.future import Future
from callboard.actors.runtime import Runtime
from callboard.basp.errors import BaspError
from callboard.basp.frame import Frame, pack_frame
from callboard.basp.handshake import PeerIdentity
from callboard.basp.header import DIRECTORY, EPOCH_COUNT, Operation
from callboard.basp.node_id import NodeId
from callboard.basp.routing.path_order import pack_path_end
from callboard.basp.routing.router import PORTION, Changes
from callboard.basp.routing.update import LARGE_UPDATE, Update, read_parts
from callboard.cbor.plain import read_plain, write_plain
from callboard.proxies.events import LinkDown, LinkUp, MessagesLost, NodeDown, NodeUp, PathMoved
from callboard.proxies.lifetime.lifetimes import Lifetimes
from callboard.proxies.link.wire import CLOSING, Wire
from callboard.proxies.messages import ABILITIES, CARRIERS, Describe
from callboard.proxies.route_table import OLD_PATH_LIMIT, RouteTable
from callboard.proxies.traffic.authorizer import PeerAuthorizer
from callboard.proxies.traffic.credit_window import CreditSender
from callboard.proxies.traffic.membership_log import MembershipLog
from callboard.proxies.traffic.outgoing import Outgoing
from callboard.proxies.traffic.unrouted import DIAL_TIMEOUT, Unrouted
from callboard.proxies.traffic.unverified import UnverifiedFrames
from callboard.support.dataclass import dataclass
from callboard.support.token_bucket import TokenBucket

#: Ends of old paths that are repeated with each change, as one may be lost with the next path.
PATH_ENDS: Final = 8

#: Seconds between two timers that forget cuts; each of them visits all paths.
CUTS_INTERVAL: Final = 0.25

#: Routes that a node recomputes per second after updates from its neighbors, and the number it
#: saves up in a quiet time. The rate takes a third of a processor, and a table of thousands of
#: nodes is handled without delay. An update that is withdrawn before its route is recomputed
#: causes no work and is not passed on.
RECOMPUTATIONS_PER_SECOND: Final = 4_000.0
RECOMPUTATIONS_SAVED: Final = 8_192.0


@dataclass(eq=False, repr=False)
class Paths:
    """The links of one node, and the other nodes in reach."""

    _runtime: Runtime
    _routes: RouteTable
    _outgoing: Outgoing
    _unrouted: Unrouted
    _credit_window: CreditSender
    _lifetimes: Lifetimes
    _unverified: UnverifiedFrames
    _authorizer: PeerAuthorizer
    _watchers: dict[bytes, list[Future[NodeDown]]] = field(default_factory=dict)
    #: Next hops of nodes, as of the last change of their paths.
    _hops: dict[bytes, NodeId] = field(default_factory=dict)
    #: The latest `path_end` frames for each node.
    _path_ends: dict[bytes, deque[bytes]] = field(default_factory=dict)
    #: Nodes that the router seeks a path to, why the old one was lost, and when.
    sought: dict[NodeId, tuple[str, float]] = field(default_factory=dict)
    #: Distances, in hops, of nodes in reach whose name is still unknown.
    _unnamed: dict[NodeId, int] = field(default_factory=dict)
    #: Budget of recomputed routes, and whether the next portion is scheduled.
    _pace: TokenBucket = field(
        default_factory=lambda: TokenBucket(RECOMPUTATIONS_PER_SECOND, RECOMPUTATIONS_SAVED)
    )
    _is_planned: bool = False
    #: Number of cuts the router has recorded; a timer will forget each of them.
    _cuts_kept: int = 0
    _awaits_cuts: bool = False

    def __post_init__(self) -> None:
        self._membership_log = MembershipLog(self._runtime.now)

    def link_up(self, wire: Wire, peer: PeerIdentity) -> None:
        """Exchange routes over an established link."""
        node, reach = peer.node_id, None
        self._routes.rights.pop(node, None)
        if peer.standing is not None and self._authorizer.begin(wire, peer.standing):
            rights = self._routes.rights[node] = peer.standing.rights
            reach = rights.reach
        wire.peer_name, abilities, is_tool = read_node(peer.state)
        self._routes.names[node] = wire.peer_name
        self._routes.is_able(node, abilities)
        # The gate of a leaf has to check each message, so there are no batches.
        if reach is not None:
            self._routes.abilities[node] -= {CARRIERS}
        (self._routes.tools.add if is_tool else self._routes.tools.discard)(node)
        self._credit_window.end_credit(node)
        self._routes.wires[node] = wire
        if wire.endpoint is not None:
            self._routes.endpoints[node] = wire.endpoint
        self._runtime.report(LinkUp(node, wire.peer_name, is_tool))
        self._membership_log.link_up(wire, is_quiet=is_tool)
        with self._routes.lock:
            changes = self._routes.router.add_peer(node, reach)
        self._routes_changed(changes, "")

    def link_down(self, wire: Wire, reason: str, *, is_wanted: bool = True) -> None:
        """Find other paths when an established link ends, and report unreachable nodes."""
        node = wire.peer
        if node is None or self._routes.wires.get(node) is not wire:
            return
        with self._routes.lock:  # so that no sender sees a route whose wire is gone
            del self._routes.wires[node]
            changes = self._routes.router.remove_peer(node)
        is_tool = node in self._routes.tools
        self._runtime.report(LinkDown(node, wire.peer_name, reason, is_tool))
        self._membership_log.link_down(wire, reason, is_wanted=is_wanted, is_quiet=is_tool)
        self._routes_changed(changes, reason)

    def close(self) -> None:
        """Drop all paths together, before the links end one by one."""
        with self._routes.lock:
            changes = self._routes.router.close()
        self._routes_changed(changes, CLOSING)

    def handle_routes(self, frame: Frame) -> Iterator[object] | None:
        """Handle a `routing_update` from a neighbor; return the remaining steps, or None.

        Raises:
            RemoteProtocolError: the frame's payload breaks the layout.
        """
        steps = self._apply_parts(NodeId(frame.source), frame.payload)
        next(steps)
        return steps if len(frame.payload) > LARGE_UPDATE else None

    def _apply_parts(self, peer: NodeId, payload: bytes) -> Iterator[object]:
        """Apply an update in steps, of which a small update needs only one."""
        for update in read_parts(peer, payload):
            if update is not None:
                self._apply_update(peer, update)
            yield update

    def _apply_update(self, peer: NodeId, update: Update) -> None:
        """Record an update from a neighbor, and recompute routes unless this is scheduled."""
        with self._routes.lock:
            self._routes.router.take(peer, update)
        if not self._is_planned:
            self._recompute()

    def _recompute(self) -> None:
        """Recompute a portion of the routes, if any are due."""
        self._is_planned = False
        if self._routes.router.is_behind:
            # Hold the lock: a sender that finds no path starts to wait for one. Without the
            # lock, the node could be found or lost before the sender has started to wait, and
            # nothing would wake it.
            with self._routes.lock:
                changes = self._routes.router.recompute()
            self._routes_changed(changes, "routes changed")

    def _routes_changed(self, changes: Changes, reason: str) -> None:
        """Send a change of routes to the neighbors, and act on it."""
        me = self._routes.node_id
        self._routes.changed(changes.left, self._runtime.now())
        self._plan_forgetting()
        for peer, payload in changes.updates:
            wire = self._routes.wires.get(peer)
            if wire is not None:
                wire.write(pack_frame(Operation.ROUTING_UPDATE, 0, me, peer, 0, 0, payload))
        active, search = self._routes.router.active, (reason, self._runtime.now())
        sought = [node for node in changes.sought if node in active and node not in self.sought]
        self.sought.update(dict.fromkeys(sought, search))
        if sought:
            self._runtime.call_later(OLD_PATH_LIMIT, self._declare_lost, sought, search)
        for node in changes.lost:
            self._node_lost(node, self.sought.get(node, (reason,))[0])
        for node in changes.moved:
            self._path_moved(node)
        for node in changes.gained:
            self._node_found(node)
        for node in (*changes.lost, *changes.moved, *changes.gained):
            if node not in active and self.sought.pop(node, None) is not None:
                self._unrouted.search_over(node)
        self._unverified.review()
        self._plan(changes.work)

    def _plan(self, work: float) -> None:
        """Schedule the next recomputation for when the budget allows it."""
        debt = self._pace.spend(work, self._runtime.now())
        if not self._is_planned and (debt or self._routes.router.is_behind):
            self._is_planned = True
            self._runtime.call_later(debt, self._recompute)

    def _plan_forgetting(self) -> None:
        """Schedule the removal of new cuts, with one timer for all cuts of an interval."""
        cut_count = self._routes.router.cuts_kept
        if cut_count != self._cuts_kept and not self._awaits_cuts:
            self._cuts_kept, self._awaits_cuts = cut_count, True
            self._runtime.call_later(OLD_PATH_LIMIT, self._forget_cuts, cut_count)
            self._runtime.call_later(CUTS_INTERVAL, self._plan_next_forgetting)

    def _plan_next_forgetting(self) -> None:
        """Schedule the forgetting of cuts recorded since the last check."""
        self._awaits_cuts = False
        self._plan_forgetting()

    def _forget_cuts(self, number: int) -> None:
        """Accept paths that neighbors still offer despite reported cuts of their links."""
        with self._routes.lock:
            changes = self._routes.router.forget_cuts(number)
        self._routes_changed(changes, "routes changed")

    def _declare_lost(self, nodes: list[NodeId], search: tuple[str, float]) -> None:
        """Declare nodes lost if no path was found in time, even if no neighbor has said so."""
        due = [node for node in nodes[:PORTION] if self.sought.get(node) is search]
        if due:
            with self._routes.lock:
                changes = self._routes.router.give_up(due)
            self._routes_changed(changes, search[0])
        if nodes[PORTION:]:
            self._runtime.call_later(0.0, self._declare_lost, nodes[PORTION:], search)

    def _path_moved(self, node: NodeId) -> None:
        """Send the frames again that may have been lost on the old path to a node."""
        with self._routes.lock:
            account = self._routes.accounts.account(node)
            epoch = account.epoch
            is_open = self._hops.get(node) in self._routes.wires
            self._end_epoch(node, is_open=is_open)
            self._routes.accounts.path_moved(node)
            self._send_path_ends(node)
        self._runtime.call_later(OLD_PATH_LIMIT, self._old_path_over, node, epoch)
        self._routes.accounts.repeat_report(node)
        self._lifetimes.renew(node)
        self._runtime.report(PathMoved(node, len(self._routes.router.path(node))))

    def _end_epoch(self, node: NodeId, *, is_open: bool) -> None:
        """Record the number of dispatches in the epoch that ends now.

        The caller must hold the lock.
        """
        account = self._routes.accounts.accounts.get(node)
        if account is not None and account.sent_in_epoch:
            ends = self._path_ends.setdefault(node, deque(maxlen=PATH_ENDS))
            count = account.sent_in_epoch
            ends.append(self._pack_end(node, account.epoch, count, is_open=is_open))

    def _pack_end(self, node: NodeId, epoch: int, count: int, *, is_open: bool) -> bytes:
        me = self._routes.node_id
        return pack_path_end(me, node, epoch, count, is_open=is_open)

    def apply_report(self, node: NodeId, lines: list[list[int]]) -> int:
        """Apply the lines of a `delivery_report`; return the number of messages lost.

        If the report shows that the other node does not know about the present epoch, it is
        sent the end of the epoch that it expects.
        """
        accounts = self._routes.accounts
        with self._routes.lock:
            account = accounts.account(node)
            epoch, count = account.epoch, account.sent_in_epoch
            lost = accounts.take_report(node, lines)
            over = (account.epoch - 1) % EPOCH_COUNT
            if account.epoch != epoch:
                end = self._pack_end(node, over, count if over == epoch else 0, is_open=True)
                self._path_ends[node] = deque([end], maxlen=PATH_ENDS)
                self._routes.send_to(node, end)
            elif account.is_missed:
                end = self._pack_end(node, over, 0, is_open=True)
                for frame in self._path_ends.get(node) or (end,):
                    self._routes.send_to(node, frame)
        return lost

    def _send_path_ends(self, node: NodeId) -> None:
        """Send the ends of old paths over the new one; the caller must hold the lock."""
        self._hops[node] = self._routes.router.next_hops[node]
        for frame in self._path_ends.get(node, ()):
            self._routes.send_to(node, frame)

    def _old_path_over(self, node: NodeId, epoch: int) -> None:
        """Count messages on an old path as lost when they can no longer arrive."""
        with self._routes.lock:
            account = self._routes.accounts.accounts.get(node)
            lost = 0 if account is None else account.expire(epoch)
        if lost:
            self._runtime.report(MessagesLost(node, self._routes.names.get(node, ""), lost))

    def _node_found(self, node: NodeId) -> None:
        """Send a node that was found the state that it needs, and ask for its name."""
        self._routes.departed.returned(node)
        with self._routes.lock:
            self._send_path_ends(node)
        self._routes.accounts.repeat_report(node)
        self._lifetimes.renew(node)
        self._unnamed[node] = len(self._routes.router.path(node))
        if node in self._routes.names:
            self._report_node_up(node)
            return
        described = self._runtime.ref_of(node, DIRECTORY).ask(Describe(), timeout=DIAL_TIMEOUT)
        described.add_done_callback(lambda future: self._described(node, future))

    def _described(self, node: NodeId, future: Future) -> None:
        """Record the name of a node that was found."""
        name = future.result() if future.exception() is None else None
        if isinstance(name, str) and name.isprintable():
            self._routes.names[node] = name
        self._report_node_up(node)

    def _report_node_up(self, node: NodeId) -> None:
        """Report a node that became reachable, once."""
        hops = self._unnamed.pop(node, None)
        if hops is not None:
            name, is_tool = self._routes.names.get(node, ""), node in self._routes.tools
            self._runtime.report(NodeUp(node, name, hops, is_tool))
            self._membership_log.node_up(name or node.hex(), hops, is_quiet=is_tool)

    def _node_lost(self, node: NodeId, reason: str) -> None:
        """Fail the asks to a node that is out of reach, and report its loss."""
        # So that the node is reported as found before it is reported as lost.
        self._report_node_up(node)
        with self._routes.lock:
            self._end_epoch(node, is_open=False)
            lost = self._routes.accounts.node_lost(node)
        self._routes.departed.lost(node, self._runtime.now(), is_strange=self._is_strange(node))
        name = self._routes.names.get(node, "")
        text = f"no path leads to node {name or node.hex()} any longer ({reason})"
        is_drained = node in self._outgoing.refusing
        self._outgoing.refusing.discard(node)
        error = (NodeClosed if is_drained else NodeUnreachable)(text)
        lost += self._credit_window.node_lost(node, error)
        down = NodeDown(node, name, reason, lost, is_tool := node in self._routes.tools)
        self._outgoing.asks.fail(error, node)
        self._lifetimes.node_lost(node, text)
        for watcher in self._watchers.pop(node, ()):
            watcher.set_result(down)
        self._runtime.report(down)
        self._membership_log.node_down(name or node.hex(), reason, lost, is_quiet=is_tool)

    def _is_strange(self, node: bytes) -> bool:
        """Return whether this node has never exchanged messages with another one."""
        routes = self._routes
        account = routes.accounts.accounts.get(node)
        return not (
            node in routes.endpoints
            or node in routes.accounts.arrivals
            or (account is not None and account.sent)
            or self._lifetimes.proxies_of(node)
        )

    def monitor_node(self, node: bytes, future: Future[NodeDown]) -> None:
        """Complete a future when a node is out of reach, immediately if it is so already."""
        if self._routes.has_path(node):
            self._watchers.setdefault(node, []).append(future)
        else:
            future.set_result(NodeDown(node, self._routes.names.get(node, ""), "not in reach"))

    def forget(self, node: bytes) -> None:
        """Forget the old paths to a node that is out of reach for long."""
        self._hops.pop(node, None)
        self._path_ends.pop(node, None)


#: Marks a node that is a tool in its description, after name and abilities.
_TOOL: Final = "tool"


def describe_node(name: str, *, is_tool: bool, is_limited: bool = False) -> bytes:
    """Return the description of a node that is sent when a link is established.

    Args:
        name: the name of the node.
        is_tool: whether it only inspects and asks.
        is_limited: whether the receiving peer has limited rights.
    """
    parts: list[object] = [name, [*ABILITIES, *(() if is_limited else (CARRIERS,))]]
    return write_plain([*parts, _TOOL] if is_tool else parts)


def read_node(state: bytes) -> tuple[str, object, bool]:
    """Read a peer's description: its name, its abilities, and whether it is a tool.

    A missing or malformed part counts as empty.
    """
    try:
        parts = read_plain(state)
    except BaspError:
        parts = None
    listed = parts if isinstance(parts, list) else []
    name, abilities, kind = [*listed, None, None, None][:3]
    is_name = isinstance(name, str) and name.isprintable()
    return str(name) if is_name else "", abilities, bool(kind == _TOOL)
