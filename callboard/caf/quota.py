"""Limits of one connection with a CAF node.

CAF has no limits: the frames of a peer may name any number of nodes and actors, monitor any
number of actors, and contain any number of requests. Here each connection has its own limits. A
peer that exceeds them loses only its own connection.
"""

from typing import Final

from callboard.caf.errors import LimitExceeded

#: CAF nodes that may be known through one connection.
NODES_LIMIT: Final = 10_000

#: Requests through one connection that may be unanswered; further ones are refused.
UNANSWERED_LIMIT: Final = 100_000


class Quota:
    """The limits of one connection.

    Attributes:
        limit: how many actors the peer may name, and how many it may monitor.
        nodes: indirect nodes that its frames named.
        actors: stand-ins that were created for its frames.
        monitors: actors that its nodes monitor, here and on other CAF nodes; any thread may
            remove one.
        unanswered: requests without an answer; any thread may remove one.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nodes = self.actors = 0
        self.monitors: set[object] = set()
        self.unanswered: set[object] = set()

    def add_node(self) -> None:
        """Count a node.

        Raises:
            LimitExceeded: there are too many. The other methods also raise it.
        """
        if self.nodes >= NODES_LIMIT:
            msg = f"the peer has named more than {NODES_LIMIT:,} other nodes"
            raise LimitExceeded(msg)
        self.nodes += 1

    def add_actor(self) -> None:
        """Count an actor of the peer for which this node has created a stand-in."""
        if self.actors >= self.limit:
            msg = f"the peer has named more than {self.limit:,} actors"
            raise LimitExceeded(msg)
        self.actors += 1

    def add_monitor(self, monitor: object) -> None:
        """Count a monitor."""
        if len(self.monitors) >= self.limit:
            msg = f"the peer monitors more than {self.limit:,} actors"
            raise LimitExceeded(msg)
        self.monitors.add(monitor)

    @property
    def may_ask(self) -> bool:
        """Whether a further request is accepted."""
        return len(self.unanswered) < UNANSWERED_LIMIT
