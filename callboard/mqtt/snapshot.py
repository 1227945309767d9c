"""All that has to outlive a router, as records: what the journal is cut down to."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from callboard.mqtt import shelving, wills
from callboard.mqtt.datalog import DataLog
from callboard.mqtt.jumping import tell_jumps
from callboard.mqtt.message import Run
from callboard.mqtt.record import (
    JournalRecord,
    Published,
    Received,
    Releasing,
    Retained,
    Returned,
    SentOut,
    SessionOpened,
    SnapshotBegun,
    SnapshotEnded,
    Subscribed,
)
from callboard.mqtt.session import Session

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine


def snapshot(machine: "RouterMachine") -> list[JournalRecord]:
    """Return the records that recover a router as it is; for a whole number of turns.

    What was lost to its sessions is told with the next turn, if not before.
    """
    sessions = [
        each
        for each in (
            *(c.session for c in machine.connections.values()),
            *machine.graveyard.values(),
        )
        if each.is_durable
    ]
    for session in sessions:  # places do not say any more what is missing before them
        tell_jumps(machine, session)
    unread = shelving.first_unread(sessions)
    shelving.drop_read(machine, unread)
    records: list[JournalRecord] = [SnapshotBegun(machine.number)]
    records += [Retained(run.topic, run) for run in machine.retained]
    records += shelving.records(machine)
    records += [Published(run) for run in _needed(machine, sessions, unread)]
    for session in sessions:
        records += session_records(machine, session)
    for name, group in machine.groups.items():
        if group.returned:
            numbers = tuple(run.number + index for run, index in group.returned)
            records.append(Returned(name, numbers))
    records += wills.records(machine)
    records += machine.adopted.values()
    records += machine.handed.values()
    records.append(SnapshotEnded(is_whole=True))
    return records


def _needed(
    machine: "RouterMachine", sessions: list[Session], unread: dict[DataLog, int]
) -> list[Run]:
    """Return what lasting sessions have not acknowledged, or not read and is not shelved."""
    found: dict[Run, None] = {}
    for session in sessions:
        window = session.window
        for _, sent in (*window.inflight.items(), *window.resend.items()):
            found[sent.run] = None
    for log, offset in unread.items():
        for segment in log.segments[log.shelved :]:
            for run, start in zip(segment.runs, segment.starts, strict=True):
                if start + run.count > offset and run.qos:
                    found[run] = None
    for group in machine.groups.values():
        found.update((run, None) for run, _ in group.returned)
    return in_order(found)


def in_order(runs: Iterable[Run]) -> list[Run]:
    """Return runs by their numbers, each message once.

    One that was sent because it is retained may be there alone and among those it came with.
    """
    found: list[Run] = []
    for run in sorted(runs, key=lambda run: (run.number, -run.count)):
        if not found or run.number >= found[-1].number + found[-1].count:
            found.append(run)
    return found


def session_records(machine: "RouterMachine", session: Session) -> list[JournalRecord]:
    """Return the records of one session, without the messages that they name."""
    client_id, window = session.client_id, session.window
    records: list[JournalRecord] = [
        SessionOpened(client_id, session.expiry, session.expires_at, session.stamp)
    ]
    unread = {request.subscription: request for request in session.tracker.requests}
    for ended in session.leaving:
        place = unread[ended].place(machine.number) if ended in unread else ended.until
        records.append(Subscribed(client_id, ended, place or 0))
    for name, subscription in session.subscriptions.items():
        place = session.requests[name].place(machine.number)
        records.append(Subscribed(client_id, subscription, place))
    for packet_id, sent in (*window.inflight.items(), *window.resend.items()):
        one = sent._replace(start=sent.start + packet_id - sent.first, first=packet_id)
        records.append(SentOut(client_id, one, 1))
    if window.releasing:
        records.append(Releasing(client_id, tuple(window.releasing)))
    if session.received:
        records.append(Received(client_id, tuple(session.received)))
    return records
