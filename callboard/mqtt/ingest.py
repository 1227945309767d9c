"""The hot entry of the router: chunks of whole packets, taken in runs.

PUBLISH packets that begin with the same bytes (flags, length, topic) are one run, and so are
acknowledgements of one kind: one look, one answer. What is not of the plainest form, such as a
PUBLISH with properties, goes through `publishing` or the codec, with the same meaning.
"""

from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final

from callboard.mqtt import acknowledging, publishing
from callboard.mqtt.codec import decode
from callboard.mqtt.connecting import set_expiry
from callboard.mqtt.connection import Connection
from callboard.mqtt.errors import ProtocolViolation, RemoteMqttError
from callboard.mqtt.link import Link
from callboard.mqtt.message import Form, Run
from callboard.mqtt.packet import (
    V4,
    V5,
    Auth,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    Subscribe,
    Unsubscribe,
)
from callboard.mqtt.pass_through import pass_through
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.subscribing import subscribe, unsubscribe
from callboard.mqtt.tracker import Cause

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

PUBACK: Final = b"\x40\x02"
PUBREC: Final = b"\x50\x02"
PINGRESP: Final = b"\xd0\x00"
_ACK_KINDS: Final = frozenset((0x40, 0x50, 0x62, 0x70))

MOST_ACKS: Final = 50_000
"""Answers that wait for a client that does not read; above it is cut off."""


@lru_cache(256)
def _ids_at(step: int, count: int) -> Struct:
    """Return what reads packet identifiers that stand `step` bytes apart."""
    gap = f"{step - 2}x" if step > 2 else ""
    return Struct(f">{('H' + gap) * (count - 1)}H")


def take_data(machine: "RouterMachine", link: Link) -> None:
    """Take what a client has sent."""
    machine.at_hand = link
    connection = link.connection
    chunks = link.swap()
    if connection is not None:
        if connection.held is not None:
            chunks = machine.brakes.sift(connection, chunks)
        take_chunks(machine, connection, chunks)


def take_chunks(machine: "RouterMachine", connection: Connection, chunks: list[bytes]) -> None:
    """Take whole packets of one client; its connection ends with the first wrong one."""
    link = connection.link
    try:
        for chunk in chunks:
            take_chunk(machine, connection, chunk)
            if link.connection is None:
                break
    except RemoteMqttError as error:
        machine.notify()
        machine.meters.violations += 1
        reason = error.reason_code
        machine.disconnect(connection, reason, has_will=True, text=str(error))
    else:
        if connection.acks:
            machine.schedule(connection.session, Cause.ACKS)
            if len(connection.acks) > MOST_ACKS:
                machine.notify()
                machine.disconnect(connection, ReasonCode.QUOTA_EXCEEDED, has_will=True)


def take_chunk(machine: "RouterMachine", connection: Connection, data: bytes) -> None:
    """Take whole packets of one client, in order.

    Raises:
        RemoteMqttError: a packet ends the connection; those before it have been taken.
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
            position = take_publishes(machine, connection, data, position, body, stop)
        elif first in _ACK_KINDS and length == 2:
            position = take_acks(machine, connection, data, position)
        else:
            take_packet(machine, connection, first, data[body:stop])
            if connection.session.connection is not connection:
                return  # it disconnected: what follows is not for us (MQTT 5, 3.14.4)
            position = stop


def take_publishes(  # noqa: C901, PLR0912
    machine: "RouterMachine",
    connection: Connection,
    data: bytes,
    position: int,
    body: int,
    stop: int,
) -> int:
    """Take the run of PUBLISH packets that begins at `position`; returns where it ends."""
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
        or qos == 3
        or first & 14 == 8
        or head + is_v5 > stop
        or (is_v5 and data[head])
    ):
        connection.packets_in += 1
        publishing.take_publish(machine, connection, first, data[body:stop])
        return stop
    topic = data[body + 2 : name_end]
    route = machine.routes.cache.get(topic)
    if route is None:
        route = machine.routes.find(topic)
    size = stop - position
    prefix = data[position:name_end]
    end = stop
    if stop < len(data) and data.startswith(prefix, end):
        end += size
        while data.startswith(prefix, end):
            end += size
        if is_v5:
            lengths = data[head:end:size]
            plain = len(lengths) - len(lengths.lstrip(b"\0"))
            end = position + plain * size
    count = (end - position) // size
    connection.packets_in += count
    if (
        not qos
        and len(route.logs) == 1
        and (
            (connection.access is None and not route.is_reserved)
            or publishing.is_allowed(connection, topic, route)
        )
        and pass_through(machine, connection, route, topic, data[position:end], count)
    ):
        return end
    ids: tuple[int, ...] = ()
    acks = bytearray()
    if not qos:
        if count == 1:
            packets = [data[position:stop]]
        else:
            packets = [data[at : at + size] for at in range(position, end, size)]
        form = Form(packets, [])
    else:
        if count == 1:
            ids = (data[name_end] << 8 | data[name_end + 1],)
        else:
            ids = _ids_at(size, count).unpack_from(data, name_end)
        if 0 in ids:
            msg = "the packet identifier of a PUBLISH is 0"
            raise ProtocolViolation(msg)
        if first & 8:
            prefix = bytes((first & 0xF7,)) + prefix[1:]
        rest = stop - head
        tails = [data[at + 2 : at + 2 + rest] for at in range(name_end, end, size)]
        form = Form([prefix] * count, tails)
        acks = bytearray((PUBACK if qos == 1 else PUBREC) + b"\0\0") * count
        acks[2::4] = data[name_end:end:size]
        acks[3::4] = data[name_end + 1 : end : size]
    if (connection.access is not None or route.is_reserved) and not publishing.is_allowed(
        connection, topic, route
    ):
        machine.meters.refused += count
        publishing.refuse(connection, qos, ids)
        return end
    received: tuple[int, ...] = ()
    if qos:
        if qos == 2:
            fresh = publishing.receive(machine, connection, ids)
            if len(fresh) < count:
                form = Form([form.fronts[at] for at in fresh], [form.tails[at] for at in fresh])
                count = len(fresh)
            received = ids if count == len(ids) else tuple(ids[at] for at in fresh)
        connection.acks.append(bytes(acks))
    if count:
        run = Run(
            topic,
            form,
            qos=qos,
            is_v5=is_v5,
            count=count,
            size=size,
            publisher=connection.client_id,
        )
        machine.append(run, route, connection.session, received)
    return end


def take_acks(
    machine: "RouterMachine", connection: Connection, data: bytes, position: int
) -> int:
    """Take the run of equal acknowledgements of 4 bytes that begins at `position`."""
    first = data[position]
    if len(data) - position >= 8 and data[position + 4] == first:
        most = (len(data) - position) // 4
        span = data[position : position + 4 * most]
        kinds, lengths = span[0::4], span[1::4]
        count = min(most - len(kinds.lstrip(kinds[:1])), most - len(lengths.lstrip(b"\x02")))
        ids = _ids_at(4, count).unpack_from(data, position + 2)
    else:
        count = 1
        ids = (data[position + 2] << 8 | data[position + 3],)
    if 0 in ids:
        msg = "the packet identifier of an acknowledgement is 0"
        raise ProtocolViolation(msg)
    connection.packets_in += count
    acknowledging.take(machine, connection, first, ids)
    return position + 4 * count


def take_packet(
    machine: "RouterMachine", connection: Connection, first: int, body: bytes
) -> None:
    """Take one packet of a rare kind."""
    connection.packets_in += 1
    if machine.notifications:
        machine.notify()
    packet: Packet = decode(first, body, V5 if connection.is_v5 else V4)
    match packet:
        case PingReq():
            connection.acks.append(PINGRESP)
        case Subscribe():
            subscribe(machine, connection, packet)
        case Unsubscribe():
            unsubscribe(machine, connection, packet)
        case PubAck() | PubRec() | PubRel() | PubComp():
            acknowledging.take_one(machine, connection, packet)
        case Disconnect():
            _take_disconnect(machine, connection, packet)
        case Auth() if connection.link.authenticate is not None:
            connection.link.authenticate(packet)
        case _:
            msg = f"a client sent a {type(packet).__name__}, which it may not"
            raise ProtocolViolation(msg)


def _take_disconnect(
    machine: "RouterMachine", connection: Connection, packet: Disconnect
) -> None:
    session = connection.session
    expiry = None if packet.properties is None else packet.properties.session_expiry_interval
    if expiry is not None:
        if expiry and not session.expiry:
            msg = "a DISCONNECT wants a session to last that was to end with its connection"
            raise ProtocolViolation(msg)
        set_expiry(machine, session, float(expiry))
    has_will = packet.reason_code == ReasonCode.DISCONNECT_WITH_WILL
    machine.disconnect(connection, ReasonCode.NORMAL_DISCONNECTION, has_will=has_will)
