"""What happens to a log that was not closed.

Only the last segment can be torn; earlier ones were synced before the next one was made. In
the last one, all up to the mark was durable. Behind it, the first batch that is not intact
ends the log: the torn tail is cut off, and nothing else. What stays behind the mark is copied
to a new file and synced: the system may have given up writing it after an error, and never
says so again.

Bytes before the mark that are not intact were damaged later, and bytes that the disk cannot
read may have been confirmed. Nothing is cut then: the segment stays as it is, reading it there
raises `LogCorrupt`, and the log goes on in a new segment.
"""

from contextlib import closing

from callboard.commitlog.disk import is_readable
from callboard.commitlog.folder import CUT, TEMPORARY, Folder, Mark, copy_bytes, read_mark
from callboard.commitlog.integrity import Scan, find_intact
from callboard.commitlog.segment import SegmentIndex
from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LogRecovery:
    """What was found when a log was opened to write.

    Attributes:
        cut_bytes: Length of the torn tail that was cut off.
        kept_in: The file that has these bytes, if there were whole batches among them; or "".
        damaged: Whether durable bytes of the last segment are damaged, or all of it is gone.
        end: Where the log goes on.
    """

    cut_bytes: int = 0
    kept_in: str = ""
    damaged: bool = False
    end: int = 0


def recover(folder: Folder, base: int) -> tuple[SegmentIndex, LogRecovery]:
    """Bring the last segment in order; returns its index, and what was found.

    Raises:
        OSError: the disk refuses; nothing was lost.
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
        is_readable_behind = is_readable(file, size - index.size, index.size)
        # Or the last segment is gone. What cannot be read was perhaps confirmed.
        if index.size < mark.size or furthest.base > base or not is_readable_behind:
            file.fsync()
            end = _end_behind_damage(scan, size, max(mark, furthest))
            return index, LogRecovery(damaged=True, end=end)
        recovery = _keep_what_is_whole(folder, scan, size)
        if index.size == mark.size < size:
            file.truncate(mark.size)
            file.fsync()
    if index.size > mark.size:
        folder.rewrite(path, index.size)
    return index, recovery


def _end_behind_damage(scan: Scan, size: int, mark: Mark) -> int:
    """Return the offset behind all that is there or was durable."""
    end = max(mark.end, scan.offset or 0)
    while scan.position < size:
        found = find_intact(scan.file, scan.position + 1, scan.offset or 0)
        if found is None:
            break
        end = max(end, found.end)
        scan = Scan(scan.file, found.position, found.base)
        while batch := scan.next():
            end = max(end, batch.end)
    return end


def _keep_what_is_whole(folder: Folder, scan: Scan, size: int) -> LogRecovery:
    """Copy the tail that will be cut off beside the log if it has whole batches."""
    position = scan.position
    end, kept_in = scan.offset or 0, ""
    if position < size and find_intact(scan.file, position, end):
        kept_in = folder.segment(end, f".{position}{CUT}")
        with closing(folder.disk.open(kept_in, append=True)) as kept:
            copy_bytes(scan.file, kept, position, size)
    return LogRecovery(cut_bytes=size - position, kept_in=kept_in, end=end)
