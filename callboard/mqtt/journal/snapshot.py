"""Snapshots: the complete state of a router as records; the journal is cut down to one."""

from collections.abc import Iterable

from callboard.mqtt.router import record
from callboard.mqtt.router.delivery import Delivery
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.session import FilterLog, Session
from callboard.mqtt.router.sessions import opened


def take_snapshot(machine: RouterMachine) -> list[record.JournalRecord]:
    """Return the records that restore the current state; only between two turns.

    Losses of its sessions are reported with the next turn at the latest.
    """
    sessions, logs, delivery = machine.sessions, machine.logs, machine.delivery
    durable = [session for session in sessions if session.is_durable]
    for session in durable:  # the new positions do not show which messages were lost before
        delivery.report_jumps(session)
    unread = first_unread(durable)
    logs.drop_read(unread)
    records: list[record.JournalRecord] = [record.SnapshotBegun(logs.number)]
    records += logs.retained.records()
    records += logs.shelved()
    records += [record.Published(run) for run in _needed(delivery, durable, unread)]
    for session in durable:
        records += session_records(session, logs.number)
    for name, group in delivery.groups.items():
        if group.returned:
            numbers = tuple(run.number + index for run, index in group.returned)
            records.append(record.Returned(name, numbers))
    records += sessions.wills.records(sessions.connections.values())
    records += [record.Adopted(*item) for item in sessions.adopted.items()]
    records += sessions.handed.values()
    records.append(record.SnapshotEnded(is_whole=True))
    return records


def _needed(
    delivery: Delivery, sessions: list[Session], unread: dict[FilterLog, int]
) -> list[MessageRun]:
    """Return messages in memory that persistent sessions have not read or acknowledged."""
    windows = [session.window for session in sessions]
    needed = {entry.run: None for window in windows for _, entry in window.unacknowledged}
    for log, offset in unread.items():
        needed.update((run, None) for run, _ in log.behind(offset) if run.qos)
    for group in delivery.groups.values():
        needed.update((run, None) for run, _ in group.returned)
    return in_order(needed)


def first_unread(sessions: list[Session]) -> dict[FilterLog, int]:
    """Return the first unread offsets of sessions with QoS 1 and 2, by log."""
    places: dict[FilterLog, int] = {}
    for session in sessions:
        for request in session.all_requests:
            if request.is_retained or not request.subscription.qos:
                continue
            log = request.log
            places[log] = min(places.get(log, request.offset), request.offset)
    return places


def in_order(runs: Iterable[MessageRun]) -> list[MessageRun]:
    """Return runs sorted by number, each message once.

    A retained message may be in a run alone, and also in the run of its original publish.
    """
    ordered: list[MessageRun] = []
    for run in sorted(runs, key=lambda run: (run.number, -run.count)):
        if not ordered or run.number >= ordered[-1].number + ordered[-1].count:
            ordered.append(run)
    return ordered


def session_records(session: Session, following: int) -> list[record.JournalRecord]:
    """Return the records of one session, without the messages that they refer to.

    `following` is the number of the router's next message.
    """
    client_id, window = session.client_id, session.window
    records: list[record.JournalRecord] = [opened(session)]
    unread = {request.subscription: request for request in session.tracker}
    for leaving in session.leaving:
        place = unread[leaving].place(following) if leaving in unread else leaving.until
        records.append(record.Subscribed(client_id, leaving, place or 0))
    for name, subscription in session.subscriptions.items():
        place = session.requests[name].place(following)
        records.append(record.Subscribed(client_id, subscription, place))
    for packet_id, entry in window.unacknowledged:
        single = entry._replace(start=entry.start + packet_id - entry.first, first=packet_id)
        records.append(record.SentOut.of(client_id, single, 1))
    if window.releasing:
        records.append(record.Releasing(client_id, tuple(window.releasing)))
    if session.received:
        records.append(record.Received(client_id, tuple(session.received)))
    return records
