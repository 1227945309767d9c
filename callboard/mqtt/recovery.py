"""From the journal's records back to a router.

What the records come to (`saved_state`) is put into an empty machine, whose clients are all
away.
"""

import sys
from bisect import bisect_right
from typing import TYPE_CHECKING

from callboard.mqtt import wills
from callboard.mqtt.datalog import DataLog
from callboard.mqtt.journal_codec import ReadRecord
from callboard.mqtt.message import Run
from callboard.mqtt.record import SnapshotBegun, SnapshotEnded
from callboard.mqtt.saved_state import SavedGroup, SavedSession, SavedState
from callboard.mqtt.segment import Shelf
from callboard.mqtt.session import Session
from callboard.mqtt.subscribing import join
from callboard.mqtt.topic import split_share
from callboard.mqtt.tracker import DataRequest
from callboard.mqtt.window import Sent

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine


class Recovery:
    """Applies records, and knows which snapshots are whole."""

    def __init__(self) -> None:
        self.state = SavedState()
        self._building: SavedState | None = None

    @property
    def is_torn(self) -> bool:
        """Whether the records ended within a snapshot."""
        return self._building is not None

    def apply(self, record: ReadRecord) -> None:
        """Take the next record."""
        match record:
            case SnapshotBegun():
                self._building = SavedState()
                self._building.apply(record)
            case SnapshotEnded():
                if record.is_whole and self._building is not None:
                    self.state = self._building
                self._building = None
            case _:
                (self._building or self.state).apply(record)

    def install(self, machine: "RouterMachine") -> None:
        """Put what was found into an empty machine."""
        state = self.state
        machine.number = state.number
        for run in state.retained.values():
            machine.retained.keep(run)
        for client_id, saved in state.sessions.items():
            revive(machine, client_id, saved)
        for group in machine.groups.values():
            group.request.log.waiters.pop(group.request, None)
        machine.adopted = state.adopted
        machine.handed = state.handed
        for each in state.handed.values():
            machine.arm(each.expires_at, each.client_id)
        _fill_logs(machine, state)
        starts = [run.number for run in state.runs]
        for client_id, saved in state.sessions.items():
            session = machine.graveyard[client_id]
            _set_places(session, saved)
            fill_window(session, saved, state.runs, starts)
        for name, saved_group in state.groups.items():
            _set_group(machine, name, saved_group, state.runs, starts)
        machine.brakes.restore()
        wills.restore(machine, state.wills)


def _fill_logs(machine: "RouterMachine", state: SavedState) -> None:
    """Put messages into the logs of sessions: those that are shelved, then the others."""
    behind: dict[str, int] = {}
    for each in state.shelved:
        log = machine.routes.get(each.topic_filter)
        if log is not None:
            shelf = Shelf(each.counts, each.numbers, each.places)
            log.restore_shelved(each.span, each.starts, shelf)
            if each.numbers:
                behind[each.topic_filter] = each.numbers[-1]
    for run in state.runs:
        for topic_filter in run.filters:
            log = machine.routes.get(topic_filter)
            if log is not None and run.number > behind.get(topic_filter, -1):
                log.most = sys.maxsize  # until places are known, so that losses are told
                log.append(run)


def revive(machine: "RouterMachine", client_id: str, saved: SavedSession) -> Session:
    """Make a session of a client that is away, with requests at the ends of their logs."""
    session = machine.graveyard[client_id] = Session(client_id)
    session.expiry = saved.expiry
    session.is_durable = machine.is_durable and saved.expiry > 0
    session.stamp = saved.stamp
    session.expires_at = saved.expires_at
    if session.expires_at is None:  # its client was connected
        session.expires_at = machine.now + saved.expiry
    machine.arm(session.expires_at, client_id)
    session.received_or_none = saved.received
    session.has_overlaps = len(saved.subscriptions) + len(saved.leaving) > 1
    for name, subscription in saved.subscriptions.items():
        group, plain = split_share(name)
        log = machine.routes.open(plain)
        log.durable_readers += session.is_durable and subscription.qos > 0
        session.subscriptions[name] = subscription
        if group:
            join(machine, session, subscription, log)
        else:
            session.requests[name] = DataRequest(log, subscription, session)
            log.readers += 1
    for ended in saved.leaving:
        log = machine.routes.open(ended.topic_filter)
        log.readers += 1
        session.tracker.requests.append(DataRequest(log, ended, session))
    session.leaving = tuple(saved.leaving)
    return session


def offset_of(log: DataLog, number: int) -> int:
    """Return the offset of the first message in a log from a number on."""
    for segment in log.segments:
        found = segment.offset_of(number)
        if found is not None:
            return found
    return log.end


def _set_places(session: Session, saved: SavedSession) -> None:
    requests = session.tracker.requests
    for request, (ended, place) in zip(list(requests), saved.leaving.items(), strict=True):
        assert ended.until is not None
        request.stop = offset_of(request.log, ended.until)
        # With QoS 0 nobody wrote down what was sent; it is not sent again.
        request.offset = offset_of(request.log, place) if ended.qos else request.stop
    for name, request in session.requests.items():
        if request.group is None:
            if session.subscriptions[name].qos:
                request.offset = offset_of(request.log, saved.places[name])
            else:
                request.offset = request.log.end
            requests.append(request)


def find_message(runs: list[Run], starts: list[int], number: int) -> tuple[Run, int] | None:
    """Return the run with a message, and its place there; None if it is in none."""
    index = bisect_right(starts, number) - 1
    if index < 0 or number >= runs[index].number + runs[index].count:
        return None
    return runs[index], number - runs[index].number


def fill_window(
    session: Session, saved: SavedSession, runs: list[Run], starts: list[int]
) -> None:
    """Let a session send again what was in flight, of runs in the order of their numbers."""
    window = session.window
    for packet_id, before in saved.inflight.items():
        found = find_message(runs, starts, before.number)
        if found is None:
            continue  # damaged, and told when the journal was read
        run, start = found
        sent = Sent(
            run,
            start,
            packet_id,
            before.qos,
            before.extra,
            before.retain,
            before.topic_filter,
            before.is_shared,
            before.is_retained,
        )
        window.resend[packet_id] = sent
        window.following = packet_id % 65_535 + 1
    window.releasing = saved.releasing


def _set_group(
    machine: "RouterMachine", name: str, saved: SavedGroup, runs: list[Run], starts: list[int]
) -> None:
    group = machine.groups[name]
    request = group.request
    request.offset = offset_of(request.log, saved.place)
    for number in saved.returned:
        found = find_message(runs, starts, number)
        if found is not None:
            group.returned.append(found)
    group.is_idle = group.has_more
    if not group.is_idle:
        request.log.waiters[request] = None
