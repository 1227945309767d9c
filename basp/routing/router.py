"""Routing by path vectors: shortest paths, without loops.

Each node announces to its neighbors its best path to every other node. It announces the whole
path, so a node can refuse paths that lead through itself. The shortest path wins, and of
equally long ones the smallest in the order of node ids: nodes with the same knowledge choose
the same path. Changes are sent as increments, in order on each link; a new link starts with
the whole table. The number of paths is finite and no node accepts its own id in a path, so
routes do not count to infinity. After the last change every node has the shortest paths that
exist (up to ``PATH_LIMIT`` nodes).

Vector timestamps (see :mod:`callboard.basp.routing.update`): a vector that repeats the known
path with an older stamp of any node is late and ignored. A vector with a link that its node
has cut since is ignored, too. Cuts are flooded to all nodes. Without them, each node would try
all dead paths of its neighbors, one after the other, before it finds out that there is no path.
Soon no neighbor announces such a path. If one still does after that time, the cut was wrong,
and the path is valid.

A node without any path is *active* for the destination until a path arrives or the destination
is lost, see :mod:`callboard.basp.routing.diffusion`. Statements of other nodes are forwarded
together, when the last neighbor has answered, or with our next own update. Otherwise a
hub would send each statement to each neighbor.

A neighbor may be a *leaf*: a node that does not forward. Only its own searches are
accepted from it, and they end at this node at once. Nodes are announced to it if their names
match its patterns, and it is announced to others only if it has patterns.

Updates from neighbors are recorded on arrival. The routes (best paths, announcements, lost
nodes) are recomputed in portions: :meth:`Router.recompute` handles as many destinations for
each neighbor, so a large table of one neighbor does not delay the others. An announcement
that is withdrawn before its turn costs nothing more.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import field
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final

from callboard.basp.errors import LocalProtocolError, MalformedPayload
from callboard.basp.node_id import NodeId, node_id_text
from callboard.basp.routing.diffusion import Diffusion
from callboard.basp.routing.update import (
    PATH_LIMIT,
    STAMP_LEAP,
    UPDATE_LIMIT,
    Cut,
    PathVector,
    Statement,
    Update,
    join_update,
    read_update,
    write_name,
    write_rest,
    write_vector,
)
from callboard.support.dataclass import dataclass

#: First character of the name of a tool on the wire. Release 0.1 treats such a name as unknown,
#: and requests the name from the tool.
TOOL_MARK: Final = "\0"

# Limits of one update: entries of each kind (paths, withdrawals, cuts), and node ids in its
# statements. So an update never exceeds the limits of the neighbors, whatever it forwards.
_PART: Final = 512
_PART_IDS: Final = 8_192

#: Nodes that a router knows; announcements of more nodes are ignored.
NODES_LIMIT: Final = 16_384

#: Destinations of one call of `recompute`, which takes some milliseconds.
PORTION: Final = 128

# Announcements in one call, to all neighbors together: with many neighbors the portion is
# smaller, but not smaller than the least one.
_ANNOUNCEMENTS: Final = 16_384
_LEAST_PORTION: Final = 8

# The latest cuts are remembered. A forgotten one costs a detour, no path.
_CUT_LIMIT: Final = 4096

#: Content of an update: announced and withdrawn destinations, cuts, statements.
Content = tuple[list[NodeId], list[NodeId], list[Cut], list[Statement]]


@dataclass(slots=True)
class Changes:
    """Results of one event, for the driver.

    It handles `left` first, then sends the updates, then handles lost, moved and gained nodes
    in this order.

    Attributes:
        updates: neighbor and payload of the ``routing_update`` frames to send, in order.
        gained: nodes that became reachable, again or for the first time.
        lost: nodes that are unreachable for sure.
        moved: nodes whose path changed anywhere, or returned while we were active for them
            (even unchanged, because other nodes on it may have lost theirs).
        left: pairs of a neighbor and a node for which it is no longer a carrier.
        sought: nodes for which the router has become active.
        work: estimated cost, in recomputed routes to one destination.
    """

    updates: list[tuple[NodeId, bytes]] = field(default_factory=list)
    gained: list[NodeId] = field(default_factory=list)
    lost: list[NodeId] = field(default_factory=list)
    moved: list[NodeId] = field(default_factory=list)
    left: list[tuple[NodeId, NodeId]] = field(default_factory=list)
    sought: list[NodeId] = field(default_factory=list)
    work: float = 0.0


class Router:
    """Routes of one node.

    Attributes:
        next_hops: neighbor to send to, by destination; read it directly on the hot path.
        carriers: all neighbors with an equally short path, by destination. Whichever path the
            destination chose to us, the last node on it is one of them, unless that node
            already knows of a change.
        names: names of nodes as neighbors announced them; announced with the paths.
            The driver adds neighbors before :meth:`add_peer`, and drops forgotten nodes.
        active: destinations without a path that are not known to be lost.
        cuts_kept: number of cuts that were news so far; the driver passes it to
            :meth:`forget_cuts` when all nodes must have received them.
    """

    def __init__(self, self_id: NodeId, portion: int | None = None) -> None:
        """Create a router without neighbors.

        Args:
            self_id: id of this node.
            portion: destinations for one call of :meth:`recompute`; None for all.
        """
        self._self_id = self_id
        self._whole_portion = portion
        # Increases with each change of our links and with each statement.
        self._stamp = 0
        # Paths that each neighbor has announced; the keys are the neighbors.
        self._received: dict[NodeId, dict[NodeId, PathVector]] = {}
        # Destinations that were announced to each neighbor.
        self._announced: dict[NodeId, set[NodeId]] = {}
        # Best paths, from the neighbor to the destination.
        self._best: dict[NodeId, PathVector] = {}
        self.next_hops: dict[bytes, NodeId] = {}
        self.carriers: dict[bytes, tuple[NodeId, ...]] = {}
        self.names: dict[bytes, str] = {}
        #: Nodes that only inspect and send requests; the driver adds neighbors, as with names.
        self.tools: set[bytes] = set()
        # Patterns of names that each leaf may reach.
        self._leaves: dict[NodeId, tuple[str, ...]] = {}
        # Destinations that each leaf seeks.
        self._sought: dict[NodeId, frozenset[NodeId]] = {}
        # Announced paths with a link that was cut since, by neighbor.
        self._refused: dict[NodeId, dict[NodeId, PathVector]] = {}
        # Stamp of each cut by (node, neighbor), the latest cut last.
        self._cuts: dict[tuple[NodeId, NodeId], int] = {}
        # Value of `cuts_kept` at each cut.
        self._cut_numbers: dict[tuple[NodeId, NodeId], int] = {}
        self.cuts_kept = 0
        self._diffusion = Diffusion(self_id)
        # Nodes whose statements are not forwarded yet, with the neighbor that sent each.
        self._held_statements: dict[NodeId, NodeId] = {}
        # Cuts that are not forwarded yet, with the neighbor that sent each.
        self._held_cuts: dict[tuple[NodeId, NodeId], tuple[Cut, NodeId]] = {}
        # Whether received paths may contain a cut link.
        self._may_be_dead = False
        # Whether an update arrived after the last call of `recompute`.
        self._has_news = False
        # Destinations to recompute, by the neighbor whose update changed them, or this node.
        self._pending: dict[NodeId, dict[NodeId, None]] = {}
        # Destinations that a new neighbor has not been sent yet.
        self._unsent: dict[NodeId, dict[NodeId, None]] = {}
        # Destinations to announce again with a newer stamp, after a forged statement in our
        # name; None without one.
        self._to_repeat: set[NodeId] | None = None
        self.active: set[NodeId] = self._diffusion.active

    @property
    def reachable(self) -> frozenset[NodeId]:
        """All other nodes with a known path."""
        return frozenset(self._best)

    def path(self, destination: NodeId) -> tuple[NodeId, ...]:
        """Return the nodes from the next hop to ``destination``, both included, or ()."""
        vector = self._best.get(destination)
        return () if vector is None else vector.path

    def may_see(self, peer: NodeId, destination: NodeId) -> bool:
        """Return whether a node may be announced to a neighbor.

        A leaf sees only names that match its patterns, and members do not see a leaf without
        patterns.
        """
        reach = self._leaves.get(peer)
        if reach is None:
            return self._leaves.get(destination) != ()
        name = self.names.get(destination, "")
        return destination not in self._leaves and any(
            fnmatchcase(name, pattern) for pattern in reach
        )

    def _members(self) -> Collection[NodeId]:
        """Return the neighbors that forward frames for other nodes."""
        neighbors = self._received.keys()
        return neighbors - self._leaves.keys() if self._leaves else neighbors

    def add_peer(self, peer: NodeId, reach: Collection[str] | None = None) -> Changes:
        """Add a neighbor whose link is established; it receives the whole table.

        Args:
            peer: the neighbor.
            reach: for a leaf, patterns of the names of the nodes that it may reach.

        Raises:
            LocalProtocolError: the peer is this node, or has a link already.
        """
        if peer == self._self_id or peer in self._received:
            msg = f"node {node_id_text(peer)} is this node or already a neighbor"
            raise LocalProtocolError(msg)
        self._stamp += 1
        if reach is not None:
            self._leaves[peer] = tuple(reach)
        self._received[peer], self._refused[peer], self._announced[peer] = {}, {}, set()
        self._unsent[peer] = dict.fromkeys([*self._best, peer])
        changes = Changes()
        self._finish({peer}, changes, fresh=peer)
        return changes

    def remove_peer(self, peer: NodeId) -> Changes:
        """Remove a neighbor whose link ended; ignore a node that is not a neighbor."""
        changes = Changes()
        received = self._received.pop(peer, None)
        if received is None:
            return changes
        del self._announced[peer], self._refused[peer]
        self._sought.pop(peer, None)
        self._unsent.pop(peer, None)
        pending = self._pending.pop(peer, {})
        if self._leaves.pop(peer, None) == () and self._find_best(peer)[0] is None:
            # This leaf was announced to no other node, so it is lost without a search.
            del self._best[peer], self.next_hops[peer], self.carriers[peer]
            changes.lost.append(peer)
            changes.left.append((peer, peer))
            return changes
        self._stamp += 1
        self._add_cuts([Cut(self._self_id, peer, self._stamp)], self._self_id)
        self._finish({peer, *received, *pending}, changes)
        return changes

    def give_up(self, destinations: Iterable[NodeId]) -> Changes:
        """Declare nodes lost after a long search, whatever other nodes state."""
        lost = [destination for destination in destinations if destination in self.active]
        self.active.difference_update(lost)
        return Changes(lost=lost)

    def close(self) -> Changes:
        """Remove all neighbors without updates: each of them sees that its own link ends."""
        touched = {*self._received, *self._best}
        self._received.clear()
        self._refused.clear()
        self._announced.clear()
        self._leaves.clear()
        self._sought.clear()
        self._pending.clear()
        self._unsent.clear()
        self._has_news = False
        self._whole_portion = None
        changes = Changes()
        self._finish(touched, changes)
        return changes

    def receive(self, peer: NodeId, payload: bytes) -> Changes:
        """Handle a ``routing_update``, and recompute a portion of the routes.

        Raises:
            MalformedPayload: the payload is malformed, or announces too many nodes.
        """
        self.take(peer, read_update(peer, payload))
        return self.recompute()

    def take(self, peer: NodeId, update: Update) -> None:
        """Record the update from a neighbor; ignore one from any other node.

        Raises:
            MalformedPayload: the neighbor announced too many nodes.
        """
        received, refused = self._received.get(peer), self._refused.get(peer, {})
        if received is None:
            return
        self._has_news = True
        if peer in self._leaves:
            self._sought.update(
                (peer, statement.seeking)
                for statement in update.statements
                if statement.node == peer
            )
            return
        forged = self._find_forged(update)
        if forged is not None:
            self._to_repeat = forged | (self._to_repeat or set())
        self._add_cuts([cut for cut in update.cuts if self._may_tell(peer, cut.node)], peer)
        touched = self._record_paths(peer, update, received, refused)
        if touched:
            self._pending[peer] = touched
        if len(received) + len(refused) > UPDATE_LIMIT:
            msg = f"node {node_id_text(peer)} announced more than {UPDATE_LIMIT:,} nodes"
            raise MalformedPayload(msg)
        news = self._diffusion.record(update.statements, self._best)
        self._held_statements.update((statement.node, peer) for statement in news)

    def _record_paths(
        self,
        peer: NodeId,
        update: Update,
        received: dict[NodeId, PathVector],
        refused: dict[NodeId, PathVector],
    ) -> dict[NodeId, None]:
        """Record announced and withdrawn paths; return the destinations to conclude on."""
        touched: dict[NodeId, None] = self._pending.pop(peer, {})
        for destination in update.withdrawn:
            if received.pop(destination, None) or refused.pop(destination, None):
                touched[destination] = None
        room = NODES_LIMIT - len(self._best) - len(self.active)
        room -= sum(map(len, self._pending.values())) + len(touched)
        for vector, name in zip(update.announced, update.names, strict=True):
            destination = vector.path[-1]
            is_known = destination in self._best or destination in self.active
            is_new = not is_known and destination not in touched
            room -= is_new  # neighbors together may announce more nodes than one update has
            known = received.get(destination) or refused.get(destination)
            if destination == peer or _is_late(vector, known) or (is_new and room < 0):
                continue
            touched[destination] = None
            received.pop(destination, None)
            refused.pop(destination, None)
            if self._self_id in vector.path:
                continue
            if self._is_dead(vector):
                refused[destination] = vector
            else:
                received[destination] = vector
                self._record_name(destination, name)
        return touched

    @property
    def is_behind(self) -> bool:
        """Whether :meth:`recompute` has to be called."""
        return bool(
            self._has_news or self._pending or self._unsent or self._diffusion.is_behind
        )

    def recompute(self) -> Changes:
        """Recompute the routes to one portion of the destinations in recorded updates."""
        changes = Changes()
        self._has_news = False
        if self._may_be_dead:
            self._may_be_dead = False
            changes.work += sum(map(len, self._received.values())) / 64
            dead = self._drop_dead()
            if dead:
                self._pending.setdefault(self._self_id, {}).update(dict.fromkeys(sorted(dead)))
        self._finish(self._next_pending(), changes)
        return changes

    @property
    def _portion(self) -> int | None:
        """Destinations of one call of `recompute`; fewer if there are many neighbors."""
        limit = self._whole_portion
        if limit is None:
            return None
        return min(limit, max(_LEAST_PORTION, _ANNOUNCEMENTS // (len(self._announced) or 1)))

    def _next_pending(self) -> set[NodeId]:
        """Pop destinations to conclude on, the same number for each neighbor."""
        pending, portion = self._pending, self._portion
        if portion is None:
            touched = set().union(*pending.values())
            pending.clear()
            return touched
        touched = set()
        share = max(1, portion // (len(pending) or 1))
        for peer in list(pending)[:portion]:
            queue = pending.pop(peer)
            touched.update(_first(queue, share))
            if queue:
                pending[peer] = queue  # last: the other neighbors are next
        return touched

    def _record_name(self, node: NodeId, name: str) -> None:
        """Record the name of a node, and whether the node is a tool."""
        if name.startswith(TOOL_MARK):
            self.tools.add(node)
            name = name.removeprefix(TOOL_MARK)
        if name and name.isprintable():
            self.names.setdefault(node, name)

    def _answer(self, leaf: NodeId) -> list[Statement]:
        """Return a statement that ends a leaf's searches, except for nodes that we seek too."""
        announced, sought = self._announced[leaf], self._sought.get(leaf, frozenset())
        missing = frozenset(
            node
            for node in sought - announced
            if node not in self.active or not self.may_see(leaf, node)
        )
        self._sought[leaf] = sought - missing - announced
        if not missing:
            return []
        self._stamp += 1
        return [Statement(self._self_id, self._stamp, frozenset({leaf}), missing=missing)]

    def _answer_leaves(self, changes: Changes) -> None:
        """End the searches of leaves without any other update."""
        for leaf in self._leaves:
            statements = self._answer(leaf)
            if statements:
                changes.updates.append((leaf, self._write(([], [], [], statements), {})))

    def forget_cuts(self, number: int) -> Changes:
        """Forget cuts up to a number; paths that neighbors still announce become valid."""
        while self._cut_numbers and next(iter(self._cut_numbers.values())) <= number:
            self._drop_cut(next(iter(self._cut_numbers)))
        touched: set[NodeId] = set()
        for peer, refused in self._refused.items():
            alive = {d: vector for d, vector in refused.items() if not self._is_dead(vector)}
            self._received[peer] |= alive
            self._refused[peer] = {d: refused[d] for d in refused.keys() - alive.keys()}
            touched |= alive.keys()
        if touched:
            self._pending.setdefault(self._self_id, {}).update(dict.fromkeys(sorted(touched)))
        return self.recompute() if touched else Changes()

    def _may_tell(self, peer: NodeId, node: NodeId) -> bool:
        """Return whether a neighbor may send a cut of a node: it is a carrier, or none is."""
        return node != self._self_id and peer in self.carriers.get(node, (peer,))

    def _find_forged(self, update: Update) -> set[NodeId] | None:
        """Find cuts and statements in our name that we did not make.

        Returns:
            Destinations to announce again with a newer stamp; None if nothing was forged.
        """
        me, best = self._self_id, self._best
        forged: list[Cut | Statement] = [
            cut
            for cut in update.cuts
            if cut.node == me and cut.stamp > self._cuts.get((me, cut.neighbor), -1)
        ]
        ends = {cut.neighbor for cut in forged if isinstance(cut, Cut)}
        is_forged = self._diffusion.is_forged
        forged += [statement for statement in update.statements if is_forged(statement)]
        stamps = [entry.stamp for entry in forged if entry.stamp <= self._stamp + STAMP_LEAP]
        if not stamps:
            return None
        self._stamp = max(self._stamp, *stamps) + 1
        return {destination for destination in best if best[destination].path[0] in ends}

    def _add_cuts(self, cuts: list[Cut], source: NodeId) -> None:
        """Record new cuts, and hold them for forwarding."""
        for cut in cuts:
            link = (cut.node, cut.neighbor)
            if self._cuts.get(link, -1) < cut.stamp:
                self._drop_cut(link)
                self.cuts_kept += 1
                self._cuts[link], self._cut_numbers[link] = cut.stamp, self.cuts_kept
                self._held_cuts[link] = cut, source
                # After our own cut, `remove_peer` has removed all paths with this link.
                self._may_be_dead |= source != self._self_id
        while len(self._cuts) > _CUT_LIMIT:
            self._drop_cut(next(iter(self._cuts)))

    def _drop_cut(self, link: tuple[NodeId, NodeId]) -> None:
        """Forget a cut."""
        self._cuts.pop(link, None)
        self._cut_numbers.pop(link, None)

    def _drop_dead(self) -> set[NodeId]:
        """Refuse received paths with a link that was cut since; return their destinations."""
        touched = set()
        for peer, received in self._received.items():
            for destination in [d for d, vector in received.items() if self._is_dead(vector)]:
                self._refused[peer][destination] = received.pop(destination)
                touched.add(destination)
        return touched

    def _is_dead(self, vector: PathVector) -> bool:
        """Return whether a path has a link that was cut after its stamp."""
        path, cuts = vector.path, self._cuts
        return any(
            stamp < cuts.get(link, -1) <= stamp + STAMP_LEAP
            for link, stamp in zip(
                zip(path, path[1:], strict=False), vector.stamps, strict=False
            )
        )

    def _finish(
        self, touched: Iterable[NodeId], changes: Changes, fresh: NodeId | None = None
    ) -> None:
        """Recompute the routes to ``touched`` destinations, and create the updates.

        A `fresh` neighbor receives all statements at once, and the table in portions.
        """
        changed = self._choose(touched, changes)
        to_repeat, self._to_repeat = self._to_repeat, None
        changed += sorted((to_repeat or set()).difference(changed))
        diffusion = self._diffusion
        own = diffusion.restate(
            self._best, self._members(), self._stamp + 1, anew=to_repeat is not None
        )
        if own is not None:
            self._stamp += 1
        changes.lost += diffusion.find_lost(self._portion)
        share = 1 + len(self._announced) / 128
        changes.work += 4 + (len(changed) + len(changes.lost)) * share
        changes.work += (len(self.active) + diffusion.sought_count) / 256
        is_nothing_else = not (changed or own or self._held_cuts or self._unsent)
        if is_nothing_else and diffusion.awaits(self._members()):
            self._answer_leaves(changes)
            return
        sources, relayed = self._pop_held()
        cuts, self._held_cuts = list(self._held_cuts.values()), {}
        offers: dict[NodeId, tuple[bytes, bytes]] = {}  # encoded paths, equal for all neighbors
        # Most neighbors receive the same content, so the last one is reused.
        last: tuple[tuple[list[Any], ...], list[bytes]] = (), []
        for peer, known in self._announced.items():
            news = changed if peer not in self._unsent else self._next_unsent(peer, changed)
            announced, withdrawn = self._compare(peer, known, news)
            if peer == fresh:
                statements = list(diffusion.statements.values())
            else:
                statements = [] if own is None else [own]
                statements += relayed if sources - {peer} else []
            forwarded = [cut for cut, source in cuts if source != peer != fresh]
            if peer in self._leaves:
                forwarded, statements = [], self._answer(peer)
            content = announced, withdrawn, forwarded, statements
            if not any(content):
                continue
            if content != last[0]:
                last = content, [self._write(part, offers) for part in _parts(*content)]
            changes.updates += [(peer, payload) for payload in last[1]]
        changes.work += len(offers)

    def _next_unsent(self, peer: NodeId, changed: list[NodeId]) -> list[NodeId]:
        """Return destinations for a new neighbor: the changed ones, and some of the rest."""
        unsent, portion = self._unsent[peer], self._portion
        for destination in changed:
            unsent.pop(destination, None)
        count = len(unsent) if portion is None else portion
        news = [*changed, *_first(unsent, count)]
        if not unsent:
            del self._unsent[peer]
        return news

    def _pop_held(self) -> tuple[set[NodeId], list[Statement]]:
        """Pop the statements to forward; return the neighbors that sent them, and the list.

        All neighbors receive the same list, so it is encoded only once. A neighbor ignores
        the statements that it sent itself.
        """
        senders, self._held_statements = self._held_statements, {}
        statements = self._diffusion.statements
        held = [statements[node] for node in senders if node in statements]
        return set(senders.values()), held

    def _write(self, content: Content, offers: dict[NodeId, tuple[bytes, bytes]]) -> bytes:
        """Encode an update; ``offers`` has the paths that are encoded already."""
        announced, withdrawn, cuts, statements = content
        for destination in announced:
            if destination not in offers:
                offers[destination] = self._offer(destination)
        offered = [offers[destination] for destination in announced]
        return join_update(
            [vector for vector, _ in offered],
            write_rest(withdrawn, cuts, statements),
            [name for _, name in offered],
        )

    def _choose(self, touched: Iterable[NodeId], changes: Changes) -> list[NodeId]:
        """Choose the best paths to ``touched``; return the destinations whose path changed."""
        changed = []
        for destination in sorted(touched):
            old = self._best.get(destination)
            old_carriers = self.carriers.get(destination, ())
            best, carriers = self._find_best(destination)
            changes.left += [
                (peer, destination) for peer in old_carriers if peer not in carriers
            ]
            if best is None:
                if old is None:
                    if destination not in self.active:  # it was withdrawn before its turn
                        self.names.pop(destination, None)
                    continue
                # First, because other threads must find it in one of the two.
                self.active.add(destination)
                changes.sought.append(destination)
                del self._best[destination], self.next_hops[destination]
                del self.carriers[destination]
            else:
                self.carriers[destination] = carriers
                self._best[destination] = best
                # If a link of the same path was cut and is back, the path is announced again:
                # other nodes refuse it with its old stamps.
                if old is not None and old.path == best.path and not self._is_dead(old):
                    continue
                self.next_hops[destination] = best.path[0]
                is_known = old is not None or destination in self.active
                self.active.discard(destination)
                (changes.moved if is_known else changes.gained).append(destination)
            changed.append(destination)
        return changed

    def _find_best(self, destination: NodeId) -> tuple[PathVector | None, tuple[NodeId, ...]]:
        """Return the best path to a destination, or None, and all carriers."""
        if destination in self._received:
            return PathVector((destination,), (0,)), (destination,)
        paths = [
            vectors[destination]
            for vectors in self._received.values()
            if destination in vectors
        ]
        best = min(paths, key=lambda vector: (len(vector.path), vector.path), default=None)
        if best is None:
            return None, ()
        shortest = len(best.path)
        return best, tuple([path.path[0] for path in paths if len(path.path) == shortest])

    def _compare(
        self, peer: NodeId, known: set[NodeId], changed: Iterable[NodeId]
    ) -> tuple[list[NodeId], list[NodeId]]:
        """Return the destinations to announce and to withdraw; update ``known`` by them."""
        announced: list[NodeId] = []
        withdrawn: list[NodeId] = []
        for destination in changed:
            best = self._best.get(destination)
            # The peer cannot use a path through itself, nor one that is too long.
            if (
                best is None
                or peer in best.path
                or len(best.path) >= PATH_LIMIT
                or (self._leaves and not self.may_see(peer, destination))
            ):
                if destination in known:
                    known.remove(destination)
                    withdrawn.append(destination)
            else:
                known.add(destination)
                announced.append(destination)
        return announced, withdrawn

    def _offer(self, destination: NodeId) -> tuple[bytes, bytes]:
        """Encode our path to a destination, and its name, for all neighbors."""
        best = self._best[destination]
        vector = write_vector((self._self_id, *best.path), (self._stamp, *best.stamps))
        mark = TOOL_MARK if destination in self.tools else ""
        return vector, write_name(mark + self.names.get(destination, ""))


def _parts(
    announced: list[NodeId],
    withdrawn: list[NodeId],
    cuts: list[Cut],
    statements: list[Statement],
) -> Iterator[Content]:
    """Yield the content of an update in parts of limited size; usually it is one part."""
    start, first = 0, 0
    while max(len(announced), len(withdrawn), len(cuts)) > start + _PART:
        end = start + _PART
        yield announced[start:end], withdrawn[start:end], cuts[start:end], []
        start = end
    rest: tuple[list[NodeId], list[NodeId], list[Cut]]
    rest, size = (announced[start:], withdrawn[start:], cuts[start:]), 0
    for index, statement in enumerate(statements):
        size += statement.size
        if size > _PART_IDS and index > first:
            yield *rest, statements[first:index]
            rest, first, size = ([], [], []), index, statement.size
    yield *rest, statements[first:]


def _first(queue: dict[NodeId, None], count: int) -> list[NodeId]:
    """Pop the first ids of a queue."""
    first = list(islice(queue, count))
    for node in first:
        del queue[node]
    return first


def _is_late(vector: PathVector, current: PathVector | None) -> bool:
    """Return whether a vector is older than the current one with the same path."""
    return (
        current is not None
        and current.path == vector.path
        and any(new < old for new, old in zip(vector.stamps, current.stamps, strict=True))
    )
