"""What the records of a journal come to: lasting sessions, and what they are owed.

Records are applied in their order; what they name and is not there (its session ended, or it
stood before the oldest snapshot that is kept) is passed over.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TypeVar

from callboard.mqtt.acknowledging import PUBCOMP, PUBREC
from callboard.mqtt.journal_codec import ReadRecord, SentBefore
from callboard.mqtt.message import Run
from callboard.mqtt.packet import Will
from callboard.mqtt.record import (
    Acknowledged,
    Adopted,
    Copied,
    HandedOver,
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
    Shelved,
    SnapshotBegun,
    SnapshotEnded,
    Subscribed,
    Unsubscribed,
    WillDropped,
    WillKept,
)
from callboard.mqtt.session import Subscription
from callboard.mqtt.topic import split_share


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
    stamp: int = 0


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
    shelved: list[Shelved] = field(default_factory=list)
    wills: dict[str, tuple[Will, float | None]] = field(default_factory=dict)
    adopted: dict[str, Adopted] = field(default_factory=dict)
    handed: dict[str, HandedOver] = field(default_factory=dict)

    # --- records ---

    def apply(self, record: ReadRecord) -> None:  # noqa: C901  (one case for each record)
        """Take a record."""
        match record:
            case Published():
                self._publish(record)
            case Copied():
                self.copy(record.run)
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
            case Shelved():
                self.shelved.append(record)
            case WillKept():
                self.wills[record.client_id] = record.will, record.when
            case WillDropped():
                self.wills.pop(record.client_id, None)
            case Adopted():
                _put(self.adopted, record)
            case HandedOver():
                _put(self.handed, record)
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

    def copy(self, run: Run) -> None:
        """Keep a message that is in flight, in its place, if it is not there."""
        runs = self.runs
        at = bisect_right(runs, run.number, key=_number_of)
        if not at or run.number >= runs[at - 1].number + runs[at - 1].count:
            runs.insert(at, run)
        self._count(run)

    def places_on_the_way(self) -> list[int]:
        """Return where the journal has messages that are on their way, and on a shelf."""
        numbers = {each.number for s in self.sessions.values() for each in s.inflight.values()}
        for group in self.groups.values():
            numbers.update(group.returned)
        places = set()
        for shelved in self.shelved:
            for number in numbers:
                at = bisect_right(shelved.numbers, number) - 1
                if at >= 0 and number < shelved.numbers[at] + shelved.counts[at]:
                    places.add(shelved.places[at])
        return sorted(places)

    def _open(self, record: SessionOpened) -> None:
        session = self.sessions.get(record.client_id)
        if session is None:
            session = SavedSession(record.expiry, record.expires_at)
            self.sessions[record.client_id] = session
        session.expiry, session.expires_at = record.expiry, record.expires_at
        session.stamp = record.stamp

    def _close(self, client_id: str) -> None:
        session = self.sessions.pop(client_id, None)
        self.adopted.pop(client_id, None)
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


A = TypeVar("A", Adopted, HandedOver)


def _put(known: dict[str, A], record: A) -> None:
    """Keep the last record of a client; one without an offer is the end of it."""
    if record.offer:
        known[record.client_id] = record
    else:
        known.pop(record.client_id, None)


def _number_of(run: Run) -> int:
    return run.number


def _acknowledge(session: SavedSession, record: Acknowledged) -> None:
    for packet_id in record.packet_ids:
        if record.kind == PUBCOMP:
            session.releasing.pop(packet_id, None)
        elif session.inflight.pop(packet_id, None) is not None and record.kind == PUBREC:
            session.releasing[packet_id] = None
