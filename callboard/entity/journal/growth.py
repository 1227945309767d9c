"""Notifications that a journal has grown.

A host notices growth by its own commits. It notifies the journals of its own node, and other
nodes that have requested this within the last `EXPIRY_SECONDS`. Followed journals poll the
state as well, because a host may be unreachable.
"""

from collections.abc import Callable
from typing import Any, Final

from callboard.entity.machine.table import Table
from callboard.entity.messages import EntityTable, FollowJournal, JournalGrew
from callboard.kernel.context import NodeContext
from callboard.kernel.reply import Future
from callboard.kernel.topology import ENTITIES
from callboard.lease.errors import StateCorrupt, StateVersion

#: Seconds between requests for notifications, and after which a host forgets a request.
RENEWAL_SECONDS: Final = 2.0
EXPIRY_SECONDS: Final = 3 * RENEWAL_SECONDS

#: Seconds for which a host gathers its notifications for other nodes.
GATHER_SECONDS: Final = 0.005

#: Most nodes that a host notifies; journals on other nodes poll.
NODES_LIMIT: Final = 1_000


class JournalGrowth:
    """The growth of journals, for followers and hosts on this node. Runs on its thread."""

    def __init__(self, runtime: NodeContext, reachable: Callable[[], Any]) -> None:
        """Start without journals.

        Args:
            runtime: the runtime of the node.
            reachable: returns the reachable nodes.
        """
        self._runtime, self._reachable = runtime, reachable
        #: By type: futures of followers that wait for the next event.
        self._waiting: dict[str, set[Future[None]]] = {}
        #: By type: number of followed journals on this node.
        self._followed: dict[str, int] = {}
        #: By type: the last known members.
        self._members: dict[str, set[bytes]] = {}
        #: By hosted type: nodes that follow it, and when their requests expire.
        self._nodes: dict[str, dict[bytes, float]] = {}
        #: By type: the position to report to other nodes in the next notification.
        self._unannounced: dict[str, int] = {}

    # --- as a follower ---

    def next(self, name: str) -> Future[None]:
        """Return a future that completes when the journal of a type grows."""
        future: Future[None] = Future()
        self._waiting.setdefault(name, set()).add(future)
        return future

    def forget(self, name: str, future: Future[None]) -> None:
        """Stop waiting for growth."""
        self._waiting.get(name, set()).discard(future)

    def wake(self, name: str) -> None:
        """Complete all futures that wait for a journal."""
        for future in self._waiting.pop(name, ()):
            future.set_result(None)

    def follow(self, name: str) -> None:
        """Ask the hosts of a type for notifications, until `unfollow`."""
        count = self._followed[name] = self._followed.get(name, 0) + 1
        if count == 1:
            self._renew(name)

    def unfollow(self, name: str) -> None:
        """Stop following a type."""
        self._followed[name] -= 1

    def _renew(self, name: str) -> None:
        """Ask the members of a type; if none is known and reachable, all reachable nodes."""
        if not self._followed.get(name) or self._runtime.is_closed:
            self._followed.pop(name, None)
            return
        own = self._runtime.node_id
        reachable = set(self._reachable())
        members = self._members.get(name, set()) & reachable
        for node in sorted((members or reachable) - {own}):
            reply: Future[Any] = self._runtime.ref_of(node, ENTITIES).ask(
                FollowJournal(name), timeout=RENEWAL_SECONDS
            )
            reply.add_done_callback(lambda answer: self._runtime.post(self._answered, answer))
        self._runtime.call_later(RENEWAL_SECONDS, self._renew, name)

    def _answered(self, answer: Future[Any]) -> None:
        """Record the members of a type, and wake the followers.

        Followers are woken because growth before the request was not reported.
        """
        table = None if answer.exception() is not None else answer.result()
        if not isinstance(table, EntityTable) or not table.is_sound:
            return
        try:
            members = Table.read(table.text).members.values()
            self._members[table.type_name] = {bytes.fromhex(member.node) for member in members}
        except (StateCorrupt, StateVersion):
            return
        self.wake(table.type_name)

    # --- as a host ---

    def add(self, name: str, node: bytes) -> None:
        """Notify a node of a type's growth until its request expires."""
        nodes = self._nodes.setdefault(name, {})
        if node in nodes or len(nodes) < NODES_LIMIT:
            nodes[node] = self._runtime.now() + EXPIRY_SECONDS

    def record(self, name: str, position: int) -> None:
        """Record that a commit of this node has stored events up to a position."""
        if name in self._waiting:
            self.wake(name)
        if self._nodes.get(name):
            if name not in self._unannounced:
                self._runtime.call_later(GATHER_SECONDS, self._notify, name)
            self._unannounced[name] = position

    def _notify(self, name: str) -> None:
        """Notify the nodes that follow a type."""
        notification = JournalGrew(name, self._unannounced.pop(name))
        now = self._runtime.now()
        nodes = self._nodes[name]
        for node, until in list(nodes.items()):
            if until < now:
                del nodes[node]
            elif self._runtime.is_reachable(node):
                self._runtime.ref_of(node, ENTITIES).tell(notification)
