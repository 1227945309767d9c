"""Inspection tables of a hub: topics and peers."""

import uuid
from collections import Counter
from collections.abc import Callable
from typing import Final

from callboard.kernel.access import Rights
from callboard.kernel.context import SystemActor
from callboard.kernel.topology import Topology
from callboard.support.inspection_tables import Row
from callboard.topics.machine.core import Core

#: Seconds for which published messages are counted by topic after the last view of the table.
COUNTING_SECONDS: Final = 10.0


class TopicTables:
    """The tables `topics` and `peers` of a node; used on the node's thread."""

    def __init__(
        self, actor: SystemActor, core: Core, runs_for: Callable[[bytes], int]
    ) -> None:
        """Add the tables to the node of a hub.

        Args:
            actor: the hub.
            core: the core.
            runs_for: returns the number of runs that wait for a peer.
        """
        self._core, self._runtime, self._runs_for = core, actor.runtime, runs_for
        self._overlay: Topology = actor.node.overlay
        #: Published messages by topic, and the time until which they are counted.
        self._published, self._counted_until = Counter[str](), 0.0
        self._overlay.add_table("topics", self.topic_rows)
        self._overlay.add_table("peers", self.peer_rows)

    def topic_rows(self, _table: str, permits: Rights | None) -> list[Row]:
        """Return the topics that have subscribers here, or were published here.

        Messages are counted by topic from the first view until `COUNTING_SECONDS` after the
        last one.
        """
        now, subscribed = self._runtime.now(), self._core.subscriptions()
        if self._counted_until < now:
            self._published.clear()
            self._core.count_topics(self._published)
            self._runtime.call_later(COUNTING_SECONDS, self._stop_counting)
        self._counted_until = now + COUNTING_SECONDS
        return [
            {
                "topic": topic,
                "subscribers": subscribed.get(topic, 0),
                "elsewhere": self._core.wanting(topic),
                "published": self._published.get(topic, 0),
            }
            for topic in {**subscribed, **self._published}
            if permits is None or permits.permit_topic("subscribe", topic)
        ]

    def _stop_counting(self) -> None:
        """Stop counting messages by topic, unless the table was viewed recently."""
        left = self._counted_until - self._runtime.now()
        if left > 0.0:
            self._runtime.call_later(left, self._stop_counting)
        else:
            self._counted_until = 0.0
            self._core.count_topics(None)

    def peer_rows(self, _table: str, permits: Rights | None) -> list[Row]:
        """Return the peers, and the messages that wait for them; only with all rights."""
        if permits is not None:
            return []
        waiting = {link.peer: link.waiting for link in self._overlay.links()}
        return [
            {
                "peer": "" if endpoint is None else str(uuid.UUID(bytes=endpoint)),
                "wire": "native",
                "node_id": node.hex(),
                "address": "" if address is None else f"{address[0]}:{address[1]}",
                "status": "peered" if is_introduced else "connected",
                "buffered": self._runs_for(node),
                "waiting_bytes": waiting.get(node, 0),
            }
            for node, endpoint, address, is_introduced in self._core.peers()
        ] + [
            {
                "peer": peer.name,
                "wire": peer.wire,
                "node_id": "",
                "address": f"{peer.address[0]}:{peer.address[1]}",
                "status": "peered" if peer.is_linked else "connecting",
                "buffered": 0,
                "waiting_bytes": peer.waiting,
            }
            for peer in self._overlay.foreign.peers()
        ]
