"""The work of `callboard log archive`: one copier, once or until a signal comes."""

from pathlib import Path
from typing import Final

from callboard.cli.options import JsonOptions
from callboard.cli.output import say
from callboard.cli.own_node import catch_signals
from callboard.cli.problem import Misuse, one_line
from callboard.commitlog import Archive, LogFailed, LogReader, Retention
from callboard.commitlog.objects.archive import Copier, lock_copying
from callboard.commitlog.reader import open_folder
from callboard.support.redaction import redacted

#: Seconds between looks for segments that were sealed, and the most after trouble.
_PAUSE: Final = 1.0
_LONGEST: Final = 60.0


def archive_log(
    folder: Path, place: str, retain: str, options: JsonOptions, *, follows: bool
) -> None:
    """Copy what is sealed to a place.

    Args:
        folder: of the log.
        place: the address of its archive.
        retain: how long copies are kept, as `Retention.parse` reads it; empty is for ever.
        options: of the command.
        follows: whether to go on until a signal comes.

    Raises:
        Misuse: the limits are none.
        LogFailed: there is no log, or the store refuses.
        LogLocked: somebody else archives it, or the place has another log.
    """
    try:
        limits = Retention.parse(retain) if retain else None
    except ValueError:
        why = f"--retain {retain!r} has no limits"
        raise Misuse(why=why, step="give for instance bytes=1000000000,seconds=86400") from None
    objects, own = Archive(place).objects(), open_folder(folder)
    LogReader(folder)  # or say that there is no log
    copier, pause = Copier(own, objects, limits), _PAUSE
    lock = lock_copying(own)
    try:
        with catch_signals() as stop:
            while not stop.is_set():
                try:
                    for each in copier.copy():
                        row = {**each._asdict(), "object": f"{objects.url}/{each.object}"}
                        what = f"records {each.base} to {each.end}: {row['object']}"
                        options.say(row, f"{what}, {each.bytes:,} bytes")
                        if stop.is_set():
                            break
                    pause = _PAUSE
                except LogFailed as error:
                    copier.tell_trouble(error)
                    if not follows:
                        raise
                    say(one_line(f"{error} (tried again)"), err=True)
                    pause = min(2 * pause, _LONGEST)
                if not follows:
                    break
                stop.wait(pause)
    finally:
        if lock is not None:
            lock.release()
    if not options.as_json:
        say(f"records up to {copier.end} are at {redacted(objects.url)}")
