"""The last number of each producer of a log, as it stands in the log itself.

A producer numbers its records, each one more than the one before. With a batch of its records
stands a note of how far it has come; the first batch of each segment has the whole table of
its time before that. So what a batch holds and what is known of its producer become durable
together, or are torn off together, and a table is read from one segment.

- An entry says which run of records was the producer's last: numbers, offset, checksum, and
  where its run before stands, so that the offset of an earlier one can be found again.
- Epochs: who opens a producer gets a later epoch than all before, and what comes with an
  earlier one is refused. They begin with the clock, so that they rise over restarts too.
- Forgotten are producers that were silent for 7 days, and beyond 100,000 those that were
  silent longest. `horizon` is when that last happened: an append with an epoch up to it, by a
  producer without an entry, may be one that was taken once, and is refused.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from zlib import crc32

from cbor2 import CBORDecodeError, dumps, loads

from callboard.commitlog.columns import Columns
from callboard.commitlog.errors import ProducerFenced, ProducerForgotten, WrongNumber

#: Seconds and producers after which one is forgotten.
KEPT_SECONDS: Final = 7 * 86400.0
KEPT_PRODUCERS: Final = 100_000
#: Nanoseconds by which an epoch may be ahead of the clock, which may have been put back.
_AHEAD: Final = 86400 * 10**9


#: The columns of a run whose records have all in common, and how one of them is counted.
_ALIKE: Final = (None,) * 4
_NONE: Final = b"None"


class ProducerEntry(NamedTuple):
    """The last run of records of a producer.

    Attributes:
        name: Whose.
        epoch: Which opening of the producer appended it.
        number: Of its last record.
        records: How many it has.
        offset: Of its first record.
        previous: Offset of the run before; -1 if there is none.
        checksum: CRC-32 of what was appended.
        time: When, in nanoseconds since 1970 by the clock of the log.
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
    """What a producer says of records that it appends: the first has this number."""

    name: str
    epoch: int
    number: int
    records: int
    checksum: int


class ProducerNote(NamedTuple):
    """What stands with a batch: the table before it (None: as it was), and whose it is."""

    horizon: int
    table: list[ProducerEntry] | None
    entry: ProducerEntry | None


class ProducerOpening(NamedTuple):
    """What a producer learns when it is opened; `last` is None if the log does not know it."""

    epoch: int
    last: ProducerEntry | None
    has_forgotten: bool


def checksum_of(columns: Columns) -> int:
    """Return a checksum of all of a run but its times, which differ when it is tried again."""
    total = crc32(columns.names)
    if columns[5:] == _ALIKE:  # nearly always: as below, at once
        total = crc32(_NONE * len(_ALIKE), total)
    else:
        for column in columns[5:]:
            total = crc32(repr(column).encode(), total)
    total = crc32(bytes([columns.all_bytes]) + columns.kinds, total)
    for payload in columns.payloads:
        total = crc32(payload, crc32(len(payload).to_bytes(4, "little"), total))
    return total


class ProducerTable:
    """How far each producer has come; the caller holds the lock of the log's place.

    Attributes:
        entries: By name, those that were silent longest first.
        horizon: When a producer was last forgotten, as an epoch; 0 for never.
    """

    def __init__(self, limit: int = KEPT_PRODUCERS, seconds: float = KEPT_SECONDS) -> None:
        """Know nobody."""
        self.entries: dict[str, ProducerEntry] = {}
        self.horizon = 0
        self._limit, self._kept = limit, int(seconds * 1e9)
        self._epochs: dict[str, int] = {}  # of those that were opened since the log was
        self._newest = 0

    def open(self, name: str, now: int) -> ProducerOpening:
        """Give a producer its next epoch; appends with earlier ones are refused."""
        self._forget(now)
        self._newest = epoch = max(now, self._newest + 1)
        self._epochs.pop(name, None)
        self._epochs[name] = epoch
        if len(self._epochs) > self._limit:
            del self._epochs[next(iter(self._epochs))]  # its entry has an epoch, if it appends
        return ProducerOpening(epoch, self.entries.get(name), self.horizon > 0)

    def resume(self, name: str, epoch: int, now: int) -> ProducerOpening:
        """Let a producer go on with the epoch that it has, as after a restart of the log.

        Raises:
            ProducerFenced: it was opened again later, or never.
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
        """Return the entry for records that are to be written at an offset.

        None is returned for those that have a number which was taken before. `before` is the
        entry of the producer that is to be written just before.

        Raises:
            ProducerFenced: the producer was opened again later.
            ProducerForgotten: it has no entry, and may have had one.
            WrongNumber: it leaves a gap.
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
            what = f"number {number} of {name} leaves a gap: its last is {entry.number}"
            raise WrongNumber(what)
        last = number + count - 1
        return ProducerEntry(name, epoch, last, count, offset, entry.offset, checksum, now)

    def put(self, entry: ProducerEntry) -> None:
        """Take an entry that was written, and forget who is too many."""
        self.entries.pop(entry.name, None)
        self.entries[entry.name] = entry
        self._newest = max(self._newest, entry.epoch)
        if len(self.entries) > self._limit:
            self._drop(next(iter(self.entries)), entry.time)

    def note(self, entry: ProducerEntry | None, now: int, *, is_head: bool) -> bytes:
        """Return what stands with a batch; at the head of a segment that is the whole table."""
        if is_head:
            self._forget(now)
        has_table = is_head and (self.entries or self.horizon)
        if entry is None and not has_table:
            return b""
        return dumps([self.horizon, list(self.entries.values()) if has_table else None, entry])

    def replay(self, note: ProducerNote) -> None:
        """Take what stood with a batch, in the order of the log."""
        if note.table is not None:
            self.entries = {entry.name: entry for entry in note.table}
        self.horizon = max(self.horizon, note.horizon)
        self._newest = max(self._newest, self.horizon)
        if note.entry is not None:
            self.put(note.entry)

    def _forget(self, now: int) -> None:
        """Forget who was silent for too long."""
        while self.entries:
            name, entry = next(iter(self.entries.items()))
            if entry.time > now - self._kept:
                return
            self._drop(name, now)

    def _drop(self, name: str, now: int) -> None:
        """Forget one."""
        del self.entries[name]
        self.horizon = self._newest = max(now, self._newest)


def _fenced(name: str) -> str:
    return f"the producer {name} was opened again elsewhere; only the latest appends"


def find_run(claim: Claim, runs: Iterator[ProducerEntry]) -> int:
    """Return the offset of records whose numbers were taken before.

    Args:
        claim: What they are said to be.
        runs: The runs of the producer, the latest first.

    Raises:
        WrongNumber: they were taken with other records, or it is no longer known where.
    """
    name, _, number, count, checksum = claim
    why = "was taken long ago; its offset is no longer known"
    for run in runs:
        first = run.number - run.records + 1
        if run.previous < 0:
            why = f"comes before the first that the log knows, {first}"
        if first > number:
            continue
        if (first, run.records, run.checksum) == (number, count, checksum):
            return run.offset
        what = f"number {number} of {name} was taken with another record (at {run.offset})"
        raise WrongNumber(what)
    what = f"number {number} of {name} {why}"
    raise WrongNumber(what)


def forgotten(name: str, number: int) -> str:
    """Return the text of `ProducerForgotten`."""
    return (
        f"the log does not know the producer {name}, or no longer: whether its number {number}"
        " was taken is unknown; look in the log, then open the producer again with begin="
    )


def decode_note(data: bytes) -> ProducerNote:
    """Return what stands with a batch.

    Raises:
        ValueError: it is not what we write.
    """
    try:
        horizon, table, entry, *_ = loads(data)
        kept = None if table is None else [_entry(each) for each in table]
        return ProducerNote(int(horizon), kept, None if entry is None else _entry(entry))
    except (CBORDecodeError, TypeError) as error:
        raise ValueError(error) from None


def _entry(fields: list[Any]) -> ProducerEntry:
    """Return an entry, checked."""
    name, *numbers = fields[: len(ProducerEntry._fields)]
    if type(name) is not str or any(type(each) is not int for each in numbers):
        what = "an entry of the wrong types"
        raise ValueError(what)
    return ProducerEntry(name, *numbers)
