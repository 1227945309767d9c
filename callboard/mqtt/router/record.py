"""Journal records: facts that outlive the router; how each is written, read and applied.

They are about messages with QoS 1 and 2 that a persistent session reads, retained messages,
persistent sessions with their acknowledgements, and wills. Times are on the router's clock;
numbers count messages over all the router's life.

Records add up to a `SavedState`; they are applied in their order. A record about a session that
is not there (it ended, or stood before the oldest snapshot that is kept) changes nothing.

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
retain handling. Times are seconds since 1970; `epoch` is what to add to the router's clock to
get them. A kind is 1 for shared messages, 2 for retained ones. A key stands for the topic of a
retained message, stamp and origin say which write of it is the last in a cluster.
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
from callboard.mqtt.router.message import Run
from callboard.mqtt.router.session import SessionSubscription
from callboard.mqtt.router.window import PUBCOMP, PUBREC, Sent
from callboard.mqtt.wire.errors import MqttError
from callboard.mqtt.wire.field import Reader
from callboard.mqtt.wire.packet import Will
from callboard.mqtt.wire.properties import Place, read_properties, write_properties
from callboard.mqtt.wire.topic import split_share
from callboard.support.dataclass import dataclass

#: A kind and fields, which CBOR can hold.
Written = tuple[str, Sequence[Any]]
#: Records as they are written.
EncodedRecords = tuple[Written, ...]
#: The classes of records by their kinds.
RECORDS: "Final[dict[str, type[JournalRecord]]]" = {}


_number_of = attrgetter("number")


# --- what records add up to ---


@dataclass(slots=True)
class SavedSession:
    """A persistent session as the journal has it; places are numbers of messages."""

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
    """All that the journal has; `adopted` are the offers of copied sessions, by client id."""

    number: int = 0
    sessions: dict[str, SavedSession] = field(default_factory=dict)
    groups: dict[str, SavedGroup] = field(default_factory=dict)
    retained: dict[bytes, Run] = field(default_factory=dict)
    #: Stamp, origin and topic of the last write, by the topic's key; without topic it removed.
    heads: dict[bytes, tuple[int, bytes, bytes]] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    shelved: "list[Shelved]" = field(default_factory=list)
    wills: dict[str, tuple[Will, float | None, str]] = field(default_factory=dict)
    adopted: dict[str, str] = field(default_factory=dict)
    handed: "dict[str, HandedOver]" = field(default_factory=dict)

    def count(self, *following: int) -> None:
        """Take note of numbers that later messages are not to have."""
        self.number = max(self.number, *following)

    def copy(self, run: Run) -> None:
        """Keep a message that is in flight, in its place, if it is not there."""
        if self.find(run.number) is None:
            self.runs.insert(bisect_right(self.runs, run.number, key=_number_of), run)
        self.count(run.number + run.count)

    def find(self, number: int) -> tuple[Run, int] | None:
        """Return the run with a message, and its place there; None if it is in none."""
        at = bisect_right(self.runs, number, key=_number_of)
        run = self.runs[at - 1] if at else None
        if run is None or number >= run.number + run.count:
            return None
        return run, number - run.number

    def places_on_the_way(self) -> list[int]:
        """Return where the journal has messages that are on their way, and on a shelf."""
        inflight = [each for s in self.sessions.values() for each in s.inflight.items()]
        numbers = {sent.number_of(packet_id) for packet_id, sent in inflight}
        for group in self.groups.values():
            numbers.update(group.returned)
        places = set()
        for shelf in [each.shelf for each in self.shelved]:
            for number in numbers:
                at = bisect_right(shelf.numbers, number) - 1
                if at >= 0 and number < shelf.numbers[at] + shelf.counts[at]:
                    places.add(shelf.places[at])
        return sorted(places)

    def leave(self, client_id: str, topic_filter: str) -> None:
        """Take a session out of a group; the last one ends it."""
        if (group := self.groups.get(topic_filter)) is not None:
            group.members.discard(client_id)
            if not group.members:
                del self.groups[topic_filter]


# --- any record ---


@dataclass_transform(frozen_default=True)
class JournalRecord:
    """A fact in the journal: a frozen dataclass; `kind` names it there, with its fields."""

    kind: ClassVar[str]
    __match_args__: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, kind: str = "") -> None:
        dataclass(frozen=True)(cls)
        if kind:
            cls.kind = kind
            RECORDS[kind] = cls

    def write(self, epoch: float) -> Written:  # for those with times
        """Return kind and fields."""
        return self.kind, tuple([getattr(self, name) for name in self.__match_args__])

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        return cls(*(tuple(each) if isinstance(each, list) else each for each in fields))

    def apply(self, state: SavedState) -> None:
        """Change what the journal has by this fact."""
        raise NotImplementedError


def _later(when: float | None, seconds: float) -> float | None:
    """Return a time so much later; None is no time."""
    return None if when is None else when + seconds


# --- messages ---


def _run_fields(run: Run, epoch: float) -> tuple[Any, ...]:
    """Return the fields of a run without its payloads."""
    about = run.publisher, run.properties, _later(run.expires_at, epoch)
    return run.topic, run.number, run.qos, run.retain, *about


def _run_of(fields: Sequence[Any], payloads: list[bytes], epoch: float) -> Run:
    """Return the run with these fields and payloads."""
    topic, number, qos, retain, publisher, properties, expires = fields
    about = qos, publisher, properties, _later(expires, -epoch)
    run = Run.of_payloads(topic, payloads, *about, retain=retain)
    run.number = number
    return run


class Published(JournalRecord, kind="publish"):
    """Messages that persistent sessions wait for.

    With it in one record, so that a crash cannot part them: the identifiers that a persistent
    publisher gave QoS 2 messages, which are not new again.
    """

    run: Run
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
        *about, filters, payloads, client_id, packet_ids = fields
        run = _run_of(about, list(payloads), epoch)
        run.filters = tuple(filters)
        return cls(run, client_id, tuple(packet_ids))

    @classmethod
    def read_carried(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record of messages for one client alone."""
        *others, recipient = fields
        record = cls.read((*others, "", ()), epoch)
        record.run.recipient = recipient
        return record

    def apply(self, state: SavedState) -> None:
        """Keep the messages."""
        state.runs.append(self.run)
        state.count(self.run.number + self.run.count)
        if (session := state.sessions.get(self.client_id)) is not None:
            session.received.update(self.packet_ids)


class Copied(JournalRecord, kind="copy"):
    """A retained message is sent to a persistent session, and may be replaced meanwhile."""

    run: Run

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        return "copy", (*_run_fields(self.run, epoch), self.run.payloads[0])

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        *about, payload = fields
        return cls(_run_of(about, [payload], epoch))

    def apply(self, state: SavedState) -> None:
        """Keep the message in its place."""
        state.copy(self.run)


#: Bytes of a key.
KEY_BYTES: Final = 16


def key_of(topic: bytes) -> bytes:
    """Return what stands for a topic in tables of retained messages: short, whatever it is."""
    return blake2b(topic, digest_size=KEY_BYTES).digest()


class Retained(JournalRecord, kind="retain"):
    """A message is kept for its topic; None removes the one that was.

    With a stamp, the topic of one that is removed is told by its key.
    """

    topic: bytes
    run: Run | None
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
        return cls(fields[0], Copied.read(fields[:8], epoch).run, *fields[8:])

    def apply(self, state: SavedState) -> None:
        """Replace the message of the topic."""
        if self.run is not None:
            state.retained[self.topic] = self.run
            state.heads[key_of(self.topic)] = (self.stamp, self.origin, self.topic)
            state.count(self.run.number + self.run.count)
        elif self.stamp:
            if (before := state.heads.get(self.topic)) is not None:
                state.retained.pop(before[2], None)
            state.heads[self.topic] = (self.stamp, self.origin, b"")
        else:
            state.retained.pop(self.topic, None)
            state.heads.pop(key_of(self.topic), None)


# --- sessions ---


class SessionRecord(JournalRecord):
    """A fact about a persistent session; nothing if that is over."""

    client_id: str

    def apply(self, state: SavedState) -> None:
        """Change the session by this fact."""
        if (session := state.sessions.get(self.client_id)) is not None:
            self.change(session, state)

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Change the session by this fact."""
        raise NotImplementedError


class SessionOpened(JournalRecord, kind="open"):
    """A session lasts from here on; `expires_at` is None while its client is connected.

    `stamp` says when its client was connected last, among all routers of a cluster, and `user`
    whose it is. A session of no user is written as in older releases, which read no other.
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
        """Return the record with these fields; older ones have no user, or no stamp."""
        client_id, expiry, expires, *others = fields
        return cls(client_id, expiry, _later(expires, -epoch), *others)

    def apply(self, state: SavedState) -> None:
        """Begin the session, or go on with it."""
        fresh = SavedSession(self.expiry, self.expires_at)
        session = state.sessions.setdefault(self.client_id, fresh)
        session.expiry, session.expires_at = self.expiry, self.expires_at
        session.stamp, session.user = self.stamp, self.user


class SessionClosed(JournalRecord, kind="close"):
    """A session is over."""

    client_id: str

    def apply(self, state: SavedState) -> None:
        """End the session; its groups have back what it did not acknowledge."""
        session = state.sessions.pop(self.client_id, None)
        state.adopted.pop(self.client_id, None)
        if session is None:
            return
        for packet_id, sent in session.inflight.items():
            group = state.groups.get(sent.topic_filter) if sent.is_shared else None
            if group is not None and sent.qos == 1:
                group.returned.append(sent.number_of(packet_id))
        for topic_filter in session.subscriptions:
            state.leave(self.client_id, topic_filter)


class Subscribed(SessionRecord, kind="subscribe"):
    """A persistent session has a subscription, and reads from a message's number on.

    With `until` in it, the subscription has been ended and only reads what is left.
    """

    subscription: SessionSubscription
    number: int

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        each = self.subscription
        options = each.no_local | each.retain_as_published << 1 | each.retain_handling << 2
        about = each.qos, options, each.since, each.until, each.identifier, self.number
        return "subscribe", (self.client_id, each.topic_filter, *about)

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        client_id, name, qos, options, since, until, identifier, number = fields
        flags = bool(options & 1), bool(options & 2), options >> 2
        subscription = SessionSubscription(name, qos, *flags, since, until, identifier)
        return cls(client_id, subscription, number)

    def apply(self, state: SavedState) -> None:
        """Change the session by this fact; the numbers in it are taken in any case."""
        state.count(self.number, self.subscription.since, self.subscription.until or 0)
        super().apply(state)

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Give the session its subscription, or end it."""
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
    """A persistent session has one less.

    An empty filter stands for all that were ended before, and have read the rest by now.
    """

    topic_filter: str

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Take the subscription from its session."""
        if not self.topic_filter:
            session.leaving.clear()
            return
        session.subscriptions.pop(self.topic_filter, None)
        session.places.pop(self.topic_filter, None)
        state.leave(self.client_id, self.topic_filter)


class Moved(SessionRecord, kind="moved"):
    """A subscription of a persistent session has read what is before a number."""

    topic_filter: str
    number: int

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Let the subscription read on there."""
        state.count(self.number)
        if self.topic_filter in session.places:
            session.places[self.topic_filter] = self.number


class SentOut(SessionRecord, kind="sent"):
    """Messages from a number on went to a persistent session, with consecutive identifiers.

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
        """Whether the subscription is a shared one."""
        return bool(self.origin & 1)

    @property
    def is_retained(self) -> bool:
        """Whether they were sent because they were retained."""
        return bool(self.origin & 2)

    def number_of(self, packet_id: int) -> int:
        """Return the number of the message with a packet identifier."""
        return self.number + packet_id - self.first

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Have the messages in flight, and read on behind them."""
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
        for ended, place in session.leaving.items():
            if ended.topic_filter == name and ended.until and number < ended.until:
                session.leaving[ended] = max(place, following)


class Acknowledged(SessionRecord, kind="acknowledged"):
    """A persistent session acknowledged messages; `packet` is the first byte it did so with."""

    packet: int
    packet_ids: tuple[int, ...]

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Take the messages out of flight."""
        for packet_id in self.packet_ids:
            if self.packet == PUBCOMP:
                session.releasing.pop(packet_id, None)
            elif session.inflight.pop(packet_id, None) is not None and self.packet == PUBREC:
                session.releasing[packet_id] = None


class Received(SessionRecord, kind="received"):
    """A persistent session sent messages with QoS 2; these identifiers are not new again."""

    packet_ids: tuple[int, ...]

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Know the identifiers."""
        session.received.update(self.packet_ids)


class Released(SessionRecord, kind="released"):
    """A persistent session released identifiers of its QoS 2 messages."""

    packet_ids: tuple[int, ...]

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Forget the identifiers."""
        session.received.difference_update(self.packet_ids)


class Releasing(SessionRecord, kind="releasing"):
    """In a snapshot: what a session's client has received, and not yet completed."""

    packet_ids: tuple[int, ...]

    def change(self, session: SavedSession, state: SavedState) -> None:
        """Wait for the PUBCOMPs."""
        session.releasing |= dict.fromkeys(self.packet_ids)


class Returned(JournalRecord, kind="returned"):
    """In a snapshot: messages of a group whose receiver's session ended."""

    topic_filter: str
    numbers: tuple[int, ...]

    def apply(self, state: SavedState) -> None:
        """Give the messages back to the group."""
        if self.topic_filter in state.groups:
            state.groups[self.topic_filter].returned += self.numbers


# --- the shelf ---


def _numbers(column: Sequence[int] | bytes) -> "array[int]":
    """Return numbers with 8 bytes each, the lowest first; or what such bytes stand for."""
    numbers = array("q", column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


class Shelved(JournalRecord, kind="shelved"):
    """In a snapshot: a part of a filter's log of which the journal has the messages.

    Attributes:
        topic_filter: of the log.
        span: how many offsets it covers.
        starts: of its runs, from its beginning.
        shelf: the rest of them; their records stand before the snapshot.
    """

    topic_filter: str
    span: int
    starts: Sequence[int]
    shelf: Shelf

    def write(self, epoch: float) -> Written:
        """Return kind and fields."""
        packed = [_numbers(each).tobytes() for each in (self.starts, *self.shelf)]
        return "shelved", (self.topic_filter, self.span, *packed)

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields."""
        topic_filter, span, *packed = fields
        starts, *columns = map(_numbers, packed)
        return cls(topic_filter, span, starts, Shelf(*columns))

    def apply(self, state: SavedState) -> None:
        """Put the runs on the shelf."""
        state.shelved.append(self)


# --- wills ---


class WillKept(JournalRecord, kind="will"):
    """A client has a will, or none any more.

    `when` the will is due; None while the client is connected. `user` is whose it is, if that
    is one of the router's table; empty for all others, as older releases write and read it.
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
        about = will.topic, will.payload, will.qos, will.retain
        written = will.properties and write_properties(will.properties, Place.WILL)
        fields = self.client_id, *about, written, _later(when, epoch)
        return "will", (*fields, self.user) if self.user else fields

    @classmethod
    def read(cls, fields: Sequence[Any], epoch: float) -> Self:
        """Return the record with these fields; a client id alone has no will any more."""
        if len(fields) == 1:
            return cls(fields[0])
        client_id, topic, payload, qos, retain, written, due, *user = fields
        properties = None if written is None else read_properties(Reader(written), Place.WILL)
        will = Will(topic, payload, qos, retain, properties)
        return cls(client_id, will, _later(due, -epoch), *user)

    def apply(self, state: SavedState) -> None:
        """Keep the will, or forget it."""
        if self.will is None:
            state.wills.pop(self.client_id, None)
        else:
            state.wills[self.client_id] = self.will, self.when, self.user


# --- other routers ---


class Adopted(JournalRecord, kind="adopted"):
    """A persistent session is a copy of another router's, by its offer; "" makes it our own."""

    client_id: str
    offer: str

    def apply(self, state: SavedState) -> None:
        """Keep the last offer."""
        if self.offer:
            state.adopted[self.client_id] = self.offer
        else:
            state.adopted.pop(self.client_id, None)


class HandedOver(JournalRecord, kind="handed"):
    """A session went to the router that took an offer; "" when it has told that it has it.

    Attributes:
        stamp: of the session.
        records: messages that came behind the offer, as they are written.
        expires_at: when nobody will ask for them any more.
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
        kept = tuple((kind, tuple(values)) for kind, values in records)
        return cls(client_id, offer, stamp, kept, expires - epoch)

    def apply(self, state: SavedState) -> None:
        """Keep what the other router may still ask for."""
        if self.offer:
            state.handed[self.client_id] = self
        else:
            state.handed.pop(self.client_id, None)


# --- snapshots ---


class SnapshotBegun(JournalRecord, kind="begin"):
    """What follows is all that there is; before it comes to its end, it is nothing."""

    number: int

    def apply(self, state: SavedState) -> None:
        """Go on with the number."""
        state.count(self.number)


class SnapshotEnded(JournalRecord, kind="end"):
    """The snapshot is whole, or else (False) it was given up."""

    is_whole: bool

    def apply(self, state: SavedState) -> None:
        """Change nothing: the reader of the journal has to."""


def read_record(kind: str, fields: Sequence[Any], epoch: float) -> JournalRecord:
    """Return a record.

    Raises:
        LogCorrupt: these are no fields of this kind, though their checksum is right.
    """
    try:
        read = Published.read_carried if kind == "carried" else RECORDS[kind].read
        return read(fields, epoch)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, MqttError) as error:
        message = f"a record {kind!r} of the MQTT journal cannot be read: {error}"
        raise LogCorrupt(message) from None
