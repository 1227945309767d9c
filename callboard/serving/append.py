"""What is asked of a node to append to one of its logs, and what it answers.

A record travels as it is stored: bytes as they are, other values as CBOR. An answer is the
offset, durable, or `Refusal` as a tuple: its kind, and a text for people.
"""

from typing import Any, Final, NamedTuple

from cbor2 import CBORDecodeError, loads

from callboard.actors.reference import Query
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
from callboard.commitlog.folder import LAST_OFFSET, SERVED_NAME
from callboard.commitlog.producing.producer import check_producer, record_of
from callboard.proxies.messages import frozen_message


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
    has forgotten any; or refused.
    """

    log: str
    producer: str
    epoch: int = 0


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


AppendQuestion = OpenLogProducer | AppendToLog

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


def objection_to(question: AppendQuestion) -> str:
    """Return why a question is none that a producer asks; empty if it is one."""
    log: object = question.log
    if type(log) is not str or not SERVED_NAME.fullmatch(log):
        return "a log's name has letters, digits and -_.+@="
    try:
        check_producer(question.producer)
    except InvalidOption as error:
        return str(error)
    numbers: list[object] = [question.epoch]
    if type(question) is AppendToLog:
        rows: object = question.rows
        if type(rows) is not list or not 1 <= len(rows) <= MAX_BATCH_RECORDS:
            return f"rows are a list of 1 to {MAX_BATCH_RECORDS:,} records"
        numbers.append(question.number)
    if not all(type(each) is int and 0 <= each <= LAST_OFFSET for each in numbers):
        return "epoch and number are numbers from 0 on"
    return ""


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
            loads(given.data)
        except CBORDecodeError as error:
            raise ValueError(error) from None
    return given
