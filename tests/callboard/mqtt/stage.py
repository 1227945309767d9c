"""A router machine with clients that exchange packets; time passes only on request."""

import itertools
import random
from typing import Any

from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.link import UNSCHEDULE, Access, Disconnected, RouterLink
from callboard.mqtt.router.machine import RouterMachine, RouterTurn
from callboard.mqtt.wire.codec import decode, encode
from callboard.mqtt.wire.packet import (
    V5,
    ConnAck,
    Connect,
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
    Will,
)
from callboard.mqtt.wire.properties import Properties


def packets_of(data: bytes, version: int) -> list[Packet]:
    """Return the packets in a run of bytes."""
    found = []
    position = 0
    while position < len(data):
        length = shift = 0
        start = position + 1
        while True:
            length |= (data[start] & 0x7F) << shift
            start, shift = start + 1, shift + 7
            if not data[start - 1] & 0x80:
                break
        found.append(decode(data[position], data[start : start + length], version))
        position = start + length
    return found


def deliver(link: RouterLink, notifications: list[Any]) -> None:
    """Put the packets of a turn into a link's buffer, as the router's driver does."""
    link.outgoing += notifications
    if not link.is_woken:
        link.is_woken = True
        link.wake()


class Stage:
    """A router in the middle of a test."""

    def __init__(self, limits: Limits | None = None, *, is_durable: bool = False) -> None:
        self.now = 0.0
        names = itertools.count(1)
        self.machine = RouterMachine(
            limits,
            is_durable=is_durable,
            make_client_id=lambda: f"auto-{next(names)}",
            chance=random.Random(7),
        )
        self.turns: list[RouterTurn] = []

    def post(self, event: Any) -> None:
        self.machine.events.append(event)

    def run(self) -> None:
        """Run turns of the router until it is idle."""
        while True:
            turn = self.machine.run_turn(self.now)
            self.turns.append(turn)
            for link, notifications in turn.transmits:
                deliver(link, notifications)
            if self.machine.is_idle:
                return

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        self.now += seconds
        self.run()

    @property
    def lost(self) -> int:
        """The number of messages that alerts reported as lost."""
        return sum(alert.lost for turn in self.turns for alert in turn.alerts)

    def client(self, client_id: str = "", **options: Any) -> "Client":
        """Connect a client."""
        return Client(self, client_id, **options)


class Client:
    """A client that sends nothing on its own, unless it `answers`."""

    def __init__(
        self,
        stage: Stage,
        client_id: str,
        *,
        version: int = V5,
        clean: bool = True,
        expiry: int | None = None,
        will: Will | None = None,
        access: Access | None = None,
        is_local: bool = False,
        keep_alive: int = 0,
        answers: bool = True,
        reads: bool = True,
        **properties: Any,
    ) -> None:
        self.stage = stage
        self.version = version
        self.answers = answers
        self.reads = reads
        self.inbox: list[Packet] = []
        self.end: Disconnected | None = None
        self._ids = itertools.cycle(range(1, 65_536))
        self._due: list[bytes] = []
        said = None
        if version == V5:
            said = Properties(session_expiry_interval=expiry, **properties)
        connect = Connect(
            client_id, clean, keep_alive, will=will, version=version, properties=said
        )
        self.link = RouterLink(stage, connect, self.wake, access=access, is_local=is_local)
        self.link.begin()
        stage.run()
        self.connack = self.inbox.pop(0) if self.inbox else None

    def wake(self) -> None:
        if self.reads:
            self.read()

    def read(self) -> None:
        """Take what the router sent, and answer as the standard wants."""
        for each in self.link.take():
            if isinstance(each, bytes):
                self._due.append(each)
            elif each is UNSCHEDULE:
                self.link.ready()
            else:
                self.end = each
        due, self._due = self._due, []
        for packet in packets_of(b"".join(due), self.version):
            self.inbox.append(packet)
            if self.answers and self.end is None:
                self._answer(packet)

    def _answer(self, packet: Packet) -> None:
        match packet:
            case Publish(qos=1):
                self.push(PubAck(packet.packet_id))
            case Publish(qos=2):
                self.push(PubRec(packet.packet_id))
            case PubRec():
                self.push(PubRel(packet.packet_id))
            case PubRel():
                self.push(PubComp(packet.packet_id))

    def push(self, *packets: Packet | bytes) -> None:
        """Put packets into the incoming buffer, and tell the router."""
        self.link.push(
            b"".join(
                each if isinstance(each, bytes) else encode(each, self.version)
                for each in packets
            )
        )

    def send(self, *packets: Packet | bytes) -> list[Packet]:
        """Send packets in one chunk; return the answers."""
        self.push(*packets)
        self.stage.run()
        return self.got()

    def got(self) -> list[Packet]:
        """Return the packets received since the last call."""
        inbox, self.inbox = self.inbox, []
        return inbox

    def messages(self) -> list[Publish]:
        """Return the received messages."""
        return [each for each in self.got() if isinstance(each, Publish)]

    def payloads(self) -> list[bytes]:
        """Return their payloads."""
        return [each.payload for each in self.messages()]

    # --- what clients say ---

    def packet_id(self) -> int:
        return next(self._ids)

    def subscribe(
        self, *filters: str, qos: int = 0, identifier: int = 0, **options: Any
    ) -> Any:
        """Subscribe; return the SUBACK and leave other packets in the inbox."""
        said = None
        if self.version == V5:
            said = Properties(subscription_identifiers=(identifier,) if identifier else ())
        asked = tuple(Subscription(each, qos, **options) for each in filters)
        self.push(Subscribe(self.packet_id(), asked, said))
        self.stage.run()
        return self._take(SubAck)

    def unsubscribe(self, *filters: str) -> Any:
        """Unsubscribe; returns the UNSUBACK."""
        said = Properties() if self.version == V5 else None
        self.push(Unsubscribe(self.packet_id(), filters, said))
        self.stage.run()
        return self._take(UnsubAck)

    def _take(self, kind: type) -> Any:
        """Return the first packet of a kind; the others stay."""
        found = next(each for each in self.inbox if isinstance(each, kind))
        self.inbox.remove(found)
        return found

    def message(
        self, topic: str, payload: bytes = b"x", qos: int = 0, **options: Any
    ) -> Publish:
        """Return a PUBLISH of this client."""
        said = None
        if self.version == V5:
            fields = {
                name: options.pop(name)
                for name in list(options)
                if name not in {"retain", "dup", "packet_id"}
            }
            said = Properties(**fields)
        packet_id = options.pop("packet_id", self.packet_id() if qos else 0)
        return Publish(topic, payload, qos, packet_id=packet_id, properties=said, **options)

    def publish(self, topic: str, payload: bytes = b"x", qos: int = 0, **options: Any) -> None:
        """Publish, and let the router do what follows."""
        self.push(self.message(topic, payload, qos, **options))
        self.stage.run()

    def lose(self) -> None:
        """Lose the connection."""
        self.link.disconnect()
        self.stage.run()


def connack(client: Client) -> ConnAck:
    """Return the answer to a client's CONNECT."""
    assert isinstance(client.connack, ConnAck)
    return client.connack
