"""Checking a whole log: every checksum, every record, every border between segments."""

from dataclasses import dataclass, field
from pathlib import Path

from callboard.commitlog.disk import Disk
from callboard.commitlog.errors import LogCorrupt
from callboard.commitlog.reader import LogReader


@dataclass(slots=True)
class Report:
    """What was found in a log.

    Attributes:
        start: The oldest offset that is kept. end: The offset behind the newest record.
        records: How many can be read.
        damage: What cannot be read, in words, with offsets and places.
        lost: How many records that is.
        torn_bytes: What follows the newest record: half a batch, of a writer that is at work
            or was killed. The next writer cuts it off; no record is lost with it.
    """

    start: int = 0
    end: int = 0
    records: int = 0
    damage: list[str] = field(default_factory=list)
    lost: int = 0
    torn_bytes: int = 0


def verify(folder: str | Path, *, disk: Disk | None = None) -> Report:
    """Read all of a log and check it; changes nothing.

    Raises:
        LogFailed: there is no log.
    """
    log = LogReader(folder, disk=disk)
    report = Report(start=log.start)
    offset = report.start
    while True:
        try:
            for record in log.read(offset):
                record.payload  # noqa: B018  (decodes it)
                offset = record.offset + 1
                report.records += 1
            break
        except LogCorrupt as error:
            report.damage.append(str(error))
            report.lost += error.next_offset - error.offset
            offset = error.next_offset
    report.end = offset
    if not report.damage:
        last = log.segments[-1]
        report.torn_bytes = log.size_of(last) - last.bytes
    return report
