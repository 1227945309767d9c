r"""Files of messages, append-only: a format without any dependency, and HDF5.

    "ZIOREC1\n"                       once, at the beginning
    length (4) | CRC-32 (4) | message   for each record, big-endian

A record is the single-string encoding of a ZIO message. A process that ends while it writes
leaves a torn record at the end; it is cut off when the file is opened for writing again, and
readers stop before it. Damage anywhere else is an error: also where what is damaged is a length
that leads behind the end, as whole records then follow.

In HDF5 (extra `hdf5`), for programs that read that, the group `records` has a group for each
message, `00000000` and on, with the attributes form, label, origin, granule, seqno and level,
and for each payload frame a dataset of bytes, `00` and on.
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from callboard import locks
from callboard.commitlog.disk import check_plain, open_plain
from callboard.commitlog.folder import write_all
from callboard.flow.errors import MalformedMessage, RecordError
from callboard.flow.protocol.message import MESSAGE_LIMIT, Message
from callboard.support import after_fork, reentry
from callboard.support.file_place import FilePlaces, replaced
from callboard.support.private_file import make_folder

MAGIC: Final = b"ZIOREC1\n"
_HEAD: Final = struct.Struct(">II")


#: What to do in a forked process.
_REMEDY: Final = "open another file here"


class RecordFile:
    """A file that one owner appends to and reads."""

    def __init__(self, path: Path) -> None:
        """Open or make it; what was torn at its end is cut off.

        Raises:
            RecordError: it is not a file of records, or is damaged.
            OSError: it cannot be opened.
        """
        self.path = path
        make_folder(path.parent)
        # Without a buffer: what the disk refused must not be written later.
        self._file = open(path, "a+b", buffering=0, opener=open_plain)  # noqa: SIM115
        self._places = FilePlaces()
        self._places.add(path)
        after_fork.register(self, RecordFile._leave)
        self.count = 0
        try:
            self._file.seek(0)
            start = self._file.read(len(MAGIC))
            if len(start) < len(MAGIC) and MAGIC.startswith(start):  # new, or torn
                self._file.truncate(0)
                write_all(self._file, MAGIC)
            self._end = self._cut_torn()
        except BaseException:
            self._file.close()
            raise
        self._lock = locks.lock("record file", 315)

    def append(self, messages: Sequence[Message]) -> int:
        """Append messages, all or none; returns how many the file has.

        They are handed to the system before this returns.

        Raises:
            OSError: the disk is full, for instance; the file ends where it did before.
            RecordError: the file was removed or replaced.
            WouldDeadlock: called inside another append, by a finalizer for instance.
        """
        run = b"".join(map(_packed, messages))
        reentry.enter(self._lock, "append()")
        try:
            if lost := self._places.misplaced():
                raise RecordError(replaced(lost, "put it back, and open it again"))
            try:
                write_all(self._file, run)
            except OSError:
                self._file.truncate(self._end)
                raise
            self._end += len(run)
            self.count += len(messages)
            return self.count
        finally:
            self._lock.release()

    def read(self, offset: int, most: int) -> tuple[list[Message], int]:
        """Return messages from an offset on (0 is the first) and the offset behind them."""
        found = list(islice(_scan(self._file, max(offset, len(MAGIC)), self._end), most))
        return [message for message, _ in found], found[-1][1] if found else offset

    def close(self) -> None:
        """Close it."""
        if not after_fork.is_copy(self):
            self._file.close()

    def _leave(self) -> None:
        """Refuse what this copy is given in a forked process."""
        after_fork.drop(self._file)
        gone: Any = after_fork.Refusing(RecordError, f"the file {self.path}", _REMEDY)
        self._file = self._places = gone

    def _cut_torn(self) -> int:
        """Count the records, and cut off a torn one; return the end."""
        end = _checked_start(self._file, self.path)
        size = self._file.seek(0, 2)
        for _, behind in _scan(self._file, end, size):
            end = behind
            self.count += 1
        if end < size:
            self._file.truncate(end)
        return end


def read_records(
    path: Path, on_damage: Callable[[RecordError], object] | None = None
) -> Iterator[Message]:
    """Iterate over the messages of a file, up to a torn end.

    Args:
        path: of the file.
        on_damage: called with each `RecordError` in place of raising it; reading goes on with
            the next record that is whole.

    Raises:
        RecordError: it is not a file of records, or is damaged.
    """
    with open(path, "rb", opener=open_plain) as file:
        at, end = _checked_start(file, path), os.fstat(file.fileno()).st_size
        while True:
            try:
                for message, behind in _scan(file, at, end):
                    yield message
                    at = behind
                return
            except RecordError as error:
                if on_damage is None:
                    raise
                on_damage(error)
                at = _next_whole(file, at + 1, end)


def _packed(message: Message) -> bytes:
    """Return a message as a record."""
    data = message.encode()
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


def _checked_start(file: BinaryIO, path: Path) -> int:
    """Return where the records begin, if it is a file of records."""
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
        if behind > end or not length:
            if length > MESSAGE_LIMIT or _next_whole(file, at + 1, end) < end:
                _damaged(at, f"a record of {length:,} B")
            return  # torn: its last blocks never came to the disk, or as zeros
        data = file.read(length)
        if zlib.crc32(data) != crc:
            if behind == end and _next_whole(file, at + 1, end) == end:
                return
            _damaged(at, "another checksum")
        try:
            message = Message.decode(data)
        except MalformedMessage as error:
            _damaged(at, str(error))
        yield message, behind
        at = behind


def _next_whole(file: BinaryIO, at: int, end: int) -> int:
    """Return where the next whole record begins, at a place or behind it; the end if none."""
    file.seek(at)
    rest = memoryview(data := file.read(end - at))
    found = data.find(b"ZIO")
    while found >= 0:
        for start in (found - _HEAD.size - 1, found - _HEAD.size - 5):  # behind its length
            if start >= 0:
                length, crc = _HEAD.unpack_from(data, start)
                body = rest[start + _HEAD.size :][:length]
                if len(body) == length and zlib.crc32(body) == crc:
                    return at + start
        found = data.find(b"ZIO", found + 1)
    return end


def _damaged(at: int, what: str) -> NoReturn:
    """Raise because of a damaged record."""
    msg = f"the file of records is damaged at byte {at:,}: {what}"
    raise RecordError(msg)


_NUMBERS: Final = ("origin", "granule", "seqno", "level")


class Hdf5File:
    """A file that one owner appends to and reads."""

    def __init__(self, path: Path) -> None:
        """Open or make it.

        Raises:
            RecordError: it is not an HDF5 file.
            OSError: it cannot be opened.
        """
        import h5py

        make_folder(path.parent)
        self.path = path
        with suppress(FileNotFoundError):
            check_plain(os.lstat(path).st_mode, str(path))
            if not h5py.is_hdf5(path):
                msg = f"{path} is no HDF5 file"
                raise RecordError(msg)
        try:
            self._file: Any = h5py.File(path, "a")
            self._records: Any = self._file.require_group("records")
            self.count: int = len(self._records)
            self._places = FilePlaces()
            self._places.add(path)
            self._lock = locks.lock("record file", 315)
            after_fork.register(self, Hdf5File._leave)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            msg = f"{path} is damaged: {error}"
            raise RecordError(msg) from None

    def append(self, messages: Sequence[Message]) -> int:
        """Append messages; returns how many the file has.

        Raises:
            OSError: the disk is full, for instance.
            RecordError: the file was removed or replaced.
            WouldDeadlock: called inside another append, by a finalizer for instance.
        """
        reentry.enter(self._lock, "append()")
        try:
            return self._append(messages)
        finally:
            self._lock.release()

    def _append(self, messages: Sequence[Message]) -> int:
        """Append messages; needs the lock."""
        if lost := self._places.misplaced():
            raise RecordError(replaced(lost, "put it back, and open it again"))
        for message in messages:
            group = self._records.create_group(f"{self.count:08d}")
            group.attrs["form"], group.attrs["label"] = message.form, message.label
            for name in _NUMBERS:
                group.attrs.create(name, getattr(message, name), dtype="uint64")
            for number, frame in enumerate(message.payload):
                group.create_dataset(f"{number:02d}", data=memoryview(frame), dtype="uint8")
            self.count += 1
        self._file.flush()
        return self.count

    def read(self, offset: int, most: int) -> tuple[list[Message], int]:
        """Return messages from a number on, and the number behind them."""
        offset = max(offset, 0)
        end = min(offset + most, self.count)
        try:
            found = [_message(self._records[f"{n:08d}"]) for n in range(offset, end)]
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            msg = f"{self.path} is damaged behind message {offset}: {error}"
            raise RecordError(msg) from None
        return found, max(offset, end)

    def close(self) -> None:
        """Close it."""
        if not after_fork.is_copy(self):
            self._file.close()

    def _leave(self) -> None:
        """Refuse what this copy is given in a forked process."""
        file = self._file
        after_fork.keep_for_ever(file)  # at its end HDF5 would write what it has in memory
        after_fork.drop(file.id.get_vfd_handle())
        gone: Any = after_fork.Refusing(RecordError, f"the file {self.path}", _REMEDY)
        self._file = self._records = self._places = gone


def _message(group: Any) -> Message:
    """Return the message that a group of HDF5 holds."""
    frames = tuple(bytes(group[name][()]) for name in sorted(group, key=int))
    numbers = {name: int(group.attrs[name]) for name in _NUMBERS}
    return Message(group.attrs["form"], group.attrs["label"], frames, **numbers)
