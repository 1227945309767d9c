"""Which neighbor leads to which node: path vectors, shortest path, no loops.

Each node tells its neighbors the best path it has to every other node, the whole path, so
no node takes one that leads through itself. Of several paths the shortest wins, of equally
long ones the smallest in the order of node ids: all nodes that know the same choose the
same. A better path and the loss of a path travel as increments, in order on each link; a
fresh link begins with the whole table. The number of paths is finite and no node accepts its
own id, so nothing counts to infinity, and after the last change every node has the shortest
paths that exist (up to ``PATH_LIMIT`` nodes).

Vector timestamps (see :mod:`callboard.basp.routing.update`): a vector that repeats the held
path with an older stamp of any node came late and is ignored. So is one with a link that its
node has cut since: the cut itself travels to everybody, or each node would try all the dead
paths of its neighbors, one after the other, before it believes that there is none. Soon nobody
tells such a path any more; if somebody does, then the cut was not true, and the path holds.

A node without any path is *active* for the destination until a path comes or it is lost for
sure, see :mod:`callboard.basp.routing.diffusion`. What others state goes on to the neighbors
together, when the last of them has answered, or with the next update of our own: a hub would
send each statement to each neighbor otherwise.

A neighbor may be a *leaf*: a stub that speaks for itself only. Of what it states nothing counts
but what it seeks, and that search ends here at once. It is told of the nodes that it may reach,
by patterns of their names, and others are told of it only if there are such nodes.

What neighbors tell is noted at once, and concluded on in portions: the best paths, what the
others are told, which nodes are lost. :meth:`Router.conclude` takes as much of each neighbor.
What one takes back before its turn costs nothing more.
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

#: What the name of a tool begins with on the wire. Nodes of the release before take it for no
#: name, and ask the tool.
TOOL_MARK: Final = "\0"

# Paths, withdrawals and cuts of each kind in one update, and node ids in its statements: what a
# node tells on must never be more than its neighbors take, whatever it was told.
_PART: Final = 512
_PART_IDS: Final = 8_192

#: Nodes that a router knows; what neighbors tell of further ones is not kept.
NODES_LIMIT: Final = 16_384

#: Destinations whose conclusions a node draws at once: some milliseconds.
PORTION: Final = 128

# Paths that are told at once, to all neighbors together, at least.
_TOLD_AT_ONCE: Final = 16_384
_LEAST_PORTION: Final = 8

# Cuts to remember, the latest. They only save detours, so none is needed for long.
_CUT_LIMIT: Final = 4096

#: Of an update: what is announced and withdrawn, cuts, and what is stated.
Content = tuple[list[NodeId], list[NodeId], list[Cut], list[Statement]]


@dataclass(slots=True)
class Changes:
    """What follows from one event, for the driver to carry out in this order.

    Attributes:
        lost: nodes that no path leads to any more, for sure.
        moved: nodes whose path changed anywhere between here and there, or came back while
            we were active for them (even the same: others on it may have had none either).
        gained: nodes that a path leads to again or for the first time.
        left: neighbors, and the nodes that they do not carry for any more.
        sought: nodes that the router has become active for.
        updates: neighbor and payload of the ``routing_update`` frames to send, one for
            each neighbor, or several in their order where there is much to tell.
        work: what it took, about, in conclusions for one destination.
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
        carriers: all neighbors with as short a path, by destination: whatever way that node
            chose, the last one before us is among them, unless it knows of a change first.
        names: what nodes call themselves, as far as neighbors told; told on with the paths.
            The driver adds neighbors before :meth:`add_peer`, and drops those it forgets.
        active: destinations that have no path now and may get one, or will be lost.
        cuts_kept: how many cuts were news so far; the driver gives it back to
            :meth:`forget_cuts` when nobody can be ignorant of them any more.
    """

    def __init__(self, self_id: NodeId, portion: int | None = None) -> None:
        """Make a router without neighbors.

        Args:
            self_id: the node that it is of.
            portion: destinations whose conclusions are drawn at once; None for all.
        """
        self._self_id = self_id
        self._whole_portion = portion
        # Raised with each change of our own links and each statement.
        self._stamp = 0
        # What each neighbor told us; its keys are the neighbors.
        self._heard: dict[NodeId, dict[NodeId, PathVector]] = {}
        # Destinations of the paths that each neighbor holds from us.
        self._told: dict[NodeId, set[NodeId]] = {}
        # Best paths, from the neighbor to the destination.
        self._best: dict[NodeId, PathVector] = {}
        self.next_hops: dict[bytes, NodeId] = {}
        self.carriers: dict[bytes, tuple[NodeId, ...]] = {}
        self.names: dict[bytes, str] = {}
        #: Nodes that only look and ask; the driver adds neighbors, as with names.
        self.tools: set[bytes] = set()
        # Neighbors that are leaves: patterns of names that each may reach, and what it seeks.
        self._leaves: dict[NodeId, tuple[str, ...]] = {}
        self._sought: dict[NodeId, frozenset[NodeId]] = {}
        # What each neighbor told us of paths with a link that was cut since.
        self._refused: dict[NodeId, dict[NodeId, PathVector]] = {}
        # Stamp since which a node has no link to another, the latest cut last, and its number.
        self._cuts: dict[tuple[NodeId, NodeId], int] = {}
        self._cut_numbers: dict[tuple[NodeId, NodeId], int] = {}
        self.cuts_kept = 0
        self._diffusion = Diffusion(self_id)
        # Whose statements were not sent on yet, and the neighbor that told each.
        self._held: dict[NodeId, NodeId] = {}
        # So with cuts, and whether paths may be dead by them that are not dropped yet.
        self._held_cuts: dict[tuple[NodeId, NodeId], tuple[Cut, NodeId]] = {}
        self._may_be_dead = False
        # Whether a neighbor told something since the last conclusions.
        self._is_noted = False
        # Destinations to conclude on, by the neighbor that told something, or this node.
        self._pending: dict[NodeId, dict[NodeId, None]] = {}
        # What neighbors that are new are still to be told.
        self._untold: dict[NodeId, dict[NodeId, None]] = {}
        # Destinations whose paths are to be told again as somebody spoke in our name.
        self._denied: set[NodeId] | None = None
        self.active: set[NodeId] = self._diffusion.active

    @property
    def reachable(self) -> frozenset[NodeId]:
        """All nodes that a path leads to, without this one."""
        return frozenset(self._best)

    def path(self, destination: NodeId) -> tuple[NodeId, ...]:
        """Return the nodes from the next hop to ``destination``, both included, or ()."""
        vector = self._best.get(destination)
        return () if vector is None else vector.path

    def may_see(self, peer: NodeId, destination: NodeId) -> bool:
        """Return whether a neighbor may hear of a node: leaves and members do not of all."""
        reach = self._leaves.get(peer)
        if reach is None:
            return self._leaves.get(destination) != ()
        name = self.names.get(destination, "")
        return destination not in self._leaves and any(
            fnmatchcase(name, pattern) for pattern in reach
        )

    def _members(self) -> Collection[NodeId]:
        """Return the neighbors that carry for others."""
        return self._heard.keys() - self._leaves.keys() if self._leaves else self._heard.keys()

    def add_peer(self, peer: NodeId, reach: Collection[str] | None = None) -> Changes:
        """Take note of a link that is established; the peer gets the whole table.

        Args:
            peer: the neighbor.
            reach: for a leaf: patterns of the names of the nodes that it may reach.

        Raises:
            LocalProtocolError: the peer is this node, or has a link already.
        """
        if peer == self._self_id or peer in self._heard:
            msg = f"node {node_id_text(peer)} is this node or already a neighbor"
            raise LocalProtocolError(msg)
        self._stamp += 1
        if reach is not None:
            self._leaves[peer] = tuple(reach)
        self._heard[peer], self._refused[peer], self._told[peer] = {}, {}, set()
        self._untold[peer] = dict.fromkeys([*self._best, peer])
        changes = Changes()
        self._finish({peer}, changes, fresh=peer)
        return changes

    def remove_peer(self, peer: NodeId) -> Changes:
        """Take note of a link that ended; does nothing for a node that is not a neighbor."""
        changes = Changes()
        heard = self._heard.pop(peer, None)
        if heard is None:
            return changes
        del self._told[peer], self._refused[peer]
        self._sought.pop(peer, None)
        self._untold.pop(peer, None)
        pending = self._pending.pop(peer, {})
        if self._leaves.pop(peer, None) == () and self._find_best(peer)[0] is None:
            # Nobody else has heard of it, so nobody has to be asked.
            del self._best[peer], self.next_hops[peer], self.carriers[peer]
            changes.lost.append(peer)
            changes.left.append((peer, peer))
            return changes
        self._stamp += 1
        self._hold_cuts([Cut(self._self_id, peer, self._stamp)], self._self_id)
        self._finish({peer, *heard, *pending}, changes)
        return changes

    def give_up(self, destinations: Iterable[NodeId]) -> Changes:
        """Hold nodes for lost that were sought for long, whatever others state."""
        lost = [destination for destination in destinations if destination in self.active]
        self.active.difference_update(lost)
        return Changes(lost=lost)

    def close(self) -> Changes:
        """Take note that all links end now, without telling: each neighbor sees its own end."""
        touched = {*self._heard, *self._best}
        self._heard.clear()
        self._refused.clear()
        self._told.clear()
        self._leaves.clear()
        self._sought.clear()
        self._pending.clear()
        self._untold.clear()
        self._is_noted = False
        self._whole_portion = None
        changes = Changes()
        self._finish(touched, changes)
        return changes

    def receive(self, peer: NodeId, payload: bytes) -> Changes:
        """Take a ``routing_update``, and draw a portion of conclusions.

        Raises:
            MalformedPayload: the payload breaks the layout, or names too many nodes.
        """
        self.take(peer, read_update(peer, payload))
        return self.conclude()

    def take(self, peer: NodeId, update: Update) -> None:
        """Note what a neighbor tells; that of a node that is no neighbor is ignored.

        Raises:
            MalformedPayload: it named too many nodes.
        """
        heard, refused = self._heard.get(peer), self._refused.get(peer, {})
        if heard is None:
            return
        self._is_noted = True
        if peer in self._leaves:
            self._sought.update(
                (peer, said.seeking) for said in update.statements if said.node == peer
            )
            return
        foreign = self._take_denials(update)
        if foreign is not None:
            self._denied = foreign | (self._denied or set())
        self._hold_cuts([cut for cut in update.cuts if self._may_tell(peer, cut.node)], peer)
        touched = self._note_paths(peer, update, heard, refused)
        if touched:
            self._pending[peer] = touched
        if len(heard) + len(refused) > UPDATE_LIMIT:
            msg = f"node {node_id_text(peer)} announced more than {UPDATE_LIMIT:,} nodes"
            raise MalformedPayload(msg)
        news = self._diffusion.take(update.statements, self._best)
        self._held.update((said.node, peer) for said in news)

    def _note_paths(
        self,
        peer: NodeId,
        update: Update,
        heard: dict[NodeId, PathVector],
        refused: dict[NodeId, PathVector],
    ) -> dict[NodeId, None]:
        """Note paths that a neighbor announces or withdraws; return what to conclude on."""
        touched: dict[NodeId, None] = self._pending.pop(peer, {})
        for destination in update.withdrawn:
            if heard.pop(destination, None) or refused.pop(destination, None):
                touched[destination] = None
        room = NODES_LIMIT - len(self._best) - len(self.active)
        room -= sum(map(len, self._pending.values())) + len(touched)
        for vector, name in zip(update.announced, update.names, strict=True):
            destination = vector.path[-1]
            is_known = destination in self._best or destination in self.active
            is_new = not is_known and destination not in touched
            room -= is_new  # several neighbors together may tell of more than we can tell on
            held = heard.get(destination) or refused.get(destination)
            if destination == peer or _is_late(vector, held) or (is_new and room < 0):
                continue
            touched[destination] = None
            heard.pop(destination, None)
            refused.pop(destination, None)
            if self._self_id in vector.path:
                continue
            if self._is_dead(vector):
                refused[destination] = vector
            else:
                heard[destination] = vector
                self._take_name(destination, name)
        return touched

    @property
    def is_behind(self) -> bool:
        """Whether conclusions are to be drawn."""
        return bool(
            self._is_noted or self._pending or self._untold or self._diffusion.is_behind
        )

    def conclude(self) -> Changes:
        """Draw a portion of conclusions from what neighbors told."""
        changes = Changes()
        self._is_noted = False
        if self._may_be_dead:
            self._may_be_dead = False
            changes.work += sum(map(len, self._heard.values())) / 64
            dead = self._drop_dead()
            if dead:
                self._pending.setdefault(self._self_id, {}).update(dict.fromkeys(sorted(dead)))
        self._finish(self._next_pending(), changes)
        return changes

    @property
    def _portion(self) -> int | None:
        """Destinations to conclude on at once: fewer, where many neighbors are told."""
        most = self._whole_portion
        if most is None:
            return None
        return min(most, max(_LEAST_PORTION, _TOLD_AT_ONCE // (len(self._told) or 1)))

    def _next_pending(self) -> set[NodeId]:
        """Take out destinations to conclude on, as many of each neighbor."""
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
                pending[peer] = queue  # behind the others
        return touched

    def _take_name(self, node: NodeId, name: str) -> None:
        """Note what a node is called, and whether it is a tool."""
        if name.startswith(TOOL_MARK):
            self.tools.add(node)
            name = name.removeprefix(TOOL_MARK)
        if name and name.isprintable():
            self.names.setdefault(node, name)

    def _answer(self, leaf: NodeId) -> list[Statement]:
        """Return what ends a leaf's search for what we do not seek ourselves on its behalf."""
        told, sought = self._told[leaf], self._sought.get(leaf, frozenset())
        missing = frozenset(
            node
            for node in sought - told
            if node not in self.active or not self.may_see(leaf, node)
        )
        self._sought[leaf] = sought - missing - told
        if not missing:
            return []
        self._stamp += 1
        return [Statement(self._self_id, self._stamp, frozenset({leaf}), missing=missing)]

    def _answer_leaves(self, changes: Changes) -> None:
        """End the searches of leaves where nothing else is to be told."""
        for leaf in self._leaves:
            said = self._answer(leaf)
            if said:
                changes.updates.append((leaf, self._write(([], [], [], said), {})))

    def forget_cuts(self, number: int) -> Changes:
        """Hold the cuts up to a number against no path that a neighbor still tells."""
        while self._cut_numbers and next(iter(self._cut_numbers.values())) <= number:
            self._drop_cut(next(iter(self._cut_numbers)))
        touched: set[NodeId] = set()
        for peer, refused in self._refused.items():
            alive = {d: vector for d, vector in refused.items() if not self._is_dead(vector)}
            self._heard[peer] |= alive
            self._refused[peer] = {d: refused[d] for d in refused.keys() - alive.keys()}
            touched |= alive.keys()
        if touched:
            self._pending.setdefault(self._self_id, {}).update(dict.fromkeys(sorted(touched)))
        return self.conclude() if touched else Changes()

    def _may_tell(self, peer: NodeId, node: NodeId) -> bool:
        """Return whether a neighbor carries for a node, or nobody does."""
        return node != self._self_id and peer in self.carriers.get(node, (peer,))

    def _take_denials(self, update: Update) -> set[NodeId] | None:
        """Find what is said in our name and is not ours; None when there is nothing.

        Returns the destinations whose paths are to be told again, with a newer stamp.
        """
        me, best = self._self_id, self._best
        foreign: list[Cut | Statement] = [
            cut
            for cut in update.cuts
            if cut.node == me and cut.stamp > self._cuts.get((me, cut.neighbor), -1)
        ]
        ends = {cut.neighbor for cut in foreign if isinstance(cut, Cut)}
        foreign += [said for said in update.statements if self._diffusion.is_foreign(said)]
        stamps = [said.stamp for said in foreign if said.stamp <= self._stamp + STAMP_LEAP]
        if not stamps:
            return None
        self._stamp = max(self._stamp, *stamps) + 1
        return {destination for destination in best if best[destination].path[0] in ends}

    def _hold_cuts(self, cuts: list[Cut], source: NodeId) -> None:
        """Remember what is news, to be sent on."""
        for cut in cuts:
            link = (cut.node, cut.neighbor)
            if self._cuts.get(link, -1) < cut.stamp:
                self._drop_cut(link)
                self.cuts_kept += 1
                self._cuts[link], self._cut_numbers[link] = cut.stamp, self.cuts_kept
                self._held_cuts[link] = cut, source
                self._may_be_dead |= source != self._self_id  # our own heard paths are gone
        while len(self._cuts) > _CUT_LIMIT:
            self._drop_cut(next(iter(self._cuts)))

    def _drop_cut(self, link: tuple[NodeId, NodeId]) -> None:
        """Forget a cut."""
        self._cuts.pop(link, None)
        self._cut_numbers.pop(link, None)

    def _drop_dead(self) -> set[NodeId]:
        """Forget what neighbors told before they knew of a cut; return the destinations."""
        touched = set()
        for peer, heard in self._heard.items():
            for destination in [d for d, vector in heard.items() if self._is_dead(vector)]:
                self._refused[peer][destination] = heard.pop(destination)
                touched.add(destination)
        return touched

    def _is_dead(self, vector: PathVector) -> bool:
        """Return whether a path has a link that was cut since."""
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
        """Draw all conclusions; what a neighbor told goes on to the other ones.

        A `fresh` neighbor gets all statements, and what is untold bit by bit.
        """
        changed = self._choose(touched, changes)
        denied, self._denied = self._denied, None
        changed += sorted((denied or set()).difference(changed))
        diffusion = self._diffusion
        own = diffusion.restate(
            self._best, self._members(), self._stamp + 1, anew=denied is not None
        )
        if own is not None:
            self._stamp += 1
        changes.lost += diffusion.find_lost(self._portion)
        changes.work += 4 + (len(changed) + len(changes.lost)) * (1 + len(self._told) / 128)
        changes.work += (len(self.active) + diffusion.sought_count) / 256
        is_nothing_else = not (changed or own or self._held_cuts or self._untold)
        if is_nothing_else and diffusion.awaits(self._members()):
            self._answer_leaves(changes)
            return
        sources, relayed = self._release_held()
        cuts, self._held_cuts = list(self._held_cuts.values()), {}
        offers: dict[NodeId, tuple[bytes, bytes]] = {}  # the same for all neighbors
        written: tuple[tuple[list[Any], ...], list[bytes]] = (), []
        for peer, told in self._told.items():
            news = changed if peer not in self._untold else self._next_untold(peer, changed)
            announced, withdrawn = self._compare(peer, told, news)
            if peer == fresh:
                said = list(diffusion.statements.values())
            else:
                said = [] if own is None else [own]
                said += relayed if sources - {peer} else []
            passed_on = [cut for cut, source in cuts if source != peer != fresh]
            if peer in self._leaves:
                passed_on, said = [], self._answer(peer)
            content = announced, withdrawn, passed_on, said
            if not any(content):
                continue
            if content != written[0]:
                written = content, [self._write(part, offers) for part in _parts(*content)]
            changes.updates += [(peer, payload) for payload in written[1]]
        changes.work += len(offers)

    def _next_untold(self, peer: NodeId, changed: list[NodeId]) -> list[NodeId]:
        """Return what a neighbor is told that is new: what changed, and some of the rest."""
        untold, portion = self._untold[peer], self._portion
        for destination in changed:
            untold.pop(destination, None)
        news = [*changed, *_first(untold, len(untold) if portion is None else portion)]
        if not untold:
            del self._untold[peer]
        return news

    def _release_held(self) -> tuple[set[NodeId], list[Statement]]:
        """Return what others stated, to be sent on now, and the neighbors that told it.

        All neighbors get the same, which is written once; one that told a part of it knows.
        """
        held, self._held = self._held, {}
        statements = self._diffusion.statements
        return set(held.values()), [statements[node] for node in held if node in statements]

    def _write(self, content: Content, offers: dict[NodeId, tuple[bytes, bytes]]) -> bytes:
        """Write an update; paths that were written for another neighbor are in ``offers``."""
        announced, withdrawn, cuts, said = content
        for destination in announced:
            if destination not in offers:
                offers[destination] = self._offer(destination)
        offered = [offers[destination] for destination in announced]
        return join_update(
            [vector for vector, _ in offered],
            write_rest(withdrawn, cuts, said),
            [name for _, name in offered],
        )

    def _choose(self, touched: Iterable[NodeId], changes: Changes) -> list[NodeId]:
        """Choose the best paths of ``touched`` anew; return those that changed."""
        changed = []
        for destination in sorted(touched):
            held = self._best.get(destination)
            before = self.carriers.get(destination, ())
            best, carriers = self._find_best(destination)
            changes.left += [(peer, destination) for peer in before if peer not in carriers]
            if best is None:
                if held is None:
                    if destination not in self.active:  # it was taken back before its turn
                        self.names.pop(destination, None)
                    continue
                self.active.add(destination)  # first: no reader sees it in neither
                changes.sought.append(destination)
                del self._best[destination], self.next_hops[destination]
                del self.carriers[destination]
            else:
                self.carriers[destination] = carriers
                self._best[destination] = best
                if held is not None and held.path == best.path and not self._is_dead(held):
                    continue  # or a link of it was cut and is back: others wait for that
                self.next_hops[destination] = best.path[0]
                is_known = held is not None or destination in self.active
                self.active.discard(destination)
                (changes.moved if is_known else changes.gained).append(destination)
            changed.append(destination)
        return changed

    def _find_best(self, destination: NodeId) -> tuple[PathVector | None, tuple[NodeId, ...]]:
        """Return the best path to a destination, None without any, and all carriers."""
        if destination in self._heard:
            return PathVector((destination,), (0,)), (destination,)
        found = [
            vectors[destination] for vectors in self._heard.values() if destination in vectors
        ]
        best = min(found, key=lambda vector: (len(vector.path), vector.path), default=None)
        if best is None:
            return None, ()
        shortest = len(best.path)
        return best, tuple([one.path[0] for one in found if len(one.path) == shortest])

    def _compare(
        self, peer: NodeId, told: set[NodeId], changed: Iterable[NodeId]
    ) -> tuple[list[NodeId], list[NodeId]]:
        """Return what to announce to ``peer`` and what to withdraw, and note it as told."""
        announced: list[NodeId] = []
        withdrawn: list[NodeId] = []
        for destination in changed:
            best = self._best.get(destination)
            # Paths through the peer itself, and too long ones, are of no use to it.
            if (
                best is None
                or peer in best.path
                or len(best.path) >= PATH_LIMIT
                or (self._leaves and not self.may_see(peer, destination))
            ):
                if destination in told:
                    told.remove(destination)
                    withdrawn.append(destination)
            else:
                told.add(destination)
                announced.append(destination)
        return announced, withdrawn

    def _offer(self, destination: NodeId) -> tuple[bytes, bytes]:
        """Write our path to a destination, and its name, for all neighbors."""
        best = self._best[destination]
        vector = write_vector((self._self_id, *best.path), (self._stamp, *best.stamps))
        mark = TOOL_MARK if destination in self.tools else ""
        return vector, write_name(mark + self.names.get(destination, ""))


def _parts(
    announced: list[NodeId], withdrawn: list[NodeId], cuts: list[Cut], said: list[Statement]
) -> Iterator[Content]:
    """Give the content of an update in parts of moderate size, mostly in one."""
    at, first = 0, 0
    while max(len(announced), len(withdrawn), len(cuts)) > at + _PART:
        end = at + _PART
        yield announced[at:end], withdrawn[at:end], cuts[at:end], []
        at = end
    rest: tuple[list[NodeId], list[NodeId], list[Cut]]
    rest, size = (announced[at:], withdrawn[at:], cuts[at:]), 0
    for index, each in enumerate(said):
        size += each.size
        if size > _PART_IDS and index > first:
            yield *rest, said[first:index]
            rest, first, size = ([], [], []), index, each.size
    yield *rest, said[first:]


def _first(queue: dict[NodeId, None], count: int) -> list[NodeId]:
    """Take the first ids out of a queue."""
    first = list(islice(queue, count))
    for node in first:
        del queue[node]
    return first


def _is_late(vector: PathVector, held: PathVector | None) -> bool:
    """Return whether a vector is older than the one held, on the same path."""
    return (
        held is not None
        and held.path == vector.path
        and any(new < old for new, old in zip(vector.stamps, held.stamps, strict=True))
    )
