"""Handover of a persistent session from one router to another, as journal records.

The records hold subscriptions, messages with QoS 1 and 2 that are unacknowledged or not sent
yet, packet identifiers, and identifiers of QoS 2 messages that the client has not released.
Messages of a shared subscription are included if its group has no other member. Messages with
QoS 0 are not.

Message numbers count within one router, so the new router renumbers the messages. It keeps
their order, and the order of the subscriptions between them, because that order decides which
of several filters sends a message. The messages go to the logs of the session's filters, for
this client alone.

Times in the records are seconds from the moment of sending.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

from callboard.commitlog import LogCorrupt
from callboard.mqtt.journal.recovery import fill_window, set_places
from callboard.mqtt.journal.snapshot import in_order, session_records
from callboard.mqtt.router import record
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.session import Session, SessionSubscription
from callboard.mqtt.router.sessions import opened
from callboard.mqtt.router.share import ShareGroup
from callboard.mqtt.router.window import PUBACK


class Handover:
    """Exports sessions of a router to other routers, and imports theirs."""

    def __init__(self, machine: RouterMachine) -> None:
        self._sessions = machine.sessions
        self._logs = machine.logs
        self._delivery = machine.delivery
        self._effects = machine.effects
        self._spare = machine.ingress.brakes.spare

    # --- export ---

    def export(self, session: Session) -> record.EncodedRecords:
        """Return the records of a session whose client is away; the session stays here."""
        self._delivery.report_jumps(session)
        return self._encoded(session, 0, session_records(session, self._logs.number))

    def weight_of(self, session: Session) -> int:
        """Return the estimated bytes of the messages that would be included.

        Shelved messages are too many to hand over: a session with unread ones stays.
        """
        requests = session.all_requests
        if any(
            request.log.shelved and request.offset < request.log.head for request in requests
        ):
            return sys.maxsize
        return sum(run.weight for run in _unread(session, 0, self._lone_groups(session)))

    def hand_over(self, session: Session) -> record.HandedOver:
        """End a session whose offer was accepted; return the messages that arrived since."""
        offer, effects, sessions = session.offer, self._effects, self._sessions
        assert offer is not None
        client_id, expires_at = session.client_id, effects.now + session.expiry
        late = self._encoded(session, offer.number)
        handover = record.HandedOver(client_id, offer.name, session.stamp, late, expires_at)
        del sessions.graveyard[client_id]
        sessions.wills.cancel(client_id)  # its client has reconnected, to another router
        if session.is_durable:
            # The new router resends these; other members of a group must not.
            ids = (*session.window.inflight, *session.window.resend)
            effects.records += (record.Acknowledged(client_id, PUBACK, ids), handover)
        session.window_or_none = None
        sessions.end(session)
        sessions.handed[client_id] = handover
        effects.meters.handed_over += 1
        sessions.arm(expires_at, client_id)
        return handover

    def _encoded(
        self, session: Session, since: int, session_facts: Iterable[record.JournalRecord] = ()
    ) -> record.EncodedRecords:
        """Return the written records of a session's messages from a number on.

        Records that refer to the messages follow them. Times are relative to now.
        """
        groups = self._lone_groups(session)
        messages = map(record.Published, _unread(session, since, groups))
        records = (*messages, *session_facts, *_returned_messages(groups, since))
        return tuple(entry.write(-self._effects.now) for entry in records)

    def _lone_groups(self, session: Session) -> list[ShareGroup]:
        """Return the groups whose only member is this session."""
        shared = [request for request in session.requests.values() if request.is_shared]
        groups = map(self._delivery.group_of, shared)
        return [group for group in groups if len(group.members) == 1]

    # --- import ---

    def adopt(self, records: record.EncodedRecords, client_id: str, offer: str) -> Session:
        """Create a session from another router's offer, a copy until that router confirms.

        Raises:
            LogCorrupt: the records are not a session of this client; nothing was changed.
        """
        state, returned = self._read(records)
        if list(state.sessions) != [client_id]:
            message = (
                f"another router sent sessions of {sorted(state.sessions)} for {client_id!r}"
            )
            raise LogCorrupt(message)
        saved = state.sessions[client_id]
        self._renumber(state.runs, saved)
        session = self._sessions.revive(client_id, saved)
        places = {name: saved.places[name] for name in session.subscriptions}
        for subscription, place in saved.leaving.items():
            name = subscription.topic_filter
            places[name] = min(place, places.get(name, place))
        for run in state.runs:
            self._put_in_logs(session, run, places)
        set_places(session, saved, reads_all=True)
        fill_window(session, saved, state)
        self._sessions.adopted[client_id] = offer
        group_records = self._return_messages(returned)
        if session.is_durable:
            self._effects.records += map(record.Published, state.runs)
            self._effects.records += session_records(session, self._logs.number)
            self._effects.records += (*group_records, record.Adopted(client_id, offer))
        return session

    def add_late(self, session: Session, records: record.EncodedRecords) -> None:
        """Add messages to an adopted session that reached the other router after its offer.

        Raises:
            LogCorrupt: the records are not messages; nothing was changed.
        """
        state, returned = self._read(records)
        for run in state.runs:
            self._count(run)
            self._put_in_logs(session, run, {})
        group_records = self._return_messages(returned)
        if session.is_durable:
            self._effects.records += (*map(record.Published, state.runs), *group_records)

    def own(self, session: Session) -> None:
        """Make an adopted session this router's own, with a stamp above all copies of it."""
        client_id = session.client_id
        del self._sessions.adopted[client_id]
        self._effects.meters.adopted += 1
        session.stamp = self._sessions.make_stamp()
        if session.is_durable:
            self._effects.records += (opened(session), record.Adopted(client_id, ""))

    def _count(self, run: MessageRun) -> None:
        """Number the messages of a run."""
        run.number = self._logs.number
        self._logs.number += run.count

    def _read(
        self, records: record.EncodedRecords
    ) -> tuple[record.SavedState, dict[str, list[MessageRun]]]:
        """Return the state from records, and messages that only return to groups, by group.

        Messages precede the records that refer to them.
        """
        state = record.SavedState()
        returned: dict[str, list[MessageRun]] = {}
        for kind, fields in records:
            entry = record.read_record(kind, fields, -self._effects.now)
            if isinstance(entry, record.Returned):
                matches = filter(None, map(state.find, entry.numbers))
                returned[entry.topic_filter] = [run.single(index) for run, index in matches]
            else:
                entry.apply(state)
        return state, returned

    def _renumber(self, runs: list[MessageRun], saved: record.SavedSession) -> None:
        """Renumber messages, and positions between them, with numbers of this router.

        The order is kept. A number grows by the messages and the subscription borders before
        it.
        """
        subscriptions = (*saved.subscriptions.values(), *saved.leaving)
        borders = {s.since for s in subscriptions}
        borders |= {s.until for s in subscriptions if s.until is not None}
        ordered, starts = sorted(borders), [run.number for run in runs]
        counts = [0, *accumulate(run.count for run in runs)]
        base = self._logs.number
        self._logs.number += counts[-1] + len(ordered)

        def moved(number: int) -> int:
            following = base + bisect_right(ordered, number)
            index = bisect_right(starts, number) - 1
            if index < 0:
                return following
            return following + counts[index] + min(number - starts[index], runs[index].count)

        def at_borders(subscription: SessionSubscription) -> SessionSubscription:
            until = None if subscription.until is None else moved(subscription.until)
            return replace(subscription, since=moved(subscription.since), until=until)

        saved.places = {name: moved(place) for name, place in saved.places.items()}
        saved.subscriptions = {name: at_borders(s) for name, s in saved.subscriptions.items()}
        saved.leaving = {at_borders(s): moved(place) for s, place in saved.leaving.items()}
        saved.inflight = {
            packet_id: replace(entry, number=moved(entry.number_of(packet_id)), first=packet_id)
            for packet_id, entry in saved.inflight.items()
        }
        for run in runs:
            run.number = moved(run.number)

    def _put_in_logs(self, session: Session, run: MessageRun, places: dict[str, int]) -> None:
        """Append messages for one client alone to the logs in which it has not read them."""
        run.recipient = session.client_id
        logs = {
            request.log.topic_filter: request.log
            for request in session.all_requests
            if not request.is_shared and not request.is_retained
        }
        run.filters = tuple(name for name in run.filters if name in logs)
        for name in run.filters:
            if run.number + run.count <= places.get(name, 0):
                continue
            log = logs[name]
            last = log.last
            log.most = sys.maxsize
            log.append(run)
            log.last = last
            self._logs.woken += log.waiters
            log.waiters.clear()
        self._spare(logs[name] for name in run.filters)

    def _return_messages(
        self, returned: dict[str, list[MessageRun]]
    ) -> list[record.Published | record.Returned]:
        """Return messages to the members of groups; return the journal records of that."""
        records: list[record.Published | record.Returned] = []
        for name, runs in returned.items():
            if (group := self._delivery.groups.get(name)) is None:
                continue
            for run in runs:
                self._count(run)
                group.returned.append((run, 0))
                records.append(record.Published(run))
            records.append(record.Returned(name, tuple(run.number for run in runs)))
            self._delivery.offer_returned(group)
        return records


def _unread(session: Session, since: int, groups: list[ShareGroup]) -> list[MessageRun]:
    """Return runs, from a number on, that the client was not sent or has not acknowledged."""
    unread = {entry.run: None for _, entry in session.window.unacknowledged}
    requests = [r for r in session.all_requests if not r.is_shared and not r.is_retained]
    for request in (*requests, *(group.request for group in groups)):
        unread.update((run, None) for run, _ in request.log.behind(request.offset))
    for group in groups:
        unread.update((run, None) for run, _ in group.returned)
    recipients = (None, session.client_id)
    return in_order(
        run for run in unread if run.qos and run.number >= since and run.recipient in recipients
    )


def _returned_messages(groups: list[ShareGroup], since: int) -> list[record.Returned]:
    """Return the unread messages of groups without other members."""
    records = []
    for group in groups:
        log, offset = group.request.log, group.request.offset
        numbers = [run.number + index for run, index in group.returned]
        for run, start in log.behind(offset):
            if run.qos and run.recipient is None:
                first = max(0, offset - start)
                numbers += range(run.number + first, run.number + run.count)
        recent = tuple(number for number in numbers if number >= since)
        if recent:
            records.append(record.Returned(group.topic_filter, recent))
    return records
