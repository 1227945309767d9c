"""Dead letters go back: each record once into each log, whatever ends the command.

What went where is written down in a log of its own, `requeued` in the folder of the letters:

    /begun   {"to": log, "end": its end before anything is appended}
    /done    {"to": log, "from": log of the record, "offsets": […], "end": its end behind them}
    /ended   {"to": log}

Each appended record has the header `requeued`, `OFFSET LOG` of the record that failed. If a run
dies between an append and its note, the next one looks for these headers behind the end that
was written down last, and goes on behind what it finds. While the log of notes is open nobody
else can requeue these letters.

The unit is the record, not the letter: a record that failed in two queries comes back once into
their log, where both read it.
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

#: The header that tells which record was requeued.
HEADER: Final = "requeued"

#: The folder of the notes, in that of the letters.
NOTES: Final = "requeued"

#: Letters that are appended, made durable and written down at once.
_RUN: Final = 1000

_Place = tuple[str, int]


@dataclass(slots=True)
class Requeued:
    """What became of the letters for one log.

    Attributes:
        to: The log.
        letters: Letters that were chosen.
        records: Records that were appended for them, or would be.
        before: Letters whose records an earlier run has appended.
        first: The offset of the first record that was appended; None if none was.
        end: The offset behind the last one.
    """

    to: str
    letters: int = 0
    records: int = 0
    before: int = 0
    first: int | None = None
    end: int | None = None


class _Notes:
    """What went where, in the folder of the letters or beside them on a store."""

    def __init__(self, folder: str, storage_options: Mapping[str, Any] | None) -> None:
        self._own: dict[str, str] = {}
        self._log: CommitLog | None = None
        self._path = f"{folder.rstrip('/')}/{NOTES}"
        self._journal = None
        if "://" in folder:
            self._own = {"host": socket.gethostname()}
            self._journal = journal_at(self._path, storage_options, kind=NOTED)

    def open(self) -> CommitLog:
        """Open them to write, in a folder."""
        self._log = CommitLog(self._path, sync="none")
        return self._log

    @property
    def is_locked(self) -> bool:
        """Whether nobody else writes them while they are open."""
        return self._journal is None

    def write(self, topic: str, notes: list[dict[str, Any]]) -> None:
        """Add some; durable on return."""
        rows = [note | self._own for note in notes]
        if self._journal is not None:
            self._journal.append(lambda made: made.append_batch(rows, topic=topic))
        elif self._log is not None:
            self._log.append_batch(rows, topic=topic)
            self._log.flush()

    def of(self, target: "_Target") -> None:
        """Take up what earlier runs have done for a log."""
        log = self._journal.reader if self._journal else None
        if self._journal is None and _is_log(self._path):
            log = LogReader(self._path)
        for record in log or ():
            told = record.payload
            if told["to"] == target.told.to:
                is_own = told.get("host") == self._own.get("host")
                target.take_up(told, is_own=is_own)


@dataclass(slots=True)
class _Target:
    """A log that records go back into.

    Attributes:
        elsewhere: The first end that another host noted of a log under this path.
    """

    told: Requeued
    done: set[_Place] = field(default_factory=set)
    fresh: set[_Place] = field(default_factory=set)
    begun: int | None = None
    elsewhere: int | None = None
    log: CommitLog | None = None

    def take_up(self, told: Mapping[str, Any], *, is_own: bool) -> None:
        """Take up a note."""
        if is_own:
            self.begun = told.get("end")
            self.done.update((told["from"], offset) for offset in told.get("offsets", ()))
        elif self.elsewhere is None:
            self.elsewhere = told.get("end")


def requeue(
    folder: str | Path,
    *,
    to: str = "",
    wanted: Callable[[DeadLetter], bool] = lambda _: True,
    is_dry: bool = False,
    on_damage: Callable[[LogCorrupt], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Requeued]:
    """Append the records of dead letters to the logs that they come from, or to another one.

    Each record goes into a log once, also when this died in the middle and is called again.

    Args:
        folder: The log of dead letters, a directory or `s3://…`.
        to: The directory of the log that takes them, made if needed; by default that of each.
        wanted: Which letters; all by default.
        is_dry: Whether only to count.
        on_damage: Told of letters that cannot be read.
        storage_options: Of a store, what fsspec needs where the environment does not say.

    Returns:
        What became of them, for each log.

    Raises:
        InvalidSetting: a log that letters come from is not here, or they tell none.
        LogLocked: somebody else writes that log, or requeues these letters.
        LogFailed: there is no such log, or the disk or store refuses.
        PublishFailed: a store refuses to take notes for a minute.
    """
    folder = str(folder)
    if "://" in to:
        what = f"{to} is no directory; give that of a log, which this process can write"
        raise InvalidSetting(what)
    with ExitStack() as stack:
        letters = LogReader(
            folder, storage_options=storage_options
        )  # or say that there is none
        if to and "://" not in folder and Path(to).resolve() == Path(folder).resolve():
            what = f"{to} is the log of these letters; name another one with --to"
            raise InvalidSetting(what)
        notes = _Notes(folder, storage_options)
        if not is_dry and notes.is_locked:
            stack.enter_context(notes.open())
        targets: dict[str, _Target] = {}
        found = filter(
            None, map(DeadLetter.read, letters.read(letters.start, on_damage=on_damage))
        )
        chosen = filter(wanted, found)
        while run := list(islice(chosen, _RUN)):
            for place, part in _by_target(run, to, folder).items():
                if place not in targets:
                    targets[place] = target = _Target(Requeued(place))
                    if not is_dry:
                        target.log = stack.enter_context(CommitLog(place, sync="none"))
                    notes.of(target)
                    _find_unwritten(target, notes)
                _put_back(targets[place], part, notes)
        for target in targets.values():
            if target.log is not None:
                notes.write("/ended", [{"to": target.told.to}])
    return [each.told for each in targets.values()]


def _by_target(letters: Iterable[DeadLetter], to: str, own: str) -> dict[str, list[DeadLetter]]:
    """Sort letters by the log that takes them; `own` is theirs, which never does."""
    found: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        place = str(Path(to).resolve()) if to else letter.origin.log
        if not to and (not _is_log(place) or Path(place).resolve() == Path(own).resolve()):
            what = (
                f"the log {place or 'of the record'} of letter {letter.offset} is not here;"
                " name the one that takes it with --to FOLDER"
            )
            raise InvalidSetting(what)
        found.setdefault(place, []).append(letter)
    return found


def _is_log(place: str) -> bool:
    """Return whether there is a log that can be written here."""
    with suppress(OSError, ValueError):  # a letter may tell what no path is
        return bool(place) and Path(place).is_dir() and any(Path(place).glob("*.log"))
    return False


def _put_back(target: _Target, letters: list[DeadLetter], notes: _Notes) -> None:
    """Append the records of letters that are not there, and write down which these are."""
    told = target.told
    told.letters += len(letters)
    fresh: dict[_Place, DeadLetter] = {}
    for letter in letters:
        if letter.place in target.done:
            told.before += 1
        elif letter.place not in target.fresh:
            fresh[letter.place] = letter
            target.fresh.add(letter.place)
    told.records += len(fresh)
    if target.log is None or not fresh:
        return
    if target.begun is None:
        notes.write("/begun", [{"to": told.to, "end": target.log.end}])
        target.begun = target.log.end
    run = list(fresh.values())
    headers = [{**e.headers, HEADER: f"{e.offset} {e.origin.log}"} for e in run]
    offsets = append_all(target.log, run, headers=headers)
    target.log.flush()
    told.first = offsets[0] if told.first is None else told.first
    told.end = offsets[-1] + 1
    _write_down(notes, target, fresh)


def _write_down(notes: _Notes, target: _Target, places: Iterable[_Place]) -> None:
    """Note which records were appended."""
    assert target.log is not None
    by_log: dict[str, list[int]] = {}
    for log, offset in places:
        by_log.setdefault(log, []).append(offset)
    rows = [
        {"to": target.told.to, "from": log, "offsets": offsets, "end": target.log.end}
        for log, offsets in by_log.items()
    ]
    notes.write("/done", rows)


def _find_unwritten(target: _Target, notes: _Notes) -> None:
    """Find what the log has that is not written down: of a run that died, or another host."""
    begins = [each for each in (target.begun, target.elsewhere) if each is not None]
    if not begins or not _is_log(target.told.to):
        return
    found: set[_Place] = set()
    log = target.log or LogReader(target.told.to)
    for record in log.read(min(begins), on_damage=lambda _: None):
        text, _, source = record.headers.get(HEADER, "").partition(" ")
        if (offset := offset_in(text)) is not None:
            found.add((source, offset))
    if found := found - target.done:
        if target.log is not None:
            _write_down(notes, target, found)
        target.done |= found
