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

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from callboard.commitlog import CommitLog, LogCorrupt, LogReader
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.spark.dead_letters import DeadLetter, append_all

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


@dataclass(slots=True)
class _Target:
    """A log that records go back into."""

    told: Requeued
    done: set[_Place] = field(default_factory=set)
    fresh: set[_Place] = field(default_factory=set)
    begun: int | None = None
    log: CommitLog | None = None


def requeue(
    folder: str | Path,
    *,
    to: str = "",
    wanted: Callable[[DeadLetter], bool] = lambda _: True,
    is_dry: bool = False,
    on_damage: Callable[[LogCorrupt], None] | None = None,
) -> list[Requeued]:
    """Append the records of dead letters to the logs that they come from, or to another one.

    Each record goes into a log once, also when this died in the middle and is called again.

    Args:
        folder: The log of dead letters.
        to: The log that takes them, made if needed; by default the one of each.
        wanted: Which letters; all by default.
        is_dry: Whether only to count.
        on_damage: Told of letters that cannot be read.

    Returns:
        What became of them, for each log.

    Raises:
        InvalidSetting: a log that letters come from is not here, or they tell none.
        LogLocked: somebody else writes that log, or requeues these letters.
        LogFailed: there is no such log, or the disk refuses.
    """
    with ExitStack() as stack:
        letters = LogReader(folder)  # or say that there is none
        if to and Path(to).resolve() == Path(folder).resolve():
            what = f"{to} is the log of these letters; name another one with --to"
            raise InvalidSetting(what)
        notes = Path(folder) / NOTES
        kept = None if is_dry else stack.enter_context(CommitLog(notes, sync="none"))
        targets = _read_notes(notes)
        found = filter(
            None, map(DeadLetter.read, letters.read(letters.start, on_damage=on_damage))
        )
        chosen = filter(wanted, found)
        while run := list(islice(chosen, _RUN)):
            for place, part in _by_target(run, to).items():
                target = targets.setdefault(place, _Target(Requeued(place)))
                if kept is not None and target.log is None:
                    target.log = stack.enter_context(CommitLog(place, sync="none"))
                    _find_unwritten(target, kept)
                _put_back(target, part, kept)
        for target in targets.values():
            if kept is not None and target.log is not None:
                kept.append("/ended", {"to": target.told.to})
    return [each.told for each in targets.values() if each.told.letters]


def _by_target(letters: Iterable[DeadLetter], to: str) -> dict[str, list[DeadLetter]]:
    """Sort letters by the log that takes them."""
    found: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        place = str(Path(to).resolve()) if to else letter.origin.log
        if not place or (not to and not _is_log(place)):
            what = (
                f"the log {place or 'of the record'} of letter {letter.offset} is not here;"
                " name the one that takes it with --to FOLDER"
            )
            raise InvalidSetting(what)
        found.setdefault(place, []).append(letter)
    return found


def _is_log(place: str) -> bool:
    """Return whether there is a log that can be written here."""
    return Path(place).is_dir() and any(Path(place).glob("*.log"))


def _put_back(target: _Target, letters: list[DeadLetter], kept: CommitLog | None) -> None:
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
    if kept is None or not fresh:
        return
    assert target.log is not None
    if target.begun is None:
        kept.append("/begun", {"to": told.to, "end": target.log.end})
        kept.flush()
        target.begun = target.log.end
    run = list(fresh.values())
    headers = [{**e.headers, HEADER: f"{e.offset} {e.origin.log}"} for e in run]
    offsets = append_all(target.log, run, headers=headers)
    target.log.flush()
    told.first = offsets[0] if told.first is None else told.first
    told.end = offsets[-1] + 1
    _write_down(kept, target, fresh)


def _write_down(kept: CommitLog, target: _Target, places: Iterable[_Place]) -> None:
    """Note which records were appended."""
    assert target.log is not None
    by_log: dict[str, list[int]] = {}
    for log, offset in places:
        by_log.setdefault(log, []).append(offset)
    notes = [
        {"to": target.told.to, "from": log, "offsets": offsets, "end": target.log.end}
        for log, offsets in by_log.items()
    ]
    kept.append_batch(notes, topic="/done")
    kept.flush()


def _read_notes(notes: Path) -> dict[str, _Target]:
    """Return what earlier runs have done."""
    targets: dict[str, _Target] = {}
    for record in LogReader(notes) if _is_log(str(notes)) else ():
        told = record.payload
        target = targets.setdefault(told["to"], _Target(Requeued(told["to"])))
        target.begun = told.get("end")
        target.done.update((told["from"], offset) for offset in told.get("offsets", ()))
    return targets


def _find_unwritten(target: _Target, kept: CommitLog) -> None:
    """Find what a run that died has appended and not written down, and do that."""
    if target.begun is None or target.log is None:
        return
    found: set[_Place] = set()
    for record in target.log.read(target.begun, on_damage=lambda _: None):
        offset, _, log = record.headers.get(HEADER, "").partition(" ")
        if offset.isdecimal():
            found.add((log, int(offset)))
    if found := found - target.done:
        _write_down(kept, target, found)
        target.done |= found
