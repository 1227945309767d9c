"""Links and paths of one node: who is in reach, what a change of a path makes necessary.

On the runner, with its role.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Final

from callboard.actors.errors import NodeClosed, NodeUnreachable
from callboard.actors.future import Future
from callboard.actors.runtime import Runtime
from callboard.actors.token_bucket import TokenBucket
from callboard.basp.cbor.plain import read_plain, write_plain
from callboard.basp.errors import BaspError
from callboard.basp.frame import Frame, pack_frame
from callboard.basp.handshake import PeerIdentity
from callboard.basp.header import DIRECTORY, EPOCH_COUNT, Operation
from callboard.basp.node_id import NodeId
from callboard.basp.routing.path_order import pack_path_end
from callboard.basp.routing.router import PORTION, Changes
from callboard.basp.routing.update import LARGE_UPDATE, Update, read_parts
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

#: Ends of old paths told again with each change: one may be lost with the next path.
PATH_ENDS: Final = 8

#: Seconds between two looks at the cuts that are to be forgotten: each goes through all paths.
CUTS_INTERVAL: Final = 0.25

#: Conclusions for one destination that a node draws in a second from what neighbors tell, and
#: those of a quiet time that it draws at once: a third of a processor, for a table of thousands
#: no wait. What neighbors take back meanwhile is never concluded on, nor told on.
CONCLUSIONS_PER_SECOND: Final = 4_000.0
CONCLUSIONS_SAVED: Final = 8_192.0


@dataclass(eq=False, repr=False)
class Paths:
    """What one node knows of links and other nodes."""

    _runtime: Runtime
    _routes: RouteTable
    _outgoing: Outgoing
    _unrouted: Unrouted
    _pacing: CreditSender
    _lifetimes: Lifetimes
    _doubts: UnverifiedFrames
    _gates: PeerAuthorizer
    _watchers: dict[bytes, list[Future[NodeDown]]] = field(default_factory=dict)
    #: Neighbours that lead to nodes, as of the last change of their paths.
    _hops: dict[bytes, NodeId] = field(default_factory=dict)
    #: The latest `path_end` frames for each node.
    _path_ends: dict[bytes, deque[bytes]] = field(default_factory=dict)
    #: Nodes that the router is active for, why their path was lost, and when.
    sought: dict[NodeId, tuple[str, float]] = field(default_factory=dict)
    #: Hops to nodes that were found and did not say their name yet.
    _unnamed: dict[NodeId, int] = field(default_factory=dict)
    #: What conclusions may cost, and whether the next ones are planned.
    _pace: TokenBucket = field(
        default_factory=lambda: TokenBucket(CONCLUSIONS_PER_SECOND, CONCLUSIONS_SAVED)
    )
    _is_planned: bool = False
    #: Cuts that the router has kept so far, all of them to be forgotten in a while.
    _cuts_kept: int = 0
    _awaits_cuts: bool = False

    def __post_init__(self) -> None:
        self._comings = MembershipLog(self._runtime.now)

    def link_up(self, wire: Wire, peer: PeerIdentity) -> None:
        """A link is established: exchange routes."""
        node, reach = peer.node_id, None
        self._routes.rights.pop(node, None)
        if peer.standing is not None and self._gates.begin(wire, peer.standing):
            rights = self._routes.rights[node] = peer.standing.rights
            reach = rights.reach
        wire.peer_name, abilities, is_tool = read_node(peer.state)
        self._routes.names[node] = wire.peer_name
        self._routes.is_able(node, abilities)
        if reach is not None:  # its gate looks into each message
            self._routes.abilities[node] -= {CARRIERS}
        (self._routes.tools.add if is_tool else self._routes.tools.discard)(node)
        self._pacing.learned(node)
        self._routes.wires[node] = wire
        if wire.endpoint is not None:
            self._routes.endpoints[node] = wire.endpoint
        self._runtime.report(LinkUp(node, wire.peer_name, is_tool))
        self._comings.link_up(wire, is_quiet=is_tool)
        with self._routes.lock:
            changes = self._routes.router.add_peer(node, reach)
        self._routes_changed(changes, "")

    def link_down(self, wire: Wire, reason: str, *, is_wanted: bool = True) -> None:
        """An established link ended: find other paths, and tell what is out of reach."""
        node = wire.peer
        if node is None or self._routes.wires.get(node) is not wire:
            return
        with self._routes.lock:  # no sender sees a route without its wire
            del self._routes.wires[node]
            changes = self._routes.router.remove_peer(node)
        is_tool = node in self._routes.tools
        self._runtime.report(LinkDown(node, wire.peer_name, reason, is_tool))
        self._comings.link_down(wire, reason, is_wanted=is_wanted, is_quiet=is_tool)
        self._routes_changed(changes, reason)

    def close(self) -> None:
        """Know no path any more, all at once: the links end next, one by one."""
        with self._routes.lock:
            changes = self._routes.router.close()
        self._routes_changed(changes, CLOSING)

    def take_routes(self, frame: Frame) -> Iterator[object] | None:
        """Take a `routing_update` of a neighbor; returns what is left to do, step by step.

        Raises:
            RemoteProtocolError: its payload breaks the layout.
        """
        steps = self._take_parts(NodeId(frame.source), frame.payload)
        next(steps)
        return steps if len(frame.payload) > LARGE_UPDATE else None

    def _take_parts(self, peer: NodeId, payload: bytes) -> Iterator[object]:
        """Take an update in steps, of which a small one is one."""
        for update in read_parts(peer, payload):
            if update is not None:
                self._take_update(peer, update)
            yield update

    def _take_update(self, peer: NodeId, update: Update) -> None:
        """Note what a neighbor tells, and draw conclusions if it is time."""
        with self._routes.lock:
            self._routes.router.take(peer, update)
        if not self._is_planned:
            self._conclude()

    def _conclude(self) -> None:
        """Draw a portion of conclusions, unless there are none to be drawn."""
        self._is_planned = False
        if self._routes.router.is_behind:
            with self._routes.lock:  # nobody begins to wait for what is just found or lost
                changes = self._routes.router.conclude()
            self._routes_changed(changes, "routes changed")

    def _routes_changed(self, changes: Changes, reason: str) -> None:
        """Tell neighbors of a change of routes, and do what follows from it."""
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
            self._runtime.call_later(OLD_PATH_LIMIT, self._give_up, sought, search)
        for node in changes.lost:
            self._node_lost(node, self.sought.get(node, (reason,))[0])
        for node in changes.moved:
            self._path_moved(node)
        for node in changes.gained:
            self._node_found(node)
        for node in (*changes.lost, *changes.moved, *changes.gained):
            if node not in active and self.sought.pop(node, None) is not None:
                self._unrouted.search_over(node)
        self._doubts.review()
        self._plan(changes.work)

    def _plan(self, work: float) -> None:
        """Plan the next conclusions, when the last ones are paid for."""
        debt = self._pace.spend(work, self._runtime.now())
        if not self._is_planned and (debt or self._routes.router.is_behind):
            self._is_planned = True
            self._runtime.call_later(debt, self._conclude)

    def _plan_forgetting(self) -> None:
        """Plan to forget the cuts that are new, now and then for all together."""
        kept = self._routes.router.cuts_kept
        if kept != self._cuts_kept and not self._awaits_cuts:
            self._cuts_kept, self._awaits_cuts = kept, True
            self._runtime.call_later(OLD_PATH_LIMIT, self._forget_cuts, kept)
            self._runtime.call_later(CUTS_INTERVAL, self._look_at_cuts)

    def _look_at_cuts(self) -> None:
        """Plan to forget what came since the last look."""
        self._awaits_cuts = False
        self._plan_forgetting()

    def _forget_cuts(self, number: int) -> None:
        """Take the paths that neighbors still tell, whatever was said of their links."""
        with self._routes.lock:
            changes = self._routes.router.forget_cuts(number)
        self._routes_changed(changes, "routes changed")

    def _give_up(self, nodes: list[NodeId], search: tuple[str, float]) -> None:
        """Hold nodes for lost that no path was found to, even if others do not state so."""
        due = [node for node in nodes[:PORTION] if self.sought.get(node) is search]
        if due:
            with self._routes.lock:
                changes = self._routes.router.give_up(due)
            self._routes_changed(changes, search[0])
        if nodes[PORTION:]:
            self._runtime.call_later(0.0, self._give_up, nodes[PORTION:], search)

    def _path_moved(self, node: NodeId) -> None:
        """What was under way on the old path may be lost: say what matters again."""
        with self._routes.lock:
            account = self._routes.accounts.account(node)
            epoch = account.epoch
            is_open = self._hops.get(node) in self._routes.wires
            self._end_epoch(node, is_open=is_open)
            self._routes.accounts.path_moved(node)
            self._tell_path_ends(node)
        self._runtime.call_later(OLD_PATH_LIMIT, self._old_path_over, node, epoch)
        self._routes.accounts.repeat_report(node)
        self._lifetimes.renew(node)
        self._runtime.report(PathMoved(node, len(self._routes.router.path(node))))

    def _end_epoch(self, node: NodeId, *, is_open: bool) -> None:
        """Note how many dispatches the epoch had that ends now; with the lock held."""
        account = self._routes.accounts.accounts.get(node)
        if account is not None and account.sent_in_epoch:
            ends = self._path_ends.setdefault(node, deque(maxlen=PATH_ENDS))
            count = account.sent_in_epoch
            ends.append(self._pack_end(node, account.epoch, count, is_open=is_open))

    def _pack_end(self, node: NodeId, epoch: int, count: int, *, is_open: bool) -> bytes:
        me = self._routes.node_id
        return pack_path_end(me, node, epoch, count, is_open=is_open)

    def take_report(self, node: NodeId, lines: list[list[int]]) -> int:
        """Take the lines of a `delivery_report`; return how many messages it says are lost.

        If it does not know where we are, it is told that what it expects is over.
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

    def _tell_path_ends(self, node: NodeId) -> None:
        """Say over the new path what the old ones carried; with the lock held."""
        self._hops[node] = self._routes.router.next_hops[node]
        for frame in self._path_ends.get(node, ()):
            self._routes.send_to(node, frame)

    def _old_path_over(self, node: NodeId, epoch: int) -> None:
        """Whatever has not arrived on an old path by now never will."""
        with self._routes.lock:
            account = self._routes.accounts.accounts.get(node)
            lost = 0 if account is None else account.expire(epoch)
        if lost:
            self._runtime.report(MessagesLost(node, self._routes.names.get(node, ""), lost))

    def _node_found(self, node: NodeId) -> None:
        """Renew what a node in reach has to know, and ask for its name."""
        self._routes.departed.found(node)
        with self._routes.lock:
            self._tell_path_ends(node)
        self._routes.accounts.repeat_report(node)
        self._lifetimes.renew(node)
        self._unnamed[node] = len(self._routes.router.path(node))
        if node in self._routes.names:
            self._tell_node_up(node)
            return
        described = self._runtime.ref_of(node, DIRECTORY).ask(Describe(), timeout=DIAL_TIMEOUT)
        described.add_done_callback(lambda future: self._described(node, future))

    def _described(self, node: NodeId, future: Future[Any]) -> None:
        """Take the name of a node that was found."""
        name = future.result() if future.exception() is None else None
        if isinstance(name, str) and name.isprintable():
            self._routes.names[node] = name
        self._tell_node_up(node)

    def _tell_node_up(self, node: NodeId) -> None:
        """Report a node that came into reach, once."""
        hops = self._unnamed.pop(node, None)
        if hops is not None:
            name, is_tool = self._routes.names.get(node, ""), node in self._routes.tools
            self._runtime.report(NodeUp(node, name, hops, is_tool))
            self._comings.node_up(name or node.hex(), hops, is_quiet=is_tool)

    def _node_lost(self, node: NodeId, reason: str) -> None:
        """Fail what waits for a node out of reach, and report its loss."""
        self._tell_node_up(node)  # nobody hears of an end before its beginning
        with self._routes.lock:
            self._end_epoch(node, is_open=False)
            lost = self._routes.accounts.node_lost(node)
        self._routes.departed.lost(node, self._runtime.now(), is_strange=self._is_strange(node))
        name = self._routes.names.get(node, "")
        text = f"no path leads to node {name or node.hex()} any more ({reason})"
        is_drained = node in self._outgoing.refusing
        self._outgoing.refusing.discard(node)
        error = (NodeClosed if is_drained else NodeUnreachable)(text)
        lost += self._pacing.node_lost(node, error)
        down = NodeDown(node, name, reason, lost, is_tool := node in self._routes.tools)
        self._outgoing.fail(error, node)
        self._lifetimes.node_lost(node, text)
        for watcher in self._watchers.pop(node, ()):
            watcher.set_result(down)
        self._runtime.report(down)
        self._comings.node_down(name or node.hex(), reason, lost, is_quiet=is_tool)

    def _is_strange(self, node: bytes) -> bool:
        """Return whether nothing ever came of a node, or was sent to it."""
        routes = self._routes
        account = routes.accounts.accounts.get(node)
        return not (
            node in routes.endpoints
            or node in routes.accounts.arrivals
            or (account is not None and account.sent)
            or self._lifetimes.proxies_of(node)
        )

    def monitor_node(self, node: bytes, future: Future[NodeDown]) -> None:
        """Complete the future when the node is out of reach; at once if it is."""
        if self._routes.has_path(node):
            self._watchers.setdefault(node, []).append(future)
        else:
            future.set_result(NodeDown(node, self._routes.names.get(node, ""), "not in reach"))

    def forget(self, node: bytes) -> None:
        """Forget the old paths to a node that is out of reach for long."""
        self._hops.pop(node, None)
        self._path_ends.pop(node, None)


#: What a node that only looks and asks says of itself behind its name and abilities.
_TOOL: Final = "tool"


def describe_node(name: str, *, is_tool: bool, is_limited: bool = False) -> bytes:
    """Return what a node says about itself when a link is established.

    Args:
        name: of the node.
        is_tool: whether it only looks and asks.
        is_limited: whether the peer may not send to all of it.
    """
    said: list[object] = [name, [*ABILITIES, *(() if is_limited else (CARRIERS,))]]
    return write_plain([*said, _TOOL] if is_tool else said)


def read_node(state: bytes) -> tuple[str, object, bool]:
    """Read what a peer says about itself: its name, its abilities, and whether it is a tool.

    What is not there or odd counts as no name.
    """
    try:
        said = read_plain(state)
    except BaspError:
        said = None
    listed = said if isinstance(said, list) else []
    name, abilities, kind = [*listed, None, None, None][:3]
    is_name = isinstance(name, str) and name.isprintable()
    return str(name) if is_name else "", abilities, bool(kind == _TOOL)
