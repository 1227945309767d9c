"""Journal records: facts that survive a restart; how each is written, read and applied.

There are records of messages with QoS 1 and 2 that a persistent session reads, of retained
messages, of persistent sessions with their acknowledgements, and of wills. Times are on the
router's clock. Message numbers count over the whole life of the journal.

Applied in order, records add up to a `SavedState`. A record about an unknown session changes
nothing: the session has ended, or began before the oldest snapshot in the journal.

In the journal the topic of a record is its kind, the payload a list of fields:

| kind | fields |
|---|---|
| publish | a run, filters, payloads, client id, packet ids |
| carried | a run, filters, payloads, the only client id that gets it |
| retain | a run, payload, stamp, origin; a key, stamp, origin, or a topic alone removes it |
| open | client id, expiry, expires, stamp |
| close | client id |
| subscribe | client id, filter, QoS, options, since, until, identifier, number |
| unsubscribe | client id, filter |
| moved | client id, filter, number |
| copy | a run and its payload |
| sent | client id, number, first packet id, count, QoS, properties, retain, filter, kind |
| acknowledged | client id, first byte, packet ids |
| received, released, releasing | client id, packet ids |
| returned | filter, numbers |
| will | client id, topic, payload, QoS, retain, properties, due; the client id alone drops it |
| adopted | client id, offer |
| handed | client id, offer, stamp, records, expires |
| shelved | filter, span, starts, counts, numbers, places |
| begin | number |
| end | whole |

A run is topic, number, QoS, retain, publisher, properties, expires. Columns of shelved runs are
integers of 8 bytes. Options are 1 for no-local, 2 for retain-as-published, and 4 times the
retain handling. Times are seconds since 1970; `epoch` is the difference to the
router's clock. A kind is 1 for shared messages, 2 for retained ones. A key is a hash of the
topic of a retained message. Stamp and origin order the writes of a topic in a cluster.
"""

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import field
from hashlib import blake2b
from operator import attrgetter
from typing import Any, ClassVar, Final, Self, dataclass_transform

from callboard.commitlog import LogCorrupt
from callboard.mqtt.router.datalog import Shelf
from callboard.mqtt.router.message import MessageRun
from callboard.mqtt.router.session import SessionSubscription
from callboard.mqtt.router.window import PUBCOMP, PUBREC, Sent
from callboard.mqtt.wire.errors import MqttError
from callboard.mqtt.wire.field import Reader
from callboard.mqtt.wire.packet import Will
from callboard.mqtt.wire.properties import Place, read_properties, write_properties
from callboard.mqtt.wire.topic import split_share
from callboard.support.dataclass import dataclass

#: A kind and its fields, as values that CBOR can encode.
Written = tuple[str, Sequence[Any]]
#: Records in their written form.
EncodedRecords = tuple[Written, ...]
#: The record classes by kind.
RECORDS: "Final[dict[str, type[JournalRecord]]]" = {}


_number_of = attrgetter("number")


# --- the state after all records ---


@dataclass(slots=True)
class SavedSession:
    """A persistent session as the journal has it; places are message numbers."""

    expiry: float
    expires_at: float | None
    subscriptions: dict[str, SessionSubscription] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    leaving: dict[SessionSubscription, int] = field(default_factory=dict)
    inflight: "dict[int, SentOut]" = field(default_factory=dict)
    releasing: dict[int, None] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    stamp: int = 0
    user: str | None = None


@dataclass(slots=True)
class SavedGroup:
    """A shared subscription as the journal has it."""

    place: int
    members: set[str] = field(default_factory=set)
    returned: list[int] = field(default_factory=list)


@dataclass(slots=True)
class SavedState:
    """Everything in the journal; `adopted` has the offers of copied sessions, by client id."""

    number: int = 0
    sessions: dict[str, SavedSession] = field(default_factory=dict)
    groups: dict[str, SavedGroup] = field(default_factory=dict)
    retained: dict[bytes, MessageRun] = field(default_factory=dict)
    #: Stamp, origin and topic of the last write, by the topic's key; no topic after a removal.
    heads: dict[bytes, tuple[int, bytes, bytes]] = field(default_factory=dict)
    runs: list[MessageRun] = field(default_factory=list)
    shelved: "list[Shelved]" = field(default_factory=list)
    wills: dict[str, tuple[Will, float | None, str]] = field(default_factory=dict)
    adopted: dict[str, str] = field(default_factory=dict)
    handed: "dict[str, HandedOver]" = field(default_factory=dict)

    def count(self, following: int) -> None:
        """Reserve message numbers below this one: later messages get greater ones."""
        if following > self.number:
            self.number = following

    def copy(self, run: MessageRun) -> None:
        """Insert a message in flight, ordered by number, unless it is there already."""
        if self.find(run.number) is None:
            self.runs.insert(bisect_right(self.runs, run.number, key=_number_of), run)
        self.count(run.number + run.count)

    def find(self, number: int) -> tuple[MessageRun, int] | None:
        """Return the run that holds a message and the message's index in it.

        None without one.
        """
        index = bisect_right(self.runs, number, key=_number_of)
        run = self.runs[index - 1] if index else None
        if run is None or number >= run.number + run.count:
            return None
        return run, number - run.number

    def places_on_the_way(self) -> list[int]:
        """Return the journal positions of shelved messages that are in flight or returned."""
        inflight = [item for s in self.sessions.values() for item in s.inflight.items()]
        numbers = {record.number_of(packet_id) for packet_id, record in inflight}
        for group in self.groups.values():
            numbers.update(group.returned)
        places = set()
        for shelf in [part.shelf for part in self.shelved]:
            for number in numbers:
                index = bisect_right(shelf.numbers, number) - 1
                if index >= 0 and number < shelf.numbers[index] + shelf.counts[index]:
                    places.add(shelf.places[index])
        return sorted(places)

    def leave(self, client_id: str, topic_filter: str) -> None:
        """Remove a session from a group; a group without members ends."""
        if (group := self.groups.get(topic_filter)) is not None:
            group.members.discard(client_id)
            if not group.members:
                del self.groups[topic_filter]


# --- the base class ---


@dataclass_transform(frozen_default=True)
class JournalRecord:
    """A fact in the journal: a frozen dataclass, written as its `kind` and its fields."""

    kind: ClassVar[str]
    __match_args__: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, kind: str = "") -> None:
        dataclass(frozen=True)(cls)
        if kind:
            cls.kind = kind
            RECORDS[kind] = cls

    def write(self, epoch: float) -> Written:  # `epoch` is for records with times
        """Return kind and fields."""
        return self.kind, tuple([getattr(self, name) for name in self.__match_args__])

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        return cls(*(tuple(value) if isinstance(value, list) else value for value in fields))

    def apply(self, state: SavedState) -> None:
        """Apply this fact to the state."""
        raise NotImplementedError


def _later(when: float | None, seconds: float) -> float | None:
    """Shift a time by some seconds; None stays None."""
    return None if when is None else when + seconds


# --- messages ---


def _run_fields(run: MessageRun, epoch: float) -> tuple[Any, ...]:
    """Return the fields of a run without its payloads."""
    rest = run.publisher, run.properties, _later(run.expires_at, epoch)
    return run.topic, run.number, run.qos, run.retain, *rest


def _run_of(fields: Sequence[Any], payloads: list[bytes], epoch: float) -> MessageRun:
    """Return the run with these fields and payloads."""
    topic, number, qos, retain, publisher, properties, expires = fields
    rest = qos, publisher, properties, _later(expires, -epoch)
    run = MessageRun.of_payloads(topic, payloads, *rest, retain=retain)
    run.number = number
    return run


class Published(JournalRecord, kind="publish"):
    """Messages that persistent sessions wait for.

    If the publisher's session is persistent, its packet identifiers of QoS 2 messages are in
    the same record. In two records, a crash between them would make a retransmission new.
    """

    run: MessageRun
    client_id: str = ""
    packet_ids: tuple[int, ...] = ()

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        run = self.run
        fields = (*_run_fields(run, epoch), run.filters, run.payloads)
        if run.recipient is not None:
            return "carried", (*fields, run.recipient)
        return "publish", (*fields, self.client_id, self.packet_ids)

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        *run_fields, filters, payloads, client_id, packet_ids = fields
        run = _run_of(run_fields, list(payloads), epoch)
        run.filters = tuple(filters)
        return cls(run, client_id, tuple(packet_ids))

    @classmethod
    def read_carried(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record of messages for one client alone."""
        *run_fields, recipient = fields
        record = cls.read((*run_fields, "", ()), epoch)
        record.run.recipient = recipient
        return record

    def apply(self, state: SavedState) -> None:
        """Add the messages, and the publisher's packet identifiers."""
        state.runs.append(self.run)
        state.count(self.run.number + self.run.count)
        if (session := state.sessions.get(self.client_id)) is not None:
            session.received.update(self.packet_ids)


class Copied(JournalRecord, kind="copy"):
    """A copy of a retained message that is sent to a persistent session.

    The retained message itself may be replaced before the client acknowledges the copy.
    """

    run: MessageRun

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        return "copy", (*_run_fields(self.run, epoch), self.run.payloads[0])

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        *run_fields, payload = fields
        return cls(_run_of(run_fields, [payload], epoch))

    def apply(self, state: SavedState) -> None:
        """Insert the message, ordered by number."""
        state.copy(self.run)


#: Bytes of a topic's key.
KEY_BYTES: Final = 16


def key_of(topic: bytes) -> bytes:
    """Return the key of a topic in tables of retained messages; its size is fixed."""
    return blake2b(topic, digest_size=KEY_BYTES).digest()


class Retained(JournalRecord, kind="retain"):
    """The last retained message of a topic; None removes it.

    With a stamp, a removal has the topic's key in place of the topic.
    """

    topic: bytes
    run: MessageRun | None
    stamp: int = 0
    origin: bytes = b""

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        run, order = self.run, (self.stamp, self.origin) if self.stamp else ()
        if run is None:
            return "retain", (self.topic, *order)
        return "retain", (*_run_fields(run, epoch), run.payloads[0], *order)

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        if len(fields) in (1, 3):
            return cls(fields[0], None, *fields[1:])
        topic, number, qos, _, publisher, properties, expires, payload, *order = fields
        run = MessageRun.of_retained(topic, payload, qos, publisher, properties)
        run.number = number
        if expires is not None:
            run.expires_at = _later(expires, -epoch)
        return cls(topic, run, *order)

    def apply(self, state: SavedState) -> None:
        """Replace the message of the topic."""
        if self.run is not None:
            state.retained[self.topic] = self.run
            state.heads[key_of(self.topic)] = (self.stamp, self.origin, self.topic)
            state.count(self.run.number + 1)
        elif self.stamp:
            if (head := state.heads.get(self.topic)) is not None:
                state.retained.pop(head[2], None)
            state.heads[self.topic] = (self.stamp, self.origin, b"")
        else:
            state.retained.pop(self.topic, None)
            state.heads.pop(key_of(self.topic), None)


# --- sessions ---


class SessionRecord(JournalRecord):
    """A fact about a persistent session; ignored if the session is over."""

    client_id: str

    def apply(self, state: SavedState) -> None:
        """Apply this fact to the session, if there is one."""
        if (session := state.sessions.get(self.client_id)) is not None:
            self.change(session, state)

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Apply this fact to the session."""
        raise NotImplementedError


class SessionOpened(JournalRecord, kind="open"):
    """A session is persistent from now on; `expires_at` is None while its client is connected.

    `stamp` orders the connects of the client among all routers of a cluster. `user` owns the
    session; without a user it is left out, because older releases cannot read it.
    """

    client_id: str
    expiry: float
    expires_at: float | None
    stamp: int = 0
    user: str | None = None

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        when = _later(self.expires_at, epoch)
        fields = self.client_id, self.expiry, when, self.stamp
        return "open", fields if self.user is None else (*fields, self.user)

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields; older releases wrote no user, or no stamp."""
        client_id, expiry, expires, *stamp_and_user = fields
        return cls(client_id, expiry, _later(expires, -epoch), *stamp_and_user)

    def apply(self, state: SavedState) -> None:
        """Create the session, or update it."""
        fresh = SavedSession(self.expiry, self.expires_at)
        session = state.sessions.setdefault(self.client_id, fresh)
        session.expiry, session.expires_at = self.expiry, self.expires_at
        session.stamp, session.user = self.stamp, self.user


class SessionClosed(JournalRecord, kind="close"):
    """The end of a session."""

    client_id: str

    def apply(self, state: SavedState) -> None:
        """Remove the session; return its unacknowledged messages to their groups."""
        session = state.sessions.pop(self.client_id, None)
        state.adopted.pop(self.client_id, None)
        if session is None:
            return
        for packet_id, record in session.inflight.items():
            group = state.groups.get(record.topic_filter) if record.is_shared else None
            if group is not None and record.qos == 1:
                group.returned.append(record.number_of(packet_id))
        for topic_filter in session.subscriptions:
            state.leave(self.client_id, topic_filter)


class Subscribed(SessionRecord, kind="subscribe"):
    """A subscription of a persistent session, which reads from a message number on.

    With `until`, the subscription was ended, and only reads the messages before that number.
    """

    subscription: SessionSubscription
    number: int

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        s = self.subscription
        options = s.no_local | s.retain_as_published << 1 | s.retain_handling << 2
        rest = s.qos, options, s.since, s.until, s.identifier, self.number
        return "subscribe", (self.client_id, s.topic_filter, *rest)

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        client_id, name, qos, options, since, until, identifier, number = fields
        flags = bool(options & 1), bool(options & 2), options >> 2
        subscription = SessionSubscription(name, qos, *flags, since, until, identifier)
        return cls(client_id, subscription, number)

    def apply(self, state: SavedState) -> None:
        """Apply this fact; reserve its message numbers even if the session is over."""
        since, until = self.subscription.since, self.subscription.until or 0
        state.count(max(self.number, since, until))
        super().apply(state)

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Add the subscription, or mark it as ended."""
        subscription, name = self.subscription, self.subscription.topic_filter
        if subscription.until is not None:
            session.subscriptions.pop(name, None)
            session.places.pop(name, None)
            session.leaving[subscription] = self.number
            return
        session.subscriptions[name] = subscription
        session.places[name] = self.number
        if split_share(name)[0]:
            group = state.groups.setdefault(name, SavedGroup(self.number))
            group.members.add(self.client_id)


class Unsubscribed(SessionRecord, kind="unsubscribe"):
    """A subscription of a persistent session was removed.

    An empty filter means: all ended subscriptions have read their last messages.
    """

    topic_filter: str

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Remove the subscription from its session."""
        if not self.topic_filter:
            session.leaving.clear()
            return
        session.subscriptions.pop(self.topic_filter, None)
        session.places.pop(self.topic_filter, None)
        state.leave(self.client_id, self.topic_filter)


class Moved(SessionRecord, kind="moved"):
    """A subscription of a persistent session has read everything before a number."""

    topic_filter: str
    number: int

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Set the position of the subscription."""
        state.count(self.number)
        if self.topic_filter in session.places:
            session.places[self.topic_filter] = self.number


class SentOut(SessionRecord, kind="sent"):
    """Messages sent to a persistent session, with consecutive numbers and packet identifiers.

    `origin` is 1 for shared subscriptions, plus 2 for retained messages.
    """

    number: int
    first: int
    count: int
    qos: int
    extra: bytes
    retain: bool
    topic_filter: str
    origin: int

    @classmethod
    def of(cls, client_id: str, sent: Sent, count: int) -> Self:
        """Return the record of messages in flight."""
        origin = sent.is_shared | sent.is_retained << 1
        number, name = sent.run.number + sent.start, sent.topic_filter
        first, qos, extra, retain = sent.first, sent.qos, sent.extra, sent.retain
        return cls(client_id, number, first, count, qos, extra, retain, name, origin)

    @property
    def is_shared(self) -> bool:
        """Whether the messages belong to a shared subscription."""
        return bool(self.origin & 1)

    @property
    def is_retained(self) -> bool:
        """Whether the messages were sent because they were retained."""
        return bool(self.origin & 2)

    def number_of(self, packet_id: int) -> int:
        """Return the number of the message with a packet identifier."""
        return self.number + packet_id - self.first

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Add the messages in flight, and set the subscription's position after them."""
        name, number = self.topic_filter, self.number
        session.inflight |= dict.fromkeys(range(self.first, self.first + self.count), self)
        following = number + self.count
        if self.is_retained:
            return
        if self.is_shared:
            if (group := state.groups.get(name)) is not None:
                group.place = max(group.place, following)
                if number in group.returned:
                    group.returned.remove(number)
            return
        active = session.subscriptions.get(name)
        if active is not None and number >= active.since:
            session.places[name] = max(session.places[name], following)
        for subscription, place in session.leaving.items():
            if (
                subscription.topic_filter == name
                and subscription.until
                and number < subscription.until
            ):
                session.leaving[subscription] = max(place, following)


class Acknowledged(SessionRecord, kind="acknowledged"):
    """Acknowledgements of a persistent session; `packet` is the first byte of their packets."""

    packet: int
    packet_ids: tuple[int, ...]

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Remove the acknowledged messages from those in flight."""
        for packet_id in self.packet_ids:
            if self.packet == PUBCOMP:
                session.releasing.pop(packet_id, None)
            elif session.inflight.pop(packet_id, None) is not None and self.packet == PUBREC:
                session.releasing[packet_id] = None


class Received(SessionRecord, kind="received"):
    """QoS 2 identifiers of a persistent session's messages: a repetition is a duplicate."""

    packet_ids: tuple[int, ...]

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Add the identifiers."""
        session.received.update(self.packet_ids)


class Released(SessionRecord, kind="released"):
    """QoS 2 identifiers that a persistent session has released."""

    packet_ids: tuple[int, ...]

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Remove the identifiers."""
        session.received.difference_update(self.packet_ids)


class Releasing(SessionRecord, kind="releasing"):
    """In a snapshot: identifiers for which a session's client still owes a PUBCOMP."""

    packet_ids: tuple[int, ...]

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Add the identifiers."""
        session.releasing |= dict.fromkeys(self.packet_ids)


class Returned(JournalRecord, kind="returned"):
    """In a snapshot: messages of a group whose recipient's session ended."""

    topic_filter: str
    numbers: tuple[int, ...]

    def apply(self, state: SavedState) -> None:
        """Return the messages to the group."""
        if self.topic_filter in state.groups:
            state.groups[self.topic_filter].returned += self.numbers


# --- the shelf ---


def _numbers(column: Sequence[int] | bytes) -> "array[int]":
    """Convert between numbers and their little-endian encoding, 8 bytes each."""
    numbers = array("q", column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class Shelved(JournalRecord, kind="shelved"):
    """In a snapshot: a part of a filter's log whose messages are already in the journal.

    Attributes:
        topic_filter: the topic filter of the log.
        span: the number of offsets that the part covers.
        starts: offsets of its runs, relative to the start of the part.
        shelf: the other columns; the messages' records precede the snapshot.
    """

    topic_filter: str
    span: int
    starts: Sequence[int]
    shelf: Shelf

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        packed = [_numbers(column).tobytes() for column in (self.starts, *self.shelf)]
        return "shelved", (self.topic_filter, self.span, *packed)

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        topic_filter, span, *packed = fields
        starts, *columns = map(_numbers, packed)
        return cls(topic_filter, span, starts, Shelf(*columns))

    def apply(self, state: SavedState) -> None:
        """Add the part to the shelf."""
        state.shelved.append(self)


# --- wills ---


class WillKept(JournalRecord, kind="will"):
    """The will of a client; None removes it.

    `when` the will is due; None while the client is connected. `user` is the client's user, if
    the router's own table has it; otherwise empty, as older releases write and read it.
    """

    client_id: str
    will: Will | None = None
    when: float | None = None
    user: str = ""

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        will, when = self.will, self.when
        if will is None:
            return "will", (self.client_id,)
        rest = will.topic, will.payload, will.qos, will.retain
        properties = will.properties and write_properties(will.properties, Place.WILL)
        fields = self.client_id, *rest, properties, _later(when, epoch)
        return "will", (*fields, self.user) if self.user else fields

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields; a client id alone removes the will."""
        if len(fields) == 1:
            return cls(fields[0])
        client_id, topic, payload, qos, retain, encoded, due, *user = fields
        properties = None if encoded is None else read_properties(Reader(encoded), Place.WILL)
        will = Will(topic, payload, qos, retain, properties)
        return cls(client_id, will, _later(due, -epoch), *user)

    def apply(self, state: SavedState) -> None:
        """Set or remove the will."""
        if self.will is None:
            state.wills.pop(self.client_id, None)
        else:
            state.wills[self.client_id] = self.will, self.when, self.user


# --- other routers ---


class Adopted(JournalRecord, kind="adopted"):
    """A persistent session was copied from another router, by its offer; "" makes it ours."""

    client_id: str
    offer: str

    def apply(self, state: SavedState) -> None:
        """Set or remove the offer."""
        if self.offer:
            state.adopted[self.client_id] = self.offer
        else:
            state.adopted.pop(self.client_id, None)


class HandedOver(JournalRecord, kind="handed"):
    """A session went to the router that accepted an offer; "" when that router confirmed it.

    Attributes:
        stamp: the stamp of the session.
        records: written records of messages that arrived after the offer.
        expires_at: when the other router will no longer ask for them.
    """

    client_id: str
    offer: str
    stamp: int = 0
    records: EncodedRecords = ()
    expires_at: float = 0.0

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        expires = self.expires_at + epoch
        return "handed", (self.client_id, self.offer, self.stamp, self.records, expires)

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        client_id, offer, stamp, records, expires = fields
        pairs = tuple((kind, tuple(values)) for kind, values in records)
        return cls(client_id, offer, stamp, pairs, expires - epoch)

    def apply(self, state: SavedState) -> None:
        """Store or remove the records that the other router may still ask for."""
        if self.offer:
            state.handed[self.client_id] = self
        else:
            state.handed.pop(self.client_id, None)


# --- snapshots ---


class SnapshotBegun(JournalRecord, kind="begin"):
    """The start of a snapshot; the records after it are valid only with its `SnapshotEnded`."""

    number: int

    def apply(self, state: SavedState) -> None:
        """Reserve the message numbers before the snapshot."""
        state.count(self.number)


class SnapshotEnded(JournalRecord, kind="end"):
    """The end of a snapshot: it is complete, or (False) was abandoned."""

    is_whole: bool

    def apply(self, state: SavedState) -> None:
        """Do nothing: the journal's reader handles the end of a snapshot."""


def read_record(kind: str, fields: Sequence[Any], epoch: float) -> JournalRecord:
    """Return a record.

    Raises:
        LogCorrupt: the fields do not fit the kind, although their checksum is right.
    """
    try:
        read = Published.read_carried if kind == "carried" else RECORDS[kind].read
        return read(fields, epoch)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, MqttError) as error:
        message = f"a record {kind!r} of the MQTT journal cannot be read: {error}"
        raise LogCorrupt(message) from None
