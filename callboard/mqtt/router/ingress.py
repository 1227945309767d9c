"""Ingress: the hot path of the router, which processes chunks of whole packets in runs.

PUBLISH packets that begin with the same bytes (flags, length, topic) form a run, and so do
acknowledgements of one kind: a run is parsed and answered once. Less plain packets, such as a
PUBLISH with properties, go through the codec, with the same effect.

The ingress does not end a connection: it returns an `LinkEnding` with the reason.
"""

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct
from typing import Final

import callboard.mqtt.wire.packet as wire
from callboard.mqtt.router.backpressure import Backpressure
from callboard.mqtt.router.delivery import Delivery
from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.link import LinkEnding
from callboard.mqtt.router.logs import Logs, TopicRoute
from callboard.mqtt.router.message import Form, MessageRun, passed_on
from callboard.mqtt.router.session import Cause, Connection, HeldPackets, Session
from callboard.mqtt.router.subscribing import Subscriptions
from callboard.mqtt.router.window import PUBACK, PUBCOMP, PUBREC, PUBREL
from callboard.mqtt.wire.codec import decode
from callboard.mqtt.wire.errors import ProtocolViolation, RemoteMqttError
from callboard.mqtt.wire.packet import V4, V5, Packet
from callboard.mqtt.wire.properties import NO_PROPERTIES
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass

_ACKS: Final = Cause.ACKS  # an attribute of an `Enum` costs three times a global

PINGRESP: Final = b"\xd0\x00"
_ACK_FIRSTS: Final = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP))
#: PUBACK and PUBREC without their packet identifier, by QoS.
_FRONTS: Final = (b"", b"\x40\x02\0\0", b"\x50\x02\0\0")

#: Unsent answers for a client that does not read, and their bytes; above, the connection ends.
MOST_ACKS: Final = 50_000
MOST_ACK_BYTES: Final = 4 << 20

#: Up to this number of answers their bytes are not counted.
MANY_ACKS: Final = 200


@lru_cache(256)
def _ids_at(step: int, count: int) -> Struct:
    """Return a parser of packet identifiers that are `step` bytes apart."""
    gap = f"{step - 2}x" if step > 2 else ""
    return Struct(f">{('H' + gap) * (count - 1)}H")


@dataclass(eq=False, repr=False)
class Ingress:
    """Processes the packets of clients.

    Attributes:
        brakes: back-pressure on publishers.
    """

    _logs: Logs
    _delivery: Delivery
    _subscriptions: Subscriptions
    _effects: Effects

    def __post_init__(self) -> None:
        self.brakes = Backpressure(self._logs, self._delivery, self._effects)

    # --- chunks ---

    def handle_data(self, connection: Connection) -> LinkEnding | None:
        """Process all packets in the incoming buffer of a client's link."""
        incoming = connection.link.incoming
        chunks = incoming[:]
        del incoming[: len(chunks)]
        if connection.held is not None:
            chunks = self.brakes.sift(connection, chunks)
        return self.handle_chunks(connection, chunks)

    def handle_chunks(self, connection: Connection, chunks: list[bytes]) -> LinkEnding | None:
        """Process whole packets of one client; return the ending if one ends its connection."""
        try:
            for chunk in chunks:
                ending = self._handle_chunk(connection, chunk)
                if ending is not None:
                    return ending
        except RemoteMqttError as error:
            self._delivery.notify()
            self._effects.meters.violations += 1
            return LinkEnding(error.reason_code, has_will=True, text=str(error))
        if connection.acks:
            self._delivery.schedule(connection.session, _ACKS)
            count = len(connection.acks)
            if count > MANY_ACKS and (
                count > MOST_ACKS or sum(map(len, connection.acks)) > MOST_ACK_BYTES
            ):
                self._delivery.notify()
                return LinkEnding(ReasonCode.QUOTA_EXCEEDED, has_will=True)
        return None

    def _handle_chunk(self, connection: Connection, data: bytes) -> LinkEnding | None:
        """Process whole packets of one client, in order.

        Raises:
            RemoteMqttError: a packet ends the connection; the packets before it were processed.
        """
        position, end = 0, len(data)
        while position < end:
            first = data[position]
            length = data[position + 1]
            body = position + 2
            if length & 0x80:
                length &= 0x7F
                shift = 7
                while True:
                    more = data[body]
                    length |= (more & 0x7F) << shift
                    body += 1
                    if not more & 0x80:
                        break
                    shift += 7
            stop = body + length
            if first & 0xF0 == 0x30:
                position = self._handle_publishes(connection, data, position, body, stop)
            elif first in _ACK_FIRSTS and length == 2:
                position = self._handle_acks(connection, data, position)
            else:
                ending = self._handle_packet(connection, first, data[body:stop])
                if ending is not None:
                    return ending  # the rest must be discarded (MQTT 5, 3.14.4)
                position = stop
        return None

    # --- held clients; see `brake` ---

    def relax(self) -> Iterator[tuple[Connection, LinkEnding]]:
        """Process queued packets of released clients; yield connections that end with them."""
        for connection in self.brakes.relax():
            ending = self._resume(connection)
            if ending is not None:
                yield connection, ending

    def handle_held(self, connection: Connection) -> LinkEnding | None:
        """Process all queued packets of a held client, because its connection ends."""
        self.brakes.forget(connection)
        ending = self._resume(connection, is_over=True)
        self._delivery.notify()  # requests of this connection must be in their trackers
        return ending

    def _resume(self, connection: Connection, *, is_over: bool = False) -> LinkEnding | None:
        """Process queued packets from a client, until it is held again."""
        chunks = connection.let_go()
        for index, chunk in enumerate(chunks):
            ending = self.handle_chunks(connection, [chunk])
            if ending is not None:
                return ending
            if connection.held is not None and not is_over:
                connection.held = HeldPackets(chunks[index + 1 :])
                return None
        connection.link.is_full = False
        self._effects.transmits.append((connection.link, []))  # resumes reading
        return None

    # --- PUBLISH ---

    def _handle_publishes(
        self, connection: Connection, data: bytes, position: int, body: int, stop: int
    ) -> int:
        """Process the run of PUBLISH packets that begins at `position`; return its end."""
        first = data[position]
        qos = first >> 1 & 3
        name_end = body + 2
        is_v5 = connection.is_v5
        if name_end <= stop:
            name_end += data[body] << 8 | data[body + 1]
        head = name_end + 2 if qos else name_end
        # Retained, with properties, or malformed: one at a time.
        if (
            first & 1
            or qos > connection.most_qos
            or first & 14 == 8
            or head + is_v5 > stop
            or (is_v5 and data[head])
        ):
            connection.packets_in += 1
            self._handle_publish(connection, first, data[body:stop])
            return stop
        topic = data[body + 2 : name_end]
        route = self._logs.routes.get(topic) or self._logs.route(topic)
        size = stop - position
        end = stop
        if stop < len(data):
            prefix = data[position:name_end]
            while data.startswith(prefix, end):
                end += size
            if is_v5 and end > stop:
                lengths = data[head:end:size]
                end = position + (len(lengths) - len(lengths.lstrip(b"\0"))) * size
        packets = data[position:end]
        if qos:
            self._handle_numbered(connection, route, topic, packets, size, head - position)
        else:
            self._handle_unnumbered(connection, route, topic, packets, size)
        return end

    def _handle_unnumbered(
        self, connection: Connection, route: TopicRoute, topic: bytes, packets: bytes, size: int
    ) -> None:
        """Process a run of PUBLISH packets with QoS 0, of `size` bytes each."""
        count = len(packets) // size
        connection.packets_in += count
        if (connection.access is not None or route.is_reserved) and not connection.may_publish(
            topic, is_reserved=route.is_reserved
        ):
            self._effects.meters.refused += count
            return
        logs = route.logs
        if len(logs) == 1 and self._delivery.pass_through(
            connection, logs[0], topic, packets, count
        ):
            return
        fronts = [packets]
        if count > 1:
            fronts = [packets[start : start + size] for start in range(0, len(packets), size)]
        key = connection.is_v5 << 2
        run = MessageRun(topic, Form(fronts, []), key, count, size, connection.client_id)
        self._logs.append(run, route, connection.session)

    def _handle_numbered(
        self,
        connection: Connection,
        route: TopicRoute,
        topic: bytes,
        packets: bytes,
        size: int,
        head: int,
    ) -> None:
        """Process a run of PUBLISH packets with QoS 1 or 2, of `size` bytes each.

        Their packet identifiers end at the offset `head`.
        """
        first, offset, count = packets[0], head - 2, len(packets) // size
        qos = first >> 1 & 3
        connection.packets_in += count
        if count == 1:
            ids: tuple[int, ...] = (packets[offset] << 8 | packets[offset + 1],)
        else:
            ids = _ids_at(size, count).unpack_from(packets, offset)
        if 0 in ids:
            message = "the packet identifier of a PUBLISH is 0"
            raise ProtocolViolation(message)
        if (connection.access is not None or route.is_reserved) and not connection.may_publish(
            topic, is_reserved=route.is_reserved
        ):
            self._refuse(connection, qos, ids)
            return
        prefix = packets[:offset]
        if first & 8:
            prefix = bytes((first & 0xF7,)) + prefix[1:]
        if count == 1:
            form = Form([prefix], [packets[head:]])
        else:
            rest = size - head
            starts = range(head, head + len(packets), size)
            tails = [packets[start : start + rest] for start in starts]
            form = Form([prefix] * count, tails)
        acks = bytearray(_FRONTS[qos] * count)
        acks[2::4] = packets[offset::size]
        acks[3::4] = packets[offset + 1 :: size]
        received: tuple[int, ...] = ()
        if qos == 2:
            fresh = connection.receive(ids)
            if len(fresh) < count:
                form = Form([form.fronts[i] for i in fresh], [form.tails[i] for i in fresh])
                count = len(fresh)
            received = ids if count == len(ids) else tuple(ids[i] for i in fresh)
        connection.acks.append(bytes(acks))
        if count:
            key = qos | connection.is_v5 << 2
            run = MessageRun(topic, form, key, count, size, connection.client_id)
            self._logs.append(run, route, connection.session, received)

    def _handle_publish(self, connection: Connection, first: int, body: bytes) -> None:
        """Process one PUBLISH of any form.

        Raises:
            RemoteMqttError: the PUBLISH ends the connection.
        """
        packet = decode(first, body, V5 if connection.is_v5 else V4)
        assert isinstance(packet, wire.Publish)
        topic, alias = packet.topic.encode(), passed_on(packet.properties).alias
        if alias is not None:
            topic = connection.resolve(topic, alias)
        route = self._logs.route(topic)
        qos, ids = packet.qos, (packet.packet_id,) if packet.qos else ()
        _check_flags(connection, packet)
        if not connection.may_publish(topic, is_reserved=route.is_reserved):
            self._refuse(connection, qos, ids)
            return
        run = MessageRun.of_packet(packet, topic, connection.client_id, self._effects.now)
        if packet.retain and qos and self._is_crowded_out(connection, run, ids):
            self._effects.meters.not_retained += 1
            kind = wire.PubAck if qos == 1 else wire.PubRec
            connection.acknowledge(kind(packet.packet_id, ReasonCode.QUOTA_EXCEEDED))
            return
        received: tuple[int, ...] = ()
        if qos == 2:
            is_fresh = bool(connection.receive(ids))
            connection.acknowledge(wire.PubRec(packet.packet_id))
            if not is_fresh:
                return
            received = ids
        elif qos:
            connection.acknowledge(wire.PubAck(packet.packet_id))
        self._logs.append(run, route, connection.session, received)

    def _is_crowded_out(
        self, connection: Connection, run: MessageRun, ids: tuple[int, ...]
    ) -> bool:
        """Return whether a message must be refused, because it cannot be retained.

        MQTT 3.1.1 lacks such a refusal. A removal, and a repetition of an accepted QoS 2
        message, are never refused.
        """
        if not connection.is_v5 or not run.payloads[-1]:
            return False
        is_known = run.qos == 2 and connection.session.received.issuperset(ids)
        return not is_known and not self._logs.retained.has_room(run)

    def _refuse(self, connection: Connection, qos: int, ids: tuple[int, ...]) -> None:
        """Answer messages that may not be published; only MQTT 5 can report the refusal."""
        self._effects.meters.refused += max(1, len(ids))
        reason = ReasonCode.NOT_AUTHORIZED if connection.is_v5 else ReasonCode.SUCCESS
        kind = wire.PubAck if qos == 1 else wire.PubRec
        for packet_id in ids:
            connection.acknowledge(kind(packet_id, reason))

    # --- acknowledgements ---

    def _handle_acks(self, connection: Connection, data: bytes, position: int) -> int:
        """Process the run of equal acknowledgements of 4 bytes that begins at `position`.

        Their kind is their first byte.
        """
        first = data[position]
        if len(data) - position >= 8 and data[position + 4] == first:
            most = (len(data) - position) // 4
            span = data[position : position + 4 * most]
            kinds, lengths = span[0::4], span[1::4]
            count = min(
                most - len(kinds.lstrip(kinds[:1])), most - len(lengths.lstrip(b"\x02"))
            )
            ids = _ids_at(4, count).unpack_from(data, position + 2)
        else:
            count = 1
            ids = (data[position + 2] << 8 | data[position + 3],)
        if 0 in ids:
            message = "the packet identifier of an acknowledgement is 0"
            raise ProtocolViolation(message)
        connection.packets_in += count
        self._delivery.acknowledge(connection, first, ids)
        return position + 4 * count

    def _handle_ack(self, connection: Connection, kind: int, packet: wire.Ack) -> None:
        """Process an acknowledgement with a reason code or properties.

        `kind` is its first byte.
        """
        is_refusal = packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR
        if kind == PUBREC and is_refusal:
            self._delivery.give_up(connection, packet.packet_id)
            return
        if kind == PUBACK and is_refusal:
            self._effects.meters.refused_by_clients += 1
        self._delivery.acknowledge(connection, kind, (packet.packet_id,))

    # --- other packets ---

    def _handle_packet(
        self, connection: Connection, first: int, body: bytes
    ) -> LinkEnding | None:
        """Process one packet of a rare kind."""
        connection.packets_in += 1
        if self._logs.woken:
            self._delivery.notify()
        packet: Packet = decode(first, body, V5 if connection.is_v5 else V4)
        match packet:
            case wire.PingReq():
                connection.acks.append(PINGRESP)
            case wire.Subscribe():
                self._subscriptions.subscribe(connection, packet)
            case wire.Unsubscribe():
                self._subscriptions.unsubscribe(connection, packet)
            case wire.Ack():
                self._handle_ack(connection, first, packet)
            case wire.Disconnect():
                return _ending_of(connection.session, packet)
            case wire.Auth() if connection.link.authenticate is not None:
                connection.link.authenticate(packet)
            case _:
                message = f"a client sent a {type(packet).__name__}, which is not allowed"
                raise ProtocolViolation(message)
        return None


def _check_flags(connection: Connection, packet: wire.Publish) -> None:
    """Refuse a QoS or a retained message that the limits exclude.

    Raises:
        ProtocolViolation: the client should have seen the limit in its CONNACK.
    """
    if packet.qos > connection.most_qos:
        message = f"a PUBLISH with QoS {packet.qos}; the maximum is {connection.most_qos}"
        raise ProtocolViolation(message, ReasonCode.QOS_NOT_SUPPORTED)
    is_local = connection.link.is_local
    if packet.retain and not connection.limits.retain_available and not is_local:
        message = "a retained PUBLISH, and retained messages are turned off"
        raise ProtocolViolation(message, ReasonCode.RETAIN_NOT_SUPPORTED)


def _ending_of(session: Session, packet: wire.Disconnect) -> LinkEnding:
    """Return the ending of a connection for a DISCONNECT."""
    expiry = (packet.properties or NO_PROPERTIES).session_expiry_interval
    if expiry and not session.expiry:
        message = "a DISCONNECT sets a session expiry, but the CONNECT had set none"
        raise ProtocolViolation(message)
    has_will = packet.reason_code == ReasonCode.DISCONNECT_WITH_WILL
    return LinkEnding(ReasonCode.NORMAL_DISCONNECTION, has_will, expiry=expiry)
