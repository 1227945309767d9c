"""Peerings with Zeek Broker 1.4: the ports and dials of one endpoint.

    Broker ──> session ──> Hub.ingest_encoded ──> endpoints, actors, other peers
    endpoints, actors, other peers ──> Hub ──> neighbor, with Broker's filter ──> session

Both sides send their whole filter. Ours contains the subscriptions of local receivers,
reachable nodes and other peers, because a Broker forwards only what it subscribes to itself.
The TTL bounds the links that a message crosses, whatever their wires.

A node claims a Broker in the directories before it sends its filter. If several nodes peer with
one Broker, one of them carries messages, and the others stand by with an empty filter. A Broker
that gives too little credit slows local publishers down.
"""

import hashlib
import logging
import os
from contextlib import suppress
from functools import partial
from typing import Any, Final

from callboard.bounded_queue import Overflow
from callboard.caf.wire.reader import CafNode
from callboard.kernel.context import CallBack
from callboard.kernel.errors import ResultTimeout
from callboard.kernel.reply import Future
from callboard.kernel.topology import Endpoint, endpoint_text
from callboard.kernel.wire import ForeignDial, ForeignLink, Opening
from callboard.model.encoding import python_to_cbor
from callboard.model.errors import DoorTaken
from callboard.tls.certificates import TlsSource
from callboard.topics.door_claim import DoorClaim
from callboard.topics.hub import Hub
from callboard.topics.machine.status import foreign_id
from callboard.topics.machine.topic import checked_topic, is_reserved
from callboard.zeek.broker_1_4 import (
    QUEUE_BYTES,
    QUEUE_HIGH,
    QUEUE_LOW,
    Broker14Session,
    PeerKnown,
    PeerTopics,
    RoomAgain,
)
from callboard.zeek.doors.broker_peering import PAUSE, BrokerNeighbor, BrokerPeering
from callboard.zeek.node_message import DataRun, data_message_bytes
from callboard.zeek.transcoder import broker_from_cbor

_log: Final = logging.getLogger("callboard.zeek")

#: Largest frame in bytes.
FRAME_LIMIT: Final = 64 << 20

#: Seconds for which `close` waits for messages without credit, and between its checks.
FLUSH_LIMIT: Final = 5.0
FLUSH_POLL_SECONDS: Final = 0.01

#: Seconds without credit after which a peer no longer slows publishers down. Messages above its
#: queue limit are then dropped, or the peering ends, as `peer_overflow_policy` says.
STALL_LIMIT: Final = 4.0


class Broker14Neighbor(BrokerNeighbor):
    """A peer on this wire; its name is that of its node."""

    def __init__(self, hub: Hub, link: ForeignLink, node: CafNode) -> None:
        """Claim a peer whose node is known.

        Raises:
            DoorTaken: this node already has a peering with it.
        """
        super().__init__(hub, str(node))
        self.peer_key = f"zeek-1.4:{node}"
        self.link = link
        self._host = node.host
        self.session: Broker14Session = link.machine  # type: ignore[assignment]
        self._post = hub.runtime.post
        self._is_active = self._is_over = self._is_holding = False
        #: Messages posted to the session and not yet given to it.
        self._posted = 0
        #: The peer's filter, once received; ours, once the claim is decided.
        self._peer_filter: tuple[str, ...] | None = None
        self._wishes: tuple[str, ...] | None = None
        self._stop_watching: Any = None
        self._claim = DoorClaim(hub, self.peer_key, on_held=self._begin, on_lost=self._stand_by)

    # --- life cycle, in turns of the hub ---

    def _begin(self) -> None:
        """Start carrying the peer's messages: this node has the claim."""
        if self._is_over or self._is_active:
            return
        core, nodes = self._hub.core, self._hub.overlay.nodes()
        if any(_host_of(core.endpoint_of(node) or b"") == self._host for node in nodes):
            _log.warning("%s is already reachable as a node; this peering stands by", self.name)
            self._wishes = ()
            self._follow_filter()
        else:
            self._is_active = True
            self._stop_watching = self._hub.watch_interest(self, self._ask_for)
            self._follow_filter()

    def _stand_by(self, holder: bytes) -> None:
        """Stop carrying messages: another node has the claim."""
        if not self._is_over:
            text = "node %s carries peer %s; this one stands by"
            _log.info(text, holder.hex(), self.name)
            self._leave()
            self._wishes = ()
            self._follow_filter()

    def _leave(self) -> None:
        """Stop receiving and sending messages."""
        self._is_active = False
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        self._give_nothing()
        self._is_holding = False
        self._hub.relax(self)

    def end(self) -> None:
        """Clean up after the connection has ended. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self._claim.release()
            self._hub.call_soon(self._leave)

    def _ask_for(self, topics: tuple[str, ...]) -> None:
        """Send the peer a new filter; the first one is sent after the peer's own."""
        self._wishes = topics
        self._post(self._send_filter)

    def _follow_filter(self) -> None:
        """Subscribe to the peer's filter; then send it ours."""
        if self._is_over:
            return
        peer_filter = self._peer_filter
        if self._is_active:
            self._give()
        self._hub.call_soon(self._post, self._send_filter, peer_filter)

    # --- sending, in turns of the hub ---

    def _send(self, run: list[tuple[str, bytes]], ttl: int, sender: bytes) -> None:
        """Send values; slow publishers down when too many are queued."""
        messages = [data_message_bytes(*pair, ttl) for pair in self._written(run)]
        if self._posted + self.session.queued > QUEUE_HIGH and not self._make_room(sender):
            self.dropped += len(messages)
            return
        self.taken += len(messages)
        self._posted += len(messages)
        self._post(self._emit, messages)

    def _make_room(self, sender: bytes) -> bool:
        """Slow publishers down; return False to drop messages for a stalled peer."""
        if self.is_stalled():
            self._check_publishers()
            if self._hub.options.overflow_policy == Overflow.DISCONNECT:
                self._post(self.link.end, "its queue is full, and it gives no credit")
            return False
        self._hub.hold(self, sender, PAUSE)
        if not self._is_holding:
            self._is_holding = True
            self._hub.after(STALL_LIMIT / 4, CallBack(self._check_publishers))
        return True

    def is_stalled(self) -> bool:
        """Return whether the peer has given no credit for too long."""
        return self._hub.runtime.now() - self.session.credited >= STALL_LIMIT

    def _check_publishers(self) -> None:
        """Release publishers once there is room, or the peer is stalled."""
        if not self._is_holding:
            return
        if self._posted + self.session.queued <= QUEUE_LOW or self.is_stalled():
            self._is_holding = False
            self._hub.relax(self)
        else:
            self._hub.after(STALL_LIMIT / 4, CallBack(self._check_publishers))

    # --- the session, in the runner's role, which a long turn of the hub gives up ---

    def _send_filter(self, subscribed: tuple[str, ...] | None = None) -> None:
        """Send our filter: the first one, or an update.

        An acceptor counts as a peer from its first filter on. So that filter is sent after the
        hub has subscribed to the peer's filter; otherwise early messages would be missed.
        """
        session, wishes = self.session, self._wishes
        if wishes is None:
            return  # the claim is not decided
        if session.is_introduced:
            self._write(session.update(wishes))
        elif self.link.dial is not None or (
            subscribed is not None and subscribed is self._peer_filter
        ):
            self._write(session.introduce(wishes))

    def _emit(self, messages: list[bytes]) -> None:
        """Write messages, or queue them until there is credit."""
        self._posted -= len(messages)
        self._write(self.session.send(messages))
        if self.session.waiting > QUEUE_BYTES:
            self.link.end(f"{self.session.waiting:,} B wait for credit")
        self._check_room()

    def _check_room(self) -> None:
        """Release publishers once the queue is short enough."""
        if self._is_holding and self.session.queued <= QUEUE_LOW:
            self._hub.call_soon(self._check_publishers)

    def send_directed(self, topic: str, value: bytes) -> None:
        """Send a value to this peer alone, whatever its filter says."""
        self.taken += 1
        self._write(self.session.direct(topic, value))

    def _write(self, data: bytes) -> None:
        """Write the output of the session, if any."""
        if data:
            self.link.write(data)

    # --- receiving, in the runner's role ---

    def bring(self, arrivals: list[Any]) -> None:
        """Handle messages from the peer, in order."""
        for arrival in arrivals:
            if isinstance(arrival, DataRun):
                self._publish(arrival)
            elif isinstance(arrival, PeerTopics):
                self.topics = self._peer_filter = arrival.topics
                self._hub.call_soon(self._follow_filter)
            elif isinstance(arrival, RoomAgain):
                self._check_room()
            else:
                self.commands += 1
        if not self._hub.has_room():
            self.link.pause_reading(PAUSE)

    def _publish(self, run: DataRun) -> None:
        """Publish data messages, except on reserved topics."""
        messages = [message for message in run.messages if not is_reserved(message[0])]
        if messages and self._is_active:
            self.brought += len(messages)
            ttl = max(0, run.ttl - 1) if self._hub.options.forwards else 0
            self._hub.publishing.ingest_encoded(messages, self, ttl)


def _host_of(endpoint: bytes) -> bytes:
    """Return a host id for an endpoint of ours; a host id of CAF has 20 bytes."""
    return hashlib.sha1(endpoint, usedforsecurity=False).digest()


class Broker14Peering(BrokerPeering):
    """All peerings of one endpoint on this wire; see `Endpoint.peer` and `Endpoint.listen`."""

    #: Name of this wire in events and figures.
    kind: Final = "zeek-1.4"

    def __init__(self, hub: Hub, tls: TlsSource | None) -> None:
        """Create a peering without ports and dials; see `BrokerPeering`."""
        super().__init__(hub, tls)
        self._own = CafNode(os.getpid(), _host_of(hub.endpoint_id))
        #: Connections whose peer has identified its node.
        self._neighbors: dict[ForeignLink, Broker14Neighbor] = {}

    # --- for users, from any thread ---

    def _linked(self, link: ForeignLink, done: Future[bool]) -> None:
        """Resolve `done` after the turns that subscribe to the peer's filter."""
        self._hub.call_soon(self._hub.call_soon, done.set_result, True)  # noqa: FBT003

    def _leave(self, dial: ForeignDial, done: Future[bool]) -> None:
        """End a peering; resolve `done` after its end was reported."""
        self._foreign.stop(dial)
        self._hub.runtime.post(self._hub.call_soon, done.set_result, True)  # noqa: FBT003

    def publish_to(self, endpoint: bytes, topic: str, value: Any) -> bool:
        """Send a value to one peer alone; return False if it is not on this wire.

        Raises:
            EndpointError: the topic or the value is not valid in the data model.
        """
        for link, neighbor in list(self._neighbors.items()):
            if foreign_id(self.kind, link.remote) == endpoint:
                content = broker_from_cbor(python_to_cbor(value))
                topic = checked_topic(topic)
                self._hub.runtime.post(neighbor.send_directed, topic, content)
                return True
        return False

    def neighbors(self) -> list[Broker14Neighbor]:
        """Return the connected peers. Can be called from any thread."""
        return [
            neighbor for neighbor in list(self._neighbors.values()) if neighbor.session.is_open
        ]

    def close(self) -> None:
        """Send queued messages, for at most 5 s, and end all peerings. Idempotent."""
        runtime = self._hub.runtime
        if not runtime.is_closed and not runtime.is_runner_thread():
            flushed: Future[bool] = Future()
            self._hub.call_soon(self._await_flushed, flushed)
            with suppress(ResultTimeout):
                flushed.result(FLUSH_LIMIT)
            waiting = sum(neighbor.session.queued for neighbor in self.neighbors())
            if waiting:
                _log.warning("%d messages are dropped: their peers give no credit", waiting)
        self._stop()

    def _await_flushed(self, flushed: Future[bool]) -> None:
        """Resolve `flushed` once no message waits for a peer that gives credit."""
        waits = any(
            neighbor.session.queued and not neighbor.is_stalled()
            for neighbor in self.neighbors()
        )
        if self._hub.runtime.is_closed or not waits:
            flushed.set_result(True)
        else:
            self._hub.after(FLUSH_POLL_SECONDS, CallBack(partial(self._await_flushed, flushed)))

    # --- callbacks of the links; on the node's thread ---

    def make_machine(self, opening: Opening) -> Broker14Session:
        """Return the protocol machine of a new connection."""
        return Broker14Session(
            self._own, opening.now, is_dialed=opening.is_dialed, limit=FRAME_LIMIT
        )

    def link_up(self, link: ForeignLink, _name: str) -> None:
        """Log that both streams are open."""
        _log.info("%s at %s", link.name, endpoint_text(link.remote))

    def link_down(self, link: ForeignLink, reason: str) -> None:
        """Forget a peer, and resume a dial that had yielded to it."""
        self._neighbors.pop(link).end()
        _log.info("%s ended: %s", link.name, reason)
        self._redial("", but=link.dial)

    def deliver(self, link: ForeignLink, messages: list[Any]) -> None:
        """Handle messages from a peer."""
        if isinstance(messages[0], PeerKnown):
            self._on_peer_known(link, messages[0].node)
        elif link in self._neighbors:
            self._neighbors[link].bring(messages)

    def _on_peer_known(self, link: ForeignLink, node: CafNode) -> None:
        """Register a peer that has identified its node; close a second connection."""
        try:
            self._neighbors[link] = Broker14Neighbor(self._hub, link, node)
        except DoorTaken:
            session: Broker14Session = link.machine  # type: ignore[assignment]
            self._foreign.carry_out(link, [*session.redundant()])

    def not_linked(self, remote: Endpoint, reason: str) -> None:
        """Log the reason, and forget connections that ended during the handshake."""
        _log.info("no peering with %s: %s", remote[0], reason)
        for link, neighbor in list(self._neighbors.items()):
            if not link.is_open:
                del self._neighbors[link]
                neighbor.end()
