"""Named readers, whose committed place is stored in the log's folder.

After a crash, records that were read but not committed are read again, so each record is
processed at least once. A name can be open in one process at a time, as a log for writing.

Files, in the folder `readers` of the log: `NAME.place`, JSON with `offset` (of the next
record), `time` (of the commit, nanoseconds since 1970), `sum` (CRC-32 of the text of these
two with a space between), and since 0.2 `log`, `epoch` and `check` (CRC-32 of the position and
the time); `NAME.lock`, locked while the name is open.
"""

import json
import re
import time
from contextlib import closing, suppress
from typing import Any, Final, NamedTuple, Self
from zlib import crc32

from callboard.commitlog.disk import SMALL_LIMIT
from callboard.commitlog.errors import (
    InvalidOption,
    LogClosed,
    LogCorrupt,
    LogError,
    LogFailed,
    LogReplaced,
    require_kind,
)
from callboard.commitlog.folder import FileLock, Folder
from callboard.commitlog.following.follower import Followed, Follower
from callboard.commitlog.identity.position import Position, PositionOwner, position_of, resume
from callboard.commitlog.reading import OnDamage
from callboard.commitlog.record import Cursor, Record, Run
from callboard.figures import Figure, Labels, ProcessFigures, figures_of
from callboard.support import after_fork
from callboard.support.files.file_place import replaced

_FOLDER: Final = "readers"
_PLACE: Final = ".place"
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)


class ReaderPlace(NamedTuple):
    """Committed place of a named reader: its position, and the time of the commit (ns)."""

    name: str
    offset: int
    time: int
    log: str = ""
    epoch: int = 0

    @property
    def position(self) -> Position:
        """The position of the next record."""
        return Position(self.log, self.epoch, self.offset)


def places_of(folder: Folder) -> list[ReaderPlace]:
    """Return the places of all named readers of a log, by name.

    Raises:
        LogCorrupt: a place is damaged.
    """
    with suppress(FileNotFoundError):
        files = sorted(folder.disk.listdir(folder.file(_FOLDER)))
        names = [file.removesuffix(_PLACE) for file in files if file.endswith(_PLACE)]
        places = [_read(folder, name) for name in names if _NAME.fullmatch(name)]
        return [place for place in places if place is not None]
    return []


class NamedReader(Follower):
    """A follower that can commit its place; close it, or use it in a `with` block.

    Attributes:
        name: Name of the reader.
        committed: Offset at which the next reader of this name starts.
    """

    def __init__(
        self,
        log: Followed,
        folder: Folder,
        name: str,
        begin: int,
        timeout: float | None,
        on_damage: OnDamage | None = None,
        accept: str = "",
    ) -> None:
        """Open a name; see `LogReader.reader`."""
        require_kind(isinstance(name, str), "a reader's name must be a text of letters", name)
        if not _NAME.fullmatch(name):
            msg = f"{name!r}: a name has 1 to 64 letters, digits, dots, hyphens and underscores"
            raise InvalidOption(msg)
        if not folder.path:
            msg = "a log in memory does not support named readers; give the log a folder"
            raise LogFailed(msg)
        self._places = Folder(folder.disk, folder.file(_FOLDER))
        label = f"the reader {name} of the log {folder.path} is used"
        try:
            self._places.make()
            self._lock = FileLock(
                self._places.path, f"{name}.lock", label, "close it there, or use another name"
            )
        except OSError as error:
            msg = f"the place of the reader {name} cannot be stored: {error.strerror or error}"
            raise LogFailed(msg) from error
        self.name, self._label = name, f"the reader {name}"
        try:
            place = _read(folder, name)
            self.committed = begin
            if place is not None:
                self.committed = self._resume(log, place.position, accept)
            self._is_stored = place is not None
            self._is_closed = False
            self._next = self.committed  # offset after the last record that was returned
            super().__init__(log, Cursor(self.committed), timeout, on_damage)
        except BaseException:
            self._lock.release()
            raise
        _OPEN.add(self)
        after_fork.register(self, NamedReader._leave_process)

    def _resume(self, log: Followed, stored: Position, accept: str) -> int:
        """Return the offset of the stored place, if it belongs to the log.

        Raises:
            PositionRefused: it does not, and the state of the log is not accepted.
        """
        way = f'log.reader("{self.name}", accept="{{}}")'
        owner = PositionOwner(self._label, log.folder, way)
        position = resume(stored, log.identity, log.end, owner, accept)
        if position != stored:
            self._store(position)
        return position.offset

    @property
    def log(self) -> str:
        """The path of the log."""
        return self._log.folder

    @property
    def labels(self) -> Labels:
        """Labels of its metrics."""
        return (("log", self.log), ("reader", self.name))

    @property
    def lag(self) -> int:
        """Number of records after the committed place."""
        return max(0, self._log.end - max(self.committed, self._log.start))

    def poll(self, max_records: int = 1000) -> list[Record]:
        """Return the available records, perhaps none, without waiting.

        Raises:
            LogCorrupt: the next record is damaged.
            LogClosed: the reader was closed.
        """
        return super().poll(max_records)

    def _place(self) -> Cursor:
        self._check()
        if self.cursor.offset != self._next:  # an iteration ended in the middle of a read
            self.cursor = Cursor(self._next)
        return self.cursor

    def _take(self, run: Run) -> list[Record]:
        records = super()._take(run)
        self._next = self.cursor.offset
        return records

    def _hand_out(self, record: Record) -> Record:
        self._next = record.offset + 1  # `commit` includes the current record
        return record

    def commit(self, offset: int | None = None) -> int:
        """Commit the offset after the last record that was returned; return that offset.

        The records before the place are durable when this returns, and then the place is.

        Args:
            offset: Commit this offset instead; reading continues there.

        Raises:
            LogFailed: the disk failed; the previous place remains valid.
            LogReplaced: the folder of the readers was removed or replaced.
            PositionRefused: the log was replaced, or records that were read were.
            LogClosed: the reader was closed.
            ValueError: the offset is negative or beyond the end of the log.
        """
        self._check()
        place = self._next if offset is None else offset
        self._watch.check(self._next)
        if not 0 <= place <= max(self._log.end, self._next):
            msg = f"offset {place} is out of range: the log ends at {self._log.end}"
            raise InvalidOption(msg)
        if not self._lock.is_in_place():
            remedy = "close the reader, put the file back, and open the reader again"
            raise LogReplaced(replaced(self._lock.path, remedy))
        if self._is_stored and place == self.committed:
            return place
        self._log.make_durable(place)
        self._store(self._watch.identity.position(place))
        self.committed, self._is_stored = place, True
        if offset is not None:
            self._next = place
        return place

    def _store(self, position: Position) -> None:
        """Store the place durably."""
        place, now = position.offset, time.time_ns()
        entry: dict[str, Any] = {
            "offset": place,
            "time": now,
            "sum": crc32(f"{place} {now}".encode()),
        }
        if position.log:
            check = crc32(f"{position} {now}".encode())
            entry |= {"log": position.log, "epoch": position.epoch, "check": check}
        try:
            path = self._places.file(self.name + _PLACE)
            self._places.replace(path, json.dumps(entry).encode() + b"\n")
        except OSError as error:
            msg = f"the place of the reader {self.name} was not committed: {error.strerror}"
            raise LogFailed(msg) from error

    def close(self) -> None:
        """Release the name; uncommitted records will be read again. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._lock.release()
            _OPEN.discard(self)

    def __enter__(self) -> Self:
        """Return the reader."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the reader; uncommitted records will be read again."""
        self.close()

    def _check(self) -> None:
        """Raise `LogClosed` if the reader was closed."""
        if self._is_closed:
            msg = f"the reader {self.name} is closed; open another with log.reader(name)"
            if after_fork.is_copy(self):
                remedy = "open one of another name here"
                msg = after_fork.refusal(f"the reader {self.name}", remedy)
            raise LogClosed(msg)

    def _leave_process(self) -> None:
        """Mark the copy in a forked process as closed."""
        self._is_closed = True
        _OPEN.discard(self)


_FIGURES: Final[tuple[Figure[NamedReader], ...]] = figures_of(
    "callboard_log_reader_",
    (
        ("lag", "Records after the place that a named reader of a log has committed.", "lag"),
        ("committed", "The offset of the next record of a named reader.", "committed"),
    ),
)

#: Open named readers of this process. Reading an unreadable log reports that.
_OPEN: Final[ProcessFigures[NamedReader]] = ProcessFigures(
    _FIGURES, lambda reader: (reader.labels, reader), LogError
)


def _read(folder: Folder, name: str) -> ReaderPlace | None:
    """Return the committed place of a reader; None if it has not committed yet."""
    path = folder.file(f"{_FOLDER}/{name}{_PLACE}")
    with folder.reading():
        try:
            with closing(folder.disk.open(path)) as file:
                data = file.pread(SMALL_LIMIT, 0)
        except FileNotFoundError:
            return None
    try:
        entry = json.loads(data)
        position, when = position_of(entry), entry["time"]
        check = crc32(f"{position} {when}".encode()) if position.log else None
        if entry["sum"] == crc32(f"{position.offset} {when}".encode()) and (
            entry.get("check") == check
        ):
            return ReaderPlace(name, position.offset, when, position.log, position.epoch)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    state = "damaged" if data else "empty"
    msg = (
        f"{path} is {state}: the place of the reader {name} is unknown; remove it to start anew"
    )
    raise LogCorrupt(msg)
