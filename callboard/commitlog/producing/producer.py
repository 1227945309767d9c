"""What a program appends with where it must know that a record is durable, and there once."""

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
from callboard.commitlog.producing.table import Claim, ProducerOpening, checksum_of, forgotten
from callboard.support import after_fork, reentry
from callboard.support.text import shown

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@/-]{0,127}", re.ASCII)
#: The largest number, as offsets are.
LAST_NUMBER: Final = 2**63 - 1


def check_producer(name: object) -> str:
    """Return a producer's name.

    Raises:
        InvalidOption: it is none.
    """
    require_kind(isinstance(name, str), "a producer's name is a text", name)
    if not _NAME.fullmatch(str(name)):
        what = f"{name!r:.100}: give 1 to 128 letters, digits and . _ - : @ /"
        raise InvalidOption(what)
    return str(name)


class ProducerLog(Protocol):
    """What a producer needs of its log."""

    def open_producer(self, name: str) -> ProducerOpening:
        """Give a producer its next epoch."""

    def take(self, claim: Claim, columns: Columns) -> int:
        """Append what a producer claims, and return its offset."""

    def flush(self) -> None:
        """Make durable what was appended before."""

    def refuse_inside(self, call: str) -> None:
        """Raise `LogInUse` if this thread is in another call of the log."""


class Numbering:
    """Which number comes next, and whether a number that was given may be appended.

    Attributes:
        name: Whose.
        epoch: Of the opening.
        last: The number of the last record that is known to be taken; None if there is none.
        next: That of the next record that has none given.
    """

    def __init__(self, name: str, begin: int | None) -> None:
        """Number the records of a producer that is not opened yet."""
        self.name = check_producer(name)
        if begin is not None and not (type(begin) is int and 0 <= begin <= LAST_NUMBER):
            what = f"begin={shown(begin):.80}: give the number of the first record"
            raise InvalidOption(what)
        self._begin = begin
        self._is_known, self._has_forgotten = False, False
        self.epoch, self.next = 0, 0
        self.last: int | None = None

    def opened(self, told: ProducerOpening) -> None:
        """Take what the log knows of it."""
        self.epoch, self._has_forgotten = told.epoch, told.has_forgotten
        self._is_known = told.last is not None
        if told.last is not None:
            self.last = told.last.number
        if self.last is not None:
            self.next = self.last + 1
        else:
            self.next = 1 if self._begin is None else self._begin

    def number(self, given: int | None, count: int) -> int:
        """Return the number of the first of so many records.

        Raises:
            InvalidOption: what was given is none.
            ProducerForgotten: it may have been taken by a log that has forgotten it.
        """
        if given is None:
            return self.next
        if type(given) is not int or not 0 <= given <= LAST_NUMBER - count:
            what = f"number={shown(given):.80}: give a whole number from 0 on"
            raise InvalidOption(what)
        is_first = given == self._begin if self._begin is not None else given == 1
        if not self._is_known and (not is_first or self._has_forgotten and self._begin is None):
            raise ProducerForgotten(forgotten(self.name, given))
        return given

    def took(self, number: int, count: int) -> None:
        """ProducerNote that the log has records."""
        self._is_known = True
        if self.last is None or number + count - 1 > self.last:
            self.last = number + count - 1
            self.next = max(self.next, self.last + 1)  # or more are under way


def record_of(
    topic: str, payload: Any, key: Key, headers: Headers, sender: str, time: int | None
) -> Columns:
    """Return a record as what is appended; headers in the order that a retry has as well.

    Raises:
        InvalidRecord: it cannot be stored.
    """
    sorted_headers = dict(sorted(headers.items())) if isinstance(headers, dict) else headers
    columns = one_record(topic, payload, key, sorted_headers, sender)
    return columns if time is None else columns._replace(times=check_times([time], 1))


class Producer:
    """Appends numbered records: durable on return, and repeated without duplicates.

    The log keeps the last number of each producer, for 7 days after its last record, or while
    there are no more than 100,000. Methods may be called from any thread; those of several
    producers share syncs of the disk.

    Attributes:
        log: Where it appends.
    """

    def __init__(self, log: ProducerLog, name: str, begin: int | None = None) -> None:
        """Open it; see `CommitLog.producer`."""
        self.log = log
        self._numbering = Numbering(name, begin)
        self._lock = locks.lock("producer of a log", 604)
        after_fork.register(self)
        self._numbering.opened(log.open_producer(name))

    @property
    def name(self) -> str:
        """Its name."""
        return self._numbering.name

    @property
    def last(self) -> int | None:
        """The number of the last record that the log has; None if it has or knows none."""
        return self._numbering.last

    def append(
        self,
        topic: str,
        payload: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        sender: str = "",
        time: int | None = None,
        number: int | None = None,
    ) -> int:
        """Append one record; returns its offset when it is durable.

        Args:
            topic: What it is about.
            payload: As for `CommitLog.append`.
            key: Text or bytes.
            headers: Texts.
            sender: Who sent it.
            time: Nanoseconds since 1970; now by default.
            number: That of the record: the next one by default. Of a record that was taken
                before, the offset is returned and nothing is appended.

        Raises:
            WrongNumber: another record has this number, or it leaves a gap.
            ProducerFenced: the producer was opened again.
            ProducerForgotten: whether it was taken can no longer be known.
            InvalidRecord: it cannot be stored.
            LogFailed: the disk refuses. Append it again with the same number.
            LogClosed: the log was closed.
        """
        return self._append(record_of(topic, payload, key, headers, sender, time), number)

    async def aappend(
        self,
        topic: str,
        payload: Any,
        *,
        key: Key = None,
        headers: Headers = None,
        sender: str = "",
        time: int | None = None,
        number: int | None = None,
    ) -> int:
        """Append one record as `append` does, without blocking the loop."""
        import asyncio  # here: programs that only read start twice as fast without

        columns = record_of(topic, payload, key, headers, sender, time)
        return await asyncio.to_thread(self._append, columns, number)

    def append_batch(
        self,
        payloads: Sequence[Any],
        *,
        topic: str | Sequence[str],
        key: Key | Sequence[Key] = None,
        headers: Headers | Sequence[Headers] = None,
        sender: str | Sequence[str] = "",
        time: Sequence[int] | None = None,
        number: int | None = None,
    ) -> range:
        """Append a run of records, of which all are taken or none; returns their offsets.

        Each has a number of its own, the first one `number`; all are tried again as they were.

        Raises:
            InvalidRecord: one cannot be stored, or they are more than a batch holds.
            LogError: as for `append`.
        """
        count = len(payloads)
        if not 1 <= count <= MAX_BATCH_RECORDS:
            what = f"{count:,} records of a producer at once; give 1 to {MAX_BATCH_RECORDS:,}"
            raise InvalidRecord(what)
        times = None if time is None else check_times(time, count)
        named = [rows_of(column, count) for column in (topic, key, headers, sender)]
        topics, keys, rows, senders = named
        columns = many_records(payloads, topics, keys, rows, senders, times)
        first = self._append(columns, number)
        return range(first, first + count)

    def _append(self, columns: Columns, given: int | None) -> int:
        """Append what was encoded, in the order of the calls, and sync."""
        if (size := sum(map(len, columns.payloads))) > MAX_RECORD:
            what = f"payloads of {size:,} bytes exceed the limit of {MAX_RECORD:,}; split them"
            raise InvalidRecord(what)
        count, checksum = len(columns.payloads), checksum_of(columns)
        self.log.refuse_inside("append()")  # what cannot be synced must not be there
        reentry.enter(self._lock, "append()", LogInUse)
        try:
            try:
                offset = self._take(columns, given, count, checksum)
            except ProducerForgotten:
                if given is not None:
                    raise
                self._numbering.opened(self.log.open_producer(self.name))
                # It was silent for long; what has no number yet is not a retry.
                offset = self._take(columns, None, count, checksum)
        finally:
            self._lock.release()
        self.log.flush()
        return offset

    def _take(self, columns: Columns, given: int | None, count: int, checksum: int) -> int:
        """Append with a number."""
        numbering = self._numbering
        number = numbering.number(given, count)
        claim = Claim(numbering.name, numbering.epoch, number, count, checksum)
        offset = self.log.take(claim, columns)
        numbering.took(number, count)
        return offset
