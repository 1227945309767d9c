"""Records of the router's journal: the topic is a kind, the payload a list of fields.

| kind | fields |
|---|---|
| publish | a run, filters, payloads, client id, packet ids |
| carried | a run, filters, payloads, the only client id that gets it |
| retain | a run and its payload; the topic alone removes it |
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
get them. A kind is 1 for shared messages, 2 for retained ones.
"""

import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from callboard.commitlog import LogCorrupt
from callboard.mqtt.errors import MqttError
from callboard.mqtt.field import Reader
from callboard.mqtt.message import Run
from callboard.mqtt.packet import Will
from callboard.mqtt.properties import Place, read_properties, write_properties
from callboard.mqtt.record import (
    Acknowledged,
    Adopted,
    Copied,
    HandedOver,
    JournalRecord,
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


class SentBefore(NamedTuple):
    """A `SentOut` as it is read: `many` messages from a number on."""

    client_id: str
    number: int
    first: int
    many: int
    qos: int
    extra: bytes
    retain: bool
    topic_filter: str
    kind: int

    @property
    def is_shared(self) -> bool:
        """Whether the subscription is a shared one."""
        return bool(self.kind & 1)

    @property
    def is_retained(self) -> bool:
        """Whether it was sent because it was retained."""
        return bool(self.kind & 2)


ReadRecord = JournalRecord | SentBefore


def encode_record(record: JournalRecord, epoch: float) -> tuple[str, Sequence[Any]]:  # noqa: C901
    """Return a record's kind and fields, which CBOR can hold."""
    match record:
        case Published() if record.run.recipient is not None:
            return "carried", (
                *_run_fields(record.run, epoch),
                record.run.filters,
                record.run.payloads,
                record.run.recipient,
            )
        case Published():
            return "publish", (
                *_run_fields(record.run, epoch),
                record.run.filters,
                record.run.payloads,
                record.client_id,
                record.packet_ids,
            )
        case Copied():
            return "copy", (*_run_fields(record.run, epoch), record.run.payloads[0])
        case Retained(run=None):
            return "retain", (record.topic,)
        case Retained():
            assert record.run is not None
            return "retain", (*_run_fields(record.run, epoch), record.run.payloads[0])
        case SessionOpened():
            when = record.expires_at
            return "open", (
                record.client_id,
                record.expiry,
                None if when is None else when + epoch,
                record.stamp,
            )
        case SessionClosed():
            return "close", (record.client_id,)
        case Subscribed():
            return "subscribe", _subscription_fields(record)
        case Unsubscribed():
            return "unsubscribe", (record.client_id, record.topic_filter)
        case Moved():
            return "moved", (record.client_id, record.topic_filter, record.number)
        case SentOut():
            return "sent", _sent_fields(record)
        case Acknowledged():
            return "acknowledged", (record.client_id, record.kind, record.packet_ids)
        case Received() | Released() | Releasing():
            return type(record).__name__.lower(), (record.client_id, record.packet_ids)
        case Returned():
            return "returned", (record.topic_filter, record.numbers)
        case WillKept():
            return "will", _will_fields(record, epoch)
        case WillDropped():
            return "will", (record.client_id,)
        case Adopted():
            return "adopted", (record.client_id, record.offer)
        case HandedOver():
            expires = record.expires_at + epoch
            return "handed", (
                record.client_id,
                record.offer,
                record.stamp,
                record.records,
                expires,
            )
        case Shelved():
            return "shelved", (
                record.topic_filter,
                record.span,
                *map(_packed, (record.starts, record.counts, record.numbers, record.places)),
            )
        case SnapshotBegun():
            return "begin", (record.number,)
        case SnapshotEnded():
            return "end", (record.is_whole,)


def _run_fields(run: Run, epoch: float) -> tuple[Any, ...]:
    return (
        run.topic,
        run.number,
        run.qos,
        run.retain,
        run.publisher,
        run.properties,
        None if run.expires_at is None else run.expires_at + epoch,
    )


def _subscription_fields(record: Subscribed) -> tuple[Any, ...]:
    each = record.subscription
    options = each.no_local | each.retain_as_published << 1 | each.retain_handling << 2
    return (
        record.client_id,
        each.topic_filter,
        each.qos,
        options,
        each.since,
        each.until,
        each.identifier,
        record.number,
    )


def _sent_fields(record: SentOut) -> tuple[Any, ...]:
    sent = record.sent
    return (
        record.client_id,
        sent.run.number + sent.start,
        sent.first,
        record.count,
        sent.qos,
        sent.extra,
        sent.retain,
        sent.topic_filter,
        sent.is_shared | sent.is_retained << 1,
    )


def _packed(column: Sequence[int]) -> bytes:
    """Return numbers as 8 bytes each, the lowest first."""
    numbers = array("q", column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _unpacked(column: bytes) -> Sequence[int]:
    numbers = array("q", column)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _will_fields(record: WillKept, epoch: float) -> tuple[Any, ...]:
    will, when = record.will, record.when
    return (
        record.client_id,
        will.topic,
        will.payload,
        will.qos,
        will.retain,
        None if will.properties is None else write_properties(will.properties, Place.WILL),
        None if when is None else when + epoch,
    )


def decode_record(kind: str, fields: Sequence[Any], epoch: float) -> ReadRecord:
    """Return a record.

    Raises:
        LogCorrupt: these are no fields of this kind, though their checksum is right.
    """
    try:
        return _DECODERS[kind](fields, epoch)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, MqttError) as error:
        msg = f"a record {kind!r} of the MQTT journal cannot be read: {error}"
        raise LogCorrupt(msg) from None


def _run_of(fields: Sequence[Any], payloads: list[bytes], epoch: float) -> Run:
    topic, number, qos, retain, publisher, properties, expires = fields
    run = Run.of_payloads(
        topic,
        payloads,
        qos=qos,
        publisher=publisher,
        properties=properties,
        retain=retain,
        expires_at=None if expires is None else expires - epoch,
    )
    run.number = number

    return run


def _published(fields: Sequence[Any], epoch: float) -> Published:
    *about, filters, payloads, client_id, packet_ids = fields
    run = _run_of(about, list(payloads), epoch)
    run.filters = tuple(filters)
    return Published(run, client_id, tuple(packet_ids))


def _carried(fields: Sequence[Any], epoch: float) -> Published:
    *about, filters, payloads, recipient = fields
    record = _published((*about, filters, payloads, "", ()), epoch)
    record.run.recipient = recipient
    return record


def _handed(fields: Sequence[Any], epoch: float) -> HandedOver:
    client_id, offer, stamp, records, expires = fields
    kept = tuple((kind, tuple(values)) for kind, values in records)
    return HandedOver(client_id, offer, stamp, kept, expires - epoch)


def _retained(fields: Sequence[Any], epoch: float) -> Retained:
    if len(fields) == 1:
        return Retained(fields[0], None)
    *about, payload = fields
    return Retained(fields[0], _run_of(about, [payload], epoch))


def _copied(fields: Sequence[Any], epoch: float) -> Copied:
    *about, payload = fields
    return Copied(_run_of(about, [payload], epoch))


def _opened(fields: Sequence[Any], epoch: float) -> SessionOpened:
    client_id, expiry, expires, *stamp = fields
    when = None if expires is None else expires - epoch
    return SessionOpened(client_id, expiry, when, *stamp)


def _subscribed(fields: Sequence[Any], _epoch: float) -> Subscribed:
    client_id, topic_filter, qos, options, since, until, identifier, number = fields
    subscription = Subscription(
        topic_filter,
        qos,
        since,
        bool(options & 1),
        bool(options & 2),
        options >> 2,
        until,
        identifier,
    )
    return Subscribed(client_id, subscription, number)


def _will(fields: Sequence[Any], epoch: float) -> WillKept | WillDropped:
    if len(fields) == 1:
        return WillDropped(fields[0])
    client_id, topic, payload, qos, retain, written, due = fields
    properties = None if written is None else read_properties(Reader(written), Place.WILL)
    will = Will(topic, payload, qos, retain, properties)
    return WillKept(client_id, will, None if due is None else due - epoch)


_DECODERS: Final[dict[str, Callable[[Sequence[Any], float], ReadRecord]]] = {
    "publish": _published,
    "carried": _carried,
    "retain": _retained,
    "copy": _copied,
    "open": _opened,
    "close": lambda fields, _: SessionClosed(*fields),
    "subscribe": _subscribed,
    "unsubscribe": lambda fields, _: Unsubscribed(*fields),
    "moved": lambda fields, _: Moved(*fields),
    "sent": lambda fields, _: SentBefore(*fields),
    "acknowledged": lambda fields, _: Acknowledged(fields[0], fields[1], tuple(fields[2])),
    "received": lambda fields, _: Received(fields[0], tuple(fields[1])),
    "released": lambda fields, _: Released(fields[0], tuple(fields[1])),
    "releasing": lambda fields, _: Releasing(fields[0], tuple(fields[1])),
    "returned": lambda fields, _: Returned(fields[0], tuple(fields[1])),
    "will": _will,
    "adopted": lambda fields, _: Adopted(*fields),
    "handed": _handed,
    "shelved": lambda fields, _: Shelved(*fields[:2], *map(_unpacked, fields[2:])),
    "begin": lambda fields, _: SnapshotBegun(*fields),
    "end": lambda fields, _: SnapshotEnded(*fields),
}
