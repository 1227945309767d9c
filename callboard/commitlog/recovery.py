"""Recovers a log that was not closed.

Only the last segment can have a torn tail, because each earlier one was synced before the next
one was created. In the last segment, the bytes before the mark were durable. After the mark,
the log ends at the first batch that is not intact, and only the torn tail is cut off. If intact
batches follow the mark, the segment is copied to a new file, which is synced. Syncing the old
file would not do: after a failed write the system may have dropped the data, and it reports
that only once.

Damage before the mark happened after the bytes were durable, and bytes that the disk cannot
read may have been acknowledged. In both cases nothing is cut. The segment stays unchanged,
reading the damaged part raises `LogCorrupt`, and the log continues in a new segment.
"""

from contextlib import closing

from callboard.commitlog.disk import is_readable
from callboard.commitlog.folder import CUT, TEMPORARY, Folder, Mark, copy_bytes, read_mark
from callboard.commitlog.integrity import Scan, find_intact
from callboard.commitlog.segment import SegmentIndex
from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LogRecovery:
    """Result of the recovery when a log was opened for writing.

    Attributes:
        cut_bytes: Length of the torn tail that was cut off.
        kept_in: File with a copy of the tail if it held intact batches; else "".
        damaged: Whether durable bytes of the last segment are damaged, or it is missing.
        end: The offset of the next record.
    """

    cut_bytes: int = 0
    kept_in: str = ""
    damaged: bool = False
    end: int = 0


def recover(folder: Folder, base: int) -> tuple[SegmentIndex, LogRecovery]:
    """Recover the last segment; return its index and the result.

    Raises:
        OSError: the disk failed; nothing was lost.
    """
    for name in folder.disk.listdir(folder.path):
        if name.endswith(TEMPORARY):
            folder.remove(folder.file(name))
    path, mark, furthest = folder.segment(base), read_mark(folder, base), read_mark(folder)
    index = SegmentIndex(base)
    with closing(folder.disk.open(path, append=True)) as file:
        scan = Scan(file, 0, base)
        while batch := scan.next():
            index.add(batch)
        size = file.size()
        is_tail_readable = is_readable(file, size - index.size, index.size)
        # A mark beyond the segment means that the last segment is missing. A tail that cannot
        # be read may have been acknowledged.
        if index.size < mark.size or furthest.base > base or not is_tail_readable:
            file.fsync()
            end = _end_after_damage(scan, size, max(mark, furthest))
            return index, LogRecovery(damaged=True, end=end)
        recovery = _keep_intact_batches(folder, scan, size)
        if index.size == mark.size < size:
            file.truncate(mark.size)
            file.fsync()
    if index.size > mark.size:
        folder.rewrite(path, index.size)
    return index, recovery


def _end_after_damage(scan: Scan, size: int, mark: Mark) -> int:
    """Return the first offset after all records that are present or were durable."""
    end = max(mark.end, scan.offset or 0)
    while scan.position < size:
        intact = find_intact(scan.file, scan.position + 1, scan.offset or 0)
        if intact is None:
            break
        end = max(end, intact.end)
        scan = Scan(scan.file, intact.position, intact.base)
        while batch := scan.next():
            end = max(end, batch.end)
    return end


def _keep_intact_batches(folder: Folder, scan: Scan, size: int) -> LogRecovery:
    """Copy the tail to a file beside the log before it is cut, if it has intact batches."""
    position = scan.position
    end, kept_in = scan.offset or 0, ""
    if position < size and find_intact(scan.file, position, end):
        kept_in = folder.segment(end, f".{position}{CUT}")
        with closing(folder.disk.open(kept_in, append=True)) as copy:
            copy_bytes(scan.file, copy, position, size)
    return LogRecovery(cut_bytes=size - position, kept_in=kept_in, end=end)
