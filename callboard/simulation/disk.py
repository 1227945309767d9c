"""A simulated disk: files in memory, by seed, that lose at a crash what was not synced.

It promises what POSIX promises and no more. What was written is seen at once by all, and
durable after `fsync` of the file; a name that was made, renamed or removed is durable after
`sync_folder`. A crash keeps any part of the rest. On top of that it fails when told to: short
writes, no room, an `fsync` with an error, bits that flip.

Programs that are tested on it take a `Disk` as an argument, and get a
`callboard.simulation.RealDisk` or something of their own like it elsewhere.
"""

import errno
import os
import random
from dataclasses import dataclass

from callboard.commitlog.disk import check_rename
from callboard.simulation.inode import FileInode, FolderInode


@dataclass(slots=True)
class DiskFaults:
    """What goes wrong, as parts (0 to 1) of the calls; change it at any time."""

    short_writes: float = 0.0
    fsync_errors: float = 0.0
    bit_flips: float = 0.0
    #: Bytes that all files together may have; None is no limit.
    capacity: int | None = None


class SimulatedDisk:
    """A `Disk` in memory; the same seed and the same calls give the same results."""

    def __init__(self, seed: int = 0) -> None:
        """Make an empty disk."""
        self.faults = DiskFaults()
        self.random = random.Random(seed)
        #: How often it crashed; files that were open before are closed.
        self.crashes = 0
        self._root = FolderInode()

    # --- what a disk can do ---

    def open(self, path: str, *, append: bool = False) -> "SimulatedFile":
        """Open a file to read it, or with `append` to write as well, made if needed.

        Raises:
            FileNotFoundError: there is none, or not its folder.
            IsADirectoryError: it is a folder and `append` is set.
        """
        folder, name = self._parent(path)
        inode = folder.seen.get(name) if name else folder
        if inode is None:
            if not append:
                raise _error(errno.ENOENT, path)
            inode = FileInode()
            folder.change({name: inode})
        if not isinstance(inode, FileInode):
            raise _error(errno.EISDIR, path)
        return SimulatedFile(self, inode, is_writable=append)

    def mkdir(self, path: str) -> None:
        """Make a folder.

        Raises:
            FileExistsError: the name is taken.
        """
        folder, name = self._parent(path)
        if not name or name in folder.seen:
            raise _error(errno.EEXIST, path)
        folder.change({name: FolderInode()})

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
        folder, before = self._parent(old)
        _, after = self._parent(new)
        inode = folder.seen.get(before)
        if inode is None:
            raise _error(errno.ENOENT, old)
        replaced = folder.seen.get(after)
        if before == after:
            return
        if isinstance(inode, FileInode) and isinstance(replaced, FolderInode):
            raise _error(errno.EISDIR, new)
        if isinstance(inode, FolderInode) and isinstance(replaced, FileInode):
            raise _error(errno.ENOTDIR, new)
        if isinstance(replaced, FolderInode) and replaced.seen:
            raise _error(errno.ENOTEMPTY, new)
        folder.change({before: None, after: inode})

    def unlink(self, path: str) -> None:
        """Remove a file's name; who has it open can go on.

        Raises:
            FileNotFoundError: there is none.
            IsADirectoryError: it is a folder.
        """
        folder, name = self._parent(path)
        if not isinstance(self._find(path), FileInode):
            raise _error(errno.EISDIR, path)
        folder.change({name: None})

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted.

        Raises:
            NotADirectoryError: it is a file.
        """
        return sorted(self._folder(path).seen)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            IsADirectoryError: it is a folder.
        """
        inode = self._find(path)
        if not isinstance(inode, FileInode):
            raise _error(errno.EISDIR, path)
        return len(inode.seen)

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable.

        Raises:
            OSError: the disk says that it failed (`faults.fsync_errors`).
        """
        folder = self._folder(path)
        self.fail_fsync(path)
        folder.sync()

    # --- what goes wrong ---

    def crash(self) -> None:
        """Lose the power: any part of what was not synced is lost, open files are closed."""
        self.crashes += 1
        self._root.crash(self.random)

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip a bit of a file for good; bit 0 is the lowest one of its first byte."""
        inode = self._find(path)
        assert isinstance(inode, FileInode), f"{path} is a folder"
        inode.flip(bit)

    def room(self) -> int | None:
        """Return how many bytes can still be written; None is no limit."""
        if self.faults.capacity is None:
            return None
        return max(0, self.faults.capacity - _bytes_of(self._root))

    def fail_fsync(self, path: str) -> None:
        """Raise an error for a part of the calls."""
        if self.faults.fsync_errors and self.random.random() < self.faults.fsync_errors:
            raise _error(errno.EIO, path)

    # --- names ---

    def _parent(self, path: str) -> tuple[FolderInode, str]:
        """Return the folder that a path is in, and the last name; no name for the root."""
        names = [name for name in path.split("/") if name]
        folder = self._root
        for name in names[:-1]:
            inode = folder.seen.get(name)
            if inode is None:
                raise _error(errno.ENOENT, path)
            if not isinstance(inode, FolderInode):
                raise _error(errno.ENOTDIR, path)
            folder = inode
        return folder, names[-1] if names else ""

    def _find(self, path: str) -> FileInode | FolderInode:
        folder, name = self._parent(path)
        inode = folder.seen.get(name) if name else folder
        if inode is None:
            raise _error(errno.ENOENT, path)
        return inode

    def _folder(self, path: str) -> FolderInode:
        inode = self._find(path)
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
        self._check(is_write=True)
        size, faults, rng = len(data), self._disk.faults, self._disk.random
        if size > 1 and faults.short_writes and rng.random() < faults.short_writes:
            size = rng.randint(1, size - 1)
        room = self._disk.room()
        if room is not None and size > room:
            if not room:
                raise _error(errno.ENOSPC, "")
            size = room
        self._inode.append(bytes(data[:size]))
        return size

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
        self._inode.truncate(size)

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
        try:
            self._disk.fail_fsync("")
        except OSError:
            self._inode.sync_failed(self._disk.random)
            raise
        self._inode.sync()

    def close(self) -> None:
        """Close the file; this makes nothing durable."""
        self._check()
        self._is_open = False

    def _check(self, *, is_write: bool = False) -> None:
        if not self._is_open or self._life != self._disk.crashes:
            raise _error(errno.EBADF, "")
        if is_write and not self._is_writable:
            raise _error(errno.EBADF, "")


def _bytes_of(folder: FolderInode) -> int:
    return sum(
        _bytes_of(inode) if isinstance(inode, FolderInode) else len(inode.seen)
        for inode in folder.seen.values()
    )


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
