"""Who wants to know that a journal has grown, and who tells them.

A host knows from its commits. It tells the journals of its own node, and those of other nodes
that asked it to within `FORGOTTEN` seconds. Journals look by themselves as well, since some
host may be out of reach.
"""

from collections.abc import Callable
from typing import Any, Final

from callboard.entity.machine.table import Table
from callboard.entity.messages import EntityTable, FollowJournal, JournalGrew
from callboard.kernel.context import NodeContext
from callboard.kernel.reply import Future
from callboard.kernel.topology import ENTITIES
from callboard.lease.errors import StateCorrupt, StateVersion

#: Seconds between requests to be told, and after which a host forgets the last one.
RENEWAL: Final = 2.0
FORGOTTEN: Final = 3 * RENEWAL

#: Seconds for which a host gathers what it tells other nodes.
GATHERING: Final = 0.005

#: Nodes that a host tells at most: others look by themselves.
NODES_LIMIT: Final = 1_000


class JournalGrowth:
    """What a node knows of journals that grow. Everything happens on its thread."""

    def __init__(self, runtime: NodeContext, others: Callable[[], Any]) -> None:
        """Know nothing yet.

        Args:
            runtime: of the node.
            others: returns the nodes in reach.
        """
        self._runtime, self._others = runtime, others
        #: Those who wait for the next event, by type.
        self._waiting: dict[str, set[Future[None]]] = {}
        #: How many journals of this node are followed, by type.
        self._followed: dict[str, int] = {}
        #: The members that were told of last, by type.
        self._members: dict[str, set[bytes]] = {}
        #: Nodes that follow a type which this node hosts, and until when.
        self._nodes: dict[str, dict[bytes, float]] = {}
        #: Positions that other nodes have yet to be told, by type.
        self._untold: dict[str, int] = {}

    # --- as one that follows ---

    def next(self, name: str) -> Future[None]:
        """Return a future that is done when the journal of a type grows, from now on."""
        future: Future[None] = Future()
        self._waiting.setdefault(name, set()).add(future)
        return future

    def forget(self, name: str, future: Future[None]) -> None:
        """Wait no more."""
        self._waiting.get(name, set()).discard(future)

    def wake(self, name: str) -> None:
        """Let all go on that wait for a journal."""
        for future in self._waiting.pop(name, ()):
            future.set_result(None)

    def follow(self, name: str) -> None:
        """Ask the hosts of a type to tell, until `leave`."""
        count = self._followed[name] = self._followed.get(name, 0) + 1
        if count == 1:
            self._renew(name)

    def leave(self, name: str) -> None:
        """Follow a type no more."""
        self._followed[name] -= 1

    def _renew(self, name: str) -> None:
        """Ask the members of a type, or else all nodes in reach."""
        if not self._followed.get(name) or self._runtime.is_closed:
            self._followed.pop(name, None)
            return
        own = self._runtime.node_id
        others = set(self._others())
        for node in sorted((self._members.get(name, set()) & others or others) - {own}):
            asked: Future[Any] = self._runtime.ref_of(node, ENTITIES).ask(
                FollowJournal(name), timeout=RENEWAL
            )
            asked.add_done_callback(lambda answer: self._runtime.post(self._answered, answer))
        self._runtime.call_later(RENEWAL, self._renew, name)

    def _answered(self, answer: Future[Any]) -> None:
        """Take note of the members of a type, and that what came before was not told."""
        table = None if answer.exception() is not None else answer.result()
        if not isinstance(table, EntityTable) or not table.is_sound:
            return
        try:
            members = Table.read(table.text).members.values()
            self._members[table.type_name] = {bytes.fromhex(each.node) for each in members}
        except (StateCorrupt, StateVersion):
            return
        self.wake(table.type_name)

    # --- as one that hosts ---

    def add(self, name: str, node: bytes) -> None:
        """Tell a node of a type's growth for a while."""
        nodes = self._nodes.setdefault(name, {})
        if node in nodes or len(nodes) < NODES_LIMIT:
            nodes[node] = self._runtime.now() + FORGOTTEN

    def grew(self, name: str, position: int) -> None:
        """A commit of this node has given a type events up to a position."""
        if name in self._waiting:
            self.wake(name)
        if self._nodes.get(name):
            if name not in self._untold:
                self._runtime.call_later(GATHERING, self._tell, name)
            self._untold[name] = position

    def _tell(self, name: str) -> None:
        """Tell the nodes that follow a type."""
        told, now = JournalGrew(name, self._untold.pop(name)), self._runtime.now()
        nodes = self._nodes[name]
        for node, until in list(nodes.items()):
            if until < now:
                del nodes[node]
            elif self._runtime.is_reachable(node):
                self._runtime.ref_of(node, ENTITIES).tell(told)
