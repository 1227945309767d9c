"""Exports a log to a target, each record once.

The position of the export is stored in the target, in one transaction with the rows. So an
exporter may be killed at any time: the next one continues where the target says. The position
belongs to one log; another log, or the same one made anew, is refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from callboard.commitlog.errors import InvalidOption
from callboard.commitlog.export.rows import ExportProgress, ExportTarget, RowOptions, rows_of
from callboard.commitlog.identity.position import Position
from callboard.commitlog.reader import LogReader

#: Formats of targets.
FORMATS: Final = ("parquet", "delta", "postgresql")
#: Records that are written at once.
ROWS: Final = 100_000


class Exported(NamedTuple):
    """A written part of a log: its first offset, and the one after its last record."""

    start: int
    end: int


def open_target(format_: str, target: str, log: LogReader, options: RowOptions) -> ExportTarget:
    """Return a target.

    Args:
        format_: One of `FORMATS`.
        target: A directory, the address of a Delta table, or `postgresql://…/DATABASE#TABLE`.
        log: The log; its name is the default name of a table.
        options: Options of the rows.

    Raises:
        InvalidOption: the format or the address is malformed.
        ExtraMissing: a package is not installed.
    """
    name = Path(log.folder).name
    if format_ == "parquet":
        from callboard.commitlog.export.parquet import ParquetTarget

        return ParquetTarget(Path(target), log_id(log), options)
    if format_ == "delta":
        from callboard.commitlog.export.delta import DeltaTarget

        return DeltaTarget(target, log_id(log), options)
    if format_ == "postgresql":
        from callboard.commitlog.export.postgresql import PostgresqlTarget

        return PostgresqlTarget(target, name, log_id(log), options)
    msg = f"format={format_!r}: use one of {', '.join(FORMATS)}"
    raise InvalidOption(msg)


def log_id(log: LogReader) -> str:
    """Return the id of a log, or its address if callboard 0.1 wrote it."""
    return log.identity.log or str(log.folder)


def export(
    log: LogReader,
    target: ExportTarget,
    options: RowOptions = RowOptions(),  # noqa: B008  # never changed
    *,
    start: int | None = None,
    rows: int = ROWS,
) -> Iterator[Exported]:
    """Write the records that a target does not have, up to the end of the log.

    Args:
        log: The log.
        target: The target.
        options: Options of the rows.
        start: Skip the records before this offset.
        rows: Records that are written at once.

    Raises:
        LogCorrupt: records are damaged.
        LogFailed: records were removed before they were exported, or the target failed.
        PositionRefused: the target has records that are not in the log.
    """
    progress = target.open()
    if progress is None:
        progress = ExportProgress(0 if start is None else start, [])
    elif identity := log.identity.log:
        target_position = Position(identity, progress.epoch, progress.offset)
        log.resume(target_position, name="the export", way="another target; this log is {}")
    offset, end = max(progress.offset, start or 0), log.end
    fields = progress.fields
    while offset < end:
        stop = target.planned_end(offset) or min(end, offset + rows)
        table, fields = rows_of(log, offset, stop, fields, options)
        target.write(table, offset, ExportProgress(stop, fields, log.position(stop).epoch))
        yield Exported(offset, stop)
        offset = stop
