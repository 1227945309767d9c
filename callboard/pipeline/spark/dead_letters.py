"""Dead letters: records that do not decode, stored once per query in a separate log.

A dead letter is the record as it was stored: its bytes (as a payload of plain bytes), key,
time, sender and headers. Its topic is `/dead-letters` followed by the record's. Our headers
hold the rest:

    offset, log      offset of the record, and its log
    query, name      the query's id, and its name for people
    reason           why it does not decode
    topic            topic of the record
    encoding         `bytes` if its payload was plain bytes, else `cbor`

A header of the record with one of these names becomes `record.NAME`, and one that starts with
`record.` gets another `record.` in front, so that nothing is lost. Letters of older releases
lack `query`, `name`, `log` and `topic`, and have a `range`: `LOG:FIRST-END`.

Tasks append letters, one task at a time; on an object store the first writer wins. A letter is
identified by query, log and offset, not by the task that found it. So a task that Spark repeats
or divides differently adds nothing, and another query has its own letters.
"""

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from callboard.backoff import Backoff, retried
from callboard.commitlog import (
    CommitLog,
    Cursor,
    LogError,
    LogFailed,
    LogLocked,
    LogReader,
    Record,
    Retention,
)
from callboard.commitlog.columns import Cbor
from callboard.commitlog.folder import offset_in
from callboard.pipeline.errors import PublishFailed
from callboard.pipeline.spark.store_journal import LETTERS, journal_at

#: Prefix of the topic of a dead letter; the record's topic follows.
TOPIC: Final = "/dead-letters"

#: Seconds that a task waits for other writers of the log.
_PATIENCE: Final = 60.0

_PAUSE: Final = 0.02

#: Our headers, including the one of older letters.
_RANGE: Final = "range"
_OURS: Final = frozenset(
    {"offset", "log", "query", "name", "reason", "topic", "encoding", _RANGE}
)
_RECORD: Final = "record."

#: Logs and queries whose letters a process caches.
_REMEMBERED: Final = 16

#: Records without a letter after which reading skips to the next letter.
_RUN: Final = 1000


class Origin(NamedTuple):
    """The source of letters: the log, and the id and name of the query that reads it."""

    log: str
    query: str
    name: str = ""


class DeadLetter(NamedTuple):
    """A record whose payload does not fit the schema of a query; its time is in nanoseconds."""

    origin: Origin
    offset: int
    reason: str
    time: int
    topic: str
    key: str | bytes | None
    headers: Mapping[str, str]
    sender: str
    data: bytes
    is_bytes: bool

    @classmethod
    def of(cls, record: Record, origin: Origin, reason: str) -> "DeadLetter":
        """Return the letter for a record."""
        return cls(origin, record.offset, reason, *record[1:], record.is_bytes)

    @classmethod
    def read(cls, record: Record) -> "DeadLetter | None":
        """Return the letter in a record; None if it is not a letter."""
        headers = record.headers
        offset = offset_in(headers.get("offset", ""))
        if offset is None or "reason" not in headers or not record.topic.startswith(TOPIC):
            return None
        log_path = headers.get("log") or headers.get(_RANGE, "").rpartition(":")[0]
        topic = headers.get("topic", record.topic.removeprefix(TOPIC))
        original = {
            name.removeprefix(_RECORD): text
            for name, text in headers.items()
            if name not in _OURS
        }
        return cls(
            Origin(log_path, headers.get("query", ""), headers.get("name", "")),
            offset,
            headers["reason"],
            record.time,
            topic,
            record.key,
            original,
            record.sender,
            record.data,
            headers.get("encoding") == "bytes",
        )

    @property
    def place(self) -> tuple[str, int]:
        """Log and offset of the record."""
        return self.origin.log, self.offset

    @property
    def payload(self) -> bytes:
        """The payload to append to a log."""
        return self.data if self.is_bytes else Cbor(self.data)

    @property
    def kept_topic(self) -> str:
        """The topic of the letter."""
        return TOPIC + (self.topic if self.topic.startswith("/") else f"/{self.topic}")

    @property
    def kept_headers(self) -> dict[str, str]:
        """The headers of the letter: the record's, and our own."""
        record_headers = {
            _RECORD + name if name in _OURS or name.startswith(_RECORD) else name: text
            for name, text in self.headers.items()
        }
        letter_headers = {
            "offset": str(self.offset),
            "reason": self.reason,
            "encoding": "bytes" if self.is_bytes else "cbor",
            "log": self.origin.log,
            "query": self.origin.query,
            "topic": self.topic,
        }
        return (
            record_headers
            | letter_headers
            | ({"name": self.origin.name} if self.origin.name else {})
        )


def full_path(path: str) -> str:
    """Return an absolute path, or an address without a trailing slash."""
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


def append_all(log: CommitLog, letters: Sequence[DeadLetter], **columns: Any) -> range:
    """Append the records of letters to a log; `columns` replace columns of the records."""
    own: dict[str, Any] = {
        "topic": [letter.topic for letter in letters],
        "key": [letter.key for letter in letters],
        "headers": [letter.headers for letter in letters],
        "sender": [letter.sender for letter in letters],
        "time": [letter.time for letter in letters],
    }
    payloads: Sequence[Any] = columns.pop("payloads", None) or [e.payload for e in letters]
    return log.append_batch(payloads, **(own | columns))


def stored_letters(
    log: LogReader, origin: Origin, reasons: Mapping[int, str]
) -> list[DeadLetter]:
    """Return records as letters, with the reasons by their offsets.

    The records are read again, because the columns may have changed them. Records that
    retention or damage has removed since are omitted.
    """
    letters: list[DeadLetter] = []
    next_offset = 0
    for offset in sorted(reasons):
        if offset < next_offset:
            continue
        last_letter = offset
        for record in log.read(offset, on_damage=lambda _: None):
            next_offset = record.offset + 1
            if record.offset in reasons:
                letters.append(DeadLetter.of(record, origin, reasons[record.offset]))
                last_letter = record.offset
            elif record.offset > last_letter + _RUN:
                break
    return letters


def bury(
    folder: str,
    letters: Sequence[DeadLetter],
    retain: Retention | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[DeadLetter]:
    """Append the dead letters of one query and log, except existing ones; durable on return.

    Args:
        folder: The directory of their log, or `s3://…`.
        letters: The letters.
        retain: How long dead letters are kept; their age is that of the record.
        storage_options: Options for fsspec, where the environment does not suffice.

    Returns:
        The letters that were appended.

    Raises:
        PublishFailed: other writers hold the log too long, or the store fails.
        LogFailed: the disk fails.
    """
    if not letters:
        return []
    buried, fresh = _Buried.of(folder, letters[0].origin), list(letters)

    def add(log: CommitLog) -> None:
        fresh[:] = [letter for letter in letters if letter.offset not in buried.offsets]
        if fresh:
            append_all(
                log,
                fresh,
                payloads=[letter.data for letter in fresh],
                topic=[letter.kept_topic for letter in fresh],
                headers=[letter.kept_headers for letter in fresh],
            )

    if "://" in folder:
        journal = journal_at(folder, storage_options, retain=retain, kind=LETTERS)
        added: set[int] = set()

        def choose(log: CommitLog) -> None:
            buried.catch_up(journal.reader)
            add(log)
            # Kept over all attempts: one whose reply was lost may have succeeded.
            added.update(letter.offset for letter in fresh)

        journal.append(choose)
        return [letter for letter in letters if letter.offset in added]
    buried.catch_up(_reader(folder))  # reads most letters before acquiring the lock
    with _open(folder, retain) as log:
        buried.catch_up(_reader(folder))
        add(log)
        log.flush()
    return fresh


def _reader(folder: str) -> LogReader | None:
    """Return a reader of a log, or None."""
    try:
        return LogReader(folder)
    except LogFailed:
        return None


class _Buried:
    """Cache of the letters of one query and log.

    Attributes:
        offsets: Offsets of their records.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._clear()

    @classmethod
    def of(cls, folder: str, origin: Origin) -> "_Buried":
        """Return the cache of this process, or a new one."""
        key = full_path(folder), origin
        buried = _KNOWN.pop(key, None) or cls(origin)
        _KNOWN[key] = buried
        if len(_KNOWN) > _REMEMBERED:
            _KNOWN.popitem(last=False)
        return buried

    def _clear(self) -> None:
        """Clear the cache."""
        self.offsets: set[int] = set()
        self._cursor = Cursor(0)
        self._last: Record | None = None

    def catch_up(self, log: LogReader | None) -> None:
        """Read the letters since the last call; None if the log does not exist yet."""
        if log is None:
            self._clear()
            return
        if not self._is_same(log):
            self._clear()
        log_of, query, _ = self._origin
        reading = log.read(self._cursor, on_damage=lambda _: None)
        for record in reading:
            self._last, headers = record, record.headers
            if headers.get("query") == query and headers.get("log") == log_of:
                letter = DeadLetter.read(record)
                if letter is not None:
                    self.offsets.add(letter.offset)
        self._cursor = reading.cursor

    def _is_same(self, log: LogReader) -> bool:
        """Return whether the log is still the same: its folder may have been replaced."""
        if self._last is None:
            return True
        try:
            records = log.readv(self._last.offset, 1).records
        except LogError:
            return False
        return log.start > self._last.offset or records == [self._last]


#: Caches by folder and origin, the most recently used last.
_KNOWN: Final[OrderedDict[tuple[str, Origin], _Buried]] = OrderedDict()


def _open(folder: str, retain: Retention | None) -> CommitLog:
    """Open the log of dead letters; wait while another task writes it."""
    open_log = partial(CommitLog, folder, sync="none", retain=retain)
    try:
        return retried(open_log, LogLocked, Backoff.fixed(_PAUSE), _PATIENCE)
    except LogLocked:
        msg = f"{folder} has been locked for {_PATIENCE:g} s; check for another writer"
        raise PublishFailed(msg) from None
