"""Records that do not decode: each goes into a log of dead letters, once for each query.

A dead letter is the record as it was stored: its bytes (as a payload of plain bytes), its key,
time, sender and headers. Its topic is `/dead-letters` and that of the record; headers of ours
tell the rest:

    offset, log      where the record stands, and in which log
    query, name      whose letter it is: the query's id, and what people call it
    reason           why it does not decode
    topic            that of the record
    encoding         `bytes` if its payload was plain bytes, `cbor` if not

A header of the record that has one of these names stands under `record.NAME`, and one that
begins with `record.` gets another `record.`; so all of them can be told apart. Letters of
before have no `query`, `name`, `log` and `topic`, but a `range`: `LOG:FIRST-END`.

Tasks append to it, one at a time, or on an object store whoever comes first. A letter is known
by its query, log and offset, not by the task that found it: a task that Spark runs again, or
cuts otherwise, adds nothing, and another query has letters of its own.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

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

#: The topic of a dead letter: this, and that of the record.
TOPIC: Final = "/dead-letters"

#: Seconds that a task waits for the others that write the same log.
_PATIENCE: Final = 60.0

_PAUSE: Final = 0.02

#: Headers of ours, with that of letters of before.
_RANGE: Final = "range"
_OURS: Final = frozenset(
    {"offset", "log", "query", "name", "reason", "topic", "encoding", _RANGE}
)
_RECORD: Final = "record."

#: Logs and queries of which a process remembers which letters are there.
_REMEMBERED: Final = 16

#: Records without a letter behind which reading begins anew.
_RUN: Final = 1000


class Origin(NamedTuple):
    """Where letters come from: the log, the id of the query that reads it, and its name."""

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
        """Return the letter that a record becomes."""
        return cls(origin, record.offset, reason, *record[1:], record.is_bytes)

    @classmethod
    def read(cls, record: Record) -> "DeadLetter | None":
        """Return what a record of a log of dead letters tells; None if it is no letter."""
        told = record.headers
        offset = offset_in(told.get("offset", ""))
        if offset is None or "reason" not in told or not record.topic.startswith(TOPIC):
            return None
        log = told.get("log") or told.get(_RANGE, "").rpartition(":")[0]
        topic = told.get("topic", record.topic.removeprefix(TOPIC))
        headers = {
            name.removeprefix(_RECORD): text for name, text in told.items() if name not in _OURS
        }
        return cls(
            Origin(log, told.get("query", ""), told.get("name", "")),
            offset,
            told["reason"],
            record.time,
            topic,
            record.key,
            headers,
            record.sender,
            record.data,
            told.get("encoding") == "bytes",
        )

    @property
    def place(self) -> tuple[str, int]:
        """The log and the offset of the record."""
        return self.origin.log, self.offset

    @property
    def payload(self) -> bytes:
        """The payload as it is appended to a log."""
        return self.data if self.is_bytes else Cbor(self.data)

    @property
    def kept_topic(self) -> str:
        """The topic of the letter."""
        return TOPIC + (self.topic if self.topic.startswith("/") else f"/{self.topic}")

    @property
    def kept_headers(self) -> dict[str, str]:
        """The headers of the letter: those of the record, and what is told of it."""
        own = {
            _RECORD + name if name in _OURS or name.startswith(_RECORD) else name: text
            for name, text in self.headers.items()
        }
        told = {
            "offset": str(self.offset),
            "reason": self.reason,
            "encoding": "bytes" if self.is_bytes else "cbor",
            "log": self.origin.log,
            "query": self.origin.query,
            "topic": self.topic,
        }
        return own | told | ({"name": self.origin.name} if self.origin.name else {})


def full_path(path: str) -> str:
    """Return what a log is called wherever one looks from."""
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


def append_all(log: CommitLog, letters: Sequence[DeadLetter], **columns: Any) -> range:
    """Append to a log what letters hold; `columns` are those that are not the record's own."""
    own: dict[str, Any] = {
        "topic": [each.topic for each in letters],
        "key": [each.key for each in letters],
        "headers": [each.headers for each in letters],
        "sender": [each.sender for each in letters],
        "time": [each.time for each in letters],
    }
    payloads: Sequence[Any] = columns.pop("payloads", None) or [e.payload for e in letters]
    return log.append_batch(payloads, **(own | columns))


def stored_letters(
    log: LogReader, origin: Origin, reasons: Mapping[int, str]
) -> list[DeadLetter]:
    """Return records as letters, by the reasons that are known of their offsets.

    They are read once more, so that nothing of them is what columns made of it. One that
    retention or damage has taken meanwhile is left out.
    """
    found: list[DeadLetter] = []
    behind = 0
    for offset in sorted(reasons):
        if offset < behind:
            continue
        near = offset
        for record in log.read(offset, on_damage=lambda _: None):
            behind = record.offset + 1
            if record.offset in reasons:
                found.append(DeadLetter.of(record, origin, reasons[record.offset]))
                near = record.offset
            elif record.offset > near + _RUN:
                break
    return found


def bury(
    folder: str,
    letters: Sequence[DeadLetter],
    retain: Retention | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[DeadLetter]:
    """Append dead letters of one query and log, but those that are there; durable on return.

    Args:
        folder: The directory of their log, or `s3://…`.
        letters: What did not decode.
        retain: How long dead letters are kept; their age counts from the time of the record.
        storage_options: Of a store, what fsspec needs where the environment does not say.

    Returns:
        Those that were not there.

    Raises:
        PublishFailed: others write that log all the time, or the store refuses.
        LogFailed: the disk refuses.
    """
    if not letters:
        return []
    known, fresh = _Buried.of(folder, letters[0].origin), list(letters)

    def add(log: CommitLog) -> None:
        fresh[:] = [each for each in letters if each.offset not in known.offsets]
        if fresh:
            append_all(
                log,
                fresh,
                payloads=[each.data for each in fresh],
                topic=[each.kept_topic for each in fresh],
                headers=[each.kept_headers for each in fresh],
            )

    if "://" in folder:
        journal = journal_at(folder, storage_options, retain=retain, kind=LETTERS)
        added: set[int] = set()

        def choose(log: CommitLog) -> None:
            known.catch_up(journal.reader)
            add(log)
            added.update(each.offset for each in fresh)  # an answer that is lost may be a yes

        journal.append(choose)
        return [each for each in letters if each.offset in added]
    known.catch_up(_reader(folder))  # most of it without the lock
    with _open(folder, retain) as log:
        known.catch_up(_reader(folder))
        add(log)
        log.flush()
    return fresh


def _reader(folder: str) -> LogReader | None:
    """Return a reader of a log, if there is one."""
    try:
        return LogReader(folder)
    except LogFailed:
        return None


class _Buried:
    """The letters of one query and log that are there, as far as they were read.

    Attributes:
        offsets: The offsets of their records.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._begin()

    @classmethod
    def of(cls, folder: str, origin: Origin) -> "_Buried":
        """Return what this process remembers, or begin."""
        key = full_path(folder), origin
        known = _KNOWN.pop(key, None) or cls(origin)
        _KNOWN[key] = known
        if len(_KNOWN) > _REMEMBERED:
            _KNOWN.popitem(last=False)
        return known

    def _begin(self) -> None:
        """Forget all."""
        self.offsets: set[int] = set()
        self._cursor = Cursor(0)
        self._last: Record | None = None

    def catch_up(self, log: LogReader | None) -> None:
        """Read what came since; None if there is no log so far."""
        if log is None:
            self._begin()
            return
        if not self._is_same(log):
            self._begin()
        log_of, query, _ = self._origin
        reading = log.read(self._cursor, on_damage=lambda _: None)
        for record in reading:
            self._last, told = record, record.headers
            if told.get("query") == query and told.get("log") == log_of:
                letter = DeadLetter.read(record)
                if letter is not None:
                    self.offsets.add(letter.offset)
        self._cursor = reading.cursor

    def _is_same(self, log: LogReader) -> bool:
        """Return whether that is still the log that was read: folders are made anew."""
        if self._last is None:
            return True
        try:
            found = log.readv(self._last.offset, 1).records
        except LogError:
            return False
        return log.start > self._last.offset or found == [self._last]


#: By folder and origin; the one that was used last stands last.
_KNOWN: Final[OrderedDict[tuple[str, Origin], _Buried]] = OrderedDict()


def _open(folder: str, retain: Retention | None) -> CommitLog:
    """Open the log of dead letters, waiting for other tasks that write it."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return CommitLog(folder, sync="none", retain=retain)
        except LogLocked:
            if time.monotonic() > deadline:
                what = f"{folder} is locked for {_PATIENCE:g} s; see who writes it"
                raise PublishFailed(what) from None
            time.sleep(_PAUSE)
