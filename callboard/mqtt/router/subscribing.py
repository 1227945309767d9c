"""SUBSCRIBE and UNSUBSCRIBE: each filter is checked and answered separately."""

from dataclasses import replace

from callboard.mqtt.router.datalog import DataLog
from callboard.mqtt.router.delivery import Delivery
from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.logs import Logs
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.record import Subscribed, Unsubscribed
from callboard.mqtt.router.session import (
    SUBSCRIPTION_BYTES,
    Cause,
    Connection,
    DataRequest,
    FilterLog,
    Session,
    SessionSubscription,
)
from callboard.mqtt.router.share import RandomSource, ShareGroup
from callboard.mqtt.wire.packet import SubAck, Subscribe, Subscription, UnsubAck, Unsubscribe
from callboard.mqtt.wire.properties import NO_PROPERTIES
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import is_valid_filter, split_share, weight_of_way
from callboard.support.dataclass import dataclass

#: The only refusal in a SUBACK of MQTT 3.1.1.
REFUSED_V4 = 0x80

_NO_TRIM = 1 << 40

#: Estimated bytes of memory per retained message in the log of a request.
RETAINED_ENTRY = 64


@dataclass(eq=False, repr=False)
class Subscriptions:
    """Adds and removes subscriptions of sessions."""

    _logs: Logs
    _delivery: Delivery
    _effects: Effects
    _chance: RandomSource

    # --- packets ---

    def subscribe(self, connection: Connection, packet: Subscribe) -> None:
        """Handle a SUBSCRIBE, and answer it."""
        identifiers = (packet.properties or NO_PROPERTIES).subscription_identifiers
        identifier = identifiers[0] if identifiers else 0
        codes = []
        for request in packet.subscriptions:
            code = self._judge(connection, request)
            if code < ReasonCode.UNSPECIFIED_ERROR:
                number = self._logs.number
                subscription = SessionSubscription.of_packet(request, code, number, identifier)
                self._accept(connection.session, subscription)
            elif not connection.is_v5:
                code = REFUSED_V4
            codes.append(code)
        connection.acknowledge(SubAck(packet.packet_id, tuple(codes)))
        self._delivery.schedule(connection.session, Cause.NEW_FILTER)

    def _judge(self, connection: Connection, request: Subscription) -> int:
        """Return the QoS to grant, or a reason code."""
        topic_filter = request.topic_filter
        if not is_valid_filter(topic_filter):
            return ReasonCode.TOPIC_FILTER_INVALID
        session, effects = connection.session, self._effects
        if topic_filter not in session.subscriptions:
            limits, weight = effects.limits, SUBSCRIPTION_BYTES + weight_of_way(topic_filter)
            if (
                len(session.subscriptions) + len(session.leaving) >= limits.subscriptions
                or session.weight + weight > limits.subscription_bytes
                or effects.held + weight > limits.sessions_bytes
            ) and not connection.link.is_local:
                effects.meters.over_quota += 1
                return ReasonCode.QUOTA_EXCEEDED
        if (access := connection.link.access) is not None:
            return access.may_subscribe(topic_filter, min(request.qos, connection.most_qos))
        return min(request.qos, connection.most_qos)

    def unsubscribe(self, connection: Connection, packet: Unsubscribe) -> None:
        """Handle an UNSUBSCRIBE, and answer it."""
        session = connection.session
        codes: list[int] = []
        for topic_filter in packet.topic_filters:
            if not is_valid_filter(topic_filter):
                codes.append(ReasonCode.TOPIC_FILTER_INVALID)
            elif topic_filter in session.subscriptions:
                self.leave(session, topic_filter)
                codes.append(ReasonCode.SUCCESS)
            else:
                codes.append(ReasonCode.NO_SUBSCRIPTION_EXISTED)
        answer = UnsubAck(packet.packet_id, tuple(codes) if connection.is_v5 else ())
        connection.acknowledge(answer)
        self._delivery.schedule(session, Cause.ACKS)

    # --- sessions ---

    def _accept(self, session: Session, subscription: SessionSubscription) -> None:
        """Add a granted subscription to a session, and send retained messages."""
        topic_filter = subscription.topic_filter
        previous = existing = session.subscriptions.get(topic_filter)
        group, plain = split_share(topic_filter)
        if (
            existing is not None
            and bool(existing.qos) != bool(subscription.qos)
            and not group
            and session.has_overlaps
            and session.tracker
        ):  # which subscription sends a message must not change while it waits
            self.leave(session, topic_filter)
            existing = None
        if existing is not None:
            subscription = replace(subscription, since=existing.since)
            log = session.requests[topic_filter].log
            log.durable_readers -= session.is_durable and existing.qos > 0
            session.subscriptions[topic_filter] = subscription
            if not group:
                session.requests[topic_filter].subscription = subscription
            log.durable_readers += session.is_durable and subscription.qos > 0
        else:
            request = self.add(session, subscription)
            if not group:
                request.log.waiters[request] = None
                count = len(session.subscriptions) + len(session.leaving)
                session.has_overlaps = count > 1
        if session.is_durable:
            number = session.requests[topic_filter].place(self._logs.number)
            self._effects.records.append(Subscribed(session.client_id, subscription, number))
        handling = subscription.retain_handling
        if not group and (handling == 0 or (handling == 1 and previous is None)):
            retained = self._logs.retained.match(plain, self._effects.now)
            self._logs.appended += RETAINED_ENTRY * len(retained)
            _send_retained(session, subscription, retained)

    def add(self, session: Session, subscription: SessionSubscription) -> DataRequest:
        """Add a subscription to a session; return its request, at the end of the log."""
        name = subscription.topic_filter
        group, plain = split_share(name)
        log = self._logs.open(plain)
        log.durable_readers += session.is_durable and subscription.qos > 0
        session.subscriptions[name] = subscription
        session.charge(self._effects, subscription.weight)
        if group:
            return self._join(session, subscription, log)
        request = session.requests[name] = DataRequest(log, subscription, session)
        log.readers += 1
        return request

    def _join(
        self, session: Session, subscription: SessionSubscription, log: FilterLog
    ) -> DataRequest:
        """Add a session to a shared subscription."""
        name, groups = subscription.topic_filter, self._delivery.groups
        if (group := groups.get(name)) is None:
            request = DataRequest(log, subscription, None, is_shared=True)
            strategy = self._effects.limits.share_strategy
            group = groups[name] = ShareGroup(name, request, strategy, self._chance)
            log.readers += 1
            log.waiters[request] = None
        group.members.append(session)
        session.requests[name] = group.request
        session.has_shared = True
        if group.is_idle:
            self._delivery.hand_over(group)
        return group.request

    def leave(self, session: Session, topic_filter: str) -> None:
        """End one subscription.

        A message that several filters match is sent once, by one of the subscriptions. While
        such messages are unread, the ended subscription continues until it has read the
        existing messages, as the standard allows.
        """
        subscription = session.subscriptions.pop(topic_filter)
        request = session.requests.pop(topic_filter)
        log, number, records = request.log, self._logs.number, self._effects.records
        log.durable_readers -= session.is_durable and subscription.qos > 0
        if not request.is_shared and session.has_overlaps and session.tracker:
            # Other subscriptions may leave messages to this one, or it may have sent theirs.
            leaving = replace(subscription, until=number)
            session.leaving = (*session.leaving, leaving)
            if session.is_durable:
                records.append(Subscribed(session.client_id, leaving, request.place(number)))
            if request.offset < log.end:
                request.stop = log.end
                request.subscription = leaving
                session.tracker.remove(request)
                session.put_first(request)
                return
        else:
            session.charge(self._effects, -subscription.weight)
            if session.is_durable:
                records.append(Unsubscribed(session.client_id, topic_filter))
                self._delivery.record_places(session)
        if request.is_shared:
            self._leave_group(session, self._delivery.groups[topic_filter])
            return
        if request in log.waiters:
            del log.waiters[request]
        else:
            session.tracker.remove(request)
        log.unblock(request)
        self._logs.drop_reader(log)

    def _leave_group(self, session: Session, group: ShareGroup) -> None:
        """Remove a session from a group; a group without members ends."""
        group.members.remove(session)
        request = group.request
        is_reader = request.session is session
        if is_reader:
            session.tracker.remove(request)
        if not group.members:
            request.log.waiters.pop(request, None)
            del self._delivery.groups[group.topic_filter]
            self._logs.drop_reader(request.log)
        elif is_reader or group.is_idle:
            self._delivery.hand_over(group)
        session.has_shared = any(r.is_shared for r in session.requests.values())


def _send_retained(
    session: Session, subscription: SessionSubscription, retained: list[MessageRun]
) -> None:
    """Make a session read retained messages first, from a private log."""
    requests, name = session.tracker, subscription.topic_filter
    for request in list(requests):  # unsent messages of an earlier SUBSCRIBE
        if request.is_retained and request.subscription.topic_filter == name:
            requests.remove(request)
    if not retained:
        return
    log: FilterLog = DataLog(name, _NO_TRIM, 1)
    request = DataRequest(log, subscription, session, is_retained=True)
    log.readers = 1
    for run in retained:
        log.append(run)
    request.stop = log.end
    session.put_first(request)
