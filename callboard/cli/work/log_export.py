"""Implementation of `callboard log export`."""

from collections.abc import Iterator
from contextlib import closing

from callboard.commitlog import LogReader
from callboard.commitlog.arrow import load_numpy, load_pyarrow


def run_export(
    log: LogReader, target: str, kind: str, *, partition: str, value: bool, start: int | None
) -> Iterator[tuple[int, int]]:
    """Export a log; yield the first offset of each written part, and the one after its last.

    Args:
        log: The log.
        target: The target, as `open_target` describes it.
        kind: The format of the target.
        partition: "day", or empty.
        value: Whether there is a column with the payload as JSON.
        start: Skip the records before this offset.

    Raises:
        ExtraMissing: a package is not installed.
        LogError: the export failed.
    """
    load_pyarrow()
    load_numpy()
    from callboard.commitlog.export.exporting import export, open_target
    from callboard.commitlog.export.rows import RowOptions

    options = RowOptions(partition, value)
    with closing(open_target(kind, target, log, options)) as place:
        yield from export(log, place, options, start=start)
