"""Return dead letters to logs: each record once per log, even after a crash.

Progress is recorded in another log, `requeued` in the folder of the letters:

    /begun   {"to": log, "end": its end before the first append}
    /done    {"to": log, "from": log of the record, "offsets": […], "end": its end after them}
    /ended   {"to": log}

Each appended record has the header `requeued` with `OFFSET LOG` of the failed record. If a run
dies after an append and before its note, the next run searches the log for these headers from
the last recorded end on, and continues after the records that it finds. While a run has the
log of notes open, no other run can requeue these letters.

The unit is the record, not the letter: a record that failed in two queries is appended once to
the log that both read.
"""

import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from callboard.commitlog import CommitLog, LogCorrupt, LogReader
from callboard.commitlog.folder import offset_in
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.spark.dead_letters import DeadLetter, append_all
from callboard.pipeline.spark.store_journal import NOTES as NOTED
from callboard.pipeline.spark.store_journal import journal_at

#: Header with the offset and the log of the requeued record.
HEADER: Final = "requeued"

#: Folder of the notes, inside the letters' folder.
NOTES: Final = "requeued"

#: Letters that are appended, synced and noted together.
_RUN: Final = 1000

_Place = tuple[str, int]


@dataclass(slots=True)
class Requeued:
    """The result for one log.

    Attributes:
        to: The log.
        letters: Selected letters.
        records: Records appended for them; in a dry run, records that would be.
        before: Letters whose records an earlier run has appended.
        first: Offset of the first appended record; None if there is none.
        end: Offset after the last appended record.
    """

    to: str
    letters: int = 0
    records: int = 0
    before: int = 0
    first: int | None = None
    end: int | None = None


class _Notes:
    """Progress notes, in the folder of the letters or beside them on a store."""

    def __init__(self, folder: str, storage_options: Mapping[str, Any] | None) -> None:
        self._own: dict[str, str] = {}
        self._log: CommitLog | None = None
        self._path = f"{folder.rstrip('/')}/{NOTES}"
        self._journal = None
        if "://" in folder:
            self._own = {"host": socket.gethostname()}
            self._journal = journal_at(self._path, storage_options, kind=NOTED)

    def open(self) -> CommitLog:
        """Open the notes in a folder for writing."""
        self._log = CommitLog(self._path, sync="none")
        return self._log

    @property
    def is_locked(self) -> bool:
        """Whether open notes exclude other writers; on a store they do not."""
        return self._journal is None

    def write(self, topic: str, notes: list[dict[str, Any]]) -> None:
        """Append notes; they are durable on return."""
        rows = [note | self._own for note in notes]
        if self._journal is not None:
            self._journal.append(lambda log: log.append_batch(rows, topic=topic))
        elif self._log is not None:
            self._log.append_batch(rows, topic=topic)
            self._log.flush()

    def of(self, target: "_Target") -> None:
        """Apply the notes of earlier runs about a log."""
        log = self._journal.reader if self._journal else None
        if self._journal is None and _is_log(self._path):
            log = LogReader(self._path)
        for record in log or ():
            note = record.payload
            if note["to"] == target.result.to:
                is_own = note.get("host") == self._own.get("host")
                target.apply(note, is_own=is_own)


@dataclass(slots=True)
class _Target:
    """A log that receives records.

    Attributes:
        elsewhere: The first end that another host noted for a log with this path.
    """

    result: Requeued
    done: set[_Place] = field(default_factory=set)
    fresh: set[_Place] = field(default_factory=set)
    begun: int | None = None
    elsewhere: int | None = None
    log: CommitLog | None = None

    def apply(self, note: Mapping[str, Any], *, is_own: bool) -> None:
        """Apply a note."""
        if is_own:
            self.begun = note.get("end")
            self.done.update((note["from"], offset) for offset in note.get("offsets", ()))
        elif self.elsewhere is None:
            self.elsewhere = note.get("end")


def requeue(
    folder: str | Path,
    *,
    to: str = "",
    wanted: Callable[[DeadLetter], bool] = lambda _: True,
    is_dry: bool = False,
    on_damage: Callable[[LogCorrupt], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Requeued]:
    """Append the records of dead letters to their own logs, or to another one.

    Each record is appended to a log once, even if an earlier call was interrupted.

    Args:
        folder: The log of dead letters, a directory or `s3://…`.
        to: Directory of the log to append to, created if necessary; by default the log that
            each record comes from.
        wanted: Selects letters; by default all.
        is_dry: Whether to count only.
        on_damage: Called for letters that cannot be read.
        storage_options: Options for fsspec, where the environment does not suffice.

    Returns:
        The result for each log.

    Raises:
        InvalidSetting: a log that letters come from is not local, or is not recorded.
        LogLocked: another process writes to that log, or requeues these letters.
        LogFailed: the log does not exist, or the disk or store fails.
        PublishFailed: a store accepts no notes for a minute.
    """
    folder = str(folder)
    if "://" in to:
        msg = f"{to} is not a directory; pass the directory of a log that can be written"
        raise InvalidSetting(msg)
    with ExitStack() as stack:
        letters = LogReader(folder, storage_options=storage_options)  # raises if there is none
        if to and "://" not in folder and Path(to).resolve() == Path(folder).resolve():
            msg = f"{to} is the log of these letters; pass another one with --to"
            raise InvalidSetting(msg)
        notes = _Notes(folder, storage_options)
        if not is_dry and notes.is_locked:
            stack.enter_context(notes.open())
        targets: dict[str, _Target] = {}
        readable = filter(
            None, map(DeadLetter.read, letters.read(letters.start, on_damage=on_damage))
        )
        selected = filter(wanted, readable)
        while batch := list(islice(selected, _RUN)):
            for place, part in _by_target(batch, to, folder).items():
                if place not in targets:
                    targets[place] = target = _Target(Requeued(place))
                    if not is_dry:
                        target.log = stack.enter_context(CommitLog(place, sync="none"))
                    notes.of(target)
                    _find_unwritten(target, notes)
                _append_records(targets[place], part, notes)
        for target in targets.values():
            if target.log is not None:
                notes.write("/ended", [{"to": target.result.to}])
    return [target.result for target in targets.values()]


def _by_target(letters: Iterable[DeadLetter], to: str, own: str) -> dict[str, list[DeadLetter]]:
    """Group letters by the log that receives them; it is never `own`, the letters' log."""
    groups: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        place = str(Path(to).resolve()) if to else letter.origin.log
        if not to and (not _is_log(place) or Path(place).resolve() == Path(own).resolve()):
            msg = (
                f"the log {place or 'of the record'} of letter {letter.offset} is not on this"
                " machine; pass a log with --to FOLDER"
            )
            raise InvalidSetting(msg)
        groups.setdefault(place, []).append(letter)
    return groups


def _is_log(place: str) -> bool:
    """Return whether a path is a log that can be written."""
    with suppress(OSError, ValueError):  # the path in a letter may be invalid
        return bool(place) and Path(place).is_dir() and any(Path(place).glob("*.log"))
    return False


def _append_records(target: _Target, letters: list[DeadLetter], notes: _Notes) -> None:
    """Append the records of letters that are new, and note them."""
    result = target.result
    result.letters += len(letters)
    fresh: dict[_Place, DeadLetter] = {}
    for letter in letters:
        if letter.place in target.done:
            result.before += 1
        elif letter.place not in target.fresh:
            fresh[letter.place] = letter
            target.fresh.add(letter.place)
    result.records += len(fresh)
    if target.log is None or not fresh:
        return
    if target.begun is None:
        notes.write("/begun", [{"to": result.to, "end": target.log.end}])
        target.begun = target.log.end
    records = list(fresh.values())
    headers = [{**e.headers, HEADER: f"{e.offset} {e.origin.log}"} for e in records]
    offsets = append_all(target.log, records, headers=headers)
    target.log.flush()
    result.first = offsets[0] if result.first is None else result.first
    result.end = offsets[-1] + 1
    _record_done(notes, target, fresh)


def _record_done(notes: _Notes, target: _Target, places: Iterable[_Place]) -> None:
    """Note which records were appended."""
    assert target.log is not None
    by_log: dict[str, list[int]] = {}
    for log, offset in places:
        by_log.setdefault(log, []).append(offset)
    rows = [
        {"to": target.result.to, "from": log, "offsets": offsets, "end": target.log.end}
        for log, offsets in by_log.items()
    ]
    notes.write("/done", rows)


def _find_unwritten(target: _Target, notes: _Notes) -> None:
    """Find appended records without a note: of a run that died, or of another host."""
    starts = [start for start in (target.begun, target.elsewhere) if start is not None]
    if not starts or not _is_log(target.result.to):
        return
    places: set[_Place] = set()
    log = target.log or LogReader(target.result.to)
    for record in log.read(min(starts), on_damage=lambda _: None):
        text, _, source = record.headers.get(HEADER, "").partition(" ")
        if (offset := offset_in(text)) is not None:
            places.add((source, offset))
    if places := places - target.done:
        if target.log is not None:
            _record_done(notes, target, places)
        target.done |= places
