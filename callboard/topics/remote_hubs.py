"""Discovery of the hubs of other nodes."""

from collections.abc import Callable
from typing import Any, Final

from callboard.kernel.access import CORE_NAME
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import SystemActor
from callboard.kernel.errors import NotPermitted
from callboard.kernel.reply import Future
from callboard.kernel.topology import CORE_ACTOR, DIRECTORY, Lookup, Topology

#: Seconds to wait for the answer of a node's directory.
ANSWER_LIMIT: Final = 5.0


class RemoteHubs:
    """The hubs of other nodes, found by asking the directories; used on the node's thread.

    Attributes:
        refs: the known hubs by node.
    """

    def __init__(self, actor: SystemActor, on_found: Callable[[bytes], object]) -> None:
        """Start without known hubs.

        Args:
            actor: the hub of this node.
            on_found: called in a turn of the hub with a node that has a hub.
        """
        self._actor, self._on_found = actor, on_found
        self._overlay: Topology = actor.node.overlay
        self.refs: dict[bytes, ActorRef] = {}
        #: Nodes whose directory did not answer.
        self._unanswered: list[bytes] = []

    def add(self, node: bytes) -> ActorRef | None:
        """Add a hub and return its ref; None if it is known."""
        if node in self.refs:
            return None
        ref = self.refs[node] = self._actor.runtime.ref_of(node, CORE_ACTOR)
        return ref

    def find_hub(self, node: bytes) -> None:
        """Ask a node's directory whether the node has a hub: most nodes have none."""
        rights = self._overlay.rights(node)
        if node in self.refs or not self._overlay.path(node):
            return
        if rights is not None and not rights.has_topics:
            return

        def answered(answer: Future[Any]) -> None:
            if isinstance(answer.exception(), NotPermitted):
                return  # one of the two nodes is a leaf that has no right to topics
            if answer.exception() is not None:  # the ask was lost with a path: try again
                self._actor.call_soon(self._unanswered.append, node)
            elif isinstance(answer.result(), ActorRef):
                self._actor.call_soon(self._on_found, answer.result().node_id)

        directory = self._actor.runtime.ref_of(node, DIRECTORY)
        directory.ask(Lookup(CORE_NAME), timeout=ANSWER_LIMIT).add_done_callback(answered)

    def tick(self) -> None:
        """Ask the directories that did not answer again."""
        nodes = sorted({*self._unanswered})
        self._unanswered.clear()
        for node in nodes:
            self.find_hub(node)
