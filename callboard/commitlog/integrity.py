"""Scans a segment file for intact batches, even after damage."""

from typing import Final
from zlib import crc32

from callboard.commitlog.batch import HEADER_SIZE, MAGIC, Batch, decode_header
from callboard.commitlog.disk import DiskFile, read_through

_FIRST_CHUNK: Final = 32 << 10
_CHUNK: Final = 128 << 10
_PIECE: Final = 4 << 20


class Scan:
    """Reads batch after batch; ends at the first position without an intact one.

    Attributes:
        position: Position of the next batch in the file.
        offset: The offset with which that batch must start; None accepts any.
    """

    def __init__(self, file: DiskFile, position: int = 0, offset: int | None = None) -> None:
        """Start at the position of a batch."""
        self.position = position
        self.offset = offset
        self.file = file
        self._chunk = b""
        self._start = position  # position of the chunk in the file
        self._read_size = _FIRST_CHUNK

    def next(self) -> Batch | None:
        """Return the next batch; None if it is damaged, or not completely written yet."""
        if not self._has(HEADER_SIZE):
            return None
        index = self.position - self._start
        header = decode_header(self._chunk, index)
        if header is None or (self.offset is not None and header.base != self.offset):
            return None
        size = HEADER_SIZE + header.length
        if not self._has(size):
            return None
        index = self.position - self._start
        body = self._chunk[index + HEADER_SIZE : index + size]
        if crc32(body) != header.checksum:
            return None
        batch = Batch(header, body, self.position)
        self.position += size
        self.offset = batch.end
        return batch

    def _has(self, size: int) -> bool:
        """Return whether `size` bytes follow the position; read more if needed."""
        index = self.position - self._start
        if len(self._chunk) - index >= size:
            return True
        self._chunk = self._chunk[index:]
        self._start = self.position
        missing = max(size - len(self._chunk), self._read_size)
        self._read_size = _CHUNK
        self._chunk += read_through(self.file, missing, self._start + len(self._chunk))
        return len(self._chunk) >= size


def find_intact(file: DiskFile, position: int, offset: int) -> Batch | None:
    """Return the first intact batch after a position whose offset is at least `offset`."""
    size = file.size()
    for start in range(position, size, _PIECE):  # in pieces: the file may be a huge sparse one
        piece = read_through(file, _PIECE + len(MAGIC) - 1, start)
        index = piece.find(MAGIC)
        while index >= 0:
            batch = Scan(file, start + index).next()
            if batch is not None and batch.base >= offset:
                return batch
            index = piece.find(MAGIC, index + 1)
    return None
