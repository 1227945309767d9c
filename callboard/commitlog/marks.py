"""Marks: notes of what is durable, so that damage is told from a torn tail.

One is written after each sync. After a crash, bytes behind the last mark may be torn: they are
cut off. Bytes before it were durable: if they are not intact, they were damaged, and nothing is
cut. A mark is true for ever, so marks are not synced themselves; an older one promises less.

Each has 28 bytes: base of the segment, durable bytes, end offset (8 each), CRC-32 of these.
"""

import struct
from typing import Final, NamedTuple
from zlib import crc32

from callboard.commitlog.disk import DiskFile
from callboard.commitlog.folder import MARKS, Folder, write_all

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
        try:
            self._file.fsync()
        finally:
            self._file.close()


def read_mark(folder: Folder, base: int) -> Mark:
    """Return the furthest mark in a segment; one at its begin if there is none."""
    data = folder.read(folder.file(MARKS))
    best = Mark(base, 0, base)
    for at in range(0, len(data) - _MARK.size + 1, _MARK.size):
        *facts, checksum = _MARK.unpack_from(data, at)
        if checksum == crc32(data[at : at + _FACTS.size]) and facts[0] == base:
            best = max(best, Mark(*facts))
    return best
