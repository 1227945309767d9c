"""Handover of a persistent session from one router to another, as records of the journal.

The records hold subscriptions, messages with QoS 1 and 2 that the client has not acknowledged
or not been sent, packet identifiers, and those of QoS 2 messages that it has not released.
Messages of a shared subscription go along if its group has no other member; messages with QoS 0
stay behind.

Numbers of messages count within one router, so they are given anew: in their order, and in that
of the subscriptions between them, because that order decides which of several filters sends. At
the new router the messages stand in the logs of the session's filters, for this client alone.

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
from callboard.mqtt.router.message import Run
from callboard.mqtt.router.session import Session, SessionSubscription
from callboard.mqtt.router.sessions import opened
from callboard.mqtt.router.share import ShareGroup
from callboard.mqtt.router.window import PUBACK


class Handover:
    """Lets the sessions of a router go to others, and takes theirs."""

    def __init__(self, machine: RouterMachine) -> None:
        self._sessions = machine.sessions
        self._logs = machine.logs
        self._delivery = machine.delivery
        self._effects = machine.effects
        self._spare = machine.ingress.brakes.spare

    # --- from here ---

    def export(self, session: Session) -> record.EncodedRecords:
        """Return all of a session whose client is away; it goes on here."""
        self._delivery.tell_jumps(session)
        return self._encoded(session, 0, session_records(session, self._logs.number))

    def weight_of(self, session: Session) -> int:
        """Return the bytes of the messages that would go along, estimated.

        Shelved ones are too many to go: a session that has not read these stays where it is.
        """
        requests = session.all_requests
        if any(each.log.shelved and each.offset < each.log.head for each in requests):
            return sys.maxsize
        return sum(run.weight for run in _unread(session, 0, self._lone_groups(session)))

    def hand_over(self, session: Session) -> record.HandedOver:
        """End a session here whose offer was taken; return what came behind the offer."""
        offer, effects, sessions = session.offer, self._effects, self._sessions
        assert offer is not None
        client_id, expires_at = session.client_id, effects.now + session.expiry
        late = self._encoded(session, offer.number)
        handed = record.HandedOver(client_id, offer.name, session.stamp, late, expires_at)
        del sessions.graveyard[client_id]
        sessions.wills.cancel(client_id)  # its client is back, though not here
        if session.is_durable:
            # The new router sends it again, not the other members of a group.
            ids = (*session.window.inflight, *session.window.resend)
            effects.records += (record.Acknowledged(client_id, PUBACK, ids), handed)
        session.window_or_none = None
        sessions.end(session)
        sessions.handed[client_id] = handed
        effects.meters.handed_over += 1
        sessions.arm(expires_at, client_id)
        return handed

    def _encoded(
        self, session: Session, since: int, about: Iterable[record.JournalRecord] = ()
    ) -> record.EncodedRecords:
        """Return the messages of a session from a number on, and records that name them.

        All as they are written, with times from now on.
        """
        groups = self._lone_groups(session)
        messages = map(record.Published, _unread(session, since, groups))
        records = (*messages, *about, *_left_to_nobody(groups, since))
        return tuple(each.write(-self._effects.now) for each in records)

    def _lone_groups(self, session: Session) -> list[ShareGroup]:
        """Return the groups in which this session is alone."""
        shared = [each for each in session.requests.values() if each.is_shared]
        groups = map(self._delivery.group_of, shared)
        return [group for group in groups if len(group.members) == 1]

    # --- to here ---

    def adopt(self, records: record.EncodedRecords, client_id: str, offer: str) -> Session:
        """Make a session of another router's offer; a copy until that router has let go of it.

        Raises:
            LogCorrupt: the records are no session of this client; nothing has happened.
        """
        state, returned = self._read(records)
        if list(state.sessions) != [client_id]:
            message = (
                f"another router offered sessions of {sorted(state.sessions)} for {client_id!r}"
            )
            raise LogCorrupt(message)
        saved = state.sessions[client_id]
        self._renumber(state.runs, saved)
        session = self._sessions.revive(client_id, saved)
        places = {name: saved.places[name] for name in session.subscriptions}
        for ended, place in saved.leaving.items():
            places[ended.topic_filter] = min(place, places.get(ended.topic_filter, place))
        for run in state.runs:
            self._put_in_logs(session, run, places)
        set_places(session, saved, reads_all=True)
        fill_window(session, saved, state)
        self._sessions.adopted[client_id] = offer
        kept = self._give_back(returned)
        if session.is_durable:
            self._effects.records += map(record.Published, state.runs)
            self._effects.records += session_records(session, self._logs.number)
            self._effects.records += (*kept, record.Adopted(client_id, offer))
        return session

    def add_late(self, session: Session, records: record.EncodedRecords) -> None:
        """Give an adopted session what came to the other router behind the offer.

        Raises:
            LogCorrupt: the records are no messages; nothing has happened.
        """
        state, returned = self._read(records)
        for run in state.runs:
            self._count(run)
            self._put_in_logs(session, run, {})
        kept = self._give_back(returned)
        if session.is_durable:
            self._effects.records += (*map(record.Published, state.runs), *kept)

    def own(self, session: Session) -> None:
        """Take note that an adopted session is our own, so newer than all copies of it."""
        client_id = session.client_id
        del self._sessions.adopted[client_id]
        self._effects.meters.adopted += 1
        session.stamp = self._sessions.make_stamp()
        if session.is_durable:
            self._effects.records += (opened(session), record.Adopted(client_id, ""))

    def _count(self, run: Run) -> None:
        """Give a run the next number."""
        run.number = self._logs.number
        self._logs.number += run.count

    def _read(
        self, records: record.EncodedRecords
    ) -> tuple[record.SavedState, dict[str, list[Run]]]:
        """Return what records say; messages that go back to groups alone, by group.

        Messages stand before the records that name them.
        """
        state = record.SavedState()
        returned: dict[str, list[Run]] = {}
        for kind, fields in records:
            each = record.read_record(kind, fields, -self._effects.now)
            if isinstance(each, record.Returned):
                there = filter(None, map(state.find, each.numbers))
                returned[each.topic_filter] = [run.single(index) for run, index in there]
            else:
                each.apply(state)
        return state, returned

    def _renumber(self, runs: list[Run], saved: record.SavedSession) -> None:
        """Give messages and the places between them numbers of this router, in their order.

        A message moves on by those of the others and the borders of subscriptions before it.
        """
        subscriptions = (*saved.subscriptions.values(), *saved.leaving)
        borders = {each.since for each in subscriptions}
        borders |= {each.until for each in subscriptions if each.until is not None}
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

        def at_borders(each: SessionSubscription) -> SessionSubscription:
            until = None if each.until is None else moved(each.until)
            return replace(each, since=moved(each.since), until=until)

        saved.places = {name: moved(place) for name, place in saved.places.items()}
        saved.subscriptions = {name: at_borders(e) for name, e in saved.subscriptions.items()}
        saved.leaving = {
            at_borders(each): moved(place) for each, place in saved.leaving.items()
        }
        saved.inflight = {
            packet_id: replace(sent, number=moved(sent.number_of(packet_id)), first=packet_id)
            for packet_id, sent in saved.inflight.items()
        }
        for run in runs:
            run.number = moved(run.number)

    def _put_in_logs(self, session: Session, run: Run, places: dict[str, int]) -> None:
        """Append messages for one client alone to the logs in which it has not read them."""
        run.recipient = session.client_id
        logs = {
            each.log.topic_filter: each.log
            for each in session.all_requests
            if not each.is_shared and not each.is_retained
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

    def _give_back(
        self, returned: dict[str, list[Run]]
    ) -> list[record.Published | record.Returned]:
        """Let the members of groups have messages that came along; return the records of it."""
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


def _unread(session: Session, since: int, groups: list[ShareGroup]) -> list[Run]:
    """Return runs from a number on that the client has not acknowledged, or not been sent."""
    unread = {sent.run: None for _, sent in session.window.unacknowledged}
    requests = [e for e in session.all_requests if not e.is_shared and not e.is_retained]
    for request in (*requests, *(group.request for group in groups)):
        unread.update((run, None) for run, _ in request.log.behind(request.offset))
    for group in groups:
        unread.update((run, None) for run, _ in group.returned)
    mine = (None, session.client_id)
    return in_order(
        run for run in unread if run.qos and run.number >= since and run.recipient in mine
    )


def _left_to_nobody(groups: list[ShareGroup], since: int) -> list[record.Returned]:
    """Return the unread messages of groups in which nobody else is."""
    records = []
    for group in groups:
        log, offset = group.request.log, group.request.offset
        numbers = [run.number + index for run, index in group.returned]
        for run, start in log.behind(offset):
            if run.qos and run.recipient is None:
                first = max(0, offset - start)
                numbers += range(run.number + first, run.number + run.count)
        kept = tuple(number for number in numbers if number >= since)
        if kept:
            records.append(record.Returned(group.topic_filter, kept))
    return records
