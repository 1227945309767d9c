"""What is asked of a node to append to one of its logs, and what it answers.

A record travels as it is stored: bytes as they are, other values as CBOR. An answer is the
offset, durable, or `Refusal` as a tuple: its kind, and a text for people. What several
producers of one node append travels in groups, as one message, where the node of the log says
that it takes them: it answers the opening of a producer so when it is asked.
"""

from typing import Any, Final, NamedTuple

from cbor2 import CBORDecodeError, CBOREncodeError, dumps

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
from callboard.kernel.codec import CborReader, RemoteProtocolError, head

#: Bytes of the appends of a group: what is larger travels alone, in pieces if need be.
GROUP_BYTES: Final = 256 << 10


class AppendedRow(NamedTuple):
    """A record on its way to a log; `is_bytes` is false where `data` is CBOR."""

    topic: str
    data: bytes
    is_bytes: bool = True
    key: Key = None
    headers: Headers = None
    sender: str = ""
    time: int | None = None


@frozen_message("callboard.OpenLogProducer")
class OpenLogProducer(Query[tuple[int, int, bool]]):
    """To a log intake: open a producer, or go on with the epoch that it has (not 0).

    Answered by its epoch, its last number (-1 if the log does not know it), and whether the log
    has forgotten any; or refused. Who knows groups says so, and is answered behind these by
    how many bytes a group may have, if the node takes them.
    """

    log: str
    producer: str
    epoch: int = 0
    has_groups: bool = False


@frozen_message("callboard.AppendToLog")
class AppendToLog(Query[int]):
    """To a log intake: append records, of which the first has a number.

    Answered by the offset of the first one when all are durable, or refused.

    Attributes:
        log: its name.
        producer: that of the producer.
        epoch: of its opening.
        number: of the first record.
        rows: the records, each as `AppendedRow` is.
        is_published: whether they are published there as well, when they are durable.
    """

    log: str
    producer: str
    epoch: int
    number: int
    rows: list[Any]
    is_published: bool = False


@frozen_message("callboard.AppendGroup")
class AppendGroup(Query[list[Any]]):
    """To a log intake: append what some producers of a node have for one log.

    Answered when all is durable by a list of what each `AppendToLog` would be answered by.

    Attributes:
        log: its name.
        appends: an array in CBOR, each of its items what `pack_append` makes.
    """

    log: str
    appends: bytes


class ProducerAppend(NamedTuple):
    """What one producer appends at once: see `AppendToLog`."""

    producer: str
    epoch: int
    number: int
    rows: list[Any]
    is_published: bool = False


#: Arrays in arrays, and the headers of a record: no tags.
_GROUPS: Final = CborReader("groups of appends", max_depth=5)
_PLAIN: Final = AppendedRow("", b"")[2:]


def pack_append(append: ProducerAppend) -> bytes | None:
    """Return an append as it stands in a group; None if it has to travel alone.

    A group is read whole or refused, so that nothing may be in it that is no record.
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
    """Return whether a record has the types of one."""
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
    """Return what was packed as one question."""
    return AppendGroup(log, head(0x80, len(packed)) + b"".join(packed))


def appends_of(question: AppendToLog | AppendGroup) -> list[ProducerAppend]:
    """Return what a question wants appended.

    Raises:
        InvalidOption: it is nothing that a producer asks.
    """
    if isinstance(question, AppendToLog):
        numbers = question.producer, question.epoch, question.number
        appends = [ProducerAppend(*numbers, question.rows, question.is_published)]
    else:
        data: object = question.appends
        if type(data) is not bytes or len(data) > GROUP_BYTES:
            what = f"a group of appends has up to {GROUP_BYTES:,} bytes"
            raise InvalidOption(what)
        try:
            found = _GROUPS.read(data)
            appends = [ProducerAppend(*each) for each in found]
        except (RemoteProtocolError, TypeError) as error:
            what = f"this is no group of appends: {error}"
            raise InvalidOption(what) from None
        if type(found) is not list or not found:
            what = "a group of appends is a list of some"
            raise InvalidOption(what)
    for producer, epoch, number, rows, _ in appends:
        check_producer(producer)
        if type(rows) is not list or not 1 <= len(rows) <= MAX_BATCH_RECORDS:
            what = f"rows are a list of 1 to {MAX_BATCH_RECORDS:,} records"
            raise InvalidOption(what)
        _check_numbers(epoch, number)
    return appends


def check_opening(question: OpenLogProducer) -> None:
    """Refuse what is no opening of a producer.

    Raises:
        InvalidOption: it is none.
    """
    check_producer(question.producer)
    _check_numbers(question.epoch)


def _check_numbers(*numbers: object) -> None:
    if not all(type(each) is int and 0 <= each <= LAST_OFFSET for each in numbers):
        what = "epoch and number are numbers from 0 on"
        raise InvalidOption(what)


#: What answers call errors of a log; those without a name are of the first kind.
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
    """Return the answer that stands for an error."""
    kinds = (kind for kind, of in _KINDS.items() if isinstance(error, of))
    return next(kinds, "failed"), str(error)


def error_of(answer: object) -> LogError | None:
    """Return the error that an answer stands for; None for another answer."""
    match answer:
        case (str() as kind, str() as text):
            return _KINDS.get(kind, LogFailed)(text)
    return None


def columns_of(rows: list[Any]) -> Columns:
    """Return records that another node sent as what is appended, checked.

    Raises:
        InvalidRecord: one of them is none.
    """
    try:
        checked = [_checked(row) for row in rows]
    except (TypeError, ValueError, RecursionError) as error:
        what = f"this is no record: {error}"
        raise InvalidRecord(what) from None
    if (size := sum(len(row.data) for row in checked)) > MAX_RECORD:
        what = f"payloads of {size:,} bytes exceed the limit of {MAX_RECORD:,}; split them"
        raise InvalidRecord(what)
    if len(checked) == 1:
        topic, data, is_bytes, key, headers, sender, time = checked[0]
        return record_of(topic, data if is_bytes else Cbor(data), key, headers, sender, time)
    payloads = [row.data if row.is_bytes else Cbor(row.data) for row in checked]
    times = [row.time for row in checked if row.time is not None]
    if times and len(times) < len(checked):
        what = "all records of a run have a time, or none"
        raise InvalidRecord(what)
    topics, _, _, keys, headers_of, senders, _ = zip(*checked, strict=True)
    return many_records(payloads, topics, keys, headers_of, senders, times or None)


def _checked(row: Any) -> AppendedRow:
    """Return a record whose payload can be decoded; the log looks at the rest."""
    given = AppendedRow(*row)
    if type(given.data) is not bytes or type(given.is_bytes) is not bool:
        what = "a payload is bytes, plain or CBOR"
        raise TypeError(what)
    if not given.is_bytes:
        try:
            decode_value(given.data)
        except CBORDecodeError as error:
            raise ValueError(error) from None
    return given
