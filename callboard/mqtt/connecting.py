"""CONNECT and the end of a connection: sessions and their deadlines."""

from typing import TYPE_CHECKING, Final

from callboard.mqtt import wills
from callboard.mqtt.codec import encode
from callboard.mqtt.connection import Connection
from callboard.mqtt.link import Disconnected, Link
from callboard.mqtt.message import PACKET_IDS
from callboard.mqtt.packet import V4, V5, ConnAck, Disconnect
from callboard.mqtt.packet import Connect as ConnectPacket
from callboard.mqtt.properties import Properties
from callboard.mqtt.reason_code import DISCONNECT_CODES, ReasonCode
from callboard.mqtt.record import HandedOver, SessionClosed, SessionOpened
from callboard.mqtt.session import HISTORY, Session
from callboard.mqtt.subscribing import leave
from callboard.mqtt.topic import is_valid_topic
from callboard.mqtt.tracker import Cause, Status

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

NEVER: Final = 0xFFFF_FFFF
"""A session expiry interval that stands for ever."""

_NONE: Final = Properties()
_FRESH: Final = b"\x20\x02\x00\x00"
_PRESENT: Final = b"\x20\x02\x01\x00"
"""A CONNACK of MQTT 3.1.1, without and with a session that was there."""
_RETURN_CODES: Final = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.USE_ANOTHER_SERVER: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
}


def connect(machine: "RouterMachine", link: Link) -> None:
    """Give a client its session, or a refusal."""
    packet = link.connect
    refusal = _judge(machine, packet)
    if refusal is not None:
        refuse(machine, link, refusal)
        return
    client_id = packet.client_id or machine.make_client_id()
    old = machine.connections.get(client_id)
    if old is not None:
        machine.meters.taken_over += 1
        disconnect(machine, old, ReasonCode.SESSION_TAKEN_OVER, has_will=True, is_told=True)
    session = machine.graveyard.pop(client_id, None)
    if session is not None and packet.clean_start:
        end_session(machine, session)
        session = None
    wills.cancel(machine, client_id)  # a delayed one of a session that goes on
    is_present = session is not None
    if session is None:
        session = Session(client_id)
        session.history = machine.histories.take(client_id)
    connection = Connection(link, session, machine.limits)
    session.connection = connection
    session.expires_at = None
    session.offer = None
    if not link.is_local:
        session.stamp = machine.make_stamp()
    size = machine.limits.inflight
    if packet.properties is not None and packet.properties.receive_maximum:
        size = min(size, packet.properties.receive_maximum)
    session.open_window(size)
    machine.connections[client_id] = connection
    link.connection = connection
    link.client_id = client_id
    machine.meters.connects += 1
    note(session, machine.now, "connected")
    set_expiry(machine, session, _wanted_expiry(packet))
    wills.keep(machine, connection)
    connection.out.append(_connack(machine, connection, packet, is_present=is_present))
    machine.touch(connection)
    if not is_present:
        session.tracker.status = Status.CAUGHT_UP  # there is nothing that it could read
        return
    session.tracker.status = Status.BUSY
    for packet_id in session.window.releasing:
        connection.out.append(b"\x62\x02" + PACKET_IDS[packet_id])
    machine.schedule(session, Cause.INIT)
    if session.has_shared:
        machine.wake_groups(session)


def _judge(machine: "RouterMachine", packet: ConnectPacket) -> ReasonCode | None:
    """Return why a client gets no session; None if it gets one."""
    limits = machine.limits
    if len(packet.client_id) > limits.client_id_length:
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    if not packet.client_id and packet.version < V5 and not packet.clean_start:
        return ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    if packet.will is not None and not is_valid_topic(packet.will.topic):
        return ReasonCode.TOPIC_NAME_INVALID
    is_known = packet.client_id in machine.connections
    if len(machine.connections) >= limits.connections and not is_known:
        return ReasonCode.QUOTA_EXCEEDED
    return None


def refuse(machine: "RouterMachine", link: Link, reason: ReasonCode) -> None:
    """Answer a CONNECT with a refusal."""
    machine.meters.refused_connects += 1
    is_v5 = link.connect.version >= V5
    code = reason if is_v5 else _RETURN_CODES.get(reason, 3)
    answer = encode(ConnAck(reason_code=code), V5 if is_v5 else V4)
    machine.transmits.append((link, [answer, Disconnected(reason, "refused")]))


def _wanted_expiry(packet: ConnectPacket) -> float:
    """Return the seconds for which a client wants its session to live without it."""
    if packet.version < V5:
        return 0.0 if packet.clean_start else float(NEVER)
    properties = packet.properties or _NONE
    return float(properties.session_expiry_interval or 0)


def set_expiry(machine: "RouterMachine", session: Session, expiry: float) -> None:
    """Set for how long a session lives without its client, within the limit."""
    session.expiry = min(expiry, machine.limits.session_expiry)
    was_durable = session.is_durable
    session.is_durable = machine.is_durable and session.expiry > 0
    if session.is_durable:
        record = SessionOpened(
            session.client_id, session.expiry, session.expires_at, session.stamp
        )
        machine.records.append(record)
    elif was_durable:
        machine.records.append(SessionClosed(session.client_id))
    if was_durable != session.is_durable:
        step = 1 if session.is_durable else -1
        for name, subscription in session.subscriptions.items():
            if subscription.qos:
                session.requests[name].log.durable_readers += step


def _connack(
    machine: "RouterMachine",
    connection: Connection,
    packet: ConnectPacket,
    *,
    is_present: bool,
) -> bytes:
    if not connection.is_v5:
        return _PRESENT if is_present else _FRESH
    limits, session = machine.limits, connection.session
    asked = packet.properties or _NONE
    is_lowered = (asked.session_expiry_interval or 0) > session.expiry
    keep_alive = None
    if limits.keep_alive and not 0 < packet.keep_alive <= limits.keep_alive:
        keep_alive = connection.keep_alive = limits.keep_alive
    most = limits.receive_maximum
    properties = Properties(
        session_expiry_interval=int(session.expiry) if is_lowered else None,
        receive_maximum=most if most < 65_535 else None,
        maximum_packet_size=limits.packet_size,
        assigned_client_identifier=None if packet.client_id else session.client_id,
        topic_alias_maximum=limits.topic_alias_maximum or None,
        server_keep_alive=keep_alive,
        authentication_method=asked.authentication_method,
        authentication_data=asked.authentication_data,
    )
    return encode(ConnAck(is_present, 0, properties), V5)


def note(session: Session, now: float, what: str) -> None:
    """Keep what happened to a client, for the console."""
    session.history = (*session.history[-HISTORY + 1 :], (now, what))


# --- the end ---


def disconnect(
    machine: "RouterMachine",
    connection: Connection,
    reason: ReasonCode,
    *,
    has_will: bool,
    is_told: bool,
    text: str = "",
) -> None:
    """End a connection: its session goes to the graveyard, or ends with it."""
    session = connection.session
    if connection.held is not None:
        machine.brakes.forget(connection)  # what it sent before holds, a DISCONNECT as well
    if session.connection is not connection:
        return
    session.connection = None
    del machine.connections[session.client_id]
    connection.link.connection = None
    note(session, machine.now, f"disconnected: {reason.name.lower()}")
    _pull_back(machine, session)
    if session.window_or_none is not None:
        session.window_or_none.connection_lost()
    if is_told:
        connection.out += connection.acks
        if connection.is_v5 and reason != ReasonCode.NORMAL_DISCONNECTION:
            # A reason of a CONNACK, for a second CONNECT, say, has no place in a DISCONNECT.
            said = reason if reason in DISCONNECT_CODES else ReasonCode.PROTOCOL_ERROR
            connection.out.append(encode(Disconnect(said), V5))
    # Also after a DISCONNECT of the client: what stands before is written, then it is closed.
    connection.out.append(Disconnected(reason, text))
    machine.transmits.append((connection.link, connection.out))
    connection.out = []
    connection.acks = []
    wills.end(machine, connection, has_will=has_will)
    if session.expiry > 0:
        machine.graveyard[session.client_id] = session
        session.expires_at = machine.now + session.expiry
        machine.arm(session.expires_at, session.client_id)
        if session.is_durable:
            record = SessionOpened(
                session.client_id, session.expiry, session.expires_at, session.stamp
            )
            machine.records.append(record)
    else:
        end_session(machine, session)


def _pull_back(machine: "RouterMachine", session: Session) -> None:
    """Take a session's requests out of the waiters, and shared ones off its tracker."""
    requests = session.tracker.requests
    for request in session.requests.values():
        if request.group is not None:
            if request.session is session:
                requests.remove(request)
                machine.hand_over(request.group)
        elif request in request.log.waiters:
            request.log.release()
            del request.log.waiters[request]
            requests.append(request)


def end_session(machine: "RouterMachine", session: Session) -> None:
    """Forget all of a session; a will that waits is published."""
    machine.adopted.pop(session.client_id, None)
    machine.histories.keep(session.client_id, session.history)
    wills.publish_waiting(machine, session.client_id)
    for topic_filter in list(session.subscriptions):
        if session.requests[topic_filter].group is not None:
            _return_unacknowledged(machine, session, topic_filter)
        leave(machine, session, topic_filter)
    for request in session.tracker.requests:
        if request.stop is not None and not request.is_retained:  # one that was leaving
            machine.drop_reader(request.log)
    session.tracker.requests.clear()
    if session.is_durable:
        machine.records.append(SessionClosed(session.client_id))


def forget_handed(machine: "RouterMachine", client_id: str) -> None:
    """Forget what another router has taken, and has told so."""
    del machine.handed[client_id]
    if machine.is_durable:
        machine.records.append(HandedOver(client_id, ""))


def give_up(machine: "RouterMachine", client_id: str) -> None:
    """End a client's session, and its connection, for one elsewhere."""
    session = machine.graveyard.pop(client_id, None)
    if session is not None:
        end_session(machine, session)
    connection = machine.connections.get(client_id)
    if connection is not None:
        set_expiry(machine, connection.session, 0.0)
        reason = ReasonCode.SESSION_TAKEN_OVER
        disconnect(machine, connection, reason, has_will=True, is_told=True)
    machine.notify()


def _return_unacknowledged(
    machine: "RouterMachine", session: Session, topic_filter: str
) -> None:
    """Give QoS 1 messages of a group to its other members (MQTT 5, 4.8.2)."""
    group = machine.groups[topic_filter]
    for packet_id, sent in session.window.resend.items():
        if sent.is_shared and sent.topic_filter == topic_filter and sent.qos == 1:
            group.returned.append((sent.run, sent.start + packet_id - sent.first))
    if group.returned and len(group.members) > 1:
        request = group.request
        if request.log.waiters.pop(request, False) is None:
            machine.hand_over(group)


def expire(machine: "RouterMachine", client_id: str) -> None:
    """Do what is due for a client that is away: its will, the end of its session."""
    will = machine.wills.get(client_id)
    if will is not None and will[0] <= machine.now:
        wills.publish_waiting(machine, client_id)
    handed = machine.handed.get(client_id)
    if handed is not None and handed.expires_at <= machine.now:
        forget_handed(machine, client_id)
    session = machine.graveyard.get(client_id)
    if session is None or session.expires_at is None:
        return
    if session.expires_at <= machine.now:
        del machine.graveyard[client_id]
        end_session(machine, session)
