"""SUBSCRIBE and UNSUBSCRIBE: each filter is judged and answered by itself."""

from dataclasses import replace
from typing import TYPE_CHECKING

from callboard.mqtt.codec import encode
from callboard.mqtt.connection import Connection
from callboard.mqtt.datalog import DataLog
from callboard.mqtt.message import Run
from callboard.mqtt.packet import V4, V5, SubAck, Subscribe, UnsubAck, Unsubscribe
from callboard.mqtt.packet import Subscription as SubscriptionPacket
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.record import Moved, Subscribed, Unsubscribed
from callboard.mqtt.session import Session, Subscription
from callboard.mqtt.share import ShareGroup
from callboard.mqtt.topic import is_valid_filter, split_share
from callboard.mqtt.tracker import Cause, DataRequest

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

REFUSED_V4 = 0x80
"""The only refusal that MQTT 3.1.1 has in a SUBACK."""

_NO_TRIM = 1 << 40


def subscribe(machine: "RouterMachine", connection: Connection, packet: Subscribe) -> None:
    """Take the filters of a SUBSCRIBE, and answer."""
    identifier = 0
    if packet.properties is not None and packet.properties.subscription_identifiers:
        identifier = packet.properties.subscription_identifiers[0]
    codes = []
    for asked in packet.subscriptions:
        code = _judge(machine, connection, asked)
        if code < ReasonCode.UNSPECIFIED_ERROR:
            session = connection.session
            subscription = Subscription.of_packet(asked, code, machine.number, identifier)
            _accept(machine, session, subscription)
        elif not connection.is_v5:
            code = REFUSED_V4
        codes.append(code)
    version = V5 if connection.is_v5 else V4
    connection.acks.append(encode(SubAck(packet.packet_id, tuple(codes)), version))
    machine.schedule(connection.session, Cause.NEW_FILTER)


def _judge(machine: "RouterMachine", connection: Connection, asked: SubscriptionPacket) -> int:
    """Return the QoS to grant, or a reason code."""
    topic_filter = asked.topic_filter
    if not is_valid_filter(topic_filter):
        return ReasonCode.TOPIC_FILTER_INVALID
    subscriptions = connection.session.subscriptions
    if topic_filter not in subscriptions and len(subscriptions) >= machine.limits.subscriptions:
        return ReasonCode.QUOTA_EXCEEDED
    access = connection.link.access
    if access is not None:
        return access.may_subscribe(topic_filter, asked.qos)
    return asked.qos


def _accept(machine: "RouterMachine", session: Session, subscription: Subscription) -> None:
    topic_filter = subscription.topic_filter
    before = existing = session.subscriptions.get(topic_filter)
    group, plain = split_share(topic_filter)
    if (
        existing is not None
        and bool(existing.qos) != bool(subscription.qos)
        and not group
        and session.has_overlaps
        and session.tracker.requests
    ):  # who sends what several filters match must not change while messages wait
        leave(machine, session, topic_filter)
        existing = None
    if existing is not None:
        subscription = replace(subscription, since=existing.since)
        log = session.requests[topic_filter].log
        log.durable_readers -= session.is_durable and existing.qos > 0
        session.subscriptions[topic_filter] = subscription
        if not group:
            session.requests[topic_filter].subscription = subscription
    else:
        log = machine.routes.open(plain)
        session.subscriptions[topic_filter] = subscription
        if group:
            join(machine, session, subscription, log)
        else:
            request = session.requests[topic_filter] = DataRequest(log, subscription, session)
            log.readers += 1
            log.waiters[request] = None
            count = len(session.subscriptions) + len(session.leaving)
            session.has_overlaps = count > 1
    log.durable_readers += session.is_durable and subscription.qos > 0
    if session.is_durable:
        number = session.requests[topic_filter].place(machine.number)
        machine.records.append(Subscribed(session.client_id, subscription, number))
    handling = subscription.retain_handling
    if not group and (handling == 0 or (handling == 1 and before is None)):
        send_retained(session, subscription, machine.retained.match(plain, machine.now))


def _is_of(request: DataRequest, subscription: Subscription) -> bool:
    return request.subscription.topic_filter == subscription.topic_filter


def send_retained(session: Session, subscription: Subscription, found: list[Run]) -> None:
    """Let a session read retained messages first, from a log of their own."""
    requests = session.tracker.requests
    again = [each for each in requests if each.is_retained and _is_of(each, subscription)]
    for request in again:  # asked for once more: those that were not sent yet begin anew
        requests.remove(request)
    if not found:
        return
    log = DataLog(subscription.topic_filter, _NO_TRIM, 1)
    request = DataRequest(log, subscription, session)
    request.is_retained = True
    log.readers = 1
    for run in found:
        log.append(run)
    request.stop = log.end
    session.tracker.put_first(request)


def join(
    machine: "RouterMachine", session: Session, subscription: Subscription, log: DataLog
) -> None:
    """Make a session a member of a shared subscription."""
    name = subscription.topic_filter
    group = machine.groups.get(name)
    if group is None:
        request = DataRequest(log, subscription, None)
        strategy = machine.limits.share_strategy
        group = machine.groups[name] = ShareGroup(name, request, strategy, machine.chance)
        request.group = group
        log.readers += 1
        log.waiters[request] = None
    group.members.append(session)
    session.requests[name] = group.request
    session.has_shared = True
    if group.is_idle:
        machine.hand_over(group)


def unsubscribe(machine: "RouterMachine", connection: Connection, packet: Unsubscribe) -> None:
    """Take filters away, and answer for each of them."""
    session = connection.session
    codes: list[int] = []
    for topic_filter in packet.topic_filters:
        if not is_valid_filter(topic_filter):
            codes.append(ReasonCode.TOPIC_FILTER_INVALID)
        elif topic_filter in session.subscriptions:
            leave(machine, session, topic_filter)
            codes.append(ReasonCode.SUCCESS)
        else:
            codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
    answer = UnsubAck(packet.packet_id, tuple(codes) if connection.is_v5 else ())
    connection.acks.append(encode(answer, V5 if connection.is_v5 else V4))
    machine.schedule(session, Cause.ACKS)


def leave(machine: "RouterMachine", session: Session, topic_filter: str) -> None:
    """End one subscription.

    While messages are unread that several filters match (they are sent once, by one of them),
    it goes on until it has read what there is, as the standard allows.
    """
    subscription = session.subscriptions.pop(topic_filter)
    request = session.requests.pop(topic_filter)
    log = request.log
    log.durable_readers -= session.is_durable and subscription.qos > 0
    if request.group is None and session.has_overlaps and session.tracker.requests:
        # Others may have left messages to this one, or it may have sent theirs.
        ended = subscription.ended(machine.number)
        session.leaving = (*session.leaving, ended)
        if session.is_durable:
            place = request.place(machine.number)
            machine.records.append(Subscribed(session.client_id, ended, place))
        if request.offset < log.end:
            request.stop = log.end
            request.subscription = ended
            session.tracker.requests.remove(request)
            session.tracker.put_first(request)
            return
    elif session.is_durable:
        machine.records.append(Unsubscribed(session.client_id, topic_filter))
        note_places(machine, session)
    if request.group is not None:
        _leave_group(machine, session, request.group)
        return
    if request in log.waiters:
        del log.waiters[request]
    else:
        session.tracker.requests.remove(request)
    machine.drop_reader(log)


def note_places(machine: "RouterMachine", session: Session) -> None:
    """Write down what a session's subscriptions have read, one of them having gone.

    What the one that is gone had sent for all must not be sent again by those that are left.
    """
    for name, request in session.requests.items():
        if request.group is None:
            place = request.place(machine.number)
            machine.records.append(Moved(session.client_id, name, place))


def all_left(machine: "RouterMachine", session: Session) -> None:
    """Forget subscriptions that were ended, when nobody is behind them any more."""
    session.leaving = ()
    if session.is_durable:
        machine.records.append(Unsubscribed(session.client_id, ""))
        note_places(machine, session)


def _leave_group(machine: "RouterMachine", session: Session, group: ShareGroup) -> None:
    """Take a session out of a group; the last one ends it."""
    group.members.remove(session)
    request = group.request
    has_it = request.session is session
    if has_it:
        session.tracker.requests.remove(request)
    if not group.members:
        request.log.waiters.pop(request, None)
        del machine.groups[group.topic_filter]
        machine.drop_reader(request.log)
    elif has_it:
        machine.hand_over(group)
    session.has_shared = any(each.group is not None for each in session.requests.values())
