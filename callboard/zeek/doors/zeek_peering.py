"""Peerings with endpoints of Zeek Broker 2.x: ports and dials of one endpoint.

    Zeek ──> session ──> Hub.ingest_encoded ──> endpoints, actors, other Zeeks
    endpoints, actors, other Zeeks ──> Hub ──> neighbor, with Zeek's filter ──> session ──> Zeek

As between endpoints of Broker, both sides send their whole filter, and each sends the messages
that match the other's. Our filter includes the subscriptions of all reachable nodes, and their
publications are forwarded. The TTL bounds the links that a message crosses, whatever their
wires: a message from Zeek continues with the smaller of Zeek's TTL less one and our own.

If several nodes peer with one Zeek, one of them carries messages. The connections of the
others stand by with an empty filter and ignore the peer's filter; when the active connection
ends, one of them takes over.
"""

import logging
from functools import partial
from typing import Any, Final

from callboard.bounded_queue import Overflow
from callboard.kernel.context import CallBack
from callboard.kernel.errors import ResultTimeout
from callboard.kernel.ports import HANDSHAKE_LIMIT
from callboard.kernel.reply import Future
from callboard.kernel.topology import Endpoint
from callboard.kernel.wire import ForeignDial, ForeignLink, Opening
from callboard.model.encoding import python_to_cbor
from callboard.model.errors import EndpointError
from callboard.tls.certificates import TlsSource
from callboard.topics.door_claim import DoorClaim
from callboard.topics.hub import Hub
from callboard.topics.machine.topic import checked_topic, is_reserved
from callboard.zeek.doors.broker_peering import PAUSE, BrokerNeighbor, BrokerPeering
from callboard.zeek.peering import (
    LEAVE_LIMIT,
    NOBODY,
    PeerFilter,
    PeeringFrame,
    PeeringSession,
    PeerMessage,
)
from callboard.zeek.transcoder import cbor_from_broker

_log: Final = logging.getLogger("callboard.zeek")

#: Bytes queued for a peer above which local publishers are slowed down.
ROOM: Final = 1 << 20

#: Bytes queued for a peer above which `overflow_policy` applies.
WAITING_LIMIT: Final = 32 << 20

#: Seconds between checks of a congested peer, and of the end of a handshake.
DRAIN_INTERVAL: Final = 0.005

#: Seconds after which a peer that reads nothing no longer slows publishers down.
STUCK: Final = 1.0

#: Characters of a peer's text that are logged.
_SHOWN: Final = 200


class ZeekNeighbor(BrokerNeighbor):
    """A peer on this wire; its name is the id of its endpoint.

    Attributes:
        unreadable: messages from it that could not be decoded.
    """

    def __init__(self, hub: Hub) -> None:
        """Create a neighbor for a new connection."""
        super().__init__(hub)
        self.unreadable = 0
        self.is_active = False
        self.link: ForeignLink | None = None
        self.session: PeeringSession | None = None
        self._claim: DoorClaim | None = None
        self._stop_watching: Any = None
        self._moved = (0, 0.0)

    # --- life cycle; on the node's thread ---

    def wishes(self) -> tuple[str, ...]:
        """Return the filter that is sent to the peer."""
        return self._hub.core.interest(self)

    def begin(self, link: ForeignLink, name: str) -> None:
        """Start the peering after the handshake."""
        assert self.session is not None
        self.link, self.name = link, name
        self.peer_key, self.topics = f"zeek-2:{name}", self.session.topics
        if not self.session.is_confirmed:
            link.write(self.session.ask())
        if self._hub.core.node_of(self.session.peer) is not None:
            _log.warning("%s is already a neighbor as a node; this link stands by", name)
            link.write(self.session.send_filter(()))
            return
        self.is_active = True
        self._give()
        self._stop_watching = self._hub.watch_interest(self, self._ask_for)
        self._claim = DoorClaim(
            self._hub, self.peer_key, on_held=self._activate, on_lost=self._stand_by
        )

    def end(self) -> None:
        """Clean up after the connection has ended."""
        self.is_active, self.link = False, None
        if self._claim is not None:
            self._claim.release()
        if self._stop_watching is not None:
            self._stop_watching()
        self._hub.remove_receiver(self)
        self._hub.inputs.set_congested(is_congested=False, cause=self)

    def _activate(self) -> None:
        """Start carrying the peer's messages: this node has the claim."""
        if not self.is_active and self.link is not None:
            self.is_active = True
            self._give()
            self._ask_for(self.wishes())

    def _stand_by(self, holder: bytes) -> None:
        """Stop carrying messages: another node has the claim."""
        if self.link is not None and self.session is not None:
            _log.info("node %s carries peer %s; this one stands by", holder.hex(), self.name)
            self.is_active = False
            self._give_nothing()
            self.link.write(self.session.send_filter(()))

    def _ask_for(self, topics: tuple[str, ...]) -> None:
        """Send the peer a new filter."""
        if self.is_active and self.link is not None and self.session is not None:
            data = self.session.send_filter(topics)
            if data:
                self.link.write(data)

    def take_filter(self, topics: tuple[str, ...]) -> None:
        """Apply the peer's new filter."""
        self.topics = topics
        if self.is_active:
            self._give()

    # --- to the peer; on the node's thread ---

    def _send(
        self, run: list[tuple[str, bytes]], ttl: int, _sender: bytes, receiver: bytes = NOBODY
    ) -> None:
        """Encode values and send them."""
        link, session = self.link, self.session
        if link is None or session is None:
            return
        frames = [
            session.send(topic.encode(), value, ttl, receiver)
            for topic, value in self._written(run)
        ]
        if link.waiting > WAITING_LIMIT:
            self._overflow(link, len(frames))
            return
        self.taken += len(frames)
        link.write(b"".join(frames))
        if link.waiting > ROOM and self._moved[1] == 0.0:
            self._moved = link.bytes_sent, self._hub.runtime.now()
            self._hub.inputs.set_congested(is_congested=True, cause=self)
            self._hub.after(DRAIN_INTERVAL, CallBack(self._check_congestion))

    def send_directed(self, topic: str, content: bytes) -> None:
        """Send a value to this peer alone, whatever its filter says."""
        assert self.session is not None
        self._send([(topic, content)], self._own_ttl(), b"", self.session.peer)

    def _overflow(self, link: ForeignLink, count: int) -> None:
        """Apply the overflow policy to a peer that does not read."""
        self.dropped += count
        if self._hub.options.overflow_policy == Overflow.DISCONNECT:
            link.end(f"the peer does not read, and {link.waiting:,} B wait for it")

    def _check_congestion(self) -> None:
        """Release publishers once the peer has read, or is stuck."""
        link, now = self.link, self._hub.runtime.now()
        sent, since = self._moved
        if link is not None and link.waiting > ROOM:
            if link.bytes_sent != sent:
                sent, since = self._moved = link.bytes_sent, now
            self._hub.inputs.set_congested(is_congested=now - since < STUCK, cause=self)
            self._hub.after(DRAIN_INTERVAL, CallBack(self._check_congestion))
            return
        self._moved = (0, 0.0)
        self._hub.inputs.set_congested(is_congested=False, cause=self)

    # --- from the peer; on the node's thread ---

    def bring(self, messages: list[PeerMessage | PeerFilter]) -> None:
        """Publish messages from the peer, in order."""
        run: list[tuple[str, bytes]] = []
        place: tuple[bytes, int] | None = None
        for message in messages:
            if isinstance(message, PeerFilter):
                self.take_filter(message.topics)
                continue
            if message.kind == PeeringFrame.COMMAND:
                self.commands += 1
                if self.commands == 1:
                    _log.warning("%s sends store commands, which are ignored", self.name)
                continue
            pair = self._read(message)
            if pair is None:
                continue
            if place != (message.receiver, message.ttl):
                self._publish(run, place)
                run, place = [], (message.receiver, message.ttl)
            run.append(pair)
        self._publish(run, place)
        if self.link is not None and not self._hub.has_room():
            self.link.pause_reading(PAUSE)

    def _read(self, message: PeerMessage) -> tuple[str, bytes] | None:
        """Return topic and value; None if they are invalid or for another endpoint."""
        is_ours = message.receiver == self._hub.endpoint_id
        if not is_ours and (message.receiver != NOBODY or not self.is_active):
            return None
        try:
            topic = message.topic.decode()
            content = cbor_from_broker(message.payload)
        except (UnicodeDecodeError, EndpointError) as error:
            self.unreadable += 1
            level = logging.WARNING if self.unreadable == 1 else logging.DEBUG
            text = str(error)[:_SHOWN]
            _log.log(level, "%s sent a message that cannot be read: %s", self.name, text)
            return None
        if not topic or is_reserved(topic):  # only endpoints publish on reserved topics
            self.unreadable += 1
            return None
        return topic, content

    def _publish(self, run: list[tuple[str, bytes]], place: tuple[bytes, int] | None) -> None:
        """Publish messages that share one receiver and TTL."""
        if run and place is not None:
            receiver, ttl = place
            self.brought += len(run)
            forwards = receiver == NOBODY and self._hub.options.forwards
            self._hub.publishing.ingest_encoded(run, self, max(0, ttl - 1) if forwards else 0)


class ZeekPeering(BrokerPeering):
    """All peerings of one endpoint on this wire; see `Endpoint.peer` and `Endpoint.listen`."""

    #: Name of this wire in events and figures.
    kind: Final = "zeek-2"

    def __init__(self, hub: Hub, tls: TlsSource | None) -> None:
        """Create a peering without ports and dials; see `BrokerPeering`."""
        super().__init__(hub, tls)
        self._neighbors: dict[ForeignLink, ZeekNeighbor] = {}
        self._sessions: dict[PeeringSession, ZeekNeighbor] = {}
        #: Futures to resolve when a connection ends.
        self._leaving: dict[ForeignLink, list[Future[bool]]] = {}

    # --- for users, from any thread ---

    def _linked(self, link: ForeignLink, done: Future[bool]) -> None:
        """Resolve `done` once the peer has our filter."""
        self._hub.call_soon(self._await_confirmed, link, done, self._hub.runtime.now())

    def _await_confirmed(self, link: ForeignLink, done: Future[bool], since: float) -> None:
        """Resolve `done` once the peer has our filter, on any connection.

        The originator knows the peer when it has sent its last handshake frame; the other side
        a moment later. A message that the peer publishes in between is not sent to us.
        """
        session = link.machine
        assert isinstance(session, PeeringSession)
        session_in_use = self._hub.foreign_sessions.get(session.peer)
        if session_in_use is not None and session_in_use.is_confirmed:
            done.set_result(True)
        elif self._hub.runtime.now() - since > HANDSHAKE_LIMIT:
            done.set_result(False)
        else:
            again = partial(self._await_confirmed, link, done, since)
            self._hub.after(DRAIN_INTERVAL, CallBack(again))

    def _leave(self, dial: ForeignDial, done: Future[bool]) -> None:
        """End the peering with a dialed peer, in a turn of the hub."""
        self._hub.call_soon(self._end_peering, dial, done)

    def _end_peering(self, dial: ForeignDial, done: Future[bool]) -> None:
        """End the peering with a dialed peer; resolve `done` after the report."""
        link = self._link_of(dial)
        self._foreign.stop(dial)
        if link is None:
            done.set_result(True)
            return
        self._leaving.setdefault(link, []).append(done)
        if link is not dial.link:
            link.end("the user removed it")

    def _link_of(self, dial: ForeignDial) -> ForeignLink | None:
        """Return the connection with a dialed peer, even if the peer opened it."""
        if dial.link in self._neighbors:
            return dial.link
        if not dial.linked.done() or dial.linked.exception() is not None:
            return None
        redundant = dial.linked.result().machine
        peer = redundant.peer if isinstance(redundant, PeeringSession) else b""
        links = [
            link
            for link, neighbor in self._neighbors.items()
            if neighbor.session is not None and neighbor.session.peer == peer
        ]
        return links[0] if links else None

    def publish_to(self, endpoint: bytes, topic: str, value: Any) -> bool:
        """Send a value to one peer alone; return False if it is not a peer on this wire.

        Raises:
            EndpointError: the topic or the value is not valid in the data model.
        """
        for neighbor in list(self._neighbors.values()):
            if neighbor.session is not None and neighbor.session.peer == endpoint:
                content = python_to_cbor(value)
                self._hub.call_soon(neighbor.send_directed, checked_topic(topic), content)
                return True
        return False

    def neighbors(self) -> list[ZeekNeighbor]:
        """Return the connected peers. Can be called from any thread."""
        return list(self._neighbors.values())

    def close(self) -> None:
        """End all peerings and ports; wait at most 3 s for the peers to acknowledge."""
        runtime = self._hub.runtime
        if runtime.is_closed:
            return
        if self._stop() and not runtime.is_runner_thread():
            left: Future[bool] = Future()
            self._hub.call_soon(self._until_left, left)
            try:
                left.result(LEAVE_LIMIT + 1.0)
            except ResultTimeout:
                _log.info("some peers did not acknowledge the end of their peering")

    def _until_left(self, left: Future[bool]) -> None:
        """Resolve `left` once all peers are disconnected."""
        if not self._neighbors or self._hub.runtime.is_closed:
            left.set_result(True)
        else:
            self._hub.after(DRAIN_INTERVAL, CallBack(partial(self._until_left, left)))

    # --- callbacks of the links; on the node's thread ---

    def make_machine(self, opening: Opening) -> PeeringSession:
        """Return the machine of a new connection."""
        neighbor = ZeekNeighbor(self._hub)
        neighbor.session = PeeringSession(
            self._hub.endpoint_id,
            neighbor.wishes,
            self._hub.foreign_sessions,
            opening.now,
            is_dialed=opening.is_dialed,
        )
        self._sessions = {
            session: peer for session, peer in self._sessions.items() if not session.is_over()
        }
        self._sessions[neighbor.session] = neighbor
        return neighbor.session

    def link_up(self, link: ForeignLink, name: str) -> None:
        """Start sending a peer the messages that match its filter."""
        assert isinstance(link.machine, PeeringSession)
        neighbor = self._neighbors[link] = self._sessions.pop(link.machine)
        neighbor.begin(link, name)

    def link_down(self, link: ForeignLink, reason: str) -> None:
        """Forget a peer, and dial it again if it was dialed."""
        neighbor = self._neighbors.pop(link)
        neighbor.end()
        _log.info("peer %s ended: %s", neighbor.name, reason)
        for done in self._leaving.pop(link, ()):
            # In a later turn, so that subscribers see the event before the waiter resumes.
            self._hub.call_soon(done.set_result, True)  # noqa: FBT003
        self._redial("its other connection ended")

    def deliver(self, link: ForeignLink, messages: list[Any]) -> None:
        """Publish messages from a peer."""
        neighbor = self._neighbors.get(link)
        if neighbor is not None:
            neighbor.bring(messages)

    def not_linked(self, remote: Endpoint, reason: str) -> None:
        """Log a failed handshake."""
        _log.debug("no peering with %s: %s", remote[0], reason)
