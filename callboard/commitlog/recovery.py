"""What is durable, and what happens to a log that was not closed.

A mark notes what is durable; one is written after each sync. A mark is true for ever, so marks
are not synced themselves; an older one promises less. Each has 28 bytes: base of the segment,
durable bytes, end offset (8 each), CRC-32 of these.

Only the last segment can be torn; earlier ones were synced before the next one was made. In
the last one, all up to the mark was durable. Behind it, the first batch that is not intact
ends the log: the torn tail is cut off, and nothing else. What stays behind the mark is copied
to a new file and synced: the system may have given up writing it after an error, and never
says so again.

Bytes before the mark that are not intact were damaged later. Nothing is cut then: the segment
stays as it is, reading it there raises `LogCorrupt`, and the log goes on in a new segment.
"""

import struct
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple
from zlib import crc32

from callboard.commitlog.disk import DiskFile
from callboard.commitlog.folder import CUT, MARKS, TEMPORARY, Folder, write_all
from callboard.commitlog.integrity import Scan, find_intact
from callboard.commitlog.segment import SegmentIndex

_MARK: Final = struct.Struct("<QQQI")
_FACTS: Final = struct.Struct("<QQQ")
_MAX_FILE: Final = 4096


class Mark(NamedTuple):
    """A segment, how many bytes of it are durable, and the offset behind these."""

    base: int
    size: int
    end: int


class Marks:
    """The file of marks, open to write."""

    def __init__(self, folder: Folder) -> None:
        """Open the file."""
        self._file: DiskFile = folder.disk.open(folder.file(MARKS), append=True)
        self._size = self._file.size()
        self.last: Mark | None = None

    def add(self, mark: Mark) -> None:
        """Note what is durable."""
        if self._size + _MARK.size > _MAX_FILE or self._size % _MARK.size:
            self._file.truncate(0)
            self._size = 0
        facts = _FACTS.pack(*mark)
        write_all(self._file, facts + struct.pack("<I", crc32(facts)))
        self._size += _MARK.size
        self.last = mark

    def close(self) -> None:
        """Make the marks durable, and close the file."""
        with closing(self._file):
            self._file.fsync()


def read_mark(folder: Folder, base: int) -> Mark:
    """Return the furthest mark in a segment; one at its begin if there is none."""
    data = folder.read(folder.file(MARKS))
    best = Mark(base, 0, base)
    for at in range(0, len(data) - _MARK.size + 1, _MARK.size):
        *facts, checksum = _MARK.unpack_from(data, at)
        if checksum == crc32(data[at : at + _FACTS.size]) and facts[0] == base:
            best = max(best, Mark(*facts))
    return best


@dataclass(frozen=True, slots=True)
class LogRecovery:
    """What was found when a log was opened to write.

    Attributes:
        cut_bytes: Length of the torn tail that was cut off.
        kept_in: The file that has these bytes, if there were whole batches among them; or "".
        damaged: Whether durable bytes of the last segment are damaged.
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
    path, mark = folder.segment(base), read_mark(folder, base)
    index = SegmentIndex(base)
    with closing(folder.disk.open(path, append=True)) as file:
        scan = Scan(file, 0, base)
        while batch := scan.next():
            index.add(batch)
        size = file.size()
        if index.size < mark.size:
            file.fsync()
            end = _end_behind_damage(scan, size, mark)
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
        folder.write(kept_in, scan.file.pread(size - position, position))
    return LogRecovery(cut_bytes=size - position, kept_in=kept_in, end=end)
