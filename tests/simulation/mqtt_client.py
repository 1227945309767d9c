"""A client of MQTT as the standard wants it, for simulations: its session outlives connections.

It is honest, but its connection may be lost at any moment, with everything that is under way,
and it may be slow, or acknowledge in another order.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from callboard.mqtt.router.link import UNSCHEDULE, Disconnected, RouterLink
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.packet import (
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from callboard.mqtt.wire.packet import Will as PacketWill
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.stage import packets_of

EXPIRY = 100_000
"""Seconds for which sessions last: longer than a life."""


@dataclass(eq=False)
class Message:
    """A published message; `number` counts the messages of one publisher on one topic."""

    publisher: str
    topic: str
    number: int
    qos: int
    retain: bool
    sent_at: int = -1

    @property
    def payload(self) -> bytes:
        """The payload that identifies the message."""
        return f"{self.publisher} {self.topic} {self.number}".encode()


@dataclass(eq=False)
class Wish:
    """A filter that a client has requested, with the period in which it certainly applies."""

    topic_filter: str
    qos: int
    confirmed_at: int | None = None
    ended_at: int | None = None


@dataclass
class SessionState:
    """The state that a client keeps for its session."""

    begun_at: int = 0
    outgoing: dict[int, tuple[Message, bool]] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    wishes: list[Wish] = field(default_factory=list)
    asked: dict[int, tuple[Packet, list[Wish]]] = field(default_factory=dict)


class SimulatedClient:
    """A client; `tick` is the life's count of what happened, the time of all rules."""

    def __init__(
        self, name: str, version: int, chance: random.Random, tick: Callable[[], int]
    ) -> None:
        self.name = name
        self.version = version
        self.random = chance
        self.tick = tick
        self.session = SessionState()
        self.has_session = False
        self.link: RouterLink | None = None
        self.is_connected = False
        self.is_slow = False
        #: Acknowledges one packet at a time, however many wait.
        self.drips = False
        #: Whether it was away or did nothing: then its log need not keep all for it.
        self.was_away = False
        self.shuffles = False
        self.receive_maxima: tuple[int | None, ...] = (None, 1, 3, 20)
        self.waiting: deque[Message] = deque()
        self.taken: list[tuple[int, str, bytes, int]] = []
        self.problems: list[str] = []
        self._answers: list[bytes] = []
        self._ids = 0
        #: It wants no session before, and has not been told yet that it has none.
        self.begins_anew = False

    # --- connections ---

    def connect(
        self, mailbox: Any, *, clean: bool = False, will: PacketWill | None = None
    ) -> None:
        """Start a connection, with the earlier session or, if `clean`, without."""
        if clean:
            self.session = SessionState(self.tick())
            self.has_session = False
            self.begins_anew = True
        properties = None
        if self.version == V5:
            most = self.random.choice(self.receive_maxima)
            properties = Properties(
                session_expiry_interval=EXPIRY,
                receive_maximum=most,
                topic_alias_maximum=self.random.choice((None, 2)),
            )
        packet = Connect(
            self.name,
            self.begins_anew,
            will=will,
            version=self.version,
            properties=properties,
        )
        self.link = RouterLink(mailbox, packet, lambda: None)
        self.is_connected = False
        self._answers = []
        self.link.begin()

    @property
    def is_at_rest(self) -> bool:
        """Whether it is connected, has everything and owes nothing."""
        return (
            self.is_connected
            and self.link is not None
            and not self.link.incoming
            and not self.link.outgoing
            and not self.waiting
            and not self.session.outgoing
            and not self.session.asked
            and not self._answers
        )

    def leave(self) -> RouterLink | None:
        """Send DISCONNECT, and leave; return the link on which its answer arrives."""
        link, self.link = self.link, None
        self.was_away = True
        self.is_connected = False
        self._answers = []
        if link is not None:
            link.push(encode(Disconnect(0, self._no_properties()), self.version))
        return link

    def lose(self, *, tells: bool = True) -> None:
        """Lose the connection, and all that is under way in both directions."""
        link, self.link = self.link, None
        self.was_away = True
        self.is_connected = False
        self._answers = []
        if link is not None and tells:
            del link.incoming[self.random.randint(0, len(link.incoming)) :]
            link.disconnect()

    # --- sent packets ---

    def push(self, *packets: Packet) -> None:
        """Send packets."""
        if self.link is not None and packets:
            self.link.push(b"".join(encode(each, self.version) for each in packets))

    def packet_id(self) -> int:
        """Return a free packet identifier."""
        while True:
            self._ids = self._ids % 200 + 1
            if self._ids not in self.session.outgoing and self._ids not in self.session.asked:
                return self._ids

    def subscribe(self, topic_filters: list[str], qos: int) -> None:
        """Ask for filters."""
        wishes = [Wish(each, qos) for each in topic_filters]
        self.session.wishes += wishes
        asked = tuple(Subscription(each, qos) for each in topic_filters)
        packet = Subscribe(self.packet_id(), asked, self._no_properties())
        self.session.asked[packet.packet_id] = packet, wishes
        if self.is_connected:
            self.push(packet)

    def unsubscribe(self, wish: Wish) -> None:
        """Take a filter back."""
        for each in self.session.wishes:
            if each.topic_filter == wish.topic_filter and each.ended_at is None:
                each.ended_at = self.tick()
        packet = Unsubscribe(self.packet_id(), (wish.topic_filter,), self._no_properties())
        self.session.asked[packet.packet_id] = packet, []
        if self.is_connected:
            self.push(packet)

    def _no_properties(self) -> Properties | None:
        return Properties() if self.version == V5 else None

    def publish(self, window: int = 8) -> None:
        """Send some of the messages that wait to be published."""
        packets = []
        while self.waiting and self.is_connected and len(self.session.outgoing) < window:
            message = self.waiting.popleft()
            message.sent_at = self.tick()
            packet_id = 0
            if message.qos:
                packet_id = self.packet_id()
                self.session.outgoing[packet_id] = message, False
            packets.append(self._packet(message, packet_id))
        self.push(*packets)

    def _packet(self, message: Message, packet_id: int, *, dup: bool = False) -> Publish:
        return Publish(
            message.topic,
            message.payload,
            message.qos,
            message.retain,
            dup,
            packet_id,
            self._no_properties(),
        )

    # --- what it gets ---

    def read(self) -> None:
        """Take what the router sent, and answer some of it."""
        link = self.link
        if link is None:
            return
        for each in link.take():
            if isinstance(each, Disconnected):
                self.lose(tells=False)
                return
            if each is UNSCHEDULE:
                link.ready()
            else:
                assert isinstance(each, bytes)
                for packet in packets_of(each, self.version):
                    self._take(packet)
        self.answer()

    def answer(self, *, all_of_them: bool = False) -> None:
        """Send acknowledgements that wait."""
        answers = self._answers
        if self.shuffles:
            self.random.shuffle(answers)
        count = len(answers) if all_of_them else self.random.randint(0, len(answers))
        if self.drips and not all_of_them:
            count = min(1, len(answers))
        if self.link is not None and count:
            self.link.push(b"".join(answers[:count]))
        del answers[:count]

    def _say(self, packet: Packet) -> None:
        self._answers.append(encode(packet, self.version))

    def _take(self, packet: Packet) -> None:
        session = self.session
        match packet:
            case ConnAck():
                self._begin(packet)
            case Publish():
                self._receive(packet)
            case PubAck():
                session.outgoing.pop(packet.packet_id, None)
            case PubRec():
                known = session.outgoing.get(packet.packet_id)
                if known is not None:
                    session.outgoing[packet.packet_id] = known[0], True
                self._say(PubRel(packet.packet_id))
            case PubComp():
                session.outgoing.pop(packet.packet_id, None)
            case PubRel():
                session.received.discard(packet.packet_id)
                self._say(PubComp(packet.packet_id))
            case SubAck() | UnsubAck():
                _, wishes = session.asked.pop(packet.packet_id, (None, []))
                for wish in wishes:
                    wish.confirmed_at = self.tick()

    def _begin(self, packet: ConnAck) -> None:
        if packet.reason_code:
            self.problems.append(f"{self.name} was refused with {packet.reason_code}")
            return
        if self.has_session and not packet.session_present:
            self.problems.append(f"the session of {self.name} is lost")
        self.has_session = True
        self.is_connected = True
        self.begins_anew = False
        for packet_id, (message, is_received) in self.session.outgoing.items():
            if is_received:
                self.push(PubRel(packet_id))
            else:
                self.push(self._packet(message, packet_id, dup=True))
        for asked, _ in list(self.session.asked.values()):
            self.push(asked)

    def _receive(self, packet: Publish) -> None:
        if packet.qos == 2:
            self._say(PubRec(packet.packet_id))
            if packet.packet_id in self.session.received:
                return
            self.session.received.add(packet.packet_id)
        elif packet.qos:
            self._say(PubAck(packet.packet_id))
        topic = packet.topic or self._aliases[self._alias(packet)]
        alias = self._alias(packet)
        if packet.topic and alias:
            self._aliases[alias] = packet.topic
        self.taken.append((self.tick(), topic, packet.payload, packet.qos))

    @staticmethod
    def _alias(packet: Publish) -> int:
        return (packet.properties and packet.properties.topic_alias) or 0

    @property
    def _aliases(self) -> dict[int, str]:
        """Topics by alias, of this connection only."""
        link = self.link
        assert link is not None
        if self._known_aliases[0] is not link:
            self._known_aliases = (link, {})
        return self._known_aliases[1]

    _known_aliases: tuple[Any, dict[int, str]] = (None, {})
