"""Named readers: a committed place that stands in the log's folder and outlives the process.

What a reader was handed and has not committed comes again after a crash: each record at least
once. A name is open in one process at a time, as the writing end of a log is.

Files, in the folder `readers` of the log: `NAME.place`, JSON with `offset` (of the next
record), `time` (of the commit, nanoseconds since 1970) and `sum` (CRC-32 of the text of these
two with a space between); `NAME.lock`, locked while the name is open.
"""

import json
import re
import time
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, Self
from weakref import WeakSet
from zlib import crc32

from callboard import locks
from callboard.commitlog.errors import (
    InvalidOption,
    LogClosed,
    LogCorrupt,
    LogError,
    LogFailed,
    LogReplaced,
    require_kind,
)
from callboard.commitlog.folder import LAST_OFFSET, FileLock, Folder
from callboard.commitlog.following.follower import Followed, Follower
from callboard.commitlog.record import Cursor, Record, Run
from callboard.figures import PROCESS_SOURCES, Figure, Labels, Metric, figures_of, metrics_of
from callboard.support import after_fork
from callboard.support.file_place import replaced

_FOLDER: Final = "readers"
_PLACE: Final = ".place"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)


class ReaderPlace(NamedTuple):
    """How far a named reader has committed: the next record, and when that was (ns)."""

    name: str
    offset: int
    time: int


def places_of(folder: Folder) -> list[ReaderPlace]:
    """Return the places of all named readers of a log, by name.

    Raises:
        LogCorrupt: one of them is damaged.
    """
    with suppress(FileNotFoundError):
        files = sorted(folder.disk.listdir(folder.file(_FOLDER)))
        names = [each.removesuffix(_PLACE) for each in files if each.endswith(_PLACE)]
        found = [_read(folder, name) for name in names if _NAME.fullmatch(name)]
        return [place for place in found if place is not None]
    return []


class NamedReader(Follower):
    """A follower that commits how far it has come; close it, or use it in a `with` block.

    Attributes:
        name: Its name.
        committed: The offset where the next process with this name begins.
    """

    def __init__(
        self, log: Followed, folder: Folder, name: str, begin: int, timeout: float | None
    ) -> None:
        """Take up a name; see `LogReader.reader`."""
        require_kind(isinstance(name, str), "a reader's name is a text of letters", name)
        if not _NAME.fullmatch(name):
            what = f"{name!r}: give 1 to 64 letters, digits, dots, hyphens and underlines"
            raise InvalidOption(what)
        if not folder.path:
            what = "a log in memory has no named readers; give the log a folder"
            raise LogFailed(what)
        self._places = Folder(folder.disk, folder.file(_FOLDER))
        what = f"the reader {name} of the log {folder.path} is used"
        try:
            self._places.make()
            self._lock = FileLock(
                self._places.path, f"{name}.lock", what, "close it there, or give another name"
            )
        except OSError as error:
            what = f"the place of the reader {name} cannot be kept: {error.strerror or error}"
            raise LogFailed(what) from error
        try:
            place = _read(folder, name)
        except BaseException:
            self._lock.release()
            raise
        self._is_stored = place is not None
        self.name = name
        self.committed = place.offset if place else begin
        self._is_closed = False
        self._next = self.committed  # the place behind what was handed out
        super().__init__(log, Cursor(self.committed), timeout)
        with _LOCK:
            if not _OPEN and _metrics not in PROCESS_SOURCES:
                PROCESS_SOURCES.append(_metrics)
            _OPEN.add(self)
        after_fork.register(self, NamedReader._leave_process)

    @property
    def log(self) -> str:
        """The path of the log."""
        return self._log.folder

    @property
    def labels(self) -> Labels:
        """What tells it from others among metrics."""
        return (("log", self.log), ("reader", self.name))

    @property
    def lag(self) -> int:
        """How many records stand behind the committed place."""
        return max(0, self._log.end - max(self.committed, self._log.start))

    def poll(self, max_records: int = 1000) -> list[Record]:
        """Return the records that are there, perhaps none, without waiting.

        Raises:
            LogCorrupt: the next record is damaged.
            LogClosed: it was closed.
        """
        return super().poll(max_records)

    def _place(self) -> Cursor:
        self._check()
        if self.cursor.offset != self._next:  # an iteration was left within what it had read
            self.cursor = Cursor(self._next)
        return self.cursor

    def _take(self, run: Run) -> list[Record]:
        records = super()._take(run)
        self._next = self.cursor.offset
        return records

    def _hand_out(self, record: Record) -> Record:
        self._next = record.offset + 1  # `commit` means the record at hand
        return record

    def commit(self, offset: int | None = None) -> int:
        """Commit the place behind the last record that was handed out; returns it.

        When it returns, the place is on the disk.

        Args:
            offset: The next record that is wanted, in place of that.

        Raises:
            LogFailed: the disk refuses; the place before holds.
            LogReplaced: the folder of the readers was removed or replaced.
            LogClosed: it was closed.
            ValueError: the offset is negative or behind the end of the log.
        """
        self._check()
        place = self._next if offset is None else offset
        if not 0 <= place <= max(self._log.end, self._next):
            what = f"offset {place}: the log has records up to {self._log.end}"
            raise InvalidOption(what)
        if not self._lock.is_in_place():
            remedy = "close the reader, put the file back, and make the reader again"
            raise LogReplaced(replaced(self._lock.path, remedy))
        if self._is_stored and place == self.committed:
            return place
        now = time.time_ns()
        told = {"offset": place, "time": now, "sum": crc32(f"{place} {now}".encode())}
        try:
            path = self._places.file(self.name + _PLACE)
            self._places.replace(path, json.dumps(told).encode() + b"\n")
        except OSError as error:
            what = f"the place of the reader {self.name} is not committed: {error.strerror}"
            raise LogFailed(what) from error
        self.committed, self._is_stored = place, True
        if offset is not None:
            self._next = place
        return place

    def close(self) -> None:
        """Let others use the name; uncommitted records come again. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._lock.release()
            with _LOCK:
                _OPEN.discard(self)

    def __enter__(self) -> Self:
        """Return the reader."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it; what was not committed comes again."""
        self.close()

    def _check(self) -> None:
        """Raise if it was closed."""
        if self._is_closed:
            what = f"the reader {self.name} is closed; make another with log.reader(name)"
            if after_fork.is_copy(self):
                remedy = "make one of another name here"
                what = after_fork.refusal(f"the reader {self.name}", remedy)
            raise LogClosed(what)

    def _leave_process(self) -> None:
        """Refuse what this copy is asked in a forked process."""
        self._is_closed = True
        _OPEN.discard(self)


#: Those of this process, for its metrics.
_OPEN: Final[WeakSet[NamedReader]] = WeakSet()
_LOCK: Final = locks.lock("open named positions", 602)

_FIGURES: Final[tuple[Figure[NamedReader], ...]] = figures_of(
    "callboard_log_reader_",
    (
        ("lag", "Records behind the place that a named reader of a log has committed.", "lag"),
        ("committed", "The offset of the next record of a named reader.", "committed"),
    ),
)


def _metrics() -> list[Metric]:
    """Return the figures of the named readers of this process."""
    with _LOCK:
        readers = sorted(_OPEN, key=lambda each: (each.log, each.name))
    told = []
    for each in readers:
        with suppress(LogError):  # its log is gone or unreadable, which its reading tells
            told.append(metrics_of(_FIGURES, each, each.labels))
    return [
        replace(same[0], samples=[sample for each in same for sample in each.samples])
        for same in zip(*told, strict=True)
    ]


def _read(folder: Folder, name: str) -> ReaderPlace | None:
    """Return the place that a reader has committed, if there is one."""
    path = folder.file(f"{_FOLDER}/{name}{_PLACE}")
    with folder.reading():
        data = folder.read(path)
    if not data:
        return None
    try:
        told = json.loads(data)
        offset, when = told["offset"], told["time"]
        if told["sum"] == crc32(f"{offset} {when}".encode()) and 0 <= offset <= LAST_OFFSET:
            return ReaderPlace(name, offset, when)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    what = f"{path} is damaged: where the reader {name} was is unknown; remove it to begin anew"
    raise LogCorrupt(what)
