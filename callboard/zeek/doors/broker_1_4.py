"""Peerings with Zeek Broker 1.4: the ports and dials of one endpoint.

    Broker ──> session ──> Hub.bring_in_encoded ──> endpoints, actors, other peers
    endpoints, actors, other peers ──> Hub ──> neighbor, with Broker's filter ──> session

Both sides tell their whole filter. Ours has what receivers here, nodes in reach and other peers
want, as a Broker passes on only what it asked for itself. A message crosses as many links as
its TTL says, whatever their wires.

A node that a Broker peers with claims it in the directories before it says what it wants: of
several nodes one carries messages, the others' peerings stand by with an empty filter. What
waits for a Broker's credit makes those who publish wait.
"""

import hashlib
import logging
import os
from contextlib import suppress
from functools import partial
from typing import Any, Final

from callboard.endpoint.door_claim import DoorClaim
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.peer_buffer import OverflowPolicy
from callboard.endpoint.machine.status import foreign_id
from callboard.endpoint.machine.topic import checked_topic, is_reserved
from callboard.kernel.context import CallBack
from callboard.kernel.errors import ResultTimeout
from callboard.kernel.reply import Future
from callboard.kernel.tls import TlsSource
from callboard.kernel.topology import Endpoint, endpoint_text
from callboard.kernel.wire import ForeignDial, ForeignLink, Opening
from callboard.model.encoding import python_to_cbor
from callboard.model.errors import DoorTaken
from callboard.zeek.broker_1_4 import (
    QUEUE_BYTES,
    QUEUE_HIGH,
    QUEUE_LOW,
    Broker14Session,
    PeerKnown,
    PeerTopics,
    RoomAgain,
)
from callboard.zeek.caf import CafNode
from callboard.zeek.doors.broker_peering import PAUSE, BrokerNeighbor, BrokerPeering
from callboard.zeek.node_message import DataRun, data_message_bytes
from callboard.zeek.transcoder import broker_from_cbor

_log: Final = logging.getLogger("callboard.zeek")

#: Bytes of a frame.
FRAME_LIMIT: Final = 64 << 20

#: Seconds in which what waits for credit may go before an endpoint's end, and between looks.
FLUSH_LIMIT: Final = 5.0
FLUSH_LOOK: Final = 0.01

#: Seconds without credit after which nobody waits for a peer any more: what is published then
#: above the room is dropped, or the peering ends, as `peer_overflow_policy` says.
STALL_LIMIT: Final = 4.0


class Broker14Neighbor(BrokerNeighbor):
    """One peer of this wire; its name is its node's."""

    def __init__(self, hub: Hub, link: ForeignLink, node: CafNode) -> None:
        """Claim a peer that said which node it is.

        Raises:
            DoorTaken: this node has a peering with it already.
        """
        super().__init__(hub, str(node))
        self.peer_key = f"zeek-1.4:{node}"
        self.link = link
        self._host = node.host
        self.session: Broker14Session = link.machine  # type: ignore[assignment]
        self._post = hub.runtime.post
        self._is_active = self._is_over = self._is_holding = False
        #: Messages on their way to the session.
        self._posted = 0
        #: The peer's filter once it said one; ours once it is decided who carries messages.
        self._heard: tuple[str, ...] | None = None
        self._wishes: tuple[str, ...] | None = None
        self._stop_watching: Any = None
        self._claim = DoorClaim(hub, self.peer_key, kept=self._begin, lost=self._stand_by)

    # --- its life, in turns of the hub ---

    def _begin(self) -> None:
        """This node carries the peer's messages."""
        if self._is_over or self._is_active:
            return
        core, nodes = self._hub.core, self._hub.overlay.nodes()
        if any(_host_of(core.endpoint_of(node) or b"") == self._host for node in nodes):
            _log.warning("%s is in reach as a node already: this peering stands by", self.name)
            self._wishes = ()
            self._follow_filter()
        else:
            self._is_active = True
            self._stop_watching = self._hub.watch_wishes(self, self._ask_for)
            self._follow_filter()

    def _stand_by(self, holder: bytes) -> None:
        """Another node carries them."""
        if not self._is_over:
            text = "peer %s is carried by node %s: this one stands by"
            _log.info(text, self.name, holder.hex())
            self._leave()
            self._wishes = ()
            self._follow_filter()

    def _leave(self) -> None:
        """Take and give no messages any more."""
        self._is_active = False
        if self._stop_watching is not None:
            self._stop_watching()
            self._stop_watching = None
        self._give_nothing()
        self._is_holding = False
        self._hub.relax(self)

    def end(self) -> None:
        """The connection is over. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self._claim.release()
            self._hub.call_soon(self._leave)

    def _ask_for(self, topics: tuple[str, ...]) -> None:
        """Tell the peer another filter; the first one goes behind what it wants itself."""
        self._wishes = topics
        self._post(self._say)

    def _follow_filter(self) -> None:
        """Let the hub give what the peer's filter has; behind that, go on."""
        if self._is_over:
            return
        heard = self._heard
        if self._is_active:
            self._give()
        self._hub.call_soon(self._post, self._say, heard)

    # --- to the peer, in turns of the hub ---

    def _send(self, run: list[tuple[str, bytes]], ttl: int, sender: bytes) -> None:
        """Send values in our encoding; who publishes waits where too much of them does."""
        messages = [data_message_bytes(*each, ttl) for each in self._written(run)]
        if self._posted + self.session.queued > QUEUE_HIGH and not self._has_room(sender):
            self.dropped += len(messages)
            return
        self.taken += len(messages)
        self._posted += len(messages)
        self._post(self._emit, messages)

    def _has_room(self, sender: bytes) -> bool:
        """Let who publishes wait while the peer takes messages at all; False to drop them."""
        if self.is_stalled():
            self._go_on()
            if self._hub.options.overflow_policy == OverflowPolicy.DISCONNECT:
                self._post(self.link.end, "too much waits for it, and it takes nothing")
            return False
        self._hub.hold(self, sender, PAUSE)
        if not self._is_holding:
            self._is_holding = True
            self._hub.after(STALL_LIMIT / 4, CallBack(self._go_on))
        return True

    def is_stalled(self) -> bool:
        """Return whether the peer has given no credit for too long."""
        return self._hub.runtime.now() - self.session.credited >= STALL_LIMIT

    def _go_on(self) -> None:
        """Let those who publish go on, if there is room, or there will be none."""
        if not self._is_holding:
            return
        if self._posted + self.session.queued <= QUEUE_LOW or self.is_stalled():
            self._is_holding = False
            self._hub.relax(self)
        else:
            self._hub.after(STALL_LIMIT / 4, CallBack(self._go_on))

    # --- the session, with the runner's role: a turn of the hub that takes long loses it ---

    def _say(self, followed: tuple[str, ...] | None = None) -> None:
        """Write our filter: the first one, or another.

        Who listens is a peer from its first filter on: that goes when what the peer wants
        is followed.
        """
        session, wishes = self.session, self._wishes
        if wishes is None:
            return  # the claim is not decided
        if session.is_introduced:
            self._write(session.update(wishes))
        elif self.link.dial is not None or (followed is not None and followed is self._heard):
            self._write(session.introduce(wishes))

    def _emit(self, messages: list[bytes]) -> None:
        """Write messages, or let them wait for credit."""
        self._posted -= len(messages)
        self._write(self.session.send(messages))
        if self.session.waiting > QUEUE_BYTES:
            self.link.end(f"{self.session.waiting:,} B wait for credit")
        self._look_for_room()

    def _look_for_room(self) -> None:
        """Wake those who wait, when what waits has gone."""
        if self._is_holding and self.session.queued <= QUEUE_LOW:
            self._hub.call_soon(self._go_on)

    def send_directed(self, topic: str, value: bytes) -> None:
        """Send a value to this peer alone, whatever its filter says."""
        self.taken += 1
        self._write(self.session.direct(topic, value))

    def _write(self, data: bytes) -> None:
        """Write what a call of the session returned, if that is anything."""
        if data:
            self.link.write(data)

    # --- from the peer, with the runner's role ---

    def bring(self, arrivals: list[Any]) -> None:
        """Take what the peer sent, in its order."""
        for arrival in arrivals:
            if isinstance(arrival, DataRun):
                self._publish(arrival)
            elif isinstance(arrival, PeerTopics):
                self.topics = self._heard = arrival.topics
                self._hub.call_soon(self._follow_filter)
            elif isinstance(arrival, RoomAgain):
                self._look_for_room()
            else:
                self.commands += 1
        if not self._hub.has_room():
            self.link.put_off(PAUSE)

    def _publish(self, run: DataRun) -> None:
        """Publish data messages; topics of endpoints are nobody else's to tell."""
        messages = [each for each in run.messages if not is_reserved(each[0])]
        if messages and self._is_active:
            self.brought += len(messages)
            ttl = max(0, run.ttl - 1) if self._hub.options.forwards else 0
            self._hub.bring_in_encoded(messages, self, ttl)


def _host_of(endpoint: bytes) -> bytes:
    """Return what stands for the machine of an endpoint of ours: CAF's nodes have 20 bytes."""
    return hashlib.sha1(endpoint, usedforsecurity=False).digest()


class Broker14Peering(BrokerPeering):
    """All peerings of one endpoint on this wire; see `Endpoint.peer` and `Endpoint.listen`."""

    #: What peers of this wire are called.
    kind: Final = "zeek-1.4"

    def __init__(self, hub: Hub, tls: TlsSource | None) -> None:
        """Make one without ports and dials; see `BrokerPeering`."""
        super().__init__(hub, tls)
        self._own = CafNode(os.getpid(), _host_of(hub.endpoint_id))
        #: Connections whose peer said which node it is.
        self._neighbors: dict[ForeignLink, Broker14Neighbor] = {}

    # --- for users, from any thread ---

    def _linked(self, link: ForeignLink, done: Future[bool]) -> None:
        """Tell whoever peers behind the turns in which the peer's filter is followed."""
        self._hub.call_soon(self._hub.call_soon, done.set_result, True)  # noqa: FBT003

    def _leave(self, dial: ForeignDial, done: Future[bool]) -> None:
        """End a peering, and tell of it behind the end of the link and the news of it."""
        self._foreign.stop(dial)
        self._hub.runtime.post(self._hub.call_soon, done.set_result, True)  # noqa: FBT003

    def publish_to(self, endpoint: bytes, topic: str, value: Any) -> bool:
        """Send a value to one peer alone; False where it is none of this wire.

        Raises:
            EndpointError: the data model has no such topic or value.
        """
        for link, neighbor in list(self._neighbors.items()):
            if foreign_id(self.kind, link.remote) == endpoint:
                content = broker_from_cbor(python_to_cbor(value))
                topic = checked_topic(topic)
                self._hub.runtime.post(neighbor.send_directed, topic, content)
                return True
        return False

    def neighbors(self) -> list[Broker14Neighbor]:
        """Return the peers that are there; from any thread."""
        return [each for each in list(self._neighbors.values()) if each.session.is_open]

    def close(self) -> None:
        """Send what waits for credit, for some seconds, and end all peerings. Idempotent."""
        runtime = self._hub.runtime
        if not runtime.is_closed and not runtime.is_runner_thread():
            gone: Future[bool] = Future()
            self._hub.call_soon(self._until_gone, gone)
            with suppress(ResultTimeout):
                gone.result(FLUSH_LIMIT)
            waiting = sum(each.session.queued for each in self.neighbors())
            if waiting:
                _log.warning("%d messages for peers are not sent: they have no room", waiting)
        self._stop()

    def _until_gone(self, gone: Future[bool]) -> None:
        """Tell whoever waits that nothing waits for credit any more, or there is none."""
        waits = any(each.session.queued and not each.is_stalled() for each in self.neighbors())
        if self._hub.runtime.is_closed or not waits:
            gone.set_result(True)
        else:
            self._hub.after(FLUSH_LOOK, CallBack(partial(self._until_gone, gone)))

    # --- the door; on the node's thread ---

    def make_machine(self, opening: Opening) -> Broker14Session:
        """Return the machine of a new connection."""
        return Broker14Session(
            self._own, opening.now, is_dialed=opening.is_dialed, limit=FRAME_LIMIT
        )

    def link_up(self, link: ForeignLink, _name: str) -> None:
        """Take note that both streams are there."""
        _log.info("%s at %s", link.name, endpoint_text(link.remote))

    def link_down(self, link: ForeignLink, reason: str) -> None:
        """Forget a peer; a dial that stood back for it goes on."""
        self._neighbors.pop(link).end()
        _log.info("%s ended: %s", link.name, reason)
        self._redial("", but=link.dial)

    def deliver(self, link: ForeignLink, messages: list[Any]) -> None:
        """Take what a peer sent."""
        if isinstance(messages[0], PeerKnown):
            self._met(link, messages[0].node)
        elif link in self._neighbors:
            self._neighbors[link].bring(messages)

    def _met(self, link: ForeignLink, node: CafNode) -> None:
        """A peer said which node it is; one connection with it is enough."""
        try:
            self._neighbors[link] = Broker14Neighbor(self._hub, link, node)
        except DoorTaken:
            session: Broker14Session = link.machine  # type: ignore[assignment]
            self._foreign.carry_out(link, [*session.redundant()])

    def not_linked(self, remote: Endpoint, reason: str) -> None:
        """Tell why there is no peering, and forget connections that ended before it stood."""
        _log.info("no peering with %s: %s", remote[0], reason)
        for link, neighbor in list(self._neighbors.items()):
            if not link.is_open:
                del self._neighbors[link]
                neighbor.end()
