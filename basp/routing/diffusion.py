"""When is a destination lost for sure? A diffusing computation that all its nodes finish.

A node that loses its last path to a destination becomes *active* for it: a neighbor may have
a path that it did not tell because it led through us, or the news of one is under way. As
in DUAL the question spreads among the nodes without a path, and one with a path ends it by
announcing the path. But one asker that collects replies would not do: several nodes lose
their path at once, and one that answers "none" while it is asking itself says nothing about
what *its* other neighbors are about to answer. So query and reply are one thing here, a
*statement*: "I have no path there, and these are all my neighbors". Statements flood; a node
without a path that reads of another one seeking makes its own. Each node stops by itself,
when the statements are *closed*: they lead from it to neighbors that stated the same, and so
on, and to no other node. No node waits for an answer, so nothing can deadlock.

Closed statements are never wrong: had links led to the destination all the while, the last node
before it would not have stated that it has no path, and each node on the way named the next.
"All the while" begins with the oldest of the statements, or when the network was last at
rest.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from callboard.basp.node_id import NodeId
from callboard.basp.routing import update

#: Statements kept of nodes out of reach, some hundred bytes each; the oldest are dropped. A
#: cluster that heals brings back fewer at once, and a restarted node has another id.
GONE_LIMIT: Final = 4096

#: Statements that are looked at in one search for lost destinations, about.
SEARCH_STEPS: Final = 20_000

#: Node ids in all statements of others, some hundred bytes each; what is more is not kept.
IDS_LIMIT: Final = 1 << 20


class Diffusion:
    """The destinations that one node is active for, and what all nodes stated.

    Attributes:
        active: destinations without a path that are not known to be lost.
        statements: the latest of each node, our own included. Those of lost nodes stay: they
            may come back with the same one, which would not be sent a second time.
    """

    def __init__(self, self_id: NodeId) -> None:
        """Begin with nothing stated and nothing sought."""
        self._self_id = self_id
        self.active: set[NodeId] = set()
        self.statements: dict[NodeId, update.Statement] = {}
        # How many others seek a destination, those out of reach included.
        self._sought: Counter[NodeId] = Counter()
        self._size = 0
        # Where to go on with looking for lost destinations; None when all were looked at.
        self._next: NodeId | None = None

    @property
    def is_behind(self) -> bool:
        """Whether destinations may be lost that were not looked at yet."""
        return self._next is not None

    @property
    def sought_count(self) -> int:
        """How many destinations others seek."""
        return len(self._sought)

    def take(
        self, statements: list[update.Statement], best: Mapping[NodeId, update.PathVector]
    ) -> list[update.Statement]:
        """Keep what is news, and return it, to be sent on."""
        news = []
        for said in statements:
            held = self.statements.get(said.node)
            known = -1 if held is None else held.stamp
            if (
                said.node == self._self_id
                or not known < said.stamp <= known + update.STAMP_LEAP
            ):
                continue
            self._drop(said.node)  # the latest last
            if (
                self._size + said.size > IDS_LIMIT
                or len(self._sought) + len(said.seeking) > update.UPDATE_LIMIT
            ):
                continue  # what it is about is lost when nobody has found it for a while
            self.statements[said.node] = said
            self._sought.update(said.seeking)
            self._size += said.size
            news.append(said)
        excess = len(self.statements) - len(best) - len(self.active) - GONE_LIMIT
        if excess > 0:
            gone = [
                node
                for node in self.statements
                if node != self._self_id and not self._is_near(node, best)
            ]
            for node in gone[:excess]:
                self._drop(node)
        return news

    def _drop(self, node: NodeId) -> None:
        """Forget what another node stated."""
        said = self.statements.pop(node, None)
        self._size -= 0 if said is None else said.size
        for destination in () if said is None else said.seeking:
            self._sought[destination] -= 1
            if not self._sought[destination]:
                del self._sought[destination]

    def is_foreign(self, said: update.Statement) -> bool:
        """Return whether something in our name is not what we stated, or did before."""
        own = self.statements.get(self._self_id)
        return said.node == self._self_id and (
            own is None or (said != own and said.stamp >= own.stamp)
        )

    def restate(
        self,
        best: Mapping[NodeId, update.PathVector],
        neighbors: Collection[NodeId],
        stamp: int,
        *,
        anew: bool = False,
    ) -> update.Statement | None:
        """Return a new statement of our own if the last one does not fit any more, or `anew`.

        It names what others seek only while they do, so that nodes that are gone for good are
        not named for ever. That a path came is not stated: the statements still lead on, as
        far as the last node before the destination, and that one has a new neighbor to state.
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

        # Mostly all that others seek is stated; which of them are in reach takes longer.
        if holds and all(map(is_stated, self._sought.keys() - self.active - {self._self_id})):
            return None
        sought: set[NodeId] = set()
        for node, said in self.statements.items():
            if said.seeking and node != self._self_id and self._is_near(node, best):
                sought |= said.seeking
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
        """Return whether a neighbor still owes an answer about something that we seek.

        Each will, with a path or a statement, or its link ends. Until then nothing that we
        tell can end a search of a node behind us: our statement names that neighbor.
        """
        statements = self.statements
        return any(
            said is None or not (said.lacks(destination) or destination in said.beyond)
            for destination in self.active
            for said in map(statements.get, neighbors)
        )

    def find_lost(self, most: int | None = None) -> list[NodeId]:
        """Return destinations that are lost for sure, and stop seeking them.

        Args:
            most: how many, about; then the next call goes on, and so it is after
                `SEARCH_STEPS`. None for all that there are.
        """
        todo, steps = sorted(self.active), 0
        lost: list[NodeId] = []
        start = 0 if self._next is None else bisect_left(todo, self._next)
        self._next = None
        for destination in todo[start:] + todo[:start]:
            if most is not None and (len(lost) >= most or steps > SEARCH_STEPS):
                self._next = destination
                break
            count = self._nodes_that_lack(destination)
            steps += abs(count)
            if count > 0:
                lost.append(destination)
        self.active.difference_update(lost)
        return lost

    def _nodes_that_lack(self, destination: NodeId) -> int:
        """Return how many statements about a destination are closed; below 0 if they are not.

        It is the number of those that were looked at then.
        """
        reached, todo = {self._self_id}, [self._self_id]
        while todo:
            said = self.statements.get(todo.pop())
            if said is None:
                return -len(reached)
            if said.lacks(destination):
                for node in said.neighbors - reached:
                    if node not in self.statements:
                        # At once: of many neighbors most have not answered yet.
                        return -len(reached)
                    todo.append(node)
                reached |= said.neighbors
            elif destination not in said.beyond:
                return -len(reached)
        return len(reached)

    def _is_near(self, node: NodeId, best: Mapping[NodeId, update.PathVector]) -> bool:
        """Return whether ``node`` may wait for a statement of ours."""
        return node in best or node in self.active


def _is_far(vector: update.PathVector) -> bool:
    """Return whether a path is too long to be told on."""
    return len(vector.path) >= update.PATH_LIMIT
