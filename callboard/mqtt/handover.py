"""A lasting session on its way from one router to another, as records of the journal.

What goes along: subscriptions, messages with QoS 1 and 2 that its client has not acknowledged
or not been sent, packet identifiers, and those of QoS 2 messages that it has not released.
Messages of a shared subscription go along if nobody is left in its group; those with QoS 0
stay behind.

Numbers of messages count within one router, so they are given anew: in their order, and in that
of the subscriptions between them, because that decides which of several filters sends. At the
new router the messages stand in the logs of the session's filters, for this client alone.

Times in the records are seconds from the moment of sending.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from callboard.commitlog import LogCorrupt
from callboard.mqtt import wills
from callboard.mqtt.connecting import end_session
from callboard.mqtt.datalog import DataLog
from callboard.mqtt.journal_codec import decode_record, encode_record
from callboard.mqtt.jumping import tell_jumps
from callboard.mqtt.message import Run
from callboard.mqtt.record import (
    Acknowledged,
    Adopted,
    HandedOver,
    JournalRecord,
    Published,
    Returned,
    SessionOpened,
)
from callboard.mqtt.recovery import fill_window, find_message, offset_of, revive
from callboard.mqtt.saved_state import SavedSession, SavedState
from callboard.mqtt.session import Session, Subscription
from callboard.mqtt.share import ShareGroup
from callboard.mqtt.snapshot import in_order, session_records

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine

EncodedRecords = tuple[tuple[str, Sequence[Any]], ...]
"""Records as `journal_codec` encodes them: kinds and fields."""

PUBACK: Final = 0x40


# --- from here ---


def export_session(machine: "RouterMachine", session: Session) -> EncodedRecords:
    """Return all of a session whose client is away; it goes on here."""
    tell_jumps(machine, session)
    return _encoded(
        machine,
        [
            *map(Published, _unread(session, 0)),
            *session_records(machine, session),
            *_left_to_nobody(session, 0),
        ],
    )


def weight_of(session: Session) -> int:
    """Return the bytes of the messages that would go along, estimated.

    Shelved ones are too many to go: a session that has not read these stays where it is.
    """
    requests = (*session.requests.values(), *session.tracker.requests)
    if any(each.log.shelved and each.offset < each.log.head for each in requests):
        return sys.maxsize
    return sum(run.weight for run in _unread(session, 0))


def hand_over(machine: "RouterMachine", session: Session) -> HandedOver:
    """End a session here whose offer was taken; returns what came behind the offer."""
    offer = session.offer
    assert offer is not None
    client_id = session.client_id
    since = offer.number
    late: list[JournalRecord] = [
        *map(Published, _unread(session, since)),
        *_left_to_nobody(session, since),
    ]
    expires_at = machine.now + session.expiry
    records = _encoded(machine, late)
    handed = HandedOver(client_id, offer.name, session.stamp, records, expires_at)
    del machine.graveyard[client_id]
    wills.cancel(machine, client_id)  # its client is back, though not here
    if session.is_durable:
        # The new router sends it again, not the other members of a group.
        ids = (*session.window.inflight, *session.window.resend)
        machine.records += (Acknowledged(client_id, PUBACK, ids), handed)
    session.window_or_none = None
    end_session(machine, session)
    machine.handed[client_id] = handed
    machine.meters.handed_over += 1
    machine.arm(expires_at, client_id)
    return handed


def _encoded(machine: "RouterMachine", records: Iterable[JournalRecord]) -> EncodedRecords:
    return tuple(encode_record(record, -machine.now) for record in records)


def _lone_groups(session: Session) -> list[ShareGroup]:
    """Return the groups in which this session is alone."""
    groups = [request.group for request in session.requests.values()]
    return [group for group in groups if group is not None and len(group.members) == 1]


def _unread(session: Session, since: int) -> list[Run]:
    """Return runs from a number on that the client has not acknowledged, or not been sent."""
    found: dict[Run, None] = {}
    window = session.window
    for sent in (*window.inflight.values(), *window.resend.values()):
        found[sent.run] = None
    requests = [*session.requests.values(), *session.tracker.requests]
    requests = [each for each in requests if each.group is None and not each.is_retained]
    for request in requests:
        found.update(dict.fromkeys(_behind(request.log, request.offset)))
    for group in _lone_groups(session):
        found.update(dict.fromkeys(_behind(group.request.log, group.request.offset)))
        found.update((run, None) for run, _ in group.returned)
    mine = (None, session.client_id)
    return in_order(
        run for run in found if run.qos and run.number >= since and run.recipient in mine
    )


def _behind(log: DataLog, offset: int) -> list[Run]:
    """Return the runs of a log with messages from an offset on."""
    return [
        run
        for segment in log.segments[log.shelved :]
        for run, start in zip(segment.runs, segment.starts, strict=True)
        if start + run.count > offset
    ]


def _left_to_nobody(session: Session, since: int) -> list[Returned]:
    """Return the unread messages of groups in which nobody else is."""
    records = []
    for group in _lone_groups(session):
        log, offset = group.request.log, group.request.offset
        numbers = [run.number + index for run, index in group.returned]
        for segment in log.segments[log.shelved :]:
            for run, start in zip(segment.runs, segment.starts, strict=True):
                if run.qos and run.recipient is None:
                    first = max(0, offset - start)
                    numbers += range(run.number + first, run.number + run.count)
        kept = tuple(number for number in numbers if number >= since)
        if kept:
            records.append(Returned(group.topic_filter, kept))
    return records


# --- to here ---


def adopt(
    machine: "RouterMachine", records: EncodedRecords, client_id: str, offer: str
) -> Session:
    """Make a session of what another router offers; it is a copy until that has let go of it.

    Raises:
        LogCorrupt: the records are no session of this client; nothing has happened.
    """
    state, returned = _read(machine, records)
    if list(state.sessions) != [client_id]:
        msg = f"another router offered sessions of {sorted(state.sessions)} for {client_id!r}"
        raise LogCorrupt(msg)
    saved = state.sessions[client_id]
    _renumber(machine, state.runs, saved)
    session = revive(machine, client_id, saved)
    _place(machine, session, saved, state.runs)
    fill_window(session, saved, state.runs, [run.number for run in state.runs])
    adopted = machine.adopted[client_id] = Adopted(client_id, offer)
    kept = _give_back(machine, returned)
    if session.is_durable:
        machine.records += map(Published, state.runs)
        machine.records += session_records(machine, session)
        machine.records += (*kept, adopted)
    return session


def add_late(machine: "RouterMachine", session: Session, records: EncodedRecords) -> None:
    """Give an adopted session what came to the other router behind the offer.

    Raises:
        LogCorrupt: the records are no messages; nothing has happened.
    """
    state, returned = _read(machine, records)
    for run in state.runs:
        run.number = machine.number
        machine.number += run.count
        _put_in_logs(machine, session, run, {})
    kept = _give_back(machine, returned)
    if session.is_durable:
        machine.records += (*map(Published, state.runs), *kept)


def own(machine: "RouterMachine", session: Session) -> None:
    """Take note that an adopted session is our own, so newer than all copies of it."""
    client_id = session.client_id
    del machine.adopted[client_id]
    machine.meters.adopted += 1
    session.stamp = machine.make_stamp()
    if session.is_durable:
        opened = SessionOpened(client_id, session.expiry, session.expires_at, session.stamp)
        machine.records += (opened, Adopted(client_id, ""))


def _read(
    machine: "RouterMachine", records: EncodedRecords
) -> tuple[SavedState, dict[str, list[Run]]]:
    """Return what records say; messages that go back to groups alone, by group."""
    state = SavedState()
    numbers: dict[str, tuple[int, ...]] = {}
    for kind, fields in records:
        record = decode_record(kind, fields, -machine.now)
        if isinstance(record, Returned):
            numbers[record.topic_filter] = record.numbers
        else:
            state.apply(record)
    starts = [run.number for run in state.runs]
    returned = {}
    for name, wanted in numbers.items():
        found = [find_message(state.runs, starts, number) for number in wanted]
        returned[name] = [each[0].single(each[1]) for each in found if each is not None]
    return state, returned


def _renumber(machine: "RouterMachine", runs: list[Run], saved: SavedSession) -> None:
    """Give messages and the places between them numbers of this router, in their order."""
    subscriptions = (*saved.subscriptions.values(), *saved.leaving)
    borders = {each.since for each in subscriptions}
    borders |= {each.until for each in subscriptions if each.until is not None}
    starts = [run.number for run in runs]
    fresh: list[int] = []
    border_at: dict[int, int] = {}
    following = machine.number
    left = sorted(borders, reverse=True)
    for run in runs:
        while left and left[-1] <= run.number:
            border_at[left.pop()] = following
            following += 1
        fresh.append(following)
        following += run.count
    for border in reversed(left):
        border_at[border] = following
        following += 1
    machine.number = following

    def moved(number: int) -> int:
        index = bisect_right(starts, number) - 1
        if index >= 0 and number < starts[index] + runs[index].count:
            return fresh[index] + number - starts[index]
        return fresh[index + 1] if index + 1 < len(fresh) else following

    def at_borders(each: Subscription) -> Subscription:
        until = None if each.until is None else border_at[each.until]
        return replace(each, since=border_at[each.since], until=until)

    saved.places = {name: moved(place) for name, place in saved.places.items()}
    saved.subscriptions = {name: at_borders(e) for name, e in saved.subscriptions.items()}
    saved.leaving = {at_borders(each): moved(place) for each, place in saved.leaving.items()}
    saved.inflight = {
        packet_id: sent._replace(number=moved(sent.number))
        for packet_id, sent in saved.inflight.items()
    }
    for run, number in zip(runs, fresh, strict=True):
        run.number = number


def _place(
    machine: "RouterMachine", session: Session, saved: SavedSession, runs: list[Run]
) -> None:
    """Put messages into the logs of a session's filters, and let it read on where it was."""
    places = {name: saved.places[name] for name in session.subscriptions}
    for ended, place in saved.leaving.items():
        places[ended.topic_filter] = min(place, places.get(ended.topic_filter, place))
    for run in runs:
        _put_in_logs(machine, session, run, places)
    requests = session.tracker.requests
    for request, (ended, place) in zip(list(requests), saved.leaving.items(), strict=True):
        assert ended.until is not None
        request.stop = offset_of(request.log, ended.until)
        request.offset = offset_of(request.log, place)
    for name, request in session.requests.items():
        if request.group is None:
            request.offset = offset_of(request.log, saved.places[name])
            requests.append(request)


def _put_in_logs(
    machine: "RouterMachine", session: Session, run: Run, places: dict[str, int]
) -> None:
    """Append messages for one client alone, where it has not read them: to logs by filter."""
    run.recipient = session.client_id
    requests = (*session.requests.values(), *session.tracker.requests)
    logs = {
        each.log.topic_filter: each.log
        for each in requests
        if each.group is None and not each.is_retained
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
        machine.notifications += log.waiters
        log.waiters.clear()
    machine.brakes.spare(logs[name] for name in run.filters)


def _give_back(
    machine: "RouterMachine", returned: dict[str, list[Run]]
) -> list[Published | Returned]:
    """Let the members of groups have messages that came along; returns the records of it."""
    records: list[Published | Returned] = []
    for name, runs in returned.items():
        group = machine.groups.get(name)
        if group is None:
            continue
        for run in runs:
            run.number = machine.number
            machine.number += 1
            group.returned.append((run, 0))
            records.append(Published(run))
        records.append(Returned(name, tuple(run.number for run in runs)))
        request = group.request
        if request.log.waiters.pop(request, False) is None:
            machine.hand_over(group)
    return records
