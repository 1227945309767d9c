"""Limits of one connection with a CAF node.

CAF has no limits: a node may show any number of nodes and actors, also those of others, monitor
any number of actors and send any number of requests. Here each connection has its own limits,
and a node that exceeds them loses its own connection only.
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
        limit: actors that it may show, and monitors that it may place.
        nodes: indirect nodes that are known through it.
        actors: stand-ins that exist because of its frames.
        monitors: monitors of its nodes on actors here, and on actors of other CAF nodes; any
            thread removes them.
        unanswered: requests that are not answered; any thread removes them.
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
