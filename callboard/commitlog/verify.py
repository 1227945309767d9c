"""Checking a whole log: every checksum, every record, every border between segments."""

import io
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from callboard.commitlog.disk import Disk
from callboard.commitlog.errors import LogCorrupt
from callboard.commitlog.reader import LogReader
from callboard.commitlog.sealed import columns_to_arrow, sealed_segments_in


@dataclass(slots=True)
class Report:
    """What was found in a log.

    Attributes:
        start: The oldest offset that is kept. end: The offset behind the newest record.
        records: How many can be read.
        damage: What cannot be read, in words, with offsets and places; also files of columns
            that have other rows than their segment.
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


def verify(folder: str | Path | LogReader, *, disk: Disk | None = None) -> Report:
    """Read all of a log, in a folder or open to read, and check it; changes nothing.

    Raises:
        LogFailed: there is no log.
    """
    log = folder if isinstance(folder, LogReader) else LogReader(folder, disk=disk)
    report = Report(start=log.start, end=log.start)

    def tell(error: LogCorrupt) -> None:
        report.damage.append(str(error))
        report.lost += error.next_offset - error.offset
        report.end = max(report.end, error.next_offset)

    for record in log.read(report.start, on_damage=tell):
        report.end = record.offset + 1
        try:
            record.payload  # noqa: B018  (decodes it)
            report.records += 1
        except LogCorrupt as error:
            tell(error)
    if not report.damage:
        last = log.segments[-1]
        report.torn_bytes = log.size_of(last) - last.bytes
    report.damage += _wrong_columns(log)
    return report


def _wrong_columns(log: LogReader) -> list[str]:
    """Compare files of columns with their segments, where pyarrow is installed."""
    kept = [each for each in sealed_segments_in(log.place) if each.columns is not None]
    if not kept or find_spec("pyarrow") is None:
        return []
    place, wrong = log.place, []
    for each in kept:
        assert each.columns is not None
        content = io.BytesIO(place.read(each.columns))
        with suppress(LogCorrupt):  # the segment is damaged, which was told before
            rows = log.to_arrow(each.base, each.end)
            try:
                is_same = columns_to_arrow(content).equals(rows)
            except (OSError, ValueError, KeyError):  # what pyarrow raises for damaged files
                is_same = False
            if not is_same:
                wrong.append(
                    f"{each.columns} is damaged: it has not the records {each.base} to"
                    f" {each.end - 1}; remove it, and write it again with: log columns"
                )
    return wrong
