"""The client side of the protocol: identifiers, acknowledgements, QoS 2 in both directions.

Pure: packets in, packets and bytes out. Local links and simulated clients use it; a bridge
passes acknowledgements through instead (`callboard.mqtt.service.bridge_relay`). A packet with
an identifier is *in flight* from `expect` until `take` gets its last acknowledgement. The owner
acknowledges a received message, with `acknowledge`, when the message is safe.
"""

from contextlib import suppress
from dataclasses import field
from itertools import cycle
from typing import Final, Generic, NamedTuple, TypeVar

import callboard.mqtt.wire.packet as packets
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.errors import LinkClosed
from callboard.mqtt.wire.packet import V5, Packet, Publish
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass

T = TypeVar("T")
_LAST_ID: Final = 65_535


@dataclass(frozen=True, slots=True)
class Message:
    """A message, received or to be published.

    Attributes:
        packet_id: the identifier of the delivery, if the receiver has to acknowledge it.
    """

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None
    packet_id: int = field(default=0, compare=False, repr=False)

    @classmethod
    def of(cls, packet: Publish) -> "Message":
        """Return the message of a packet."""
        return cls(packet.topic, packet.payload, packet.qos, packet.retain, packet.properties)

    def packet(self, packet_id: int = 0) -> Publish:
        """Return the packet that publishes this message."""
        rest = self.topic, self.payload, self.qos, self.retain
        return Publish(*rest, packet_id=packet_id, properties=self.properties)


class Settled(NamedTuple, Generic[T]):
    """The last acknowledgement of a packet in flight has arrived.

    Attributes:
        token: the argument of `expect`.
        codes: the reason codes, one or one per filter.
    """

    token: T
    codes: tuple[int, ...]

    @property
    def refusal(self) -> int:
        """The reason code if the packet, or its first filter, was refused; otherwise 0."""
        return self.codes[0] if self.codes[0] >= ReasonCode.UNSPECIFIED_ERROR else 0


class ClientProtocol(Generic[T]):
    """The state of one client between packets.

    Attributes:
        version: the version of MQTT.
        inflight: the token of each packet in flight, by identifier, in the order of sending.
        released: identifiers of QoS 2 messages that the other side has received.
        answers: packets to be written, in order; see `take_answers`.
    """

    def __init__(self, version: int = V5) -> None:
        self.version = version
        self.inflight: dict[int, T] = {}
        self.released: set[int] = set()
        self.answers: list[bytes] = []
        self._ids = cycle(range(1, _LAST_ID + 1))
        self._received: set[int] = set()

    def expect(self, token: T) -> int:
        """Allocate an identifier for a packet that is about to be sent.

        Raises:
            LinkClosed: all identifiers are in flight.
        """
        if len(self.inflight) >= _LAST_ID:
            message = "65,535 packets are unacknowledged; wait for some before sending more"
            raise LinkClosed(message)
        # Taken in one step of the interpreter: a finalizer may publish inside this call.
        while self.inflight.setdefault(packet_id := self.next_id(), token) is not token:
            pass
        return packet_id

    def next_id(self) -> int:
        """Return an identifier that is not in flight."""
        return next(packet_id for packet_id in self._ids if packet_id not in self.inflight)

    def take_inflight(self) -> list[T]:
        """Remove and return all tokens, because no further acknowledgement will arrive."""
        taken = []
        with suppress(KeyError):
            while self.inflight:
                taken.append(self.inflight.popitem()[1])
        return taken[::-1]

    def take(self, packet: Packet) -> Packet | Settled[T] | None:
        """Process a packet from the other side.

        Returns:
            The packet if the owner must handle it: a PUBLISH that is not a duplicate, or a
            packet that is not an acknowledgement. Or `Settled`, for the last acknowledgement of
            a packet.
        """
        match packet:
            case Publish(qos=2, packet_id=packet_id):
                if packet_id in self._received:
                    self.acknowledge(packet)
                    return None
                self._received.add(packet_id)
            case packets.PubRel(packet_id=packet_id):
                self._received.discard(packet_id)
                self.say(packets.PubComp(packet_id))
                return None
            case packets.PubRec(packet_id=packet_id) if packet.reason_code < 0x80:
                if packet_id in self.inflight:
                    self.released.add(packet_id)
                self.say(packets.PubRel(packet_id))
                return None
            case packets.PubAck() | packets.PubRec() | packets.PubComp():
                return self._settle(packet.packet_id, (packet.reason_code,))
            case packets.SubAck() | packets.UnsubAck():
                return self._settle(packet.packet_id, packet.reason_codes or (0,))
        return packet

    def _settle(self, packet_id: int, codes: tuple[int, ...]) -> Settled[T] | None:
        """Remove a packet from those in flight."""
        self.released.discard(packet_id)
        token = self.inflight.pop(packet_id, None)
        return None if token is None else Settled(token, codes)

    def acknowledge(self, packet: Publish) -> None:
        """Acknowledge a message that is safe."""
        if packet.qos:
            self.say((packets.PubAck if packet.qos == 1 else packets.PubRec)(packet.packet_id))

    def say(self, packet: Packet) -> None:
        """Append a packet to the answers."""
        self.answers.append(encode(packet, self.version))

    def take_answers(self) -> bytes:
        """Remove and return the answers as bytes."""
        answers, self.answers = self.answers, []
        return b"".join(answers)

    def begin_anew(self) -> None:
        """Drop the state of a session that the other side has lost."""
        self._received.clear()
        for packet_id in self.released:  # these messages have arrived
            self.inflight.pop(packet_id, None)
        self.released.clear()
