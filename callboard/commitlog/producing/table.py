"""The last number of each producer of a log, stored in the log itself.

A producer numbers its records consecutively. Each batch of a producer has a note with the
producer's new state. The note of the first batch of each segment also has the whole table, as
it was before that batch. Thus the records and the state of their producer become durable
together, or are cut off together, and the table can be read from one segment.

- An entry describes the last run of records of a producer: numbers, offset, checksum, and the
  offset of the run before, so that the offsets of earlier runs can be found.
- Each opening of a producer gets an epoch later than all before, and appends with an earlier
  epoch are refused. Epochs start from the clock, so that they also grow over restarts.
- Producers are forgotten after 7 days of silence; above 100,000, the longest silent ones are
  forgotten first. `horizon` is the time at which a producer was last forgotten. If a producer
  without an entry appends with an epoch up to the horizon, its record may have been appended
  before, so it is refused.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from zlib import crc32

from cbor2 import CBORDecodeError, dumps, loads

from callboard.commitlog.columns import Columns
from callboard.commitlog.errors import ProducerFenced, ProducerForgotten, WrongNumber

#: Seconds of silence, and number of producers, after which a producer is forgotten.
KEPT_SECONDS: Final = 7 * 86400.0
KEPT_PRODUCERS: Final = 100_000
#: Nanoseconds by which an epoch may be ahead of the clock, which may have been set back.
_AHEAD: Final = 86400 * 10**9


#: The columns of a run whose records share all values, and the checksum input of each.
_ALIKE: Final = (None,) * 4
_NONE: Final = b"None"


class ProducerEntry(NamedTuple):
    """The last run of records of a producer.

    Attributes:
        name: Name of the producer.
        epoch: Epoch in which it was appended.
        number: Number of its last record.
        records: Number of its records.
        offset: Offset of its first record.
        previous: Offset of the previous run; -1 for the first run.
        checksum: CRC-32 of its records.
        time: Time of the append, in nanoseconds since 1970 by the clock of the log.
    """

    name: str
    epoch: int
    number: int
    records: int
    offset: int
    previous: int
    checksum: int
    time: int


class Claim(NamedTuple):
    """The identity of records that a producer appends; `number` belongs to the first."""

    name: str
    epoch: int
    number: int
    records: int
    checksum: int


class ProducerNote(NamedTuple):
    """The note of a batch: the table before it (None if unchanged), and the new entry."""

    horizon: int
    table: list[ProducerEntry] | None
    entry: ProducerEntry | None


class ProducerOpening(NamedTuple):
    """The result of opening a producer; `last` is None if the log does not know it."""

    epoch: int
    last: ProducerEntry | None
    has_forgotten: bool


def checksum_of(columns: Columns) -> int:
    """Return a checksum of a run without its times, which differ in a retry."""
    total = crc32(columns.names)
    if columns[5:] == _ALIKE:  # the usual case; same result as the loop below
        total = crc32(_NONE * len(_ALIKE), total)
    else:
        for column in columns[5:]:
            total = crc32(repr(column).encode(), total)
    total = crc32(bytes([columns.all_bytes]) + columns.kinds, total)
    for payload in columns.payloads:
        total = crc32(payload, crc32(len(payload).to_bytes(4, "little"), total))
    return total


class ProducerTable:
    """The state of all producers of a log; the caller holds the lock of the log.

    Attributes:
        entries: Entries by name, the longest silent producer first.
        horizon: Time at which a producer was last forgotten, as an epoch; 0 for never.
    """

    def __init__(self, limit: int = KEPT_PRODUCERS, seconds: float = KEPT_SECONDS) -> None:
        """Start without producers."""
        self.entries: dict[str, ProducerEntry] = {}
        self.horizon = 0
        self._limit, self._kept = limit, int(seconds * 1e9)
        self._epochs: dict[str, int] = {}  # of producers opened since the log was opened
        self._newest = 0

    def open(self, name: str, now: int) -> ProducerOpening:
        """Start the next epoch of a producer; appends with earlier epochs are refused."""
        self._forget(now)
        self._newest = epoch = max(now, self._newest + 1)
        self._epochs.pop(name, None)
        self._epochs[name] = epoch
        if len(self._epochs) > self._limit:
            del self._epochs[
                next(iter(self._epochs))
            ]  # if it has appended, its entry has an epoch
        return ProducerOpening(epoch, self.entries.get(name), self.horizon > 0)

    def resume(self, name: str, epoch: int, now: int) -> ProducerOpening:
        """Resume the epoch of a producer, for example after a restart of the log.

        Raises:
            ProducerFenced: the producer was opened again later, or never.
        """
        entry = self.entries.get(name)
        current = max(self._epochs.get(name, 0), entry.epoch if entry else 0)
        if not current <= epoch <= max(now, self._newest) + _AHEAD:
            raise ProducerFenced(_fenced(name))
        self._newest = max(self._newest, epoch)
        self._epochs[name] = epoch
        return ProducerOpening(epoch, entry, self.horizon > 0)

    def admit(
        self, claim: Claim, offset: int, now: int, before: ProducerEntry | None = None
    ) -> ProducerEntry | None:
        """Return the entry for records that will be written at an offset.

        Returns None if records with these numbers were appended before. `before` is an entry
        of the same producer that precedes this one in the same write.

        Raises:
            ProducerFenced: the producer was opened again later.
            ProducerForgotten: the producer lacks an entry, but may have had one.
            WrongNumber: the number leaves a gap.
        """
        name, epoch, number, count, checksum = claim
        entry = before or self.entries.get(name)
        current = max(self._epochs.get(name, 0), entry.epoch if entry else 0)
        if not current <= epoch <= self._newest:
            raise ProducerFenced(_fenced(name))
        if entry is None:
            if epoch <= self.horizon:
                raise ProducerForgotten(forgotten(name, number))
            return ProducerEntry(
                name, epoch, number + count - 1, count, offset, -1, checksum, now
            )
        if number <= entry.number:
            return None
        if number > entry.number + 1:
            msg = f"number {number} of {name} leaves a gap: the last number is {entry.number}"
            raise WrongNumber(msg)
        last = number + count - 1
        return ProducerEntry(name, epoch, last, count, offset, entry.offset, checksum, now)

    def put(self, entry: ProducerEntry) -> None:
        """Store a written entry; above the limit, drop the longest silent producer."""
        self.entries.pop(entry.name, None)
        self.entries[entry.name] = entry
        self._newest = max(self._newest, entry.epoch)
        if len(self.entries) > self._limit:
            self._drop(next(iter(self.entries)), entry.time)

    def note(self, entry: ProducerEntry | None, now: int, *, is_head: bool) -> bytes:
        """Return the encoded note of a batch; at the head of a segment with the whole table."""
        if is_head:
            self._forget(now)
        has_table = is_head and (self.entries or self.horizon)
        if entry is None and not has_table:
            return b""
        return dumps([self.horizon, list(self.entries.values()) if has_table else None, entry])

    def replay(self, note: ProducerNote) -> None:
        """Apply the note of a batch; notes must be applied in the order of the log."""
        if note.table is not None:
            self.entries = {entry.name: entry for entry in note.table}
        self.horizon = max(self.horizon, note.horizon)
        self._newest = max(self._newest, self.horizon)
        if note.entry is not None:
            self.put(note.entry)

    def _forget(self, now: int) -> None:
        """Drop producers that have been silent for too long."""
        while self.entries:
            name, entry = next(iter(self.entries.items()))
            if entry.time > now - self._kept:
                return
            self._drop(name, now)

    def _drop(self, name: str, now: int) -> None:
        """Drop a producer and advance the horizon."""
        del self.entries[name]
        self.horizon = self._newest = max(now, self._newest)


def _fenced(name: str) -> str:
    return f"the producer {name} was opened again elsewhere; only the latest one may append"


def find_run(claim: Claim, runs: Iterator[ProducerEntry]) -> int:
    """Return the offset of records that were appended before.

    Args:
        claim: Identity of the records.
        runs: Runs of the producer, the latest first.

    Raises:
        WrongNumber: the numbers belong to other records, or their offset is no longer known.
    """
    name, _, number, count, checksum = claim
    reason = "was appended long ago; its offset is no longer known"
    for run in runs:
        first = run.number - run.records + 1
        if run.previous < 0:
            reason = f"precedes the first that the log has, {first}"
        if first > number:
            continue
        if (first, run.records, run.checksum) == (number, count, checksum):
            return run.offset
        msg = f"number {number} of {name} belongs to another record (at {run.offset})"
        raise WrongNumber(msg)
    msg = f"number {number} of {name} {reason}"
    raise WrongNumber(msg)


def forgotten(name: str, number: int) -> str:
    """Return the text of `ProducerForgotten`."""
    return (
        f"the log does not know the producer {name}, or no longer: whether its number {number}"
        " was taken is unknown; look in the log, then open the producer again with begin="
    )


def decode_note(data: bytes) -> ProducerNote:
    """Decode the note of a batch.

    Raises:
        ValueError: the note is malformed.
    """
    try:
        horizon, table, entry, *_ = loads(data)
        entries = None if table is None else [_entry(fields) for fields in table]
        return ProducerNote(int(horizon), entries, None if entry is None else _entry(entry))
    except (CBORDecodeError, TypeError) as error:
        raise ValueError(error) from None


def _entry(fields: list[Any]) -> ProducerEntry:
    """Decode an entry and check its types."""
    name, *numbers = fields[: len(ProducerEntry._fields)]
    if type(name) is not str or any(type(number) is not int for number in numbers):
        msg = "an entry of the wrong types"
        raise ValueError(msg)
    return ProducerEntry(name, *numbers)
