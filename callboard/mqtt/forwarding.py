"""Consuming a ready connection: acknowledgements first, then sweeps over its requests.

A sweep takes at most `SWEEP` messages of one filter; of a run that needs no change it is a
slice and a join. A connection is paused when its link is full (Busy), when its window is full
(InflightFull), when it has read everything (Caughtup) or what is next has to be fetched from
the journal (Fetching).
"""

from enum import Enum
from typing import TYPE_CHECKING, Final

from callboard.mqtt.connection import Connection
from callboard.mqtt.jumping import jump
from callboard.mqtt.link import UNSCHEDULE
from callboard.mqtt.message import PACKET_IDS, Form, Run, encode_form, expiry_property
from callboard.mqtt.record import Copied, SentOut
from callboard.mqtt.session import Session, Subscription
from callboard.mqtt.tracker import DataRequest, Status
from callboard.mqtt.window import Sent

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

SWEEP: Final = 200
"""Messages of one request in one sweep."""

ROUNDS: Final = 100
"""Sweeps of one connection in one turn."""

ALIAS: Final = 35
"""The identifier of the property *topic alias*."""


class Outcome(Enum):
    """How a sweep ended."""

    CAUGHT_UP = 0
    PARTIAL = 1
    BUFFER_FULL = 2
    INFLIGHT_FULL = 3
    FETCHING = 4


def consume(machine: "RouterMachine", connection: Connection) -> None:
    """Send a connection what there is for it, as far as it can take it."""
    session = connection.session
    tracker = session.tracker
    if connection.acks:
        connection.out += connection.acks
        connection.unsent_bytes += sum(map(len, connection.acks))
        connection.acks = []
        if connection.unsent_bytes >= machine.limits.delivery_bytes:
            _pause(machine, connection, Outcome.BUFFER_FULL)
            return
    window = session.window_or_none
    if window is not None and window.resend and not _send_again(connection, session):
        tracker.status = Status.INFLIGHT_FULL
        return
    requests = tracker.requests
    for _ in range(ROUNDS):
        if not requests:
            tracker.status = Status.CAUGHT_UP
            return
        request = requests[0]
        outcome = forward(machine, connection, request)
        if outcome is Outcome.PARTIAL:
            _requeue(machine, session, request)
        elif outcome is Outcome.CAUGHT_UP:
            del requests[0]
            machine.park(request)
        else:
            _pause(machine, connection, outcome)
            return
    machine.ready.append(connection)


def _requeue(machine: "RouterMachine", session: Session, request: DataRequest) -> None:
    """Let the other requests of a session have their turn, or the other members of a group."""
    requests = session.tracker.requests
    if request.group is not None:
        del requests[0]
        machine.hand_over(request.group)
    elif len(requests) > 1 and request.stop is None:
        requests.append(requests.pop(0))


def _pause(machine: "RouterMachine", connection: Connection, outcome: Outcome) -> None:
    tracker = connection.session.tracker
    if outcome is Outcome.BUFFER_FULL:
        tracker.status = Status.BUSY
        connection.out.append(UNSCHEDULE)
        machine.meters.unscheduled += 1
    elif outcome is Outcome.FETCHING:
        tracker.status = Status.FETCHING
    else:
        tracker.status = Status.INFLIGHT_FULL
    for request in [each for each in tracker.requests if each.group is not None]:
        tracker.requests.remove(request)
        assert request.group is not None
        machine.hand_over(request.group)


def _send_again(connection: Connection, session: Session) -> bool:
    """Send what was in flight before, with its identifiers; False when the window is full."""
    window = session.window
    resend = window.resend
    while resend:
        if window.room <= 0:
            return False
        packet_id = next(iter(resend))
        sent = resend.pop(packet_id)
        window.inflight[packet_id] = sent
        form = sent.run.form_for(
            sent.qos,
            is_v5=connection.is_v5,
            retain=sent.retain,
            extra=sent.extra if connection.is_v5 else b"",
        )
        index = sent.start + packet_id - sent.first
        front = form.fronts[index]
        packet = b"".join(
            (bytes((front[0] | 8,)), front[1:], PACKET_IDS[packet_id], form.tails[index])
        )
        connection.out.append(packet)
    return True


def forward(  # noqa: C901  (every way in which a sweep ends)
    machine: "RouterMachine", connection: Connection, request: DataRequest
) -> Outcome:
    """Send messages of one request: at most `SWEEP`, or a burst of a shared one."""
    group = request.group
    budget = SWEEP if group is None else group.burst
    if group is not None and group.returned:
        return _send_returned(machine, connection, request)
    log = request.log
    offset = request.offset
    end = log.end if request.stop is None else min(request.stop, log.end)
    limits = machine.limits
    while offset < end:
        if budget <= 0:
            return Outcome.PARTIAL
        if (
            connection.unsent >= limits.delivery_quota
            or connection.unsent_bytes >= limits.delivery_bytes
        ):
            return Outcome.BUFFER_FULL
        at, segment, number = log.find(offset)
        if at != offset:
            offset = min(at, end)
            jump(machine, request, offset)
            continue
        if segment.shelf is not None and not segment.runs:
            machine.fetches.want(log, segment, connection)
            return Outcome.FETCHING
        runs, starts = segment.runs, segment.starts
        while number < len(runs) and budget > 0 and starts[number] <= offset < end:
            run = runs[number]
            index = offset - starts[number]
            count = min(run.count - index, budget, end - offset)
            sent = send(machine, connection, request, run, index, count)
            offset += sent
            budget -= sent
            request.offset = offset
            if sent < count:
                if not sent or connection.session.window.room <= 0:
                    return Outcome.INFLIGHT_FULL
                continue  # the rest of the run, in another form or with other identifiers
            number += offset == starts[number] + run.count
            if (
                connection.unsent >= limits.delivery_quota
                or connection.unsent_bytes >= limits.delivery_bytes
            ):
                break
    return Outcome.CAUGHT_UP


def _send_returned(
    machine: "RouterMachine", connection: Connection, request: DataRequest
) -> Outcome:
    """Send a message of a group that another member had, and did not acknowledge."""
    group = request.group
    assert group is not None
    run, index = group.returned[0]
    if not send(machine, connection, request, run, index, 1):
        return Outcome.INFLIGHT_FULL
    group.returned.popleft()
    return Outcome.PARTIAL if group.has_more else Outcome.CAUGHT_UP


def send(  # noqa: C901, PLR0912
    machine: "RouterMachine",
    connection: Connection,
    request: DataRequest,
    run: Run,
    index: int,
    count: int,
) -> int:
    """Send a part of a run; returns how many messages are done with, sent or not wanted."""
    subscription = request.subscription
    session = connection.session
    qos = subscription.qos
    extra = subscription.identifier
    retain = request.is_retained
    if run.recipient is not None and (
        request.group is not None or run.recipient != session.client_id
    ):
        return count
    if not retain:
        if subscription.no_local and run.publisher == session.client_id:
            return count
        if run.retain:
            retain = subscription.retain_as_published
        if len(run.filters) > 1 and request.group is None and session.has_overlaps:
            merged = merge(session, subscription, run)
            if merged is None:
                return count
            qos, extra, retain = merged[0], merged[1], run.retain and merged[2]
    if run.qos < qos:
        qos = run.qos
    if connection.access is not None and not connection.may_receive(run.topic):
        return count
    if run.expires_at is not None and run.expires_at <= machine.now:
        machine.meters.expired += count
        return count
    is_v5 = connection.is_v5
    if is_v5 and (connection.alias_maximum or connection.largest or run.expires_at is not None):
        found = _particular_form(machine, connection, run, index, count, qos, extra, retain)
        if found is None:
            return 1
        form, offset, count = found
    else:
        offset = index
        if qos | is_v5 << 2 == run.key and not retain and not extra and run.expires_at is None:
            form = run.form
        else:
            form = run.form_for(qos, is_v5=is_v5, retain=retain, extra=extra if is_v5 else b"")
    fronts = form.fronts
    if not qos:
        if count == 1:
            data = fronts[offset]
        elif count == len(fronts):
            data = b"".join(fronts)
        else:
            data = b"".join(fronts[offset : offset + count])
        connection.out.append(data)
    else:
        window = session.window
        room = window.room
        if room <= 0:
            return 0
        first, count = window.allocate(min(count, room))
        tails = form.tails
        if count == 1:
            data = b"".join((fronts[offset], PACKET_IDS[first], tails[offset]))
        else:
            merged_parts = [b""] * (3 * count)
            merged_parts[0::3] = fronts[offset : offset + count]
            merged_parts[1::3] = PACKET_IDS[first : first + count]
            merged_parts[2::3] = tails[offset : offset + count]
            data = b"".join(merged_parts)
        connection.out.append(data)
        is_shared, is_retained = request.group is not None, request.is_retained
        name = subscription.topic_filter
        sent = Sent(run, index, first, qos, extra, retain, name, is_shared, is_retained)
        if count == 1:
            window.inflight[first] = sent
        else:
            window.inflight |= dict.fromkeys(range(first, first + count), sent)
        if session.is_durable:
            if is_retained:
                machine.records.append(Copied(run))
            machine.records.append(SentOut(session.client_id, sent, count))
    machine.meters.delivered += count
    connection.unsent += count
    connection.unsent_bytes += len(data)
    return count


def merge(
    session: Session, subscription: Subscription, run: Run
) -> tuple[int, bytes, bool] | None:
    """Decide about a message that several filters of a session match: it is sent once.

    The oldest subscription sends it, of those with QoS 1 or 2 if there are any (what those with
    QoS 0 have read is in no journal), with the highest QoS and all identifiers; returns these
    and retain-as-published, or None for the others. Who sends depends on nothing that changes
    while messages wait, so none is sent twice or never.
    """
    qos = 0
    identifiers: list[bytes] = []
    retain = False
    subscriptions = session.subscriptions
    matching = [subscriptions[name] for name in run.filters if name in subscriptions]
    if session.leaving:
        matching += [each for each in session.leaving if each.topic_filter in run.filters]
    oldest = subscription
    for each in matching:
        if each.since > run.number or (each.until is not None and run.number >= each.until):
            continue
        if each.no_local and run.publisher == session.client_id:
            continue
        if _age(each) < _age(oldest):
            oldest = each
        qos = max(qos, each.qos)
        retain = retain or each.retain_as_published
        if each.identifier:
            identifiers.append(each.identifier)
    if oldest.topic_filter != subscription.topic_filter:
        return None
    return qos, b"".join(sorted(set(identifiers))), retain


def _age(subscription: Subscription) -> tuple[bool, int, str]:
    return not subscription.qos, subscription.since, subscription.topic_filter


def _particular_form(
    machine: "RouterMachine",
    connection: Connection,
    run: Run,
    index: int,
    count: int,
    qos: int,
    extra: bytes,
    retain: bool,  # noqa: FBT001
) -> tuple[Form, int, int] | None:
    """Return a form for a reader with an alias, a limit of its own, or a message with expiry.

    With it come the place of the first message in it, and how many can be sent with it; None
    when the message is too large for this client, which counts as sent (MQTT 5, 3.1.2.11.4).
    """
    if run.expires_at is not None:
        extra += expiry_property(run.expires_at - machine.now)
    topic = run.topic
    alias = b""
    if connection.alias_maximum and not (qos and connection.session.window.room <= 0):
        known = connection.aliases_out
        if known is None:
            known = connection.aliases_out = {}
        alias = known.get(topic, b"")
        if alias:
            topic = b""
        elif len(known) < connection.alias_maximum:
            alias = known[topic] = bytes((ALIAS,)) + (len(known) + 1).to_bytes(2, "big")
            count = 1
    part = run.payloads[index : index + count]
    form = encode_form(
        topic, part, qos=qos, retain=retain, properties=alias + extra + run.properties
    )
    largest = connection.largest
    if largest is not None:
        two = 2 if qos else 0
        tails = form.tails or [b""] * len(part)
        sizes = [len(a) + len(b) + two for a, b in zip(form.fronts, tails, strict=True)]
        fitting = 0
        while fitting < len(sizes) and sizes[fitting] <= largest:
            fitting += 1
        if not fitting:
            machine.meters.too_large += 1
            connection.dropped += 1
            if alias and topic:
                assert connection.aliases_out is not None
                del connection.aliases_out[topic]
            return None
        return form, 0, fitting
    return form, 0, count
