"""Which batches of a segment file are intact, and where the next one begins behind damage."""

from typing import Final
from zlib import crc32

from callboard.commitlog.batch import HEADER_SIZE, MAGIC, Batch, decode_header
from callboard.commitlog.disk import DiskFile, read_through

_FIRST_CHUNK: Final = 32 << 10
_CHUNK: Final = 128 << 10
_PIECE: Final = 4 << 20


class Scan:
    """Goes from batch to batch; ends at the first place that holds no intact one.

    Attributes:
        position: Where the next batch begins, or would.
        offset: The offset that it has to have; None accepts any.
    """

    def __init__(self, file: DiskFile, position: int = 0, offset: int | None = None) -> None:
        """Begin at a place where a batch begins."""
        self.position = position
        self.offset = offset
        self.file = file
        self._chunk = b""
        self._start = position  # of the chunk in the file
        self._read_size = _FIRST_CHUNK

    def next(self) -> Batch | None:
        """Return the next batch, or None if there is no whole and intact one (yet)."""
        if not self._has(HEADER_SIZE):
            return None
        at = self.position - self._start
        header = decode_header(self._chunk, at)
        if header is None or (self.offset is not None and header.base != self.offset):
            return None
        size = HEADER_SIZE + header.length
        if not self._has(size):
            return None
        at = self.position - self._start
        body = self._chunk[at + HEADER_SIZE : at + size]
        if crc32(body) != header.checksum:
            return None
        batch = Batch(header, body, self.position)
        self.position += size
        self.offset = batch.end
        return batch

    def _has(self, size: int) -> bool:
        """Whether so many bytes are there from the position on; reads on if needed."""
        at = self.position - self._start
        if len(self._chunk) - at >= size:
            return True
        self._chunk = self._chunk[at:]
        self._start = self.position
        missing = max(size - len(self._chunk), self._read_size)
        self._read_size = _CHUNK
        self._chunk += read_through(self.file, missing, self._start + len(self._chunk))
        return len(self._chunk) >= size


def find_intact(file: DiskFile, position: int, offset: int) -> Batch | None:
    """Return the first intact batch behind a damaged place, with an offset or a later one."""
    size = file.size()
    for start in range(position, size, _PIECE):  # it may be of any size, mostly hole
        piece = read_through(file, _PIECE + len(MAGIC) - 1, start)
        at = piece.find(MAGIC)
        while at >= 0:
            batch = Scan(file, start + at).next()
            if batch is not None and batch.base >= offset:
                return batch
            at = piece.find(MAGIC, at + 1)
    return None
