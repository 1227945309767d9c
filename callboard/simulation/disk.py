"""A simulated disk: files in memory, by seed, that lose at a crash what was not synced.

It promises what POSIX promises and no more. What was written is seen at once by all, and
durable after `fsync` of the file; a name that was made, renamed or removed is durable after
`sync_folder`. Until then a change waits in a list of its file or folder (an inode). A crash
carries out a part of that list only, in order: a random number of changes, the next write up to
a random byte, and perhaps some sectors of zeros where written data had not reached the disk. On
top of that the disk fails when told to: short writes, no room, an `fsync` with an error, bits
that flip.

Programs that are tested on it take a `Disk` as an argument, and get a
`callboard.simulation.RealDisk` or something of their own like it elsewhere.
"""

import errno
import os
import random
from collections.abc import Callable
from typing import Final

from callboard.commitlog.disk import check_rename
from callboard.commitlog.errors import FolderInPlace
from callboard.support.dataclass import dataclass

#: Bytes that a disk writes whole or not at all.
SECTOR: Final = 512

#: Part of the crashes after which some sectors of unsynced writes are zeros.
HOLES: Final = 0.25

#: A write: its offset and bytes. Or with None: the file ends at this size from now on.
Change = tuple[int, bytes | None]


class FileInode:
    """One file."""

    def __init__(self) -> None:
        """Make an empty file that no crash would keep."""
        self.seen = bytearray()
        self._durable = bytearray()
        self._pending: list[Change] = []

    def change(self, change: Change) -> None:
        """Carry out a change that is not durable yet."""
        _apply(self.seen, change)
        self._pending.append(change)

    def sync(self) -> None:
        """Make all changes durable."""
        for change in self._pending:
            _apply(self._durable, change)
        self._pending.clear()

    def sync_failed(self, rng: random.Random) -> None:
        """Make some changes durable and forget that the others still have to be.

        Linux does so after an error: a later `fsync` that succeeds says nothing of them.
        """
        for change in self._pending:
            if rng.random() < 0.5:
                _apply(self._durable, change)
        self._pending.clear()

    def flip(self, bit: int) -> None:
        """Flip a bit for good: on the disk, and for who reads."""
        for content in (self.seen, self._durable):
            if bit < len(content) * 8:
                content[bit // 8] ^= 1 << bit % 8

    def crash(self, rng: random.Random) -> None:
        """Keep what a crash leaves."""
        kept = rng.randint(0, len(self._pending))
        has_holes = rng.random() < HOLES
        for change in self._pending[:kept]:
            self._apply_torn(change, None, rng if has_holes else None)
        for change in self._pending[kept : kept + 1]:
            if change[1]:
                size = rng.randint(0, len(change[1]))
                self._apply_torn(change, size, rng if has_holes else None)
        self._pending.clear()
        self.seen = bytearray(self._durable)

    def _apply_torn(
        self, change: Change, size: int | None, holes: random.Random | None
    ) -> None:
        """Carry out a random part of a change, as a crash in the middle of it does."""
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
    """Carry out a change of a file's contents."""
    offset, data = change
    if data is None:
        del content[offset:]
        content.extend(bytes(offset - len(content)))
    elif data:
        content.extend(bytes(max(0, offset - len(content))))
        content[offset : offset + len(data)] = data


class FolderInode:
    """One folder: names and what they stand for. Each change of it is whole or not at all."""

    def __init__(self) -> None:
        """Make an empty folder."""
        self.seen: dict[str, FileInode | FolderInode] = {}
        self._durable: dict[str, FileInode | FolderInode] = {}
        self._pending: list[dict[str, FileInode | FolderInode | None]] = []

    def change(self, entries: "dict[str, FileInode | FolderInode | None]") -> None:
        """Set several names in one step; None takes a name away."""
        _enter(self.seen, entries)
        self._pending.append(entries)

    def keep(self, name: str, inode: "FileInode | FolderInode") -> None:
        """Enter a name that is durable at once."""
        self.seen[name] = self._durable[name] = inode

    def sync(self) -> None:
        """Make all changes of names durable."""
        for entries in self._pending:
            _enter(self._durable, entries)
        self._pending.clear()

    def crash(self, rng: random.Random) -> None:
        """Keep what a crash leaves, also below this folder."""
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
    """Enter or remove a name: seen at once, durable later."""
    for name, inode in entries.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


@dataclass(slots=True)
class DiskFaults:
    """What goes wrong, as parts (0 to 1) of the calls; change it at any time."""

    short_writes: float = 0.0
    fsync_errors: float = 0.0
    bit_flips: float = 0.0
    #: Bytes that all files together may have; None is no limit.
    capacity: int | None = None
    #: Seconds that each write and each `fsync` takes; the node that asks waits for them.
    latency: float = 0.0


class PowerLost(BaseException):
    """Ends a handler whose machine ended at this change of its disk."""


def _nothing() -> None:
    """Do nothing: no fault waits for a change."""


class SimulatedDisk:
    """A `Disk` in memory; the same seed and the same calls give the same results."""

    def __init__(self, seed: int = 0) -> None:
        """Make an empty disk."""
        self.faults = DiskFaults()
        self.random = random.Random(seed)
        #: How often it crashed; files that were open before are closed.
        self.crashes = 0
        #: Called with the seconds that a call takes.
        self.works: Callable[[float], object] = float
        #: Called behind each change.
        self.changed: Callable[[], object] = _nothing
        #: Whether who uses it is stopped: its node ended in the middle of a handler.
        self.is_stopped = False
        self._root = FolderInode()

    # --- what a disk can do ---

    def open(self, path: str, *, append: bool = False) -> "SimulatedFile":
        """Open a file to read it, or with `append` to write as well, made if needed.

        Raises:
            FileNotFoundError: there is none, or not its folder.
            FolderInPlace: it is a folder.
        """
        folder, name, inode = self._look(path)
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
        """Make a folder.

        Raises:
            FileExistsError: the name is taken.
        """
        folder, name, inode = self._look(path)
        if inode is not None:
            raise _error(errno.EEXIST, path)
        folder.change({name: FolderInode()})
        self.did_change()

    def furnish(self, path: str) -> None:
        """Make a folder that is durable at once, as one that a machine begins with."""
        folder, name, inode = self._look(path)
        if inode is not None:
            raise _error(errno.EEXIST, path)
        folder.keep(name, FolderInode())

    def rename(self, old: str, new: str) -> None:
        """Rename within one folder; what has the new name is replaced, all in one step.

        Raises:
            FileNotFoundError: there is no `old`.
            IsADirectoryError: a file would replace a folder.
            NotADirectoryError: a folder would replace a file.
            OSError: a folder would replace one that is not empty.
            ValueError: the folders differ.
        """
        check_rename(old, new)
        folder, before, inode = self._look(old)
        _, after, replaced = self._look(new)
        if inode is None or not before:
            raise _error(errno.ENOENT, old)
        if before == after:
            return
        if isinstance(inode, FileInode) and isinstance(replaced, FolderInode):
            raise _error(errno.EISDIR, new)
        if isinstance(inode, FolderInode) and isinstance(replaced, FileInode):
            raise _error(errno.ENOTDIR, new)
        if isinstance(replaced, FolderInode) and replaced.seen:
            raise _error(errno.ENOTEMPTY, new)
        folder.change({before: None, after: inode})
        self.did_change()

    def rmdir(self, path: str) -> None:
        """Remove an empty folder.

        Raises:
            FileNotFoundError: there is none.
            NotADirectoryError: it is a file.
            OSError: it is not empty, or the root.
        """
        inode = self._folder(path)
        folder, name, _ = self._look(path)
        if inode.seen or not name:
            raise _error(errno.ENOTEMPTY if name else errno.EBUSY, path)
        folder.change({name: None})
        self.did_change()

    def unlink(self, path: str) -> None:
        """Remove a file's name; who has it open can go on.

        Raises:
            FileNotFoundError: there is none.
            IsADirectoryError: it is a folder.
        """
        folder, name, _ = self._look(path)
        if not isinstance(self.find(path), FileInode):
            raise _error(errno.EISDIR, path)
        folder.change({name: None})
        self.did_change()

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted.

        Raises:
            NotADirectoryError: it is a file.
        """
        return sorted(self._folder(path).seen)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            FolderInPlace: it is a folder.
        """
        inode = self.find(path)
        if not isinstance(inode, FileInode):
            raise FolderInPlace(path)
        return len(inode.seen)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable.

        Raises:
            OSError: the disk says that it failed (`faults.fsync_errors`).
        """
        folder = self._folder(path)
        self.take_time()
        self.fail_fsync(path)
        folder.sync()
        self.did_change()

    def did_change(self) -> None:
        """Tell who waits for a change, and stop a node that this was the end of."""
        self.changed()
        self.check_power()

    def check_power(self) -> None:
        """Stop a node that ended in the middle of a handler."""
        if self.is_stopped:
            raise PowerLost

    # --- what goes wrong ---

    def crash(self) -> None:
        """Lose the power: any part of what was not synced is lost, open files are closed."""
        self.crashes += 1
        self._root.crash(self.random)

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip a bit of a file for good; bit 0 is the lowest one of its first byte."""
        inode = self.find(path)
        assert isinstance(inode, FileInode), f"{path} is a folder"
        inode.flip(bit)

    def room(self) -> int | None:
        """Return how many bytes can still be written; None is no limit."""
        if self.faults.capacity is None:
            return None
        return max(0, self.faults.capacity - self.used)

    @property
    def used(self) -> int:
        """The bytes of all files."""
        return _bytes_of(self._root)

    def take_time(self) -> None:
        """Let a call take as long as the disk needs."""
        if self.faults.latency:
            self.works(self.faults.latency)

    def fail_fsync(self, path: str) -> None:
        """Raise an error for a part of the calls."""
        if self.faults.fsync_errors and self.random.random() < self.faults.fsync_errors:
            raise _error(errno.EIO, path)

    # --- names ---

    def _look(self, path: str) -> "tuple[FolderInode, str, FileInode | FolderInode | None]":
        """Return a path's folder, its last name (none for the root), and what has it."""
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
        """Return what has a path; raise `FileNotFoundError` where nothing has."""
        _, _, inode = self._look(path)
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
        """Write at the end; returns how many bytes were taken, which may be fewer.

        Raises:
            OSError: there is no room for a single byte; or the file is closed, or open to
                read.
        """
        return self.pwrite(data, len(self._inode.seen))

    def pwrite(self, data: bytes, offset: int) -> int:
        """Write at an offset, as `write` does; zeros fill what lies between the end and it.

        Raises:
            OSError: as of `write`; or the offset is negative.
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
        """Return True: nobody but its owner changes a simulated disk."""
        return True

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""
        self._check()
        if offset < 0:
            raise _error(errno.EINVAL, "")
        found = bytes(self._inode.seen[offset : offset + size])
        faults, rng = self._disk.faults, self._disk.random
        if found and faults.bit_flips and rng.random() < faults.bit_flips:
            changed, bit = bytearray(found), rng.randrange(len(found) * 8)
            changed[bit // 8] ^= 1 << bit % 8
            return bytes(changed)
        return found

    def truncate(self, size: int) -> None:
        """Set the size; zeros fill what is added.

        Raises:
            OSError: the file is closed, or open to read; or the size is negative.
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
            OSError: the disk says that it failed; what was written may be lost at a crash,
                also when a later call succeeds.
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

        A file of before a crash is let go of: what is left of that life may be collected late.
        """
        if self._life == self._disk.crashes:
            self._check()
        self._is_open = False

    def _check(self, *, is_write: bool = False) -> None:
        """Raise unless the file is open, and open to write if that is wanted."""
        self._disk.check_power()
        is_open = self._is_open and self._life == self._disk.crashes
        if not is_open or (is_write and not self._is_writable):
            raise _error(errno.EBADF, "")


def _bytes_of(folder: FolderInode) -> int:
    """Return the bytes of all files below a folder."""
    return sum(
        _bytes_of(inode) if isinstance(inode, FolderInode) else len(inode.seen)
        for inode in folder.seen.values()
    )


def _error(code: int, path: str) -> OSError:
    """Return the system's error of a number for a path."""
    return OSError(code, os.strerror(code), path)
