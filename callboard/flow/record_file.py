r"""Append-only files of messages, in a format of our own without dependencies, or in HDF5.

    "ZIOREC1\n"                       once, at the start
    length (4) | CRC-32 (4) | message   for each record, big-endian

A record is the single-string encoding of a ZIO message. A process that is killed during a write
leaves a torn record at the end of the file. Opening the file for writing truncates it, and
readers stop before it. Damage elsewhere is an error. A damaged length that points beyond the
end is told from a torn record by the complete records that follow it.

In HDF5 (extra `hdf5`), for programs that read it, the group `records` has a group for each
message, `00000000`, `00000001` …, with the attributes form, label, origin, granule, seqno and
level, and a dataset of bytes for each payload frame, `00`, `01` …
"""

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from callboard import locks
from callboard.commitlog.disk import open_plain
from callboard.commitlog.folder import write_all
from callboard.flow.errors import MalformedMessage, RecordError
from callboard.flow.protocol.message import MESSAGE_LIMIT, Message
from callboard.support import after_fork, reentry
from callboard.support.files.file_place import FilePlaces, replaced
from callboard.support.files.private_file import make_folder, mode_in

MAGIC: Final = b"ZIOREC1\n"
_HEAD: Final = struct.Struct(">II")


#: The advice of the error that a forked process gets.
_REMEDY: Final = "open another file here"


class RecordFile:
    """A record file, for one owner that appends and reads."""

    def __init__(self, path: Path, mode: int | None = None) -> None:
        """Open or create the file; truncate a torn record at its end.

        Args:
            path: path of the file; missing folders are created.
            mode: mode of the folders that are created; by default 0o700. A new file is as open
                as its folder.

        Raises:
            RecordError: the file is not a record file, or is damaged.
            OSError: the file cannot be opened.
        """
        self.path = path
        self._file = _opened(path, mode)
        self._places = FilePlaces()
        self._places.add(path)
        after_fork.register(self, RecordFile._drop_copy)
        self.count = 0
        try:
            self._file.seek(0)
            start = self._file.read(len(MAGIC))
            if len(start) < len(MAGIC) and MAGIC.startswith(start):  # new, or killed here
                self._file.truncate(0)
                write_all(self._file, MAGIC)
            self._end = self._cut_torn()
        except BaseException:
            self._file.close()
            raise
        self._lock = locks.lock("record file", 315)

    def append(self, messages: Sequence[Message]) -> int:
        """Append messages, all or none; return the number of messages in the file.

        The system has the messages when this returns: they outlive the process, but not a loss
        of power.

        Raises:
            OSError: the write failed, for example on a full disk; the file is unchanged.
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
        """Return messages from an offset on (0 is the first), and the offset after them."""
        records = list(islice(_scan(self._file, max(offset, len(MAGIC)), self._end), most))
        return [message for message, _ in records], records[-1][1] if records else offset

    def close(self) -> None:
        """Close the file."""
        if not after_fork.is_copy(self):
            self._file.close()

    def _drop_copy(self) -> None:
        """Drop the file in a forked process, where every call then raises `RecordError`."""
        after_fork.drop(self._file)
        refusing: Any = after_fork.Refusing(RecordError, f"the file {self.path}", _REMEDY)
        self._file = self._places = refusing

    def _cut_torn(self) -> int:
        """Count the records, and truncate a torn one; return the end of the records."""
        end = _checked_start(self._file, self.path)
        size = self._file.seek(0, 2)
        for _, record_end in _scan(self._file, end, size):
            end = record_end
            self.count += 1
        if end < size:
            self._file.truncate(end)
        return end


def read_records(
    path: Path, on_damage: Callable[[RecordError], object] | None = None
) -> Iterator[Message]:
    """Iterate over the messages of a file, up to a torn record at its end.

    Args:
        path: path of the file.
        on_damage: called with each `RecordError` instead of raising it; the iteration
            continues with the next complete record.

    Raises:
        RecordError: the file is not a record file, or is damaged.
    """
    with open(path, "rb", opener=open_plain) as file:
        offset, end = _checked_start(file, path), os.fstat(file.fileno()).st_size
        while True:
            try:
                for message, record_end in _scan(file, offset, end):
                    yield message
                    offset = record_end
                return
            except RecordError as error:
                if on_damage is None:
                    raise
                on_damage(error)
                offset = _next_record(file, offset + 1, end)


def _opened(path: Path, mode: int | None) -> FileIO:
    """Open a file for reading and appending; create it and its folders if they are missing."""
    make_folder(path.parent, mode)
    # Unbuffered: after a failed write, a buffer would write the same bytes again later,
    # although `append` has reported that they were not written.
    file = open(path, "a+b", buffering=0, opener=open_plain)  # noqa: SIM115
    if mode is not None and not os.fstat(file.fileno()).st_size:
        os.fchmod(file.fileno(), mode_in(path))  # regardless of the umask
    return file


def _packed(message: Message) -> bytes:
    """Return a message as a record."""
    data = message.encode()
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


def _checked_start(file: BinaryIO, path: Path) -> int:
    """Check that a file is a record file, and return the offset of its first record."""
    file.seek(0)
    if file.read(len(MAGIC)) != MAGIC:
        msg = f"{path} is not a record file: it does not begin with {MAGIC!r}"
        raise RecordError(msg)
    return len(MAGIC)


def _scan(file: BinaryIO, offset: int, end: int) -> Iterator[tuple[Message, int]]:
    """Iterate over messages and their ends, from an offset on; stop before a torn record.

    Raises:
        RecordError: a record is damaged.
    """
    while offset + _HEAD.size <= end:
        file.seek(offset)
        length, crc = _HEAD.unpack(file.read(_HEAD.size))
        record_end = offset + _HEAD.size + length
        if record_end > end or not length:
            if length > MESSAGE_LIMIT or _next_record(file, offset + 1, end) < end:
                _damaged(offset, f"a record of {length:,} B")
            return  # torn: its last blocks were not written, or the disk has zeros for them
        data = file.read(length)
        if zlib.crc32(data) != crc:
            if record_end == end and _next_record(file, offset + 1, end) == end:
                return
            _damaged(offset, "its checksum is wrong")
        try:
            message = Message.decode(data)
        except MalformedMessage as error:
            _damaged(offset, str(error))
        yield message, record_end
        offset = record_end


def _next_record(file: BinaryIO, offset: int, end: int) -> int:
    """Return the offset of the first complete record at or after an offset; else the end."""
    file.seek(offset)
    rest = memoryview(data := file.read(end - offset))
    magic = data.find(b"ZIO")
    while magic >= 0:
        # The length of the first frame, 1 or 5 bytes, is between the head and the magic.
        for start in (magic - _HEAD.size - 1, magic - _HEAD.size - 5):
            if start >= 0:
                length, crc = _HEAD.unpack_from(data, start)
                body = rest[start + _HEAD.size :][:length]
                if len(body) == length and zlib.crc32(body) == crc:
                    return offset + start
        magic = data.find(b"ZIO", magic + 1)
    return end


def _damaged(offset: int, problem: str) -> NoReturn:
    """Raise the error of a damaged record."""
    msg = f"the record file is damaged at byte {offset:,}: {problem}"
    raise RecordError(msg)


_NUMBERS: Final = ("origin", "granule", "seqno", "level")


class Hdf5File:
    """An HDF5 file, for one owner that appends and reads."""

    def __init__(self, path: Path, mode: int | None = None) -> None:
        """Open or create the file.

        Args:
            path: path of the file; missing folders are created.
            mode: mode of the folders that are created; by default 0o700. A new file is as open
                as its folder.

        Raises:
            RecordError: the file is not an HDF5 file.
            OSError: the file cannot be opened.
        """
        import h5py

        self.path = path
        # HDF5 would give a new file the mode of the umask, so the file is created here.
        with _opened(path, mode) as file:
            is_new = not os.fstat(file.fileno()).st_size
        if not is_new and not h5py.is_hdf5(path):
            msg = f"{path} is not an HDF5 file"
            raise RecordError(msg)
        try:
            self._file: Any = h5py.File(path, "w" if is_new else "a")
            self._records: Any = self._file.require_group("records")
            self.count: int = len(self._records)
            self._places = FilePlaces()
            self._places.add(path)
            self._lock = locks.lock("record file", 315)
            after_fork.register(self, Hdf5File._drop_copy)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            msg = f"{path} is damaged: {error}"
            raise RecordError(msg) from None

    def append(self, messages: Sequence[Message]) -> int:
        """Append messages; return the number of messages in the file.

        Raises:
            OSError: the write failed, for example on a full disk.
            RecordError: the file was removed or replaced.
            WouldDeadlock: called inside another append, by a finalizer for instance.
        """
        reentry.enter(self._lock, "append()")
        try:
            return self._append(messages)
        finally:
            self._lock.release()

    def _append(self, messages: Sequence[Message]) -> int:
        """Append messages; the caller holds the lock."""
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
        """Return messages from a number on, and the number after them."""
        offset = max(offset, 0)
        end = min(offset + most, self.count)
        try:
            messages = [_message(self._records[f"{n:08d}"]) for n in range(offset, end)]
        except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            msg = f"{self.path} is damaged after message {offset}: {error}"
            raise RecordError(msg) from None
        return messages, max(offset, end)

    def close(self) -> None:
        """Close the file."""
        if not after_fork.is_copy(self):
            self._file.close()

    def _drop_copy(self) -> None:
        """Drop the file in a forked process, where every call then raises `RecordError`."""
        file = self._file
        after_fork.keep_for_ever(file)  # its finalizer would write buffers of the parent
        after_fork.drop(file.id.get_vfd_handle())
        refusing: Any = after_fork.Refusing(RecordError, f"the file {self.path}", _REMEDY)
        self._file = self._records = self._places = refusing


def _message(group: Any) -> Message:
    """Read a message from its HDF5 group."""
    frames = tuple(bytes(group[name][()]) for name in sorted(group, key=int))
    numbers = {name: int(group.attrs[name]) for name in _NUMBERS}
    return Message(group.attrs["form"], group.attrs["label"], frames, **numbers)
