"""Implementation of `callboard log archive`: copy once, or until a signal."""

from pathlib import Path
from typing import Final

from callboard.backoff import Backoff, retrying
from callboard.cli.cli_error import UsageError, one_line
from callboard.cli.options import JsonOptions
from callboard.cli.output import say
from callboard.cli.own_node import catch_signals
from callboard.commitlog import Archive, LogFailed, LogReader, Retention
from callboard.commitlog.objects.archive import Copier, lock_copying
from callboard.commitlog.reader import open_folder
from callboard.support.redaction import redacted

#: Seconds between checks for sealed segments, and the longest pause after errors.
_PAUSE: Final = 1.0
_LONGEST: Final = 60.0


def archive_log(
    folder: Path, place: str, retain: str, options: JsonOptions, *, follows: bool
) -> None:
    """Copy the sealed segments to an archive.

    Args:
        folder: the folder of the log.
        place: address of the archive.
        retain: how long copies are kept, for `Retention.parse`; empty for ever.
        options: the options of the command.
        follows: whether to continue until a signal.

    Raises:
        UsageError: the limits are invalid.
        LogFailed: there is no log, or the store fails.
        LogLocked: another process archives it, or the place holds another log.
    """
    try:
        limits = Retention.parse(retain) if retain else None
    except ValueError:
        reason = f"--retain {retain!r} has no valid limits"
        step = "use a value like bytes=1000000000,seconds=86400"
        raise UsageError(why=reason, step=step) from None
    objects, own = Archive(place).objects(), open_folder(folder)
    LogReader(folder)  # raises if there is no log
    copier, backoff = Copier(own, objects, limits), Backoff(_PAUSE, _LONGEST)
    lock = lock_copying(own)
    try:
        with catch_signals() as stop:
            for _ in retrying(backoff, stop=stop):
                try:
                    for copy in copier.copy():
                        row = {**copy._asdict(), "object": f"{objects.url}/{copy.object}"}
                        text = f"records {copy.base} to {copy.end}: {row['object']}"
                        options.say(row, f"{text}, {copy.bytes:,} bytes")
                        if stop.is_set():
                            break
                    backoff.reset()
                except LogFailed as error:
                    copier.report_failure(error)
                    if not follows:
                        raise
                    say(one_line(f"{error} (trying again)"), err=True)
                if not follows:
                    break
    finally:
        if lock is not None:
            lock.release()
    if not options.as_json:
        say(f"records up to {copier.end} are at {redacted(objects.url)}")
