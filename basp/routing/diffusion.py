"""Detection of lost destinations: a diffusing computation that every node ends for itself.

A node that loses its last path to a destination becomes *active* for it. A neighbor may still
have a path: one that it did not announce because it led through us, or one whose announcement
has not arrived yet. As in DUAL, the search spreads among the nodes without a path, and a node
with a path ends it by announcing the path. It would not suffice that one node collects replies:
several nodes lose their path at the same time, and a reply "no path" from a node that is still
searching says nothing about the replies of *its* other neighbors. Therefore query and reply are
the same here, a *statement*: "I have no path there, and these are all my neighbors". Statements
are flooded, and a node without a path makes its own when it receives one. Each node ends its
search when the statements are *closed*: starting from this node, every neighbor that a
statement names has stated the same. No node waits for a reply, so there is no deadlock.

Closed statements are never wrong. Suppose that links led to the destination all the time. Then
the last node before it would not have stated that it has no path, and each node on the path
would have named the next one. "All the time" starts with the oldest of the statements, or when
the network was last at rest.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from callboard.basp.node_id import NodeId
from callboard.basp.routing import update

#: Statements of unreachable nodes that are kept, some hundred bytes each; the oldest are
#: dropped. Fewer nodes return when a cluster heals, and a restarted node has another id.
GONE_LIMIT: Final = 4096

#: Statements that one search for lost destinations visits, approximately.
SEARCH_STEPS: Final = 20_000

#: Node ids in all statements of other nodes, some hundred bytes each; more are not kept.
IDS_LIMIT: Final = 1 << 20


class Diffusion:
    """The destinations for which one node is active, and the statements of all nodes.

    Attributes:
        active: destinations without a path that are not known to be lost.
        statements: the latest statement of each node, including this one. Statements of lost
            nodes are kept: such a node may return with the same statement, and its neighbors
            would not send this a second time.
    """

    def __init__(self, self_id: NodeId) -> None:
        """Start without statements."""
        self._self_id = self_id
        self.active: set[NodeId] = set()
        self.statements: dict[NodeId, update.Statement] = {}
        # Number of other nodes that seek a destination, including unreachable nodes.
        self._sought: Counter[NodeId] = Counter()
        self._size = 0
        # Destination at which the next search continues; None if all were searched.
        self._next: NodeId | None = None

    @property
    def is_behind(self) -> bool:
        """Whether some destinations have not been searched since the last change."""
        return self._next is not None

    @property
    def sought_count(self) -> int:
        """Number of destinations that other nodes seek."""
        return len(self._sought)

    def record(
        self, statements: list[update.Statement], best: Mapping[NodeId, update.PathVector]
    ) -> list[update.Statement]:
        """Record new statements; return them, to be forwarded."""
        news = []
        for statement in statements:
            latest = self.statements.get(statement.node)
            stamp = -1 if latest is None else latest.stamp
            if (
                statement.node == self._self_id
                or not stamp < statement.stamp <= stamp + update.STAMP_LEAP
            ):
                continue
            self._drop(statement.node)  # so that the latest one is the last in the dict
            if (
                self._size + statement.size > IDS_LIMIT
                or len(self._sought) + len(statement.seeking) > update.UPDATE_LIMIT
            ):
                continue  # its destinations will be lost by the driver's time limit instead
            self.statements[statement.node] = statement
            self._sought.update(statement.seeking)
            self._size += statement.size
            news.append(statement)
        excess = len(self.statements) - len(best) - len(self.active) - GONE_LIMIT
        if excess > 0:
            unreachable = [
                node
                for node in self.statements
                if node != self._self_id and not self._is_near(node, best)
            ]
            for node in unreachable[:excess]:
                self._drop(node)
        return news

    def _drop(self, node: NodeId) -> None:
        """Forget the statement of another node."""
        statement = self.statements.pop(node, None)
        if statement is None:
            return
        self._size -= statement.size
        for destination in statement.seeking:
            self._sought[destination] -= 1
            if not self._sought[destination]:
                del self._sought[destination]

    def is_forged(self, statement: update.Statement) -> bool:
        """Return whether a statement in our name is neither our latest one nor an older one."""
        own = self.statements.get(self._self_id)
        return statement.node == self._self_id and (
            own is None or (statement != own and statement.stamp >= own.stamp)
        )

    def restate(
        self,
        best: Mapping[NodeId, update.PathVector],
        neighbors: Collection[NodeId],
        stamp: int,
        *,
        anew: bool = False,
    ) -> update.Statement | None:
        """Return a new own statement if the last one is outdated, or `anew` is set.

        It names destinations of other nodes only while these seek them, so nodes that never
        return are not named forever. A new path is not a reason for a statement: the old
        statements still lead to the last node before the destination, and this node states
        its new neighbor.
        """
        if not (self.active or self.statements or anew):
            return None
        own = self.statements.get(self._self_id) or update.Statement(self._self_id, 0)
        lacked = own.seeking | own.missing
        misleads = any(node not in best or not _is_far(best[node]) for node in own.beyond) or (
            bool(lacked or own.beyond) and own.neighbors != set(neighbors)
        )
        holds = not (misleads or anew) and self.active <= own.seeking

        def is_stated(node: NodeId) -> bool:
            if node not in best:
                return node in lacked
            return not _is_far(best[node]) or node in own.beyond

        # Fast check first: usually all destinations of other nodes are stated. Only the slow
        # check below excludes destinations of nodes that are out of reach.
        if holds and all(map(is_stated, self._sought.keys() - self.active - {self._self_id})):
            return None
        sought: set[NodeId] = set()
        for node, statement in self.statements.items():
            if statement.seeking and node != self._self_id and self._is_near(node, best):
                sought |= statement.seeking
        sought -= self.active
        sought.discard(self._self_id)
        if holds and all(map(is_stated, sought)):
            return None
        missing = frozenset(sought - best.keys())
        beyond = frozenset(node for node in sought & best.keys() if _is_far(best[node]))
        own = update.Statement(
            self._self_id, stamp, frozenset(neighbors), frozenset(self.active), missing, beyond
        )
        self.statements[self._self_id] = own
        return own

    def awaits(self, neighbors: Collection[NodeId]) -> bool:
        """Return whether a neighbor has still to answer about a destination that is sought.

        Each neighbor answers with a path or a statement, or its link ends. Until all have
        answered, other nodes cannot conclude from the statement of this node that no path
        exists.
        """
        statements = self.statements
        return any(
            statement is None
            or not (statement.lacks(destination) or destination in statement.beyond)
            for destination in self.active
            for statement in map(statements.get, neighbors)
        )

    def find_lost(self, limit: int | None = None) -> list[NodeId]:
        """Return destinations that are lost for sure, and stop seeking them.

        Args:
            limit: approximate number of destinations. The search pauses there and after
                `SEARCH_STEPS`, and the next call continues it. None returns all.
        """
        todo, steps = sorted(self.active), 0
        lost: list[NodeId] = []
        start = 0 if self._next is None else bisect_left(todo, self._next)
        self._next = None
        for destination in todo[start:] + todo[:start]:
            if limit is not None and (len(lost) >= limit or steps > SEARCH_STEPS):
                self._next = destination
                break
            count = self._nodes_that_lack(destination)
            steps += abs(count)
            if count > 0:
                lost.append(destination)
        self.active.difference_update(lost)
        return lost

    def _nodes_that_lack(self, destination: NodeId) -> int:
        """Return the number of closed statements about a destination.

        If the statements are not closed, the result is negative: the number of visited ones.
        """
        reached, todo = {self._self_id}, [self._self_id]
        while todo:
            statement = self.statements.get(todo.pop())
            if statement is None:
                return -len(reached)
            if statement.lacks(destination):
                for node in statement.neighbors - reached:
                    if node not in self.statements:
                        # Return at once: a hub has many neighbors that have not answered yet.
                        return -len(reached)
                    todo.append(node)
                reached |= statement.neighbors
            elif destination not in statement.beyond:
                return -len(reached)
        return len(reached)

    def _is_near(self, node: NodeId, best: Mapping[NodeId, update.PathVector]) -> bool:
        """Return whether a statement of ours may matter to ``node``."""
        return node in best or node in self.active


def _is_far(vector: update.PathVector) -> bool:
    """Return whether a path is too long to be announced."""
    return len(vector.path) >= update.PATH_LIMIT
