"""The desk of one node: collects what its process reports to the parent.

Notes come from actors and from the node's events, on any thread; the process takes them with
each report. Times are `time.monotonic_ns()`, taken when the thing happened, not when it was
reported.
"""

import time
from collections import deque
from typing import Any, Final

from actors.events import ActorFailed, ActorStarted, ActorStopped
from callboard import ActorRef, Node
from callboard.demo.aggregator import Aggregator, TakeSnapshot
from callboard.endpoint.core_effect import PeerEvent, PeerEventKind
from callboard.endpoint.hub import Hub
from proxies.events import LinkDown, LinkUp, NodeDown, NodeUp

NOTES_KEPT: Final = 1000
"""Notes that wait for a report; the oldest are dropped when the parent stops reading."""

SNAPSHOT_LIMIT: Final = 2.0
"""Seconds that the aggregator on this node may take to answer the desk."""


class Desk:
    """What one process of the demo knows about its node."""

    def __init__(self, node: Node, hub: Hub) -> None:
        self._node = node
        self._hub = hub
        self._peers: set[bytes] = set()
        hub.on_peer_event(self._on_peer_event)
        self._notes: deque[dict[str, Any]] = deque(maxlen=NOTES_KEPT)
        self._aggregator: ActorRef[Any] | None = None
        self._snapshot: dict[str, Any] | None = None
        self._is_serving = False
        self._last_passage_ns = 0
        # Of a node that is no neighbour the name is known a moment after the way to it.
        self._unnamed: dict[bytes, dict[str, Any]] = {}
        #: Tells the overseer, where there is one, of nodes that come in reach.
        self.overseer: ActorRef[Any] | None = None

    def note(self, kind: str, /, **fields: Any) -> None:
        """Keep a note for the next report; from any thread."""
        self._notes.append({"kind": kind, "at": time.monotonic_ns(), **fields})

    def on_event(self, event: object) -> None:
        """Turn an event of the node into a note."""
        match event:
            case NodeUp(node_id, _, hops):
                self._unnamed[node_id] = {
                    "kind": "node_up",
                    "at": time.monotonic_ns(),
                    "hops": hops,
                }
                self._announce(node_id)
            case NodeDown(_, name, reason):
                self.note("node_down", name=name, reason=reason)
            case LinkUp(_, name):
                self.note("link_up", peer=name)
            case LinkDown(_, name, reason):
                self.note("link_down", peer=name, reason=reason)
            case ActorFailed(ref, detail):
                self.note("failed", actor=str(ref), reason=detail)
            case ActorStarted(ref, Aggregator.__qualname__):
                self._aggregator, self._snapshot, self._is_serving = ref, None, False
            case ActorStopped(ref) if ref == self._aggregator:
                self._aggregator = self._snapshot = None

    def _on_peer_event(self, event: PeerEvent) -> None:
        """Keep who is a peer: an endpoint with a link of its own to this one."""
        if event.endpoint is None:
            return
        if event.kind is PeerEventKind.PEER_CONNECTED:
            self._peers.add(event.endpoint)
        elif event.kind is not PeerEventKind.PEER_DISCOVERED:
            self._peers.discard(event.endpoint)

    def _announce(self, node_id: bytes) -> None:
        if self.overseer is not None:
            from callboard.demo.overseer import NodeAppeared

            self.overseer.tell(NodeAppeared(node_id))

    def report(self) -> dict[str, Any]:
        """Return everything that the parent has to know, as plain values."""
        node = self._node
        for known in node.nodes():
            if known.name and known.node_id in self._unnamed:
                self._notes.append({**self._unnamed.pop(known.node_id), "name": known.name})
        notes = [self._notes.popleft() for _ in range(len(self._notes))]
        stats = node.stats()
        accounts = list(node.accounts().values())
        self._ask_aggregator()
        return {
            "notes": notes,
            "reach": {known.name: known.hops for known in node.nodes()},
            "links": {
                link.peer_name: link.frames_sent + link.frames_received for link in node.links()
            },
            "account": {
                "sent": sum(account.sent for account in accounts),
                "delivered": sum(account.confirmed for account in accounts),
                "lost": sum(account.lost for account in accounts),
                "in_flight": sum(account.in_flight for account in accounts),
            },
            "topics": {
                "peers": len(self._peers),
                "published": self._hub.counters.data_published,
                "received": self._hub.counters.received,
                "dropped": self._hub.counters.dropped,
            },
            "actors": stats.actors,
            "handled": stats.handled,
            "dead_letters": stats.dead_letters,
            "passages": self._fresh_passages(),
            "snapshot": self._snapshot,
        }

    def _fresh_passages(self) -> list[list[Any]]:
        """Return [who asked, message id, nanoseconds] of each passage since the last report."""
        fresh = [
            passage for passage in self._node.passages() if passage.at > self._last_passage_ns
        ]
        if fresh:
            self._last_passage_ns = max(passage.at for passage in fresh)
        return [
            [(p.destination if p.is_response else p.source).hex(), p.message_id, p.at]
            for p in fresh
        ]

    def _ask_aggregator(self) -> None:
        aggregator = self._aggregator
        if aggregator is None:
            return
        future = aggregator.ask(TakeSnapshot(), timeout=SNAPSHOT_LIMIT)

        def answered(_: object) -> None:
            if future.exception() is None and aggregator is self._aggregator:
                self._take_snapshot(future.result())

        future.add_done_callback(answered)

    def _take_snapshot(self, snapshot: dict[str, Any]) -> None:
        self._snapshot = snapshot
        if snapshot["first_handled_ns"] and not self._is_serving:
            self._is_serving = True
            self._notes.append({"kind": "serving", "at": snapshot["first_handled_ns"]})
