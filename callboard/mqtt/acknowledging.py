"""PUBACK, PUBREC, PUBREL and PUBCOMP: runs of packet identifiers.

Any order of acknowledgements is accepted; those of unknown identifiers are counted, and
answered where the standard has an answer (a PUBREC, a PUBREL).
"""

from typing import TYPE_CHECKING, Final

from callboard.mqtt.codec import encode
from callboard.mqtt.connection import Connection
from callboard.mqtt.errors import ProtocolViolation
from callboard.mqtt.message import PACKET_IDS
from callboard.mqtt.packet import V4, V5, PubAck, PubComp, PubRec, PubRel
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.record import Acknowledged, Released
from callboard.mqtt.tracker import Cause

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

PUBACK: Final = 0x40
PUBREC: Final = 0x50
PUBREL: Final = 0x62
PUBCOMP: Final = 0x70


def take(
    machine: "RouterMachine", connection: Connection, kind: int, ids: tuple[int, ...]
) -> None:
    """Take successful acknowledgements of one kind; `kind` is their first byte.

    Raises:
        ProtocolViolation: one is of the wrong kind for its message.
    """
    session = connection.session
    if kind == PUBREL:
        _released(machine, connection, ids)
        return
    window = session.window
    unknown: list[int] = []
    if kind == PUBCOMP:
        release = window.releasing.pop
        unknown += [packet_id for packet_id in ids if release(packet_id, ids) is ids]
    else:
        pop = window.inflight.pop
        qos = 1 if kind == PUBACK else 2
        for packet_id in ids:
            sent = pop(packet_id, None)
            if sent is None:
                unknown.append(packet_id)
            elif sent.qos != qos:
                msg = f"a {_NAMES[kind]} for {packet_id}, which was sent with QoS {sent.qos}"
                raise ProtocolViolation(msg)
        if kind == PUBREC:
            unknown = _release(connection, ids, unknown)
    machine.meters.unknown_acks += len(unknown)
    if session.is_durable:
        machine.records.append(Acknowledged(session.client_id, kind, ids))
    machine.schedule(session, Cause.INCOMING_ACK)


_NAMES: Final = {PUBACK: "PUBACK", PUBREC: "PUBREC"}


def _release(connection: Connection, ids: tuple[int, ...], missing: list[int]) -> list[int]:
    """Answer PUBRECs; returns the identifiers that are not known at all."""
    releasing = connection.session.window.releasing
    unknown = [packet_id for packet_id in missing if packet_id not in releasing]
    if unknown:
        reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if connection.is_v5 else 0
        version = V5 if connection.is_v5 else V4
        connection.acks += [encode(PubRel(each, reason), version) for each in unknown]
        ids = tuple(packet_id for packet_id in ids if packet_id not in unknown)
    releasing |= dict.fromkeys(ids)
    connection.acks.append(b"".join([b"\x62\x02" + PACKET_IDS[each] for each in ids]))
    return unknown


def _released(machine: "RouterMachine", connection: Connection, ids: tuple[int, ...]) -> None:
    """Forget identifiers of messages that came with QoS 2."""
    session = connection.session
    received = session.received
    if connection.is_v5 and not received.issuperset(ids):
        for packet_id in ids:
            known = packet_id in received
            reason = ReasonCode.SUCCESS if known else ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
            connection.acks.append(encode(PubComp(packet_id, reason), V5))
    else:
        connection.acks.append(b"".join([b"\x70\x02" + PACKET_IDS[each] for each in ids]))
    received.difference_update(ids)
    if session.is_durable:
        machine.records.append(Released(session.client_id, ids))
    machine.schedule(session, Cause.ACKS)


def take_one(
    machine: "RouterMachine",
    connection: Connection,
    packet: PubAck | PubRec | PubRel | PubComp,
) -> None:
    """Take an acknowledgement with a reason code or properties."""
    kind = {PubAck: PUBACK, PubRec: PUBREC, PubRel: PUBREL, PubComp: PUBCOMP}[type(packet)]
    ids = (packet.packet_id,)
    window = connection.session.window
    if kind == PUBREC and packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR:
        # The client refused the message, so its delivery is over (MQTT 5, 4.3.3).
        if window.inflight.pop(packet.packet_id, None) is not None:
            machine.meters.refused_by_clients += 1
            if connection.session.is_durable:
                record = Acknowledged(connection.session.client_id, PUBACK, ids)
                machine.records.append(record)
            machine.schedule(connection.session, Cause.INCOMING_ACK)
        return
    if kind == PUBACK and packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR:
        machine.meters.refused_by_clients += 1
    take(machine, connection, kind, ids)
