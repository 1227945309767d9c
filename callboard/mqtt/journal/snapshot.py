"""Snapshots: everything that has to outlive a router, as records; the journal is cut to one."""

from collections.abc import Iterable

from callboard.mqtt.router import record
from callboard.mqtt.router.delivery import Delivery
from callboard.mqtt.router.machine import RouterMachine
from callboard.mqtt.router.message import Run
from callboard.mqtt.router.session import FilterLog, Session
from callboard.mqtt.router.sessions import opened


def take_snapshot(machine: RouterMachine) -> list[record.JournalRecord]:
    """Return the records that recover a router as it is; for a whole number of turns.

    What was lost to its sessions is told with the next turn, if not before.
    """
    sessions, logs, delivery = machine.sessions, machine.logs, machine.delivery
    durable = [each for each in sessions if each.is_durable]
    for session in durable:  # places do not say any more what is missing before them
        delivery.tell_jumps(session)
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
    records += [record.Adopted(*each) for each in sessions.adopted.items()]
    records += sessions.handed.values()
    records.append(record.SnapshotEnded(is_whole=True))
    return records


def _needed(
    delivery: Delivery, sessions: list[Session], unread: dict[FilterLog, int]
) -> list[Run]:
    """Return what persistent sessions have not acknowledged, or not read in memory."""
    windows = [session.window for session in sessions]
    needed = {sent.run: None for window in windows for _, sent in window.unacknowledged}
    for log, offset in unread.items():
        needed.update((run, None) for run, _ in log.behind(offset) if run.qos)
    for group in delivery.groups.values():
        needed.update((run, None) for run, _ in group.returned)
    return in_order(needed)


def first_unread(sessions: list[Session]) -> dict[FilterLog, int]:
    """Return from where on sessions want to read logs with QoS 1 and 2."""
    places: dict[FilterLog, int] = {}
    for session in sessions:
        for request in session.all_requests:
            if request.is_retained or not request.subscription.qos:
                continue
            log = request.log
            places[log] = min(places.get(log, request.offset), request.offset)
    return places


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Return runs by their numbers, each message once.

    One that was sent because it is retained may be there alone and among those it came with.
    """
    ordered: list[Run] = []
    for run in sorted(runs, key=lambda run: (run.number, -run.count)):
        if not ordered or run.number >= ordered[-1].number + ordered[-1].count:
            ordered.append(run)
    return ordered


def session_records(session: Session, following: int) -> list[record.JournalRecord]:
    """Return the records of one session, without the messages that they name.

    `following` is the number of the router's next message.
    """
    client_id, window = session.client_id, session.window
    records: list[record.JournalRecord] = [opened(session)]
    unread = {request.subscription: request for request in session.tracker}
    for ended in session.leaving:
        place = unread[ended].place(following) if ended in unread else ended.until
        records.append(record.Subscribed(client_id, ended, place or 0))
    for name, subscription in session.subscriptions.items():
        place = session.requests[name].place(following)
        records.append(record.Subscribed(client_id, subscription, place))
    for packet_id, sent in window.unacknowledged:
        one = sent._replace(start=sent.start + packet_id - sent.first, first=packet_id)
        records.append(record.SentOut.of(client_id, one, 1))
    if window.releasing:
        records.append(record.Releasing(client_id, tuple(window.releasing)))
    if session.received:
        records.append(record.Received(client_id, tuple(session.received)))
    return records
