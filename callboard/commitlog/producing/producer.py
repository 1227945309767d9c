"""Producers append durable records exactly once, even when an append is retried."""

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

from callboard import locks
from callboard.commitlog.batch import MAX_BATCH_RECORDS, MAX_RECORD
from callboard.commitlog.columns import (
    Columns,
    Headers,
    Key,
    check_times,
    many_records,
    one_record,
    rows_of,
)
from callboard.commitlog.errors import (
    InvalidOption,
    InvalidRecord,
    LogInUse,
    ProducerForgotten,
    require_kind,
)
from callboard.commitlog.producing.numbered_writer import (
    BatchFields,
    NumberedWriter,
    RecordFields,
)
from callboard.commitlog.producing.table import Claim, ProducerOpening, checksum_of, forgotten
from callboard.support import after_fork, reentry
from callboard.support.text import safe_repr

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/-]{0,127}", re.ASCII)
#: The largest number of a record; the same as that of offsets.
LAST_NUMBER: Final = 2**63 - 1


def check_producer(name: object) -> str:
    """Return the name of a producer, after checking it.

    Raises:
        InvalidOption: the name is invalid.
    """
    require_kind(isinstance(name, str), "a producer's name must be a str", name)
    if not _NAME.fullmatch(str(name)):
        msg = f"{name!r:.100}: a name has 1 to 128 letters, digits and . _ - : @ /"
        raise InvalidOption(msg)
    return str(name)


class ProducerLog(Protocol):
    """The interface of a log that a producer needs."""

    def open_producer(self, name: str) -> ProducerOpening:
        """Start the next epoch of a producer."""

    def take(self, claim: Claim, columns: Columns) -> int:
        """Append the records of a claim, and return the offset of the first."""

    def flush(self) -> None:
        """Make all appended records durable."""

    def refuse_inside(self, call: str) -> None:
        """Raise `LogInUse` if this thread is in another call of the log."""


class Numbering:
    """The numbers of a producer's records.

    Attributes:
        name: Name of the producer.
        epoch: Epoch of its opening.
        last: Number of the last record known to be in the log; None without any.
        next: Number of the next record, unless the caller chooses it.
    """

    def __init__(self, name: str, begin: int | None) -> None:
        """Start before the producer is opened."""
        self.name = check_producer(name)
        if begin is not None and not (type(begin) is int and 0 <= begin <= LAST_NUMBER):
            msg = f"begin={safe_repr(begin):.80} must be the number of the first record"
            raise InvalidOption(msg)
        self._begin = begin
        self._is_known, self._has_forgotten = False, False
        self.epoch, self.next = 0, 0
        self.last: int | None = None

    def opened(self, opening: ProducerOpening) -> None:
        """Apply the state of the producer in the log."""
        self.epoch, self._has_forgotten = opening.epoch, opening.has_forgotten
        self._is_known = opening.last is not None
        if opening.last is not None:
            self.last = opening.last.number
        if self.last is not None:
            self.next = self.last + 1
        else:
            self.next = 1 if self._begin is None else self._begin

    def number(self, chosen: int | None, count: int) -> int:
        """Return the number of the first of `count` records: the chosen one, or the next.

        Raises:
            InvalidOption: the chosen number is invalid.
            ProducerForgotten: the log may have had a record of this number, and forgotten it.
        """
        if chosen is None:
            return self.next
        if type(chosen) is not int or not 0 <= chosen <= LAST_NUMBER - count:
            msg = f"number={safe_repr(chosen):.80} must be an integer from 0 on"
            raise InvalidOption(msg)
        is_first = chosen == self._begin if self._begin is not None else chosen == 1
        if not self._is_known and (not is_first or self._has_forgotten and self._begin is None):
            raise ProducerForgotten(forgotten(self.name, chosen))
        return chosen

    def took(self, number: int, count: int) -> None:
        """Record that the log has these records."""
        self._is_known = True
        if self.last is None or number + count - 1 > self.last:
            self.last = number + count - 1
            self.next = max(self.next, self.last + 1)  # later ones may be in flight


def record_of(
    topic: str, payload: Any, key: Key, headers: Headers, sender: str, time: int | None
) -> Columns:
    """Return the columns of a record, with sorted headers.

    A retry may pass the same headers in another order, and must have the same checksum.

    Raises:
        InvalidRecord: the record cannot be stored.
    """
    sorted_headers = dict(sorted(headers.items())) if isinstance(headers, dict) else headers
    columns = one_record(topic, payload, key, sorted_headers, sender)
    return columns if time is None else columns._replace(times=check_times([time], 1))


class Producer(NumberedWriter):
    """Appends numbered records: durable on return, and repeated without duplicates.

    The log stores the last number of each producer for 7 days after its last record, for at
    most 100,000 producers. Methods may be called from any thread; concurrent appends of several
    producers share syncs of the disk.

    Attributes:
        log: The log of the producer.
    """

    def __init__(self, log: ProducerLog, name: str, begin: int | None = None) -> None:
        """Open a producer; see `CommitLog.producer`."""
        self.log = log
        self._numbering = Numbering(name, begin)
        self._lock = locks.lock("producer of a log", 604)
        after_fork.register(self)
        self._numbering.opened(log.open_producer(name))

    @property
    def name(self) -> str:
        """Name of the producer."""
        return self._numbering.name

    @property
    def last(self) -> int | None:
        """Number of the producer's last record in the log; None if none is known."""
        return self._numbering.last

    def _write(self, fields: RecordFields, number: int | None) -> int:
        """Append a record, and return its offset."""
        return self._append(record_of(*fields), number)

    async def _awrite(self, fields: RecordFields, number: int | None) -> int:
        """Append a record on another thread, and return its offset."""
        import asyncio  # late: programs that only read start twice as fast without

        return await asyncio.to_thread(self._append, record_of(*fields), number)

    def _write_batch(
        self, payloads: Sequence[Any], fields: BatchFields, number: int | None
    ) -> int:
        """Append a batch, and return the offset of its first record."""
        count = len(payloads)
        if not 1 <= count <= MAX_BATCH_RECORDS:
            msg = f"a batch of {count:,} records; append 1 to {MAX_BATCH_RECORDS:,} at once"
            raise InvalidRecord(msg)
        *columns, time = fields
        times = None if time is None else check_times(time, count)
        topics, keys, headers, senders = (rows_of(column, count) for column in columns)
        columns_of_batch = many_records(payloads, topics, keys, headers, senders, times)
        return self._append(columns_of_batch, number)

    def _append(self, columns: Columns, chosen: int | None) -> int:
        """Append encoded records in the order of the calls, and sync."""
        if (size := sum(map(len, columns.payloads))) > MAX_RECORD:
            msg = f"payloads of {size:,} bytes exceed the limit of {MAX_RECORD:,}; split them"
            raise InvalidRecord(msg)
        count, checksum = len(columns.payloads), checksum_of(columns)
        self.log.refuse_inside(
            "append()"
        )  # first: a record must not be appended that cannot be synced
        reentry.enter(self._lock, "append()", LogInUse)
        try:
            try:
                offset = self._take(columns, chosen, count, checksum)
            except ProducerForgotten:
                if chosen is not None:
                    raise
                self._numbering.opened(self.log.open_producer(self.name))
                # The producer was silent for long. Without a chosen number this is not a retry.
                offset = self._take(columns, None, count, checksum)
        finally:
            self._lock.release()
        self.log.flush()
        return offset

    def _take(self, columns: Columns, chosen: int | None, count: int, checksum: int) -> int:
        """Append records with the chosen or the next number."""
        numbering = self._numbering
        number = numbering.number(chosen, count)
        claim = Claim(numbering.name, numbering.epoch, number, count, checksum)
        offset = self.log.take(claim, columns)
        numbering.took(number, count)
        return offset
