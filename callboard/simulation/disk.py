"""A simulated disk: files in memory that lose unsynced data in a crash, depending on the seed.

It guarantees what POSIX guarantees and nothing else. Writes are visible to all readers at once,
and durable after `fsync` of the file; a created, renamed or removed name is durable after
`sync_folder`. Until then, changes are pending in a list of their file or folder (an inode). A
crash applies only a part of that list, in order: a random number of changes, the next write up
to a random byte, and sometimes with sectors of zeros where data had not reached the disk. In
addition, the disk can be told to fail: short writes, no space, failing `fsync`, flipped bits.

Programs that are tested with it take a `Disk` as an argument; in production they get a
`callboard.simulation.RealDisk` or their own implementation.
"""

import errno
import os
import random
from collections.abc import Callable
from typing import Final

from callboard.commitlog.disk import check_rename
from callboard.commitlog.errors import FolderInPlace
from callboard.support.dataclass import dataclass

#: Bytes that a disk writes atomically.
SECTOR: Final = 512

#: Fraction of crashes after which some sectors of unsynced writes are zeros.
HOLES: Final = 0.25

#: A write: its offset and bytes. With None instead of bytes: a truncation to this size.
Change = tuple[int, bytes | None]


class FileInode:
    """One file."""

    def __init__(self) -> None:
        """Create an empty file without durable contents."""
        self.seen = bytearray()
        self._durable = bytearray()
        self._pending: list[Change] = []

    def change(self, change: Change) -> None:
        """Apply a change; it is not durable yet."""
        _apply(self.seen, change)
        self._pending.append(change)

    def sync(self) -> None:
        """Make all changes durable."""
        for change in self._pending:
            _apply(self._durable, change)
        self._pending.clear()

    def sync_failed(self, rng: random.Random) -> None:
        """Make some changes durable and drop the others from the pending ones.

        Linux does so after an I/O error: a later `fsync` succeeds although they are lost.
        """
        for change in self._pending:
            if rng.random() < 0.5:
                _apply(self._durable, change)
        self._pending.clear()

    def flip(self, bit: int) -> None:
        """Flip a bit permanently, on the disk and for readers."""
        for content in (self.seen, self._durable):
            if bit < len(content) * 8:
                content[bit // 8] ^= 1 << bit % 8

    def crash(self, rng: random.Random) -> None:
        """Reduce the contents to those that survive a crash."""
        count = rng.randint(0, len(self._pending))
        has_holes = rng.random() < HOLES
        for change in self._pending[:count]:
            self._apply_torn(change, None, rng if has_holes else None)
        for change in self._pending[count : count + 1]:
            if change[1]:
                size = rng.randint(0, len(change[1]))
                self._apply_torn(change, size, rng if has_holes else None)
        self._pending.clear()
        self.seen = bytearray(self._durable)

    def _apply_torn(
        self, change: Change, size: int | None, holes: random.Random | None
    ) -> None:
        """Apply a part of a change, as a crash in the middle of it does."""
        offset, data = change
        if data is None:
            _apply(self._durable, change)
            return
        written = bytearray(data[:size])
        if holes is not None:
            for start in range(-(offset % SECTOR), len(written), SECTOR):
                if holes.random() < 0.5:
                    begin, end = max(start, 0), min(start + SECTOR, len(written))
                    written[begin:end] = bytes(end - begin)
        _apply(self._durable, (offset, bytes(written)))


def _apply(content: bytearray, change: Change) -> None:
    """Apply a change to a file's contents."""
    offset, data = change
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
    elif data:
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


class FolderInode:
    """One folder: names with their inodes. Each change of it is atomic."""

    def __init__(self) -> None:
        """Create an empty folder."""
        self.seen: dict[str, FileInode | FolderInode] = {}
        self._durable: dict[str, FileInode | FolderInode] = {}
        self._pending: list[dict[str, FileInode | FolderInode | None]] = []

    def change(self, entries: "dict[str, FileInode | FolderInode | None]") -> None:
        """Set several names atomically; None removes a name."""
        _enter(self.seen, entries)
        self._pending.append(entries)

    def sync(self) -> None:
        """Make all changes of names durable."""
        for entries in self._pending:
            _enter(self._durable, entries)
        self._pending.clear()

    def crash(self, rng: random.Random) -> None:
        """Reduce the folder, and all below it, to the contents that survive a crash."""
        for entries in self._pending[: rng.randint(0, len(self._pending))]:
            _enter(self._durable, entries)
        self._pending.clear()
        self.seen = dict(self._durable)
        for _, inode in sorted(self.seen.items()):
            inode.crash(rng)


def _enter(
    names: "dict[str, FileInode | FolderInode]",
    entries: "dict[str, FileInode | FolderInode | None]",
) -> None:
    """Set and remove names."""
    for name, inode in entries.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


@dataclass(slots=True)
class DiskFaults:
    """Faults as fractions (0 to 1) of calls; tests may change them at any time."""

    short_writes: float = 0.0
    fsync_errors: float = 0.0
    bit_flips: float = 0.0
    #: Maximum bytes of all files together; None is no limit.
    capacity: int | None = None
    #: Seconds of each write and each `fsync`; the calling node is blocked for them.
    latency: float = 0.0


class PowerLost(BaseException):
    """Aborts a handler whose machine was ended at a change of its disk."""


def _nothing() -> None:
    """Do nothing: no fault waits for a disk change."""


class SimulatedDisk:
    """A `Disk` in memory; the same seed and the same calls give the same results."""

    def __init__(self, seed: int = 0) -> None:
        """Create an empty disk."""
        self.faults = DiskFaults()
        self.random = random.Random(seed)
        #: Number of crashes; files opened before the last crash are closed.
        self.crashes = 0
        #: Called with the duration of a call in seconds.
        self.works: Callable[[float], object] = float
        #: Called after each change.
        self.changed: Callable[[], object] = _nothing
        #: Whether calls raise `PowerLost`: the node was ended in the middle of a handler.
        self.is_stopped = False
        self._root = FolderInode()

    # --- the interface of a disk ---

    def open(self, path: str, *, append: bool = False) -> "SimulatedFile":
        """Open a file for reading; with `append` also for writing, and create it if missing.

        Raises:
            FileNotFoundError: the file or its folder does not exist.
            FolderInPlace: the path is a folder.
        """
        folder, name, inode = self._resolve(path)
        if inode is None:
            if not append:
                raise _error(errno.ENOENT, path)
            inode = FileInode()
            folder.change({name: inode})
            self.did_change()
        if not isinstance(inode, FileInode):
            raise FolderInPlace(path)
        return SimulatedFile(self, inode, is_writable=append)

    def mkdir(self, path: str) -> None:
        """Create a folder.

        Raises:
            FileExistsError: the name exists.
        """
        folder, name, inode = self._resolve(path)
        if inode is not None:
            raise _error(errno.EEXIST, path)
        folder.change({name: FolderInode()})
        self.did_change()

    def rename(self, old: str, new: str) -> None:
        """Rename within one folder; an existing file is replaced atomically.

        Raises:
            FileNotFoundError: `old` does not exist.
            IsADirectoryError: a file would replace a folder.
            NotADirectoryError: a folder would replace a file.
            OSError: a folder would replace a folder with entries.
            ValueError: the folders differ.
        """
        check_rename(old, new)
        folder, old_name, inode = self._resolve(old)
        _, new_name, replaced = self._resolve(new)
        if inode is None or not old_name:
            raise _error(errno.ENOENT, old)
        if old_name == new_name:
            return
        if isinstance(inode, FileInode) and isinstance(replaced, FolderInode):
            raise _error(errno.EISDIR, new)
        if isinstance(inode, FolderInode) and isinstance(replaced, FileInode):
            raise _error(errno.ENOTDIR, new)
        if isinstance(replaced, FolderInode) and replaced.seen:
            raise _error(errno.ENOTEMPTY, new)
        folder.change({old_name: None, new_name: inode})
        self.did_change()

    def rmdir(self, path: str) -> None:
        """Remove an empty folder.

        Raises:
            FileNotFoundError: the folder does not exist.
            NotADirectoryError: the path is a file.
            OSError: the folder has entries, or is the root.
        """
        inode = self._folder(path)
        folder, name, _ = self._resolve(path)
        if inode.seen or not name:
            raise _error(errno.ENOTEMPTY if name else errno.EBUSY, path)
        folder.change({name: None})
        self.did_change()

    def unlink(self, path: str) -> None:
        """Remove the name of a file; open files remain usable.

        Raises:
            FileNotFoundError: the file does not exist.
            IsADirectoryError: the path is a folder.
        """
        folder, name, _ = self._resolve(path)
        if not isinstance(self.find(path), FileInode):
            raise _error(errno.EISDIR, path)
        folder.change({name: None})
        self.did_change()

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted.

        Raises:
            NotADirectoryError: the path is a file.
        """
        return sorted(self._folder(path).seen)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            FolderInPlace: the path is a folder.
        """
        inode = self.find(path)
        if not isinstance(inode, FileInode):
            raise FolderInPlace(path)
        return len(inode.seen)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable.

        Raises:
            OSError: the sync failed (`faults.fsync_errors`).
        """
        folder = self._folder(path)
        self.take_time()
        self.fail_fsync(path)
        folder.sync()
        self.did_change()

    def did_change(self) -> None:
        """Report a change; abort the handler if a fault ended its node at this change."""
        self.changed()
        self.check_power()

    def check_power(self) -> None:
        """Abort the handler of a node that has ended."""
        if self.is_stopped:
            raise PowerLost

    # --- faults ---

    def crash(self) -> None:
        """Lose power: a random part of the unsynced data is lost, open files are closed."""
        self.crashes += 1
        self._root.crash(self.random)

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip a bit of a file permanently; bit 0 is the lowest bit of its first byte."""
        inode = self.find(path)
        assert isinstance(inode, FileInode), f"{path} is a folder"
        inode.flip(bit)

    def room(self) -> int | None:
        """Return the free space in bytes; None is no limit."""
        if self.faults.capacity is None:
            return None
        return max(0, self.faults.capacity - self.used)

    @property
    def used(self) -> int:
        """The total size of all files, in bytes."""
        return _bytes_of(self._root)

    def take_time(self) -> None:
        """Block the calling node for the latency of the disk."""
        if self.faults.latency:
            self.works(self.faults.latency)

    def fail_fsync(self, path: str) -> None:
        """Raise an error for a fraction of the calls."""
        if self.faults.fsync_errors and self.random.random() < self.faults.fsync_errors:
            raise _error(errno.EIO, path)

    # --- names ---

    def _resolve(self, path: str) -> "tuple[FolderInode, str, FileInode | FolderInode | None]":
        """Return a path's folder, its last name (empty for the root), and its inode, if any."""
        self.check_power()
        names = [name for name in path.split("/") if name]
        folder = self._root
        for name in names[:-1]:
            inode = folder.seen.get(name)
            if inode is None:
                raise _error(errno.ENOENT, path)
            if not isinstance(inode, FolderInode):
                raise _error(errno.ENOTDIR, path)
            folder = inode
        name = names[-1] if names else ""
        return folder, name, folder.seen.get(name) if name else folder

    def find(self, path: str) -> FileInode | FolderInode:
        """Return the inode of a path; raise `FileNotFoundError` without one."""
        _, _, inode = self._resolve(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        return inode

    def _folder(self, path: str) -> FolderInode:
        """Return the folder of a path; raise `NotADirectoryError` for a file."""
        inode = self.find(path)
        if not isinstance(inode, FolderInode):
            raise _error(errno.ENOTDIR, path)
        return inode


class SimulatedFile:
    """An open file of a simulated disk."""

    def __init__(self, disk: SimulatedDisk, inode: FileInode, *, is_writable: bool) -> None:
        """Open a file."""
        self._disk = disk
        self._inode = inode
        self._is_writable = is_writable
        self._is_open = True
        self._life = disk.crashes

    def write(self, data: bytes) -> int:
        """Append bytes; return the number written, which may be smaller.

        Raises:
            OSError: the disk is full, or the file is closed or open for reading only.
        """
        return self.pwrite(data, len(self._inode.seen))

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write at an offset, like `write`; a gap after the end is filled with zeros.

        Raises:
            OSError: as for `write`, or the offset is negative.
        """
        self._check(is_write=True)
        if offset < 0:
            raise _error(errno.EINVAL, "")
        self._disk.take_time()
        size, faults, rng = len(data), self._disk.faults, self._disk.random
        if size > 1 and faults.short_writes and rng.random() < faults.short_writes:
            size = rng.randint(1, size - 1)
        room, in_place = self._disk.room(), len(self._inode.seen) - offset
        if room is not None and size > room + in_place:
            size = min(size, room + in_place)
            if size <= 0:
                raise _error(errno.ENOSPC, "")
        self._inode.change((offset, bytes(data[:size])))
        self._disk.did_change()
        return size

    def is_in_place(self) -> bool:
        """Return True: no other program replaces files of a simulated disk."""
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Read `size` bytes from an offset; fewer only at the end of the file."""
        self._check()
        if offset < 0:
            raise _error(errno.EINVAL, "")
        data = bytes(self._inode.seen[offset : offset + size])
        faults, rng = self._disk.faults, self._disk.random
        if data and faults.bit_flips and rng.random() < faults.bit_flips:
            changed, bit = bytearray(data), rng.randrange(len(data) * 8)
            changed[bit // 8] ^= 1 << bit % 8
            return bytes(changed)
        return data

    def truncate(self, size: int) -> None:
        """Set the size; added bytes are zeros.

        Raises:
            OSError: the file is closed or open for reading only, or the size is negative.
        """
        self._check()
        if size < 0 or not self._is_writable:
            raise _error(errno.EINVAL, "")
        self._inode.change((size, None))
        self._disk.did_change()

    def size(self) -> int:
        """Return the size in bytes."""
        self._check()
        return len(self._inode.seen)

    def fsync(self) -> None:
        """Make the contents durable, but not the name.

        Raises:
            OSError: the sync failed. Earlier writes may be lost in a crash, even if a later
                call succeeds.
        """
        self._check()
        self._disk.take_time()
        try:
            self._disk.fail_fsync("")
        except OSError:
            self._inode.sync_failed(self._disk.random)
            raise
        self._inode.sync()
        self._disk.did_change()

    def close(self) -> None:
        """Close the file; this makes nothing durable.

        A file from before a crash may be closed as well: objects of the former process may be
        garbage-collected late.
        """
        if self._life == self._disk.crashes:
            self._check()
        self._is_open = False

    def _check(self, *, is_write: bool = False) -> None:
        """Raise unless the file is open; with `is_write`, for writing."""
        self._disk.check_power()
        is_open = self._is_open and self._life == self._disk.crashes
        if not is_open or (is_write and not self._is_writable):
            raise _error(errno.EBADF, "")


def _bytes_of(folder: FolderInode) -> int:
    """Return the total size of all files below a folder, in bytes."""
    return sum(
        _bytes_of(inode) if isinstance(inode, FolderInode) else len(inode.seen)
        for inode in folder.seen.values()
    )


def _error(code: int, path: str) -> OSError:
    """Return the OSError of an error number, for a path."""
    return OSError(code, os.strerror(code), path)
