r"""Files of messages, append-only, without any dependency.

    "ZIOREC1\n"                       once, at the beginning
    length (4) | CRC-32 (4) | message   for each record, big-endian

A record is the single-string encoding of a ZIO message. A process that ends while it writes
leaves a torn record at the end; it is cut off when the file is opened for writing again, and
readers stop before it. Damage anywhere else is an error.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from callboard.flow.errors import MalformedMessage, RecordError
from callboard.flow.message import MESSAGE_LIMIT, Message

__all__ = ["RecordFile", "read_records"]

MAGIC: Final = b"ZIOREC1\n"
_HEAD: Final = struct.Struct(">II")


class RecordFile:
    """A file that one owner appends to and reads."""

    suffix: Final = ".zio"

    def __init__(self, path: Path) -> None:
        """Open or make it; what was torn at its end is cut off.

        Raises:
            RecordError: it is no file of records, or is damaged.
            OSError: it cannot be opened.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        self.count = 0
        try:
            if self._file.seek(0, 2) == 0:
                self._file.write(MAGIC)
                self._file.flush()
            self._end = self._cut_torn()
        except BaseException:
            self._file.close()
            raise

    def append(self, messages: Sequence[Message]) -> int:
        """Append messages, all or none; returns how many the file has.

        They are handed to the system before this returns.

        Raises:
            OSError: the disk is full, for instance; the file ends where it did before.
        """
        run = b"".join(map(_packed, messages))
        try:
            self._file.write(run)
            self._file.flush()
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(run)
        self.count += len(messages)
        return self.count

    def read(self, offset: int, most: int) -> tuple[list[Message], int]:
        """Return messages from an offset on (0 is the first) and the offset behind them."""
        found: list[Message] = []
        for message, end in _scan(self._file, max(offset, len(MAGIC)), self._end):
            found.append(message)
            offset = end
            if len(found) >= most:
                break
        return found, offset

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def _cut_torn(self) -> int:
        end = _checked_start(self._file, self.path)
        size = self._file.seek(0, 2)
        for _, behind in _scan(self._file, end, size):
            end = behind
            self.count += 1
        if end < size:
            self._file.truncate(end)
        return end


def read_records(path: Path) -> Iterator[Message]:
    """Iterate over the messages of a file, up to a torn end.

    Raises:
        RecordError: it is no file of records, or is damaged.
    """
    with path.open("rb") as file:
        start = _checked_start(file, path)
        for message, _ in _scan(file, start, path.stat().st_size):
            yield message


def _packed(message: Message) -> bytes:
    data = message.encode()
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


def _checked_start(file: BinaryIO, path: Path) -> int:
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        msg = f"{path} is no file of records: it does not begin with {MAGIC!r}"
        raise RecordError(msg)
    return len(MAGIC)


def _scan(file: BinaryIO, at: int, end: int) -> Iterator[tuple[Message, int]]:
    """Iterate over records and the offsets behind them; ends before a torn one."""
    while at + _HEAD.size <= end:
        file.seek(at)
        length, crc = _HEAD.unpack(file.read(_HEAD.size))
        behind = at + _HEAD.size + length
        if behind > end:
            if length > MESSAGE_LIMIT:
                _damaged(at, f"a record of {length:,} B")
            return
        data = file.read(length)
        if zlib.crc32(data) != crc:
            if behind == end:
                return  # torn: its last blocks never came to the disk
            _damaged(at, "another checksum")
        try:
            message = Message.decode(data)
        except MalformedMessage as error:
            _damaged(at, str(error))
        yield message, behind
        at = behind


def _damaged(at: int, what: str) -> NoReturn:
    msg = f"the file of records is damaged at byte {at:,}: {what}"
    raise RecordError(msg)
