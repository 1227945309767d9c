"""From the journal's records back to a router: what lasting sessions are owed.

Records are applied in their order; what they name and is not there (its session ended, or it
stood before the oldest snapshot that is kept) is passed over. Then the result is put into an
empty machine, whose clients are all away.
"""

import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from callboard.mqtt import wills
from callboard.mqtt.acknowledging import PUBCOMP, PUBREC
from callboard.mqtt.datalog import DataLog
from callboard.mqtt.journal_codec import ReadRecord, SentBefore
from callboard.mqtt.message import Run
from callboard.mqtt.packet import Will
from callboard.mqtt.record import (
    Acknowledged,
    Copied,
    Moved,
    Published,
    Received,
    Released,
    Releasing,
    Retained,
    Returned,
    SentOut,
    SessionClosed,
    SessionOpened,
    SnapshotBegun,
    SnapshotEnded,
    Subscribed,
    Unsubscribed,
    WillDropped,
    WillKept,
)
from callboard.mqtt.session import Session, Subscription
from callboard.mqtt.subscribing import join
from callboard.mqtt.topic import split_share
from callboard.mqtt.tracker import DataRequest
from callboard.mqtt.window import Sent

if TYPE_CHECKING:
    from callboard.mqtt.machine import RouterMachine


@dataclass(slots=True)
class SavedSession:
    """A lasting session as the journal has it; places are numbers of messages."""

    expiry: float
    expires_at: float | None
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    leaving: dict[Subscription, int] = field(default_factory=dict)
    inflight: dict[int, SentBefore] = field(default_factory=dict)
    releasing: dict[int, None] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)


@dataclass(slots=True)
class SavedGroup:
    """A shared subscription as the journal has it."""

    place: int
    members: set[str] = field(default_factory=set)
    returned: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SavedState:
    """All that the journal has."""

    number: int = 0
    sessions: dict[str, SavedSession] = field(default_factory=dict)
    groups: dict[str, SavedGroup] = field(default_factory=dict)
    retained: dict[bytes, Run] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    wills: dict[str, tuple[Will, float | None]] = field(default_factory=dict)

    # --- records ---

    def apply(self, record: ReadRecord) -> None:  # noqa: C901  (one case for each record)
        """Take a record."""
        match record:
            case Published():
                self._publish(record)
            case Copied():
                self._copy(record.run)
            case Retained(run=None):
                self.retained.pop(record.topic, None)
            case Retained():
                assert record.run is not None
                self.retained[record.topic] = record.run
                self._count(record.run)
            case SessionOpened():
                self._open(record)
            case SessionClosed():
                self._close(record.client_id)
            case Subscribed():
                self._subscribe(record)
            case Returned():
                if record.topic_filter in self.groups:
                    self.groups[record.topic_filter].returned += record.numbers
            case WillKept():
                self.wills[record.client_id] = record.will, record.when
            case WillDropped():
                self.wills.pop(record.client_id, None)
            case SnapshotBegun():
                self.number = max(self.number, record.number)
            case SnapshotEnded() | SentOut():
                pass
            case _:
                session = self.sessions.get(record.client_id)
                if session is not None:
                    self._change(session, record)

    def _count(self, run: Run) -> None:
        self.number = max(self.number, run.number + run.count)

    def _publish(self, record: Published) -> None:
        self.runs.append(record.run)
        self._count(record.run)
        session = self.sessions.get(record.client_id)
        if session is not None:
            session.received.update(record.packet_ids)

    def _copy(self, run: Run) -> None:
        """Keep a message that is in flight, in its place, if it is not there."""
        runs = self.runs
        at = bisect_right(runs, run.number, key=_number_of)
        if not at or run.number >= runs[at - 1].number + runs[at - 1].count:
            runs.insert(at, run)
        self._count(run)

    def _open(self, record: SessionOpened) -> None:
        session = self.sessions.get(record.client_id)
        if session is None:
            self.sessions[record.client_id] = SavedSession(record.expiry, record.expires_at)
        else:
            session.expiry, session.expires_at = record.expiry, record.expires_at

    def _close(self, client_id: str) -> None:
        session = self.sessions.pop(client_id, None)
        if session is None:
            return
        for sent in session.inflight.values():
            group = self.groups.get(sent.topic_filter) if sent.is_shared else None
            if group is not None and sent.qos == 1:
                group.returned.append(sent.number)
        for topic_filter in session.subscriptions:
            self._leave(client_id, topic_filter)

    def _subscribe(self, record: Subscribed) -> None:
        session = self.sessions.get(record.client_id)
        asked = record.subscription
        self.number = max(self.number, record.number, asked.since, asked.until or 0)
        if session is None:
            return
        subscription, name = record.subscription, record.subscription.topic_filter
        if subscription.until is not None:
            session.subscriptions.pop(name, None)
            session.places.pop(name, None)
            session.leaving[subscription] = record.number
            return
        session.subscriptions[name] = subscription
        session.places[name] = record.number
        if split_share(name)[0]:
            group = self.groups.setdefault(name, SavedGroup(record.number))
            group.members.add(record.client_id)

    def _leave(self, client_id: str, topic_filter: str) -> None:
        group = self.groups.get(topic_filter)
        if group is not None:
            group.members.discard(client_id)
            if not group.members:
                del self.groups[topic_filter]

    def _change(
        self,
        session: SavedSession,
        record: Unsubscribed
        | Moved
        | SentBefore
        | Acknowledged
        | Received
        | Released
        | Releasing,
    ) -> None:
        match record:
            case Unsubscribed(topic_filter=""):
                session.leaving.clear()
            case Unsubscribed():
                session.subscriptions.pop(record.topic_filter, None)
                session.places.pop(record.topic_filter, None)
                self._leave(record.client_id, record.topic_filter)
            case Moved():
                self.number = max(self.number, record.number)
                if record.topic_filter in session.places:
                    session.places[record.topic_filter] = record.number
            case SentBefore():
                self._send(session, record)
            case Acknowledged():
                _acknowledge(session, record)
            case Received():
                session.received.update(record.packet_ids)
            case Released():
                session.received.difference_update(record.packet_ids)
            case Releasing():
                session.releasing |= dict.fromkeys(record.packet_ids)

    def _send(self, session: SavedSession, record: SentBefore) -> None:
        following = record.number + record.many
        for step in range(record.many):
            sent = record._replace(
                number=record.number + step, first=record.first + step, many=1
            )
            session.inflight[sent.first] = sent
        name = record.topic_filter
        if record.is_retained:
            return
        if record.is_shared:
            group = self.groups.get(name)
            if group is not None:
                group.place = max(group.place, following)
                if record.number in group.returned:
                    group.returned.remove(record.number)
            return
        active = session.subscriptions.get(name)
        if active is not None and record.number >= active.since:
            session.places[name] = max(session.places[name], following)
        for ended, place in session.leaving.items():
            if ended.topic_filter == name and ended.until and record.number < ended.until:
                session.leaving[ended] = max(place, following)


def _number_of(run: Run) -> int:
    return run.number


def _acknowledge(session: SavedSession, record: Acknowledged) -> None:
    for packet_id in record.packet_ids:
        if record.kind == PUBCOMP:
            session.releasing.pop(packet_id, None)
        elif session.inflight.pop(packet_id, None) is not None and record.kind == PUBREC:
            session.releasing[packet_id] = None


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
            _revive(machine, client_id, saved)
        for run in state.runs:
            for topic_filter in run.filters:
                log = machine.routes.get(topic_filter)
                if log is not None:
                    log.most = sys.maxsize  # until places are known, so that losses are told
                    log.append(run)
        starts = [run.number for run in state.runs]
        for client_id, saved in state.sessions.items():
            session = machine.graveyard[client_id]
            _set_places(session, saved)
            _fill_window(session, saved, state.runs, starts)
        for name, group in state.groups.items():
            _set_group(machine, name, group, state.runs, starts)
        machine.brakes.restore()
        wills.restore(machine, state.wills)


def _revive(machine: "RouterMachine", client_id: str, saved: SavedSession) -> None:
    """Make a session, with requests that begin where their logs end."""
    session = machine.graveyard[client_id] = Session(client_id)
    session.expiry = saved.expiry
    session.is_durable = True
    session.expires_at = saved.expires_at
    if session.expires_at is None:  # it was connected when the router ended
        session.expires_at = machine.now + saved.expiry
    machine.arm(session.expires_at, client_id)
    session.received_or_none = saved.received
    session.has_overlaps = len(saved.subscriptions) + len(saved.leaving) > 1
    for name, subscription in saved.subscriptions.items():
        group, plain = split_share(name)
        log = machine.routes.open(plain)
        log.durable_readers += subscription.qos > 0
        session.subscriptions[name] = subscription
        if group:
            join(machine, session, subscription, log)
            log.waiters.pop(session.requests[name], None)
        else:
            session.requests[name] = DataRequest(log, subscription, session)
            log.readers += 1
    for ended in saved.leaving:
        log = machine.routes.open(ended.topic_filter)
        log.readers += 1
        session.tracker.requests.append(DataRequest(log, ended, session))
    session.leaving = tuple(saved.leaving)


def offset_of(log: DataLog, number: int) -> int:
    """Return the offset of the first message in a log from a number on."""
    for segment in log.segments:
        for run, start in zip(segment.runs, segment.starts, strict=True):
            if run.number + run.count > number:
                return start + max(0, number - run.number)
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


def _find(runs: list[Run], starts: list[int], number: int) -> tuple[Run, int] | None:
    """Return the run with a message, and its place there."""
    index = bisect_right(starts, number) - 1
    if index < 0 or number >= runs[index].number + runs[index].count:
        return None
    return runs[index], number - runs[index].number


def _fill_window(
    session: Session, saved: SavedSession, runs: list[Run], starts: list[int]
) -> None:
    window = session.window
    for packet_id, before in saved.inflight.items():
        found = _find(runs, starts, before.number)
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
        found = _find(runs, starts, number)
        if found is not None:
            group.returned.append(found)
    group.is_idle = group.has_more
    if not group.is_idle:
        request.log.waiters[request] = None
