"""The packets of MQTT 3.1.1 and 5, one class each.

Both versions share the classes: in a packet of 3.1.1 `properties` is None, and fields that only
MQTT 5 has keep their defaults. The field `version` of a CONNECT is the version of the whole
connection.
"""

import enum
from dataclasses import field

from callboard.mqtt.wire.properties import Properties
from callboard.support.dataclass import dataclass

#: Protocol level of MQTT 3.1.1.
V3 = 3
V4 = 4
#: Protocol level of MQTT 5.
V5 = 5


class PacketType(enum.IntEnum):
    """The upper four bits of a packet's first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


@dataclass(frozen=True, slots=True)
class Will:
    """The message that the server publishes if the connection ends without a DISCONNECT."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties | None = None


@dataclass(slots=True)
class Connect:
    """The first packet from a client; `keep_alive` is in seconds, 0 is none.

    Not frozen, because a router makes one for each connection, and that takes half the time.
    """

    client_id: str
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: Will | None = None
    version: int = V4
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class ConnAck:
    """The answer to a CONNECT; for 3.1.1 `reason_code` has one of its return codes."""

    session_present: bool = False
    reason_code: int = 0
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class Publish:
    """A message; `packet_id` is 0 exactly if the QoS is 0."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """A step of the delivery of a message."""

    packet_id: int
    reason_code: int = 0
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class PubAck(Ack):
    """A PUBLISH with QoS 1 has arrived."""


@dataclass(frozen=True, slots=True)
class PubRec(Ack):
    """A PUBLISH with QoS 2 has arrived: first half of its delivery."""


@dataclass(frozen=True, slots=True)
class PubRel(Ack):
    """The sender has dropped the message: second half of a QoS 2 delivery."""


@dataclass(frozen=True, slots=True)
class PubComp(Ack):
    """The receiver has dropped the packet identifier: a QoS 2 delivery is complete."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One filter of a SUBSCRIBE with its options; 3.1.1 has only `qos`."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Requests the messages of one or several filters."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class SubAck:
    """The answer for each filter of a SUBSCRIBE, in its order."""

    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Ends the subscriptions of one or several filters."""

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class UnsubAck:
    """The answer to an UNSUBSCRIBE; without codes in 3.1.1."""

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class PingReq:
    """Shows that the client is alive."""


@dataclass(frozen=True, slots=True)
class PingResp:
    """Shows that the server is alive."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """The last packet of a side; in 3.1.1 only clients send it, and without a reason."""

    reason_code: int = 0
    properties: Properties | None = None


@dataclass(frozen=True, slots=True)
class Auth:
    """A step of an extended authentication; MQTT 5 only."""

    reason_code: int = 0
    properties: Properties | None = None


#: SUBSCRIBE, UNSUBSCRIBE, and their answers.
Subscribing = Subscribe | SubAck | Unsubscribe | UnsubAck
_OfConnection = Connect | ConnAck | PingReq | PingResp | Disconnect | Auth
#: Any packet.
Packet = Publish | Ack | Subscribing | _OfConnection
