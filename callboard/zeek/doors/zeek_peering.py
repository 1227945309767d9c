"""Peerings with endpoints of Zeek Broker 2.x: ports and dials of one endpoint.

    Zeek ──> session ──> Hub.bring_in_encoded ──> endpoints, actors, other Zeeks
    endpoints, actors, other Zeeks ──> Hub ──> neighbor, with Zeek's filter ──> session ──> Zeek

As between endpoints of Broker, both sides tell their whole filter, and each sends what the
other wants. What nodes in reach want is asked for as well, and what they publish is carried on.
A message crosses at most as many links as its TTL says, whatever their wires: the smaller of
Zeek's TTL less one and our own travels on.

Of several nodes that one Zeek peers with, one carries messages: the others' connections stand
by, with an empty filter and without the peer's, and one of them takes over at its end.
"""

import logging
from functools import partial
from typing import Any, Final

from callboard.endpoint.door_claim import DoorClaim
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.peer_buffer import OverflowPolicy
from callboard.endpoint.machine.topic import checked_topic, is_reserved
from callboard.kernel.context import CallBack
from callboard.kernel.errors import ResultTimeout
from callboard.kernel.reply import Future
from callboard.kernel.tls import HANDSHAKE_LIMIT, TlsSource
from callboard.kernel.topology import Endpoint
from callboard.kernel.wire import ForeignDial, ForeignLink, Opening
from callboard.model.encoding import python_to_cbor
from callboard.model.errors import EndpointError
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

#: Bytes that wait for a peer above which publishers here have to wait.
ROOM: Final = 1 << 20

#: Bytes that may wait for a peer that does not read; what happens then, options say.
WAITING_LIMIT: Final = 32 << 20

#: Seconds between looks at a peer for which too much waits.
DRAIN_INTERVAL: Final = 0.005

#: Seconds without reading after which nobody waits for a peer any more.
STUCK: Final = 1.0

#: Characters of a text about what a peer sent.
_SHOWN: Final = 200


class ZeekNeighbor(BrokerNeighbor):
    """One peer of this wire; its name is the id of its endpoint.

    Attributes:
        unreadable: messages of it that were none.
    """

    def __init__(self, hub: Hub) -> None:
        """Make one for a connection that begins."""
        super().__init__(hub)
        self.unreadable = 0
        self.is_active = False
        self.link: ForeignLink | None = None
        self.session: PeeringSession | None = None
        self._claim: DoorClaim | None = None
        self._stop_watching: Any = None
        self._moved = (0, 0.0)

    # --- its life; on the node's thread ---

    def wishes(self) -> tuple[str, ...]:
        """Return the filter that the peer is told."""
        return self._hub.core.wishes(self)

    def begin(self, link: ForeignLink, name: str) -> None:
        """The peer was admitted."""
        assert self.session is not None
        self.link, self.name = link, name
        self.peer_key, self.topics = f"zeek-2:{name}", self.session.topics
        if not self.session.is_confirmed:
            link.write(self.session.ask())
        if self._hub.core.node_of(self.session.peer) is not None:
            _log.warning("%s is a neighbor as a node already: this link stands by", name)
            link.write(self.session.send_filter(()))
            return
        self.is_active = True
        self._give()
        self._stop_watching = self._hub.watch_wishes(self, self._ask_for)
        self._claim = DoorClaim(
            self._hub, self.peer_key, kept=self._activate, lost=self._stand_by
        )

    def end(self) -> None:
        """The connection is over."""
        self.is_active, self.link = False, None
        if self._claim is not None:
            self._claim.release()
        if self._stop_watching is not None:
            self._stop_watching()
        self._hub.remove_receiver(self)
        self._hub.set_congested(is_congested=False, by=self)

    def _activate(self) -> None:
        """This node carries the peer's messages."""
        if not self.is_active and self.link is not None:
            self.is_active = True
            self._give()
            self._ask_for(self.wishes())

    def _stand_by(self, holder: bytes) -> None:
        """Another node carries them."""
        if self.link is not None and self.session is not None:
            _log.info(
                "peer %s is carried by node %s: this one stands by", self.name, holder.hex()
            )
            self.is_active = False
            self._give_nothing()
            self.link.write(self.session.send_filter(()))

    def _ask_for(self, topics: tuple[str, ...]) -> None:
        """Tell the peer another filter."""
        if self.is_active and self.link is not None and self.session is not None:
            data = self.session.send_filter(topics)
            if data:
                self.link.write(data)

    def take_filter(self, topics: tuple[str, ...]) -> None:
        """Take note of the peer's filter."""
        self.topics = topics
        if self.is_active:
            self._give()

    # --- to the peer; on the node's thread ---

    def _send(
        self, run: list[tuple[str, bytes]], ttl: int, _sender: bytes, to: bytes = NOBODY
    ) -> None:
        """Send values in our encoding."""
        link, session = self.link, self.session
        if link is None or session is None:
            return
        frames = [
            session.send(topic.encode(), value, ttl, to) for topic, value in self._written(run)
        ]
        if link.waiting > WAITING_LIMIT:
            self._overflow(link, len(frames))
            return
        self.taken += len(frames)
        link.write(b"".join(frames))
        if link.waiting > ROOM and self._moved[1] == 0.0:
            self._moved = link.bytes_sent, self._hub.runtime.now()
            self._hub.set_congested(is_congested=True, by=self)
            self._hub.after(DRAIN_INTERVAL, CallBack(self._look))

    def send_directed(self, topic: str, content: bytes) -> None:
        """Send a value to this peer alone, whatever its filter says."""
        assert self.session is not None
        self._send([(topic, content)], self._own_ttl(), b"", self.session.peer)

    def _overflow(self, link: ForeignLink, count: int) -> None:
        """Do what options say where too much waits for a peer that does not read."""
        self.dropped += count
        if self._hub.options.overflow_policy == OverflowPolicy.DISCONNECT:
            link.end(f"{link.waiting:,} B wait and it does not read")

    def _look(self) -> None:
        """Let publishers go on when the peer has read, or reads nothing at all."""
        link, now = self.link, self._hub.runtime.now()
        sent, since = self._moved
        if link is not None and link.waiting > ROOM:
            if link.bytes_sent != sent:
                sent, since = self._moved = link.bytes_sent, now
            self._hub.set_congested(is_congested=now - since < STUCK, by=self)
            self._hub.after(DRAIN_INTERVAL, CallBack(self._look))
            return
        self._moved = (0, 0.0)
        self._hub.set_congested(is_congested=False, by=self)

    # --- from the peer; on the node's thread ---

    def bring(self, messages: list[PeerMessage | PeerFilter]) -> None:
        """Publish what the peer sent, in its order."""
        run: list[tuple[str, bytes]] = []
        place: tuple[bytes, int] | None = None
        for message in messages:
            if isinstance(message, PeerFilter):
                self.take_filter(message.topics)
                continue
            if message.kind == PeeringFrame.COMMAND:
                self.commands += 1
                if self.commands == 1:
                    _log.warning("%s sends commands of stores, which change nothing", self.name)
                continue
            read = self._read(message)
            if read is None:
                continue
            if place != (message.receiver, message.ttl):
                self._publish(run, place)
                run, place = [], (message.receiver, message.ttl)
            run.append(read)
        self._publish(run, place)
        if self.link is not None and not self._hub.has_room():
            self.link.put_off(PAUSE)

    def _read(self, message: PeerMessage) -> tuple[str, bytes] | None:
        """Return topic and value; None where they are none, or not for this endpoint."""
        is_ours = message.receiver == self._hub.endpoint_id
        if not is_ours and (message.receiver != NOBODY or not self.is_active):
            return None
        try:
            topic = message.topic.decode()
            content = cbor_from_broker(message.payload)
        except (UnicodeDecodeError, EndpointError) as error:
            self.unreadable += 1
            level = logging.WARNING if self.unreadable == 1 else logging.DEBUG
            _log.log(level, "%s sent what cannot be read: %s", self.name, str(error)[:_SHOWN])
            return None
        if not topic or is_reserved(topic):  # those of endpoints are nobody else's to tell
            self.unreadable += 1
            return None
        return topic, content

    def _publish(self, run: list[tuple[str, bytes]], place: tuple[bytes, int] | None) -> None:
        """Publish messages of one receiver and TTL."""
        if run and place is not None:
            receiver, ttl = place
            self.brought += len(run)
            forwards = receiver == NOBODY and self._hub.options.forwards
            self._hub.bring_in_encoded(run, self, max(0, ttl - 1) if forwards else 0)


class ZeekPeering(BrokerPeering):
    """All peerings of one endpoint on this wire; see `Endpoint.peer` and `Endpoint.listen`."""

    #: What peers of this wire are called.
    kind: Final = "zeek-2"

    def __init__(self, hub: Hub, tls: TlsSource | None) -> None:
        """Make one without ports and dials; see `BrokerPeering`."""
        super().__init__(hub, tls)
        self._neighbors: dict[ForeignLink, ZeekNeighbor] = {}
        self._sessions: dict[PeeringSession, ZeekNeighbor] = {}
        #: Who waits for the end of a connection.
        self._leaving: dict[ForeignLink, list[Future[bool]]] = {}

    # --- for users, from any thread ---

    def _linked(self, link: ForeignLink, done: Future[bool]) -> None:
        """Tell whoever peers when the other side has our filter."""
        self._hub.call_soon(self._await_confirmed, link, done, self._hub.runtime.now())

    def _await_confirmed(self, link: ForeignLink, done: Future[bool], since: float) -> None:
        """Tell whoever peers when the other side has our filter, whichever connection it has.

        An originator is a peer as soon as it has said so, and the other side a moment later:
        what that one publishes before is not for us.
        """
        session = link.machine
        assert isinstance(session, PeeringSession)
        known = self._hub.foreign_sessions.get(session.peer)
        if known is not None and known.is_confirmed:
            done.set_result(True)
        elif self._hub.runtime.now() - since > HANDSHAKE_LIMIT:
            done.set_result(False)
        else:
            again = partial(self._await_confirmed, link, done, since)
            self._hub.after(DRAIN_INTERVAL, CallBack(again))

    def _leave(self, dial: ForeignDial, done: Future[bool]) -> None:
        """End the peering with who is dialed, in a turn of the hub."""
        self._hub.call_soon(self._end_peering, dial, done)

    def _end_peering(self, dial: ForeignDial, done: Future[bool]) -> None:
        """End the peering with who is dialed; `done` when the news of it was told."""
        link = self._link_of(dial)
        self._foreign.stop(dial)
        if link is None:
            done.set_result(True)
            return
        self._leaving.setdefault(link, []).append(done)
        if link is not dial.link:
            link.end("the user removed it")

    def _link_of(self, dial: ForeignDial) -> ForeignLink | None:
        """Return the connection with who is dialed, also where that side made it."""
        if dial.link in self._neighbors:
            return dial.link
        if not dial.linked.done() or dial.linked.exception() is not None:
            return None
        redundant = dial.linked.result().machine
        peer = redundant.peer if isinstance(redundant, PeeringSession) else b""
        links = [
            link
            for link, each in self._neighbors.items()
            if each.session is not None and each.session.peer == peer
        ]
        return links[0] if links else None

    def publish_to(self, endpoint: bytes, topic: str, value: Any) -> bool:
        """Send a value to one peer alone; False where it is none of this wire.

        Raises:
            EndpointError: the data model has no such topic or value.
        """
        for neighbor in list(self._neighbors.values()):
            if neighbor.session is not None and neighbor.session.peer == endpoint:
                content = python_to_cbor(value)
                self._hub.call_soon(neighbor.send_directed, checked_topic(topic), content)
                return True
        return False

    def neighbors(self) -> list[ZeekNeighbor]:
        """Return the peers that are there; from any thread."""
        return list(self._neighbors.values())

    def close(self) -> None:
        """End all peerings and ports; waits until peers have answered, 3 s at most."""
        runtime = self._hub.runtime
        if runtime.is_closed:
            return
        if self._stop() and not runtime.is_runner_thread():
            left: Future[bool] = Future()
            self._hub.call_soon(self._until_left, left)
            try:
                left.result(LEAVE_LIMIT + 1.0)
            except ResultTimeout:
                _log.info("peers were left without their answer")

    def _until_left(self, left: Future[bool]) -> None:
        """Tell whoever waits that all peers have gone."""
        if not self._neighbors or self._hub.runtime.is_closed:
            left.set_result(True)
        else:
            self._hub.after(DRAIN_INTERVAL, CallBack(partial(self._until_left, left)))

    # --- the door; on the node's thread ---

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
            each: its for each, its in self._sessions.items() if not each.is_over()
        }
        self._sessions[neighbor.session] = neighbor
        return neighbor.session

    def link_up(self, link: ForeignLink, name: str) -> None:
        """Give a peer what its filter has, from here on."""
        assert isinstance(link.machine, PeeringSession)
        neighbor = self._neighbors[link] = self._sessions.pop(link.machine)
        neighbor.begin(link, name)

    def link_down(self, link: ForeignLink, reason: str) -> None:
        """Forget a peer, and dial it again where it is dialed."""
        neighbor = self._neighbors.pop(link)
        neighbor.end()
        _log.info("peer %s ended: %s", neighbor.name, reason)
        for done in self._leaving.pop(link, ()):
            # Behind the news of it.
            self._hub.call_soon(done.set_result, True)  # noqa: FBT003
        self._redial("its other connection ended")

    def deliver(self, link: ForeignLink, messages: list[Any]) -> None:
        """Publish what a peer sent."""
        neighbor = self._neighbors.get(link)
        if neighbor is not None:
            neighbor.bring(messages)

    def not_linked(self, remote: Endpoint, reason: str) -> None:
        """Take note that a handshake came to nothing."""
        _log.debug("no peering with %s: %s", remote[0], reason)
