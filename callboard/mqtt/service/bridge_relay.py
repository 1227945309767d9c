"""The relay of a bridge passes messages and acknowledgements between router and remote broker.

    router ──PUBLISH 7──> relay ──PUBLISH 7──> remote        (and the same from right to left)
    router <──PUBACK 7─── relay <──PUBACK 7─── remote

A message is acknowledged to the side it came from when the other side has acknowledged it.
Packet identifiers are the same on both sides, and so are the steps of QoS 2. Therefore the
relay needs no journal of its own: the router's session of the bridge has the unacknowledged
messages, their identifiers, and the stage of each delivery. After a restart the router and the
remote broker resend open packets with the same identifiers, and recognize duplicates.

If several filters match a message, each makes a copy with another prefix. The copies have
further identifiers, which follow from the one of the message; so they, too, are the same after
a restart. The message is acknowledged when all copies are.

Pure: packets in, bytes and packets out.
"""

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from typing import Final, NamedTuple

import callboard.mqtt.wire.packet as packets
from callboard.mqtt.wire.codec import decode_packet, encode
from callboard.mqtt.wire.field import write_variable
from callboard.mqtt.wire.framing import body_start
from callboard.mqtt.wire.packet import V5, Packet, Publish
from callboard.mqtt.wire.properties import NO_PROPERTIES, Properties
from callboard.mqtt.wire.reason_code import ReasonCode, reason_text
from callboard.mqtt.wire.topic import matches
from callboard.support.dataclass import dataclass

_LAST_ID: Final = 65_535
#: The first byte of a PUBLISH with QoS 1 that is neither retained nor resent.
_PLAIN: Final = 0x32

#: Unacknowledged messages to the remote broker, unless it allows fewer. Over a link with a long
#: delay, at most as many messages pass in each round trip.
WINDOW: Final = 20_000

#: Topics whose routes are cached, and the characters of the longest of them.
_CACHED_TOPICS: Final = 1_000
_CACHED_LENGTH: Final = 256


@dataclass(frozen=True, slots=True)
class BridgeTopics:
    """One topic filter whose messages are carried.

    Attributes:
        topic_filter: the filter; the prefix of its side precedes it.
        direction: `in`: from the remote broker; `out`: to it; `both`.
        qos: the highest QoS that messages are carried with.
        prefix: added to topics on the side where messages are published; not with `both`.
        local_prefix: in front of the filter and of topics at the router.
        remote_prefix: in front of the filter and of topics at the remote broker.
    """

    topic_filter: str
    direction: str = "in"
    qos: int = 1
    prefix: str = ""
    local_prefix: str = ""
    remote_prefix: str = ""

    def routes(self) -> "Iterator[BridgeRoute]":
        """Return the route of each direction."""
        if self.direction in ("in", "both"):
            target = self.local_prefix + self.prefix
            yield BridgeRoute(self.remote_prefix, self.topic_filter, target, self.qos)
        if self.direction in ("out", "both"):
            target = self.remote_prefix + self.prefix
            yield BridgeRoute(
                self.local_prefix, self.topic_filter, target, self.qos, is_outward=True
            )


class BridgeRoute(NamedTuple):
    """One direction of one filter.

    Attributes:
        source_prefix: in front of topics on the side where messages are subscribed.
        topic_filter: the filter without this prefix.
        target_prefix: replaces it on the other side.
        qos: the highest QoS.
        is_outward: whether it leads to the remote broker.
    """

    source_prefix: str
    topic_filter: str
    target_prefix: str
    qos: int
    is_outward: bool = False

    @property
    def source(self) -> str:
        """The filter that is subscribed."""
        return self.source_prefix + self.topic_filter

    @property
    def target(self) -> str:
        """A filter for the topics under which messages are published."""
        return self.target_prefix + self.topic_filter

    def topic(self, topic: str) -> str | None:
        """Return a topic as it is on the other side; None if the filter does not match."""
        if not matches(topic, self.source):
            return None
        return self.target_prefix + topic[len(self.source_prefix) :]


class CopyTarget(NamedTuple):
    """The topic of a copy on the other side, and its highest QoS."""

    topic: str
    qos: int


class BridgeRoutes:
    """The routes of one direction, and the copies of messages that they make.

    Attributes:
        routes: the routes, in the order of the settings.
    """

    def __init__(self, routes: Sequence[BridgeRoute]) -> None:
        """Start with an empty cache."""
        self.routes = routes
        self._step = _LAST_ID // (len(routes) or 1)
        self._cache: dict[str, tuple[CopyTarget, ...]] = {}
        #: The same by encoded topic; None unless there is one target, with QoS 1 or 2.
        self._plain: dict[bytes, CopyTarget | None] = {}

    def targets(self, topic: str) -> tuple[CopyTarget, ...]:
        """Return the target of each copy of a message on a topic."""
        targets = self._cache.get(topic)
        if targets is None:
            targets = tuple(
                CopyTarget(target, route.qos)
                for route in self.routes
                if (target := route.topic(topic)) is not None
            )
            if len(topic) <= _CACHED_LENGTH:
                if len(self._cache) >= _CACHED_TOPICS:
                    self._cache.clear()
                self._cache[topic] = targets
        return targets

    def plain_target(self, name: bytes) -> CopyTarget | None:
        """Return the target of messages on a topic that have one copy with QoS 1 or 2."""
        if name not in self._plain:
            targets = self.targets(name.decode())
            if len(name) > _CACHED_LENGTH:
                return None
            if len(self._plain) >= _CACHED_TOPICS:
                self._plain.clear()
            has_one = len(targets) == 1 and targets[0].qos > 0
            self._plain[name] = targets[0] if has_one else None
        return self._plain[name]

    def ids(self, packet_id: int) -> list[int]:
        """Return the identifiers of the copies of a message: its own one, then far ones."""
        if len(self.routes) <= 1:
            return [packet_id]
        steps = range(len(self.routes))
        return [(packet_id - 1 + index * self._step) % _LAST_ID + 1 for index in steps]


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """Limits of a remote broker, from its CONNACK.

    Attributes:
        receive_maximum: unacknowledged messages with QoS 1 and 2.
        qos: the highest QoS.
        retains: whether it keeps retained messages.
        packet_size: bytes of the largest packet; None for no limit.
        wildcards: whether filters may have wildcards.
    """

    receive_maximum: int = WINDOW
    qos: int = 2
    retains: bool = True
    packet_size: int | None = None
    wildcards: bool = True

    @classmethod
    def of(cls, greeting: packets.ConnAck) -> "RemoteLimits":
        """Return the limits of a CONNACK; one of MQTT 3.1.1 has none."""
        properties = greeting.properties or NO_PROPERTIES
        return cls(
            min(WINDOW, properties.receive_maximum or _LAST_ID),
            2 if properties.maximum_qos is None else properties.maximum_qos,
            properties.retain_available != 0,
            properties.maximum_packet_size,
            properties.wildcard_subscription_available != 0,
        )


@dataclass(slots=True)
class BridgeFigures:
    """Counts of a bridge.

    Attributes:
        sent: messages to the remote broker, without resent ones.
        received: messages from the remote broker.
        dropped: messages that the remote broker cannot accept, such as too large ones.
        refused: messages that the remote broker, or the router, has refused.
        lost: messages with QoS 0 that found no connection.
    """

    sent: int = 0
    received: int = 0
    dropped: int = 0
    refused: int = 0
    lost: int = 0


class Stage(enum.Enum):
    """Steps of the delivery of a copy to the remote broker."""

    WAITING = "waiting"
    SENT = "sent"
    RECEIVED = "received"
    RELEASED = "released"


@dataclass(slots=True, eq=False)
class Copy:
    """A copy of a message to the remote broker.

    Attributes:
        packet: the router's message, decoded or encoded; None if only its release is open
            after a restart.
        target: the topic and the highest QoS of the copy; None in the same case.
        stage: changed by the relay.
    """

    packet: Publish | bytes | None
    target: CopyTarget | None
    stage: Stage = Stage.WAITING


@dataclass(slots=True, eq=False)
class Outward:
    """A message of the router that is not acknowledged there.

    Attributes:
        packet_id: its identifier at the router.
        qos: the QoS of the router's delivery.
        copies: the open copies, by their identifiers at the remote broker.
        is_received: QoS 2: whether the router has got its PUBREC.
        is_released: QoS 2: whether the router has sent its PUBREL.
    """

    packet_id: int
    qos: int
    copies: dict[int, Copy] = field(default_factory=dict)
    is_received: bool = False
    is_released: bool = False


@dataclass(slots=True, eq=False)
class Inward:
    """A message of the remote broker that is not acknowledged there.

    Attributes:
        packet_id: its identifier at the remote broker.
        qos: its QoS.
        pending: identifiers at the router whose next acknowledgement is missing.
        code: the reason code for the remote broker.
        is_received: QoS 2: whether the remote broker may get its PUBREC.
        is_released: QoS 2: whether the remote broker has sent its PUBREL.
    """

    packet_id: int
    qos: int
    pending: set[int]
    code: int = 0
    is_received: bool = False
    is_released: bool = False


class BridgeRelay:
    """Both directions of a bridge.

    Attributes:
        to_router: packets for the router, in order; the owner removes them.
        to_remote: encoded packets for the remote broker, in order; the owner removes them.
        notes: texts for the log: dropped and refused messages.
        figures: counts.
        is_open: whether the remote broker is connected.
    """

    def __init__(
        self,
        topics: Iterable[BridgeTopics],
        version: int = V5,
        *,
        retains: bool = True,
        packet_size: int | None = None,
    ) -> None:
        """Start without a connection; the router's session begins at the same time.

        Args:
            topics: the filters that are carried.
            version: the version of MQTT of the remote broker.
            retains: whether messages to it keep their flag.
            packet_size: bytes of the largest packet to it; None for its own limit.
        """
        routes = [route for topic in topics for route in topic.routes()]
        self._outward = BridgeRoutes([route for route in routes if route.is_outward])
        self._inward = BridgeRoutes([route for route in routes if not route.is_outward])
        self.version, self._retains, self._packet_size = version, retains, packet_size
        self.to_router: list[Packet] = []
        self.to_remote: list[bytes] = []
        self.notes: list[str] = []
        self.figures = BridgeFigures()
        self.is_open = False
        self._limits = RemoteLimits()
        #: Messages of the router, by identifier there, in their order.
        self._out: dict[int, Outward] = {}
        #: The same by the identifiers of their copies at the remote broker.
        self._out_by_remote: dict[int, Outward] = {}
        #: Identifiers of copies that wait for room in the remote broker's window.
        self._waiting: deque[int] = deque()
        #: Identifiers of copies in the remote broker's window.
        self._in_flight: set[int] = set()
        #: Messages of the remote broker, by identifier there.
        self._in: dict[int, Inward] = {}
        #: The same by the identifiers of their copies at the router.
        self._in_by_router: dict[int, Inward] = {}
        #: Identifiers that the router does not hold as received, from earlier QoS 2 messages.
        self._free_at_router: set[int] = set()
        #: Acknowledgements of the router to ignore, by identifier: their message was forgotten.
        self._stale: dict[int, int] = {}
        #: PUBCOMPs of the router to ignore: they answer PUBRELs of the relay itself.
        self._own_releases: dict[int, int] = {}
        #: Messages that wait for identifiers, by the side that they came from.
        self._deferred_out: deque[Publish] = deque()
        self._deferred_in: deque[Publish] = deque()
        #: The subscriptions at the remote broker.
        self._subscribed: tuple[packets.Subscription, ...] = ()

    @property
    def waiting(self) -> int:
        """The number of messages to the remote broker that it has not acknowledged."""
        return len(self._out_by_remote) + len(self._deferred_out)

    # --- the connection with the remote broker ---

    def remote_opened(self, limits: RemoteLimits, *, session_present: bool) -> None:
        """Resend unacknowledged packets on a new connection with the remote broker."""
        sizes = [size for size in (limits.packet_size, self._packet_size) if size is not None]
        self.is_open = True
        self._limits = replace(
            limits,
            retains=limits.retains and self._retains,
            packet_size=min(sizes, default=None),
        )
        self._in_flight.clear()
        self._waiting.clear()
        if not session_present:
            self._forget_inward()
        for delivery in list(self._out.values()):
            for remote_id, copy in list(delivery.copies.items()):
                if copy.stage in (Stage.RECEIVED, Stage.RELEASED):
                    if not session_present:  # the message has arrived
                        self._finish(delivery, remote_id)
                    elif delivery.is_released:
                        self._release(remote_id, copy)
                    continue
                if not session_present:
                    copy.stage = Stage.WAITING
                self._waiting.append(remote_id)
        self._fill()

    def remote_closed(self) -> None:
        """Keep unacknowledged packets for the next connection."""
        self.is_open = False
        self.to_remote.clear()

    def say(self, packet: Packet) -> None:
        """Send a packet to the remote broker, if it is connected."""
        if self.is_open:
            self.to_remote.append(encode(packet, self.version))

    def take_remote(self) -> bytes:
        """Remove and return the bytes for the remote broker."""
        data, self.to_remote = b"".join(self.to_remote), []
        return data

    def subscribe(self, packet_id: int) -> None:
        """Subscribe the filters that the remote broker allows."""
        is_v5 = self.version == V5  # no local, retain as published
        allowed = []
        for route in self._inward.routes:
            source, qos = route.source, min(route.qos, self._limits.qos)
            if not self._limits.wildcards and {"#", "+"} & set(source):
                self.notes.append(
                    f"the filter {source} has wildcards, which it does not accept"
                )
                continue
            allowed.append(packets.Subscription(source, qos, is_v5, is_v5))
        self._subscribed = tuple(allowed)
        if allowed:
            self.say(packets.Subscribe(packet_id, self._subscribed))

    # --- packets of the router ---

    def pass_through(self, data: bytes) -> bool:
        """Send an encoded PUBLISH of the router without decoding it, if that is possible.

        It is possible for the first delivery of a message with QoS 1 that has no properties,
        is not retained and has one copy, while the window has room. Most messages of a bridge
        are like that, and this saves half of their cost. `from_router` sends all others.

        Returns:
            Whether it was sent.
        """
        if data[0] != _PLAIN or self._waiting or self._deferred_out or not self.is_open:
            return False
        start = body_start(data)
        end = start + 2 + (data[start] << 8 | data[start + 1])
        target = self._outward.plain_target(data[start + 2 : end])
        limits = self._limits
        has_room = limits.qos and len(self._in_flight) < limits.receive_maximum
        if target is None or data[end + 2] or not has_room:
            return False
        packet_id = data[end] << 8 | data[end + 1]
        if packet_id in self._out or packet_id in self._out_by_remote:
            return False
        name = target.topic.encode()
        no_properties = b"\0" if self.version == V5 else b""
        body = b"".join(
            (
                len(name).to_bytes(2, "big"),
                name,
                data[end : end + 2],
                no_properties,
                data[end + 3 :],
            )
        )
        packet = b"".join((data[:1], write_variable(len(body)), body))
        if limits.packet_size is not None and len(packet) > limits.packet_size:
            return False
        delivery = Outward(packet_id, 1, {packet_id: Copy(data, target, Stage.SENT)})
        self._out[packet_id] = self._out_by_remote[packet_id] = delivery
        self._in_flight.add(packet_id)
        self.figures.sent += 1
        self.to_remote.append(packet)
        return True

    def from_router(self, packet: Packet) -> None:
        """Process a packet of the router."""
        match packet:
            case Publish():
                self._send(packet)
            case packets.PubRel(packet_id=packet_id):
                self._release_all(packet_id)
            case packets.PubAck() | packets.PubRec():
                self._router_received(packet)
            case packets.PubComp(packet_id=packet_id):
                self._router_completed(packet_id)

    def _send(self, packet: Publish) -> None:
        """Send copies of a message to the remote broker."""
        packet_id, targets = packet.packet_id, self._outward.targets(packet.topic)
        if not packet.qos:
            for target in targets:
                self._send_once(packet, target)
            return
        if packet_id in self._out:
            return  # resent by the router; it is on its way
        ids = self._outward.ids(packet_id)
        if self._deferred_out or not self._out_by_remote.keys().isdisjoint(ids):
            self._deferred_out.append(packet)  # an old copy has such an identifier
            return
        delivery = self._out[packet_id] = Outward(packet_id, packet.qos)
        for remote_id, target in zip(ids, targets, strict=False):
            if not target.qos:  # another filter has the higher QoS
                self._send_once(packet, target)
                continue
            delivery.copies[remote_id] = Copy(packet, target)
            self._out_by_remote[remote_id] = delivery
            self._waiting.append(remote_id)
        self._fill()
        if not delivery.copies:
            self._settle(delivery)

    def _send_once(self, packet: Publish, target: CopyTarget) -> None:
        """Send a message with QoS 0; without a connection it is lost."""
        if not self.is_open:
            self.figures.lost += 1
        elif (data := self._encoded(packet, CopyTarget(target.topic, 0), 0)) is not None:
            self.figures.sent += 1
            self.to_remote.append(data)

    def _fill(self) -> None:
        """Send waiting copies while the window has room."""
        waiting, most = self._waiting, self._limits.receive_maximum
        while self.is_open and waiting and len(self._in_flight) < most:
            remote_id = waiting.popleft()
            delivery = self._out_by_remote[remote_id]
            self._transmit(delivery, remote_id, delivery.copies[remote_id])

    def _transmit(self, delivery: Outward, remote_id: int, copy: Copy) -> None:
        """Send a copy, again if it was sent before."""
        assert copy.packet is not None
        assert copy.target is not None
        dup = copy.stage is Stage.SENT
        data = self._encoded(copy.packet, copy.target, remote_id, dup=dup)
        if data is None:
            self._finish(delivery, remote_id)
            return
        self.figures.sent += not dup
        self.to_remote.append(data)
        if not self._limits.qos:
            self._finish(delivery, remote_id)
            return
        copy.stage = Stage.SENT
        self._in_flight.add(remote_id)

    def _encoded(
        self, source: Publish | bytes, target: CopyTarget, remote_id: int, *, dup: bool = False
    ) -> bytes | None:
        """Return a copy as the remote broker accepts it; None if it cannot."""
        packet = decode_packet(source, V5) if isinstance(source, bytes) else source
        assert isinstance(packet, Publish)
        limits = self._limits
        qos = min(packet.qos, target.qos, limits.qos)
        data = encode(
            Publish(
                target.topic,
                packet.payload,
                qos,
                packet.retain and limits.retains,
                dup and qos > 0,
                remote_id if qos else 0,
                _carried(packet.properties) if self.version == V5 else None,
            ),
            self.version,
        )
        if limits.packet_size is None or len(data) <= limits.packet_size:
            return data
        self.figures.dropped += 1
        most = f"it accepts {limits.packet_size:,} B"
        self.notes.append(f"dropped a message to {target.topic}: {len(data):,} B, {most}")
        return None

    def _release_all(self, packet_id: int) -> None:
        """Release the copies of a message that the remote broker has received."""
        delivery = self._out.get(packet_id)
        if delivery is None:  # after a restart
            delivery = self._out[packet_id] = Outward(packet_id, 2, is_received=True)
            for remote_id in self._outward.ids(packet_id):
                delivery.copies[remote_id] = Copy(None, None, Stage.RECEIVED)
                self._out_by_remote[remote_id] = delivery
        delivery.is_released = True
        for remote_id, copy in delivery.copies.items():
            self._release(remote_id, copy)
        self._settle(delivery)

    def _release(self, remote_id: int, copy: Copy) -> None:
        """Send the PUBREL of a copy; without a connection, when there is one."""
        if self.is_open:
            copy.stage = Stage.RELEASED
            self._in_flight.add(remote_id)
            self.say(packets.PubRel(remote_id))

    def _finish(self, delivery: Outward, remote_id: int) -> None:
        """Remove a copy that is complete."""
        del delivery.copies[remote_id], self._out_by_remote[remote_id]
        self._in_flight.discard(remote_id)
        self._settle(delivery)

    def _settle(self, delivery: Outward) -> None:
        """Acknowledge a message to the router if its copies allow it."""
        packet_id, copies = delivery.packet_id, delivery.copies
        if self._out.get(packet_id) is not delivery:
            return
        if delivery.qos == 1:
            if not copies:
                self._complete(delivery, packets.PubAck(packet_id))
            return
        if not delivery.is_received:
            open_stages = (Stage.WAITING, Stage.SENT)
            if not any(copy.stage in open_stages for copy in copies.values()):
                delivery.is_received = True
                self.to_router.append(packets.PubRec(packet_id))
        elif delivery.is_released and not copies:
            self._complete(delivery, packets.PubComp(packet_id))

    def _complete(self, delivery: Outward, answer: Packet) -> None:
        """Send the router the last acknowledgement of a message."""
        del self._out[delivery.packet_id]
        self.to_router.append(answer)
        if self._deferred_out:
            deferred, self._deferred_out = self._deferred_out, deque()
            for packet in deferred:
                self._send(packet)

    # --- packets of the remote broker ---

    def from_remote(self, packet: Packet) -> None:
        """Process a packet of the remote broker."""
        match packet:
            case Publish():
                self._receive_publish(packet)
            case packets.PubAck(packet_id=remote_id) | packets.PubComp(packet_id=remote_id):
                self._remote_completed(packet, remote_id)
            case packets.PubRec(packet_id=remote_id) if (
                packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR
            ):
                self._remote_completed(packet, remote_id)
            case packets.PubRec(packet_id=remote_id):
                self._remote_received(remote_id)
            case packets.PubRel(packet_id=packet_id):
                self._remote_released(packet_id)
            case packets.SubAck(reason_codes=codes):
                for subscription, code in zip(self._subscribed, codes, strict=False):
                    if code >= ReasonCode.UNSPECIFIED_ERROR:
                        self.figures.refused += 1
                        text = f"it refused the filter {subscription.topic_filter}"
                        self.notes.append(f"{text}: {reason_text(code)}")

    def _remote_completed(self, packet: packets.Ack, remote_id: int) -> None:
        """Process the last acknowledgement of a copy."""
        delivery = self._out_by_remote.get(remote_id)
        if delivery is None:
            return
        copy = delivery.copies[remote_id]
        is_refusal = packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR
        if is_refusal and not isinstance(packet, packets.PubComp) and copy.target is not None:
            self.figures.refused += 1
            reason = reason_text(packet.reason_code)
            self.notes.append(f"it refused a message to {copy.target.topic}: {reason}")
        self._finish(delivery, remote_id)
        self._fill()

    def _remote_received(self, remote_id: int) -> None:
        """Process a PUBREC."""
        delivery = self._out_by_remote.get(remote_id)
        if delivery is None:  # complete here: let the remote broker forget it
            self.say(packets.PubRel(remote_id))
            return
        copy = delivery.copies[remote_id]
        if delivery.qos == 1:
            return  # the wrong answer: the next connection repeats the message
        if copy.stage is Stage.SENT:
            copy.stage = Stage.RECEIVED
        if delivery.is_released:
            self._release(remote_id, copy)
        self._settle(delivery)

    def _receive_publish(self, packet: Publish) -> None:
        """Publish copies of a message of the remote broker at the router."""
        packet_id, qos = packet.packet_id, packet.qos
        targets = self._inward.targets(packet.topic)
        if not qos:
            self.figures.received += bool(targets)
            self.to_router += [_copy_to(packet, target, 0, 0) for target in targets]
            return
        earlier = self._in.get(packet_id)
        if earlier is not None and packet.dup:
            if earlier.is_received:
                self.say(packets.PubRec(packet_id))
            return  # its acknowledgement is on its way
        if earlier is not None:  # the remote broker has forgotten the earlier message
            self._forget(earlier)
        ids = self._inward.ids(packet_id)
        if self._deferred_in or not self._in_by_router.keys().isdisjoint(ids):
            self._deferred_in.append(packet)  # an earlier copy has such an identifier
            return
        if qos == 2 and not packet.dup:
            for router_id in ids:
                self._free(router_id)
        self._free_at_router.difference_update(ids)
        delivery = self._in[packet_id] = Inward(packet_id, qos, set())
        for router_id, target in zip(ids, targets, strict=False):
            delivery.pending.add(router_id)
            self._in_by_router[router_id] = delivery
            self.to_router.append(_copy_to(packet, target, qos, router_id))
        self.figures.received += bool(targets)
        if not targets:
            self._acknowledge(delivery)

    def _free(self, router_id: int) -> None:
        """Release an identifier that the router may hold from an earlier message."""
        if router_id not in self._free_at_router:
            self._own_releases[router_id] = self._own_releases.get(router_id, 0) + 1
            self.to_router.append(packets.PubRel(router_id))

    def _router_received(self, packet: packets.Ack) -> None:
        """Process a PUBACK or PUBREC of the router."""
        router_id, code = packet.packet_id, packet.reason_code
        if router_id in self._stale:
            _count_down(self._stale, router_id)
            return
        delivery = self._in_by_router.get(router_id)
        if delivery is None:
            return
        delivery.pending.discard(router_id)
        if code >= ReasonCode.UNSPECIFIED_ERROR:
            self.figures.refused += 1
            delivery.code = code
            self.notes.append(f"the router refused a message of it: {reason_text(code)}")
        if not delivery.pending:
            self._acknowledge(delivery)

    def _acknowledge(self, delivery: Inward) -> None:
        """Acknowledge a message to the remote broker: the router has all copies."""
        packet_id = delivery.packet_id
        code = delivery.code if self.version == V5 else 0
        if delivery.qos == 1:
            self._remove(delivery)
            self.say(packets.PubAck(packet_id, code))
            return
        delivery.is_received = True
        self.say(packets.PubRec(packet_id, code))
        if code:
            self._remove(delivery)

    def _remote_released(self, packet_id: int) -> None:
        """Process a PUBREL of the remote broker."""
        delivery = self._in.get(packet_id)
        if delivery is None:  # after a restart
            delivery = self._in[packet_id] = Inward(packet_id, 2, set(), is_received=True)
        delivery.is_released = True
        for router_id in self._inward.ids(packet_id):
            delivery.pending.add(router_id)
            self._in_by_router[router_id] = delivery
            self.to_router.append(packets.PubRel(router_id))

    def _router_completed(self, router_id: int) -> None:
        """Process a PUBCOMP of the router."""
        if router_id in self._own_releases:
            _count_down(self._own_releases, router_id)
            return
        delivery = self._in_by_router.get(router_id)
        if delivery is None or not delivery.is_released:
            return
        delivery.pending.discard(router_id)
        if not delivery.pending:
            self._remove(delivery)
            self._free_at_router.update(self._inward.ids(delivery.packet_id))
            self.say(packets.PubComp(delivery.packet_id))

    def _remove(self, delivery: Inward) -> None:
        """Remove a message of the remote broker."""
        del self._in[delivery.packet_id]
        for router_id in self._inward.ids(delivery.packet_id):
            self._in_by_router.pop(router_id, None)
        if self._deferred_in:
            deferred, self._deferred_in = self._deferred_in, deque()
            for packet in deferred:
                self._receive_publish(packet)

    def _forget(self, delivery: Inward) -> None:
        """Remove a message that the remote broker has forgotten, and ignore its answers."""
        missing = self._own_releases if delivery.is_released else self._stale
        for router_id in delivery.pending:
            missing[router_id] = missing.get(router_id, 0) + 1
        self._remove(delivery)

    def _forget_inward(self) -> None:
        """Remove all messages of a remote broker that has lost its session."""
        self._deferred_in.clear()
        for delivery in list(self._in.values()):
            self._forget(delivery)


def _count_down(counts: dict[int, int], key: int) -> None:
    """Subtract one from a count, and remove a count of zero."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _copy_to(packet: Publish, target: CopyTarget, qos: int, router_id: int) -> Publish:
    """Return a copy of a message of the remote broker for the router."""
    properties = _carried(packet.properties)
    retain = packet.retain
    return Publish(target.topic, packet.payload, qos, retain, packet.dup, router_id, properties)


def _carried(properties: Properties | None) -> Properties:
    """Return the properties that a message keeps on the other side."""
    if properties is None or properties is NO_PROPERTIES:
        return NO_PROPERTIES
    if properties.topic_alias is None and not properties.subscription_identifiers:
        return properties
    return replace(properties, topic_alias=None, subscription_identifiers=())
