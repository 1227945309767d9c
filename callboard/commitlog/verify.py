"""Verifies a whole log: every checksum, every record, every segment boundary."""

import io
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from callboard.commitlog.disk import Disk
from callboard.commitlog.errors import LogCorrupt
from callboard.commitlog.reader import LogReader
from callboard.commitlog.sealed import columns_to_arrow, intact_content, sealed_segments_in


@dataclass(slots=True)
class Report:
    """Result of verifying a log.

    Attributes:
        start: Offset of the oldest record.
        end: First offset after the newest record.
        records: Number of readable records.
        damage: Descriptions of damage, with offsets and positions. They include column files
            whose rows differ from their segment.
        lost: Number of unreadable records.
        torn_bytes: Bytes after the newest record: an incomplete batch of a writer that is
            running or was killed. The next writer cuts it off, which loses no record.
    """

    start: int = 0
    end: int = 0
    records: int = 0
    damage: list[str] = field(default_factory=list)
    lost: int = 0
    torn_bytes: int = 0


def verify(folder: str | Path | LogReader, *, disk: Disk | None = None) -> Report:
    """Read a whole log and check it, without changing it.

    Raises:
        LogFailed: the log does not exist.
    """
    log = folder if isinstance(folder, LogReader) else LogReader(folder, disk=disk)
    report = Report(start=log.start, end=log.start)

    def record_damage(error: LogCorrupt) -> None:
        report.damage.append(str(error))
        report.lost += error.next_offset - error.offset
        report.end = max(report.end, error.next_offset)

    for record in log.read(report.start, on_damage=record_damage):
        report.end = record.offset + 1
        try:
            record.payload  # noqa: B018  (decodes it)
            report.records += 1
        except LogCorrupt as error:
            record_damage(error)
    if not report.damage:
        last = log.segments[-1]
        report.torn_bytes = log.size_of(last) - last.bytes
    report.damage += _wrong_columns(log)
    return report


def _wrong_columns(log: LogReader) -> list[str]:
    """Describe the column files that differ from their segments; none without pyarrow."""
    segments = sealed_segments_in(log.place)
    sealed = [segment for segment in segments if segment.columns is not None]
    if not sealed or find_spec("pyarrow") is None:
        return []
    place, wrong = log.place, []
    for segment in sealed:
        assert segment.columns is not None
        content = place.read(segment.columns)
        with suppress(LogCorrupt):  # the segment is damaged, which is reported already
            rows = log.to_arrow(segment.base, segment.end)
            try:
                is_same = intact_content(segment.base, content) is not None
                is_same = is_same and columns_to_arrow(io.BytesIO(content)).equals(rows)
            except (OSError, ValueError, KeyError):  # raised by pyarrow for damaged files
                is_same = False
            if not is_same:
                wrong.append(
                    f"{segment.columns} is damaged: it does not hold the records {segment.base}"
                    f" to {segment.end - 1}; remove it, and write it again with: log columns"
                )
    return wrong
