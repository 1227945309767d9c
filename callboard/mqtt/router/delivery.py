"""Delivery: messages go from logs to the connections that are ready.

Serving a ready connection sends its acknowledgements first, then sweeps over its requests. A
sweep takes at most `SWEEP_LIMIT` messages of one filter; if a run needs no change, a sweep is a
slice and a join. A connection leaves the ready queue when its link is full (Busy), when its
window is full (InflightFull), when it has read everything (Caughtup) or when the next message
must be fetched from the journal (Fetching).

A full window stops messages with QoS 1 and 2 only. Those with QoS 0 pass it: their request
reads ahead, and skips them when it reaches them later (`PassedWindow`).

`pass_through` is the fast path. Where each client has a topic of its own, most messages have
one reader, which has read all earlier messages and can be sent the publisher's bytes unchanged.
For a single message, the run, the log, its waiters and the ready queue cost more than all other
steps in the router. So packets without options, aliases or limits go straight to such a reader;
all others go through the log.
"""

from bisect import bisect_right
from collections import deque
from sys import maxsize
from typing import Final, NamedTuple

from callboard.mqtt.router.datalog import CursorJump, Segment
from callboard.mqtt.router.effects import Effects
from callboard.mqtt.router.link import UNSCHEDULE
from callboard.mqtt.router.logs import Logs
from callboard.mqtt.router.message import (
    PACKET_IDS,
    Form,
    MessageRun,
    encode_form,
    expiry_property,
)
from callboard.mqtt.router.record import (
    Acknowledged,
    Copied,
    Moved,
    Released,
    SentOut,
    Subscribed,
    Unsubscribed,
)
from callboard.mqtt.router.session import (
    ALIAS_BYTES,
    Cause,
    Connection,
    ConnectionStatus,
    DataRequest,
    FilterLog,
    PassedWindow,
    Session,
    SessionSubscription,
)
from callboard.mqtt.router.share import ShareGroup
from callboard.mqtt.router.window import LAST_ID, PUBACK, PUBREC, PUBREL, Sent, Window
from callboard.mqtt.wire.packet import PubComp, PubRel
from callboard.mqtt.wire.reason_code import ReasonCode

#: Connections served in one turn, so that events do not wait too long.
MOST_READY = 100

#: Messages sent for one request in one sweep.
SWEEP_LIMIT: Final = 200

#: Sweeps of one connection in one turn.
ROUNDS: Final = 100

#: The identifier of the property *topic alias*.
ALIAS: Final = 35

_CAUGHT_UP: Final = ConnectionStatus.CAUGHT_UP
_READY: Final = ConnectionStatus.READY
_FULL: Final = ConnectionStatus.INFLIGHT_FULL
_ON_FRESH_DATA: Final = Cause.FRESH_DATA.wakes


class Options(NamedTuple):
    """Options of one message for one reader: QoS, additional properties, retain flag."""

    qos: int
    extra: bytes
    retain: bool


class Delivery:
    """Sends messages to connections, and owns the groups of shared subscriptions.

    Attributes:
        connections: the connections by client id.
        groups: shared subscriptions, by filter with the share.
        ready: the ready queue.
        touched: connections whose `out` is not empty at the end of this turn.
    """

    def __init__(self, logs: Logs, effects: Effects) -> None:
        self.connections: dict[str, Connection] = {}
        self.groups: dict[str, ShareGroup] = {}
        self.ready: deque[Connection] = deque()
        self.touched: list[Connection] = []
        self._logs = logs
        self._effects = effects

    # --- the ready queue ---

    def notify(self) -> None:
        """Move requests that publishes have woken to the trackers of their sessions."""
        logs = self._logs
        requests, logs.woken = logs.woken, []
        for request in requests:
            session = request.session
            if request.is_shared:
                group = self.groups.get(request.subscription.topic_filter)
                if group is not None and group.request is request:  # it has not ended
                    self.hand_over(group)
            elif session is not None:
                session.tracker.append(request)
                if session.status in _ON_FRESH_DATA and session.connection is not None:
                    session.status = _READY
                    self.ready.append(session.connection)

    def pass_windows(self) -> None:
        """Schedule sessions with a full window for messages with QoS 0 that were published."""
        logs = self._logs
        requests, logs.unblocked = logs.unblocked, []
        for request in requests:
            session = request.session
            if session is not None and session.status is _FULL:
                self.schedule(session, Cause.FRESH_DATA)

    def schedule(self, session: Session, cause: Cause) -> None:
        """Put a connection into the ready queue if this cause makes it ready."""
        connection = session.connection
        if connection is None:
            return
        if session.status in cause.wakes:
            if session.status is not _CAUGHT_UP:
                self.limit_backlog(session)
            session.status = _READY
            self.ready.append(connection)
        if session.has_shared and cause.gives_room:
            self._wake_groups(session)

    def emptied(self, connection: Connection) -> None:
        """Resume a connection whose link was full."""
        connection.unsent = connection.unsent_bytes = 0
        self.schedule(connection.session, Cause.READY)

    def arrived(self, segment: Segment, runs: list[MessageRun]) -> None:
        """Store messages that were fetched from the journal; missing ones are lost."""
        for connection in self._logs.put_back(segment, runs):
            session = connection.session
            if session.connection is connection:
                self.schedule(session, Cause.FETCHED)

    def serve(self) -> None:
        """Send to connections of the ready queue."""
        ready, touched = self.ready, self.touched
        for _ in range(min(len(ready), MOST_READY)):
            connection = ready.popleft()
            if connection.session.connection is connection:
                self._consume(connection)
                if connection.out:
                    touched.append(connection)

    # --- requests and groups ---

    def group_of(self, request: DataRequest) -> ShareGroup:
        """Return the group of a shared request."""
        return self.groups[request.subscription.topic_filter]

    def park(self, request: DataRequest) -> None:
        """Queue a request that has read everything until its log grows, or end it."""
        log, session = request.log, request.session
        if session is not None and session.leaving and not session.tracker:
            self._all_left(session)
        if request.stop is not None:
            if not request.is_retained:
                self._logs.drop_reader(log)
            return
        if request.is_shared:
            request.session = None
        log.park(request)

    def hand_over(self, group: ShareGroup) -> None:
        """Pass a group's request to the next member that can receive, or park it."""
        if not group.has_more:
            group.is_idle = False
            self.park(group.request)
            return
        member = group.hand_over()
        if member is not None:
            self.schedule(member, Cause.NEW_FILTER)

    def _wake_groups(self, session: Session) -> None:
        """Offer idle groups to a session that can receive again."""
        if session.status not in (_READY, _CAUGHT_UP, _FULL):
            return
        for request in session.requests.values():
            if request.is_shared:
                group = self.group_of(request)
                if group.is_idle:
                    self.hand_over(group)

    def offer_returned(self, group: ShareGroup) -> None:
        """Schedule a group's request again, because messages were returned to the group."""
        request = group.request
        if request.log.waiters.pop(request, False) is None:
            self.hand_over(group)

    def _all_left(self, session: Session) -> None:
        """Forget subscriptions that were ended, once all their messages have been read."""
        session.charge(self._effects, -sum(leaving.weight for leaving in session.leaving))
        session.leaving = ()
        if session.is_durable:
            self._effects.records.append(Unsubscribed(session.client_id, ""))
            self.record_places(session)

    def record_places(self, session: Session) -> None:
        """Record how far a session's subscriptions have read, after one of them was removed.

        If subscriptions overlap, one sends a message for all of them. Without these records,
        the others would send it again after a restart.
        """
        for name, request in session.requests.items():
            if not request.is_shared:
                place = request.place(self._logs.number)
                self._effects.records.append(Moved(session.client_id, name, place))

    # --- losses ---

    def limit_backlog(self, session: Session) -> None:
        """Drop the oldest unread messages of a session above the limits of one client."""
        limits = self._effects.limits
        if not limits.queued_messages and not limits.queued_bytes:
            return
        count, size = limits.queued_messages or maxsize, limits.queued_bytes or maxsize
        for request in session.tracker:
            if request.is_shared or request.stop is not None:
                continue
            log = request.log
            start, weight = log.tail(count, size)
            if start > request.offset:
                self._jump(request, start)
            count -= log.end - request.offset
            size -= weight if start == request.offset else 0
            count, size = max(count, 0), max(size, 0)

    def _jump(self, request: DataRequest, offset: int) -> None:
        """Skip to an offset because the messages before it were dropped, and record that.

        The journal may still hold the messages that were reported as lost. Without the record,
        a restarted router would send them, out of order.
        """
        self._report_jump(request, offset)
        session, subscription = request.session, request.subscription
        if session is None or not session.is_durable or not subscription.qos:
            return
        if request.is_shared or request.is_retained:
            return
        place, client_id = request.place(self._logs.number), session.client_id
        if subscription.until is None:
            self._effects.records.append(Moved(client_id, subscription.topic_filter, place))
        else:
            self._effects.records.append(Subscribed(client_id, subscription, place))

    def _report_jump(self, request: DataRequest, offset: int) -> None:
        """Skip to an offset, and report the messages before it as lost."""
        lost = offset - request.offset
        request.offset = offset
        lost -= _reach(request, lost)
        if not lost:
            return
        self._effects.meters.lost += lost
        session = request.session
        client_id = "" if request.is_shared or session is None else session.client_id
        self._effects.alerts.append(CursorJump(client_id, request.log.topic_filter, lost))

    def report_jumps(self, session: Session) -> None:
        """Report messages dropped before a session read them, without waiting for its read."""
        for request in session.all_requests:
            start = request.log.start
            if request.stop is not None:
                start = min(start, request.stop)
            if start > request.offset:
                self._report_jump(request, start)

    # --- acknowledgements ---

    def acknowledge(self, connection: Connection, kind: int, ids: tuple[int, ...]) -> None:
        """Apply successful acknowledgements; `kind` is their first byte.

        Acknowledgements of unknown identifiers are counted, and answered where the standard
        defines an answer.

        Raises:
            ProtocolViolation: an acknowledgement is of the wrong kind for its message.
        """
        if kind == PUBREL:
            self._release(connection, ids)
            return
        session = connection.session
        unknown = session.window.acknowledge(kind, ids)
        if kind == PUBREC:
            accepted = ids
            if unknown:
                reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if connection.is_v5 else 0
                for packet_id in unknown:
                    connection.acknowledge(PubRel(packet_id, reason))
                accepted = tuple(packet_id for packet_id in ids if packet_id not in unknown)
            connection.acks.append(b"".join([b"\x62\x02" + PACKET_IDS[i] for i in accepted]))
        self._effects.meters.unknown_acks += len(unknown)
        if session.is_durable:
            self._effects.records.append(Acknowledged(session.client_id, kind, ids))
        self.schedule(session, Cause.INCOMING_ACK)

    def give_up(self, connection: Connection, packet_id: int) -> None:
        """Handle a PUBREC with an error: the delivery is over (MQTT 5, 4.3.3)."""
        session = connection.session
        if session.window.inflight.pop(packet_id, None) is not None:
            self._effects.meters.refused_by_clients += 1
            if session.is_durable:
                record = Acknowledged(session.client_id, PUBACK, (packet_id,))
                self._effects.records.append(record)
            self.schedule(session, Cause.INCOMING_ACK)

    def _release(self, connection: Connection, ids: tuple[int, ...]) -> None:
        """Handle PUBRELs: forget identifiers of received QoS 2 messages."""
        session = connection.session
        received = session.received
        if connection.is_v5 and not received.issuperset(ids):
            for packet_id in ids:
                is_new = packet_id not in received
                reason = (
                    ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if is_new else ReasonCode.SUCCESS
                )
                connection.acknowledge(PubComp(packet_id, reason))
        else:
            connection.acks.append(b"".join([b"\x70\x02" + PACKET_IDS[i] for i in ids]))
        received.difference_update(ids)
        if session.is_durable:
            self._effects.records.append(Released(session.client_id, ids))
        self.schedule(session, Cause.ACKS)

    # --- the fast path ---

    def pass_through(
        self, publisher: Connection, log: FilterLog, topic: bytes, packets: bytes, count: int
    ) -> bool:
        """Forward plain QoS 0 packets to the only reader.

        Return False if that is not possible.
        """
        if len(log.waiters) != 1 or log.readers != 1 or log.is_swollen:
            return False
        (request,) = log.waiters
        session = request.session
        if session is None:  # a shared subscription: its group chooses the next reader
            return False
        reader = session.connection
        if reader is None or session.status is not _CAUGHT_UP:
            return False
        subscription, limits = request.subscription, self._effects.limits
        size = len(packets)
        if (
            reader.is_v5 != publisher.is_v5
            or reader.alias_maximum
            or reader.largest is not None
            or subscription.identifier
            or (subscription.no_local and reader is publisher)
            or reader.unsent + count > limits.delivery_quota
            or reader.unsent_bytes + size > limits.delivery_bytes
            or (reader.access is not None and not reader.may_receive(topic))
        ):
            return False
        if not reader.out:
            self.touched.append(reader)
        reader.out.append(packets)
        reader.unsent += count
        reader.unsent_bytes += size
        self._logs.number += count
        meters = self._effects.meters
        meters.published += count
        meters.published_bytes += size
        meters.delivered += count
        meters.delivered_bytes += size
        log.pass_by(count, (packets, size // count, reader.is_v5))
        request.offset = log.end
        return True

    # --- through the log ---

    def _consume(self, connection: Connection) -> None:
        """Send a connection its acknowledgements and messages, until it must pause."""
        session = connection.session
        if connection.acks:
            connection.out += connection.acks
            connection.unsent_bytes += sum(map(len, connection.acks))
            connection.acks = []
            if connection.unsent_bytes >= self._effects.limits.delivery_bytes:
                self._pause(connection, ConnectionStatus.BUSY)
                return
        window = session.window_or_none
        if window is not None and window.resend and not self._send_again(connection):
            self._pass_window(connection, None)
            return
        requests = session.tracker
        for _ in range(ROUNDS):
            if not requests:
                session.status = _CAUGHT_UP
                return
            request = requests[0]
            outcome = self._forward(connection, request)
            if outcome is _READY:
                self._requeue(session, request)
            elif outcome is _CAUGHT_UP:
                del requests[0]
                self.park(request)
            elif outcome is _FULL:
                self._pass_window(connection, request)
                return
            else:
                self._pause(connection, outcome)
                return
        self.ready.append(connection)

    def _pass_window(self, connection: Connection, stopped: DataRequest | None) -> None:
        """Pause a connection whose window is full, after all it can be sent with QoS 0.

        `stopped` is the request that has just found the window full.
        """
        session = connection.session
        if stopped is not None and len(session.tracker) == 1 and _sees_no_plain(stopped):
            stopped.log.block(stopped)
            session.status = _FULL
            return
        for request in session.tracker[:]:
            outcome = _FULL if request is stopped else self._forward(connection, request)
            while outcome is _READY and not request.is_shared:
                outcome = self._forward(connection, request)
            if outcome is _FULL and not request.is_shared:
                outcome = self._read_ahead(connection, request)
            if outcome is _CAUGHT_UP:
                session.tracker.remove(request)
                self.park(request)
            elif (
                outcome is not _FULL and outcome is not _READY
            ):  # the link is full, or it waits
                self._pause(connection, outcome)
                return
        self._pause(connection, _FULL)

    def _read_ahead(self, connection: Connection, request: DataRequest) -> ConnectionStatus:
        """Send the messages with QoS 0 of a request that a full window stops."""
        log, passed, limits = request.log, request.passed, self._effects.limits
        if passed is None:
            passed = request.passed = PassedWindow(request.offset)
        elif passed.end < request.offset:
            passed.end, passed.count = request.offset, 0
        stop = log.end if request.stop is None else min(request.stop, log.end)
        for run, start in log.after(passed.end) if passed.end < stop else ():
            index = max(passed.end - start, 0)
            while not run.qos and index < run.count and start + index < stop:
                if connection.unsent >= limits.delivery_quota or (
                    connection.unsent_bytes >= limits.delivery_bytes
                ):
                    return ConnectionStatus.BUSY
                count = min(run.count, stop - start) - index
                count = self._send(connection, request, run, index, count)
                index += count
                passed.end, passed.count = start + index, passed.count + count
            passed.end = min(start + run.count, stop)
        passed.end = stop
        if request.stop is None:
            log.block(request)
        return _FULL

    def _requeue(self, session: Session, request: DataRequest) -> None:
        """Move a request to the end of its session's queue, or to another member."""
        requests = session.tracker
        if request.is_shared:
            del requests[0]
            self.hand_over(self.group_of(request))
        elif len(requests) > 1 and request.stop is None:
            requests.append(requests.pop(0))

    def _pause(self, connection: Connection, outcome: ConnectionStatus) -> None:
        """Remove a connection from the ready queue, and pass its shared requests to others."""
        session = connection.session
        session.status = outcome
        if outcome is ConnectionStatus.BUSY:
            connection.out.append(UNSCHEDULE)
            self._effects.meters.unscheduled += 1
        for request in [item for item in session.tracker if item.is_shared]:
            session.tracker.remove(request)
            self.hand_over(self.group_of(request))

    def _send_again(self, connection: Connection) -> bool:
        """Resend messages in flight with their old identifiers.

        Return False if the window is full.
        """
        window = connection.session.window
        resend = window.resend
        while resend:
            if window.room <= 0:
                return False
            packet_id = next(iter(resend))
            entry = resend.pop(packet_id)
            window.inflight[packet_id] = entry
            form = entry.run.form_for(
                entry.qos, is_v5=connection.is_v5, retain=entry.retain, extra=entry.extra
            )
            index = entry.start + packet_id - entry.first
            front = form.fronts[index]
            packet = b"".join(
                (bytes((front[0] | 8,)), front[1:], PACKET_IDS[packet_id], form.tails[index])
            )
            connection.out.append(packet)
        return True

    def _forward(self, connection: Connection, request: DataRequest) -> ConnectionStatus:  # noqa: C901
        """Send messages of one request: at most `SWEEP_LIMIT`, or a burst of a shared one."""
        budget = SWEEP_LIMIT
        if request.is_shared:
            group = self.group_of(request)
            # The next message may be one for another member only.
            budget = 1 if connection.is_limited else group.burst
            if group.returned:
                return self._send_returned(connection, request, group)
        log, offset = request.log, request.offset
        end = log.end if request.stop is None else min(request.stop, log.end)
        limits = self._effects.limits
        quota, most = limits.delivery_quota, limits.delivery_bytes
        while offset < end:
            if budget <= 0:
                return _READY
            if connection.unsent >= quota or connection.unsent_bytes >= most:
                return ConnectionStatus.BUSY
            segment = log.segments[-1]
            if offset >= segment.base:  # most readers are in the last segment
                number = bisect_right(segment.starts, offset) - 1
            else:
                start, segment, number = log.find(offset)
                if start != offset:
                    offset = min(start, end)
                    self._jump(request, offset)
                    continue
                if segment.shelf is not None and not segment.runs:
                    self._logs.fetch(log, segment, connection)
                    return ConnectionStatus.FETCHING
            runs, starts = segment.runs, segment.starts
            while number < len(runs) and budget > 0 and starts[number] <= offset < end:
                run = runs[number]
                index = offset - starts[number]
                count = min(run.count - index, budget, end - offset)
                if request.passed is not None and not run.qos:
                    skipped = _skip(request, request.passed, count)
                    offset += skipped
                    number += skipped == run.count - index
                    if skipped:
                        continue
                progress = self._send(connection, request, run, index, count)
                offset += progress
                budget -= progress
                request.offset = offset
                if progress < count:
                    if not progress or connection.session.window.room <= 0:
                        return _FULL
                    continue  # the rest of the run, in another form or with other identifiers
                number += offset == starts[number] + run.count
                if connection.unsent >= quota or connection.unsent_bytes >= most:
                    break
        return _CAUGHT_UP

    def _send_returned(
        self, connection: Connection, request: DataRequest, group: ShareGroup
    ) -> ConnectionStatus:
        """Send one message that another member received and did not acknowledge."""
        run, index = group.returned[0]
        if not self._send(connection, request, run, index, 1):
            return _FULL
        group.returned.popleft()
        return _READY if group.has_more else _CAUGHT_UP

    def _send(  # noqa: C901  (every reason for not sending a message)
        self,
        connection: Connection,
        request: DataRequest,
        run: MessageRun,
        index: int,
        count: int,
    ) -> int:
        """Send a part of a run.

        Return how many messages are done: sent, or skipped as not for this reader.
        """
        subscription, session = request.subscription, connection.session
        qos, extra, retain = subscription.qos, subscription.identifier, False
        if (
            run.retain
            or request.is_retained
            or subscription.no_local
            or run.recipient is not None
            or (session.has_overlaps and len(run.filters) > 1)
        ):
            options = _options(session, request, run)
            if options is None:
                return count
            qos, extra, retain = options
        if run.qos < qos:
            qos = run.qos
        if connection.access is not None and not connection.may_receive(run.topic):
            return count
        expires_at, is_v5 = run.expires_at, connection.is_v5
        if expires_at is not None and expires_at <= self._effects.now:
            self._effects.meters.expired += count
            return count
        offset = index
        if is_v5 and (connection.alias_maximum or connection.largest or expires_at is not None):
            options = Options(qos, extra, retain)
            particular = self._particular_form(connection, run, index, count, options)
            if particular is None:
                return 1
            form, offset, count = particular
        elif qos | is_v5 << 2 == run.key and not retain and not extra and expires_at is None:
            form = run.form
        else:
            form = self._form_for(run, Options(qos, extra, retain), is_v5=is_v5)
        if qos:
            window = session.window_or_none or session.window
            first, count = _allocate(window, count)
            if not count:
                return 0
            name, is_retained = subscription.topic_filter, request.is_retained
            entry = Sent(
                run, index, first, qos, extra, retain, name, request.is_shared, is_retained
            )
            if count == 1:
                window.inflight[first] = entry
                data = b"".join((form.fronts[offset], PACKET_IDS[first], form.tails[offset]))
            else:
                window.inflight |= dict.fromkeys(range(first, first + count), entry)
                data = _numbered(form, offset, count, first)
            if session.is_durable:
                self._record(session, entry, count)
        else:
            fronts = form.fronts
            data = fronts[offset] if count == 1 else b"".join(fronts[offset : offset + count])
        connection.out.append(data)
        meters, size = self._effects.meters, len(data)
        meters.delivered += count
        meters.delivered_bytes += size
        connection.unsent += count
        connection.unsent_bytes += size
        return count

    def _form_for(self, run: MessageRun, options: Options, *, is_v5: bool) -> Form:
        """Return the encoded form of a run; count the memory of a new one as appended bytes."""
        memory = run.memory
        qos, extra, retain = options
        form = run.form_for(qos, is_v5=is_v5, retain=retain, extra=extra)
        self._logs.appended += run.memory - memory
        return form

    def _record(self, session: Session, entry: Sent, count: int) -> None:
        """Record messages in flight to a session that survives a restart."""
        if entry.is_retained:
            self._effects.records.append(Copied(entry.run))
        self._effects.records.append(SentOut.of(session.client_id, entry, count))

    def _particular_form(
        self, connection: Connection, run: MessageRun, index: int, count: int, options: Options
    ) -> tuple[Form, int, int] | None:
        """Return a form for a reader with aliases or a size limit, or a message with expiry.

        Also returns the index of the first message in the form, and how many of its messages
        can be sent. Returns None if the message is too large for the client: the standard then
        has it count as sent (MQTT 5, 3.1.2.11.4).
        """
        qos, extra, retain = options
        if run.expires_at is not None:
            extra += expiry_property(run.expires_at - self._effects.now)
        topic, alias, is_fresh = run.topic, b"", False
        if connection.alias_maximum and not (qos and connection.session.window.room <= 0):
            alias, is_fresh = _alias(connection, topic)
            if is_fresh:
                count = 1
            elif alias:
                topic = b""
        part = run.payloads[index : index + count]
        properties = alias + extra + run.properties
        form = encode_form(topic, part, qos=qos, retain=retain, properties=properties)
        largest = connection.largest
        if largest is None:
            return form, 0, count
        two = 2 if qos else 0
        tails = form.tails or [b""] * len(part)
        sizes = [len(a) + len(b) + two for a, b in zip(form.fronts, tails, strict=True)]
        fitting = next((i for i, size in enumerate(sizes) if size > largest), len(sizes))
        if fitting:
            return form, 0, fitting
        self._effects.meters.too_large += 1
        connection.dropped += 1
        if is_fresh:
            assert connection.aliases_out is not None
            del connection.aliases_out[topic]
            connection.alias_bytes_out -= len(topic)
        return None


def _sees_no_plain(request: DataRequest) -> bool:
    """Return whether certainly no unsent message with QoS 0 follows in the log of a request.

    Nearly all logs with full windows hold no such message, so this saves reading ahead.
    """
    if request.is_shared or request.stop is not None:
        return False
    passed = request.passed
    return request.log.plain_end <= (request.offset if passed is None else passed.end)


def _skip(request: DataRequest, passed: PassedWindow, count: int) -> int:
    """Skip messages with QoS 0 that have passed the full window; return how many."""
    count = max(min(count, passed.end - request.offset), 0)
    request.offset += count
    passed.count -= count
    if request.offset >= passed.end:
        request.passed = None
    return count


def _reach(request: DataRequest, lost: int) -> int:
    """Return how many of the messages before a request's new offset have passed the window.

    The messages themselves are gone, so those that are still there are subtracted.
    """
    passed, offset = request.passed, request.offset
    if passed is None:
        return 0
    rest = sum(
        min(start + run.count, passed.end) - max(start, offset)
        for run, start in request.log.after(offset)
        if not run.qos and start < passed.end
    )
    reached = min(max(passed.count - rest, 0), lost)
    passed.count -= reached
    if offset >= passed.end:
        request.passed = None
    return reached


def _alias(connection: Connection, topic: bytes) -> tuple[bytes, bool]:
    """Return the property with a topic's alias, and whether that property defines the alias."""
    aliases = connection.aliases_out
    if aliases is None:
        aliases = connection.aliases_out = {}
    alias = aliases.get(topic, b"")
    if alias or len(aliases) >= connection.alias_maximum:
        return alias, False
    if connection.alias_bytes_out + len(topic) > ALIAS_BYTES:
        return b"", False
    connection.alias_bytes_out += len(topic)
    alias = aliases[topic] = bytes((ALIAS,)) + (len(aliases) + 1).to_bytes(2, "big")
    return alias, True


def _allocate(window: Window, count: int) -> tuple[int, int]:
    """Return the first of some consecutive packet identifiers, and how many there are."""
    inflight, releasing = window.inflight, window.releasing
    room = window.size - len(inflight) - len(releasing)
    if room <= 0:
        return 0, 0
    first = window.following
    if count == 1 and first not in inflight and first not in releasing:
        window.following = first % LAST_ID + 1
        return first, 1
    return window.allocate(min(count, room))


def _numbered(form: Form, offset: int, count: int, first: int) -> bytes:
    """Return packets of a form with consecutive packet identifiers."""
    parts = [b""] * (3 * count)
    parts[0::3] = form.fronts[offset : offset + count]
    parts[1::3] = PACKET_IDS[first : first + count]
    parts[2::3] = form.tails[offset : offset + count]
    return b"".join(parts)


def _options(session: Session, request: DataRequest, run: MessageRun) -> Options | None:
    """Return how a message with special options is sent; None if the reader does not get it."""
    subscription = request.subscription
    qos, extra, retain = subscription.qos, subscription.identifier, request.is_retained
    if run.recipient is not None and (request.is_shared or run.recipient != session.client_id):
        return None
    if retain:
        return Options(qos, extra, retain)
    if subscription.no_local and run.publisher == session.client_id:
        return None
    if len(run.filters) > 1 and not request.is_shared and session.has_overlaps:
        return merge(session, subscription, run)
    return Options(qos, extra, run.retain and subscription.retain_as_published)


def merge(
    session: Session, subscription: SessionSubscription, run: MessageRun
) -> Options | None:
    """Return the options of a message for a subscription; None if another one sends it.

    A message that several filters of a session match is sent once: by the oldest subscription,
    with the highest QoS and all identifiers. Subscriptions with QoS 1 or 2 take precedence,
    since reads with QoS 0 are not in the journal. The choice depends only on facts that do not
    change while messages wait: otherwise a message could be sent twice or never.
    """
    subscriptions, number = session.subscriptions, run.number
    matching = [subscriptions[name] for name in run.filters if name in subscriptions]
    if session.leaving:
        matching += [match for match in session.leaving if match.topic_filter in run.filters]
    matching = [
        match
        for match in matching
        if match.since <= number
        and (match.until is None or number < match.until)
        and not (match.no_local and run.publisher == session.client_id)
    ]
    if min((subscription, *matching), key=_age).topic_filter != subscription.topic_filter:
        return None
    qos = max((match.qos for match in matching), default=0)
    identifiers = sorted({match.identifier for match in matching})
    retain = run.retain and any(match.retain_as_published for match in matching)
    return Options(qos, b"".join(identifiers), retain)


def _age(subscription: SessionSubscription) -> tuple[bool, int, str]:
    """Return a sort key that puts the oldest subscription first."""
    return not subscription.qos, subscription.since, subscription.topic_filter
