"""Messages that append records to a log of another node, and their replies.

A record is sent in its stored form: bytes unchanged, other values as CBOR. The reply is the
offset of the durable record, or a refusal: a tuple of an error kind and a text for people.
Appends of several producers of one node can share one message, a group. A producer asks for
this with `OpenLogProducer.has_groups`; a node that supports groups replies with their size
limit.
"""

from typing import Any, Final, NamedTuple

from cbor2 import CBORDecodeError, CBOREncodeError, dumps

from callboard.cbor.reader import CborReader
from callboard.cbor.writer import head
from callboard.commitlog.batch import MAX_BATCH_RECORDS, MAX_RECORD
from callboard.commitlog.columns import Cbor, Columns, Headers, Key, many_records
from callboard.commitlog.errors import (
    InvalidOption,
    InvalidRecord,
    LogClosed,
    LogError,
    LogFailed,
    ProducerFenced,
    ProducerForgotten,
    ReceiptUnknown,
    WrongNumber,
)
from callboard.commitlog.folder import LAST_OFFSET
from callboard.commitlog.producing.producer import check_producer, record_of
from callboard.commitlog.record import decode_value
from callboard.kernel.actors import Query, frozen_message
from callboard.protocol_errors import RemoteProtocolError

#: Limit of a group, in bytes. A larger append is a message for itself, fragmented if needed.
GROUP_BYTES: Final = 256 << 10


class AppendedRow(NamedTuple):
    """A record as it is sent to a log; `is_bytes` is False if `data` is CBOR."""

    topic: str
    data: bytes
    is_bytes: bool = True
    key: Key = None
    headers: Headers = None
    sender: str = ""
    time: int | None = None


@frozen_message("callboard.OpenLogProducer")
class OpenLogProducer(Query[tuple[int, int, bool]]):
    """Asks a log intake to open a producer, or to resume its epoch if that is not 0.

    The reply is a refusal, or the producer's epoch, its last number (-1 if the log does not
    know the producer), and whether the log has forgotten any producer. If `has_groups` is set
    and the node supports groups, their limit in bytes is a fourth item.
    """

    log: str
    producer: str
    epoch: int = 0
    has_groups: bool = False


@frozen_message("callboard.AppendToLog")
class AppendToLog(Query[int]):
    """Asks a log intake to append records with consecutive numbers.

    The reply is a refusal, or the offset of the first record, sent when all are durable.

    Attributes:
        log: name of the log.
        producer: name of the producer.
        epoch: the epoch that opening the producer returned.
        number: number of the first record.
        rows: the records, each with the fields of `AppendedRow`.
        is_published: whether the node also publishes the records once they are durable.
    """

    log: str
    producer: str
    epoch: int
    number: int
    rows: list[Any]
    is_published: bool = False


@frozen_message("callboard.AppendGroup")
class AppendGroup(Query[list[Any]]):
    """Asks a log intake to append records of several producers of one node.

    The reply, sent when all records are durable, lists a reply as to `AppendToLog` for each
    append.

    Attributes:
        log: name of the log.
        appends: a CBOR array; each item is the result of `pack_append`.
    """

    log: str
    appends: bytes


class ProducerAppend(NamedTuple):
    """One append of one producer; see `AppendToLog` for the fields."""

    producer: str
    epoch: int
    number: int
    rows: list[Any]
    is_published: bool = False


#: A group nests five levels at most: group, append, rows, row, headers.
_GROUPS: Final = CborReader("groups of appends", max_depth=5)
_PLAIN: Final = AppendedRow("", b"")[2:]


def pack_append(append: ProducerAppend) -> bytes | None:
    """Return an append encoded for a group; None if it must be sent alone.

    The intake refuses a group as a whole if any part of it is malformed. An invalid record of
    one producer must therefore not share a group with the appends of others.
    """
    producer, epoch, number, rows, is_published = append
    if not all(map(_is_plain, rows)):
        return None
    short = [row[:2] if row[2:] == _PLAIN else row for row in rows]
    try:
        return dumps((producer, epoch, number, short, is_published))
    except (CBOREncodeError, ValueError):  # lone surrogates in a text
        return None


def _is_plain(row: AppendedRow) -> bool:
    """Return whether the fields of a record have the declared types."""
    topic, data, is_bytes, key, headers, sender, time = tuple[Any, ...](row)
    return (
        type(topic) is str
        and type(data) is bytes
        and type(is_bytes) is bool
        and (key is None or type(key) in (str, bytes))
        and (
            headers is None
            or all(type(text) is str for pair in headers.items() for text in pair)
        )
        and type(sender) is str
        and (time is None or type(time) is int and -LAST_OFFSET <= time <= LAST_OFFSET)
    )


def group_of(log: str, packed: list[bytes]) -> AppendGroup:
    """Return one message with the packed appends."""
    return AppendGroup(log, head(0x80, len(packed)) + b"".join(packed))


def appends_of(question: AppendToLog | AppendGroup) -> list[ProducerAppend]:
    """Return the appends of a message, with their form checked.

    Raises:
        InvalidOption: the message is malformed.
    """
    if isinstance(question, AppendToLog):
        numbers = question.producer, question.epoch, question.number
        appends = [ProducerAppend(*numbers, question.rows, question.is_published)]
    else:
        data: object = question.appends
        if type(data) is not bytes or len(data) > GROUP_BYTES:
            msg = f"a group of appends must be bytes, at most {GROUP_BYTES:,} of them"
            raise InvalidOption(msg)
        try:
            items = _GROUPS.read(data)
            appends = [ProducerAppend(*item) for item in items]
        except (RemoteProtocolError, TypeError) as error:
            msg = f"malformed group of appends: {error}"
            raise InvalidOption(msg) from None
        if type(items) is not list or not items:
            msg = "a group of appends must be a list with at least one append"
            raise InvalidOption(msg)
    for producer, epoch, number, rows, _ in appends:
        check_producer(producer)
        if type(rows) is not list or not 1 <= len(rows) <= MAX_BATCH_RECORDS:
            msg = f"rows must be a list of 1 to {MAX_BATCH_RECORDS:,} records"
            raise InvalidOption(msg)
        _check_numbers(epoch, number)
    return appends


def check_opening(question: OpenLogProducer) -> None:
    """Check the form of a request to open a producer.

    Raises:
        InvalidOption: a field is malformed.
    """
    check_producer(question.producer)
    _check_numbers(question.epoch)


def _check_numbers(*numbers: object) -> None:
    if not all(type(number) is int and 0 <= number <= LAST_OFFSET for number in numbers):
        msg = "epoch and number must be integers from 0 on"
        raise InvalidOption(msg)


#: Names of log errors in replies; any other `LogError` is sent as the first kind.
_KINDS: Final[dict[str, type[LogError]]] = {
    "failed": LogFailed,
    "unknown": ReceiptUnknown,
    "fenced": ProducerFenced,
    "forgotten": ProducerForgotten,
    "number": WrongNumber,
    "record": InvalidRecord,
    "closed": LogClosed,
}


def refusal_of(error: LogError) -> tuple[str, str]:
    """Return the reply that represents an error."""
    kinds = (kind for kind, error_type in _KINDS.items() if isinstance(error, error_type))
    return next(kinds, "failed"), str(error)


def error_of(answer: object) -> LogError | None:
    """Return the error that a reply represents; None if the reply is not a refusal."""
    match answer:
        case (str() as kind, str() as text):
            return _KINDS.get(kind, LogFailed)(text)
    return None


def columns_of(rows: list[Any]) -> Columns:
    """Return records from another node as columns, after checking them.

    Raises:
        InvalidRecord: a record is malformed, or all together are too large.
    """
    try:
        checked = [_checked(row) for row in rows]
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"malformed record: {error}"
        raise InvalidRecord(msg) from None
    if (size := sum(len(row.data) for row in checked)) > MAX_RECORD:
        msg = f"payloads of {size:,} bytes exceed the limit of {MAX_RECORD:,}; split them"
        raise InvalidRecord(msg)
    if len(checked) == 1:
        topic, data, is_bytes, key, headers, sender, time = checked[0]
        return record_of(topic, data if is_bytes else Cbor(data), key, headers, sender, time)
    payloads = [row.data if row.is_bytes else Cbor(row.data) for row in checked]
    times = [row.time for row in checked if row.time is not None]
    if times and len(times) < len(checked):
        msg = "either all records of a batch have a time, or none"
        raise InvalidRecord(msg)
    topics, _, _, keys, headers_of, senders, _ = zip(*checked, strict=True)
    return many_records(payloads, topics, keys, headers_of, senders, times or None)


def _checked(row: Any) -> AppendedRow:
    """Return a record whose payload can be decoded; the log checks the other fields."""
    record = AppendedRow(*row)
    if type(record.data) is not bytes or type(record.is_bytes) is not bool:
        msg = "a payload must be bytes, plain or CBOR"
        raise TypeError(msg)
    if not record.is_bytes:
        try:
            decode_value(record.data)
        except CBORDecodeError as error:
            raise ValueError(error) from None
    return record
