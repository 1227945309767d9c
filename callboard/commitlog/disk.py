"""Disks: what a log asks of a file system, the machine's own, and one in memory.

`callboard.simulation` has a disk that fails when told to.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final, Protocol

from callboard.commitlog.errors import FolderInPlace, NotPlain
from callboard.support import after_fork
from callboard.support.file_place import identity_of, is_at
from callboard.support.private_file import make_one_folder, mode_in


class DiskFile(Protocol):
    """An open file. Errors are those of the system: `OSError` with its number."""

    def write(self, data: bytes) -> int:
        """Write at the end; returns how many bytes were taken, which may be fewer."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Set the size; zeros fill what is added."""

    def size(self) -> int:
        """Return the size in bytes."""

    def fsync(self) -> None:
        """Make the contents durable, but not the name. After an error nothing is known."""

    def is_in_place(self) -> bool:
        """Return whether the path at which it was opened still leads to it."""

    def close(self) -> None:
        """Close the file; this makes nothing durable."""


class Disk(Protocol):
    """A file system. Paths have `/` between names. Errors are those of the system."""

    def open(self, path: str, *, append: bool = False) -> DiskFile:
        """Open a file to read it, or with `append` to write as well, made if needed."""

    def mkdir(self, path: str) -> None:
        """Make a folder."""

    def rename(self, old: str, new: str) -> None:
        """Rename within one folder; what has the new name is replaced, all in one step."""

    def unlink(self, path: str) -> None:
        """Remove a file's name; who has it open can go on."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""


def check_rename(old: str, new: str) -> None:
    """Raise `ValueError` when the folders of two paths differ."""
    if old.rpartition("/")[0] != new.rpartition("/")[0]:
        msg = f"{old!r} and {new!r} are in different folders; rename within one"
        raise ValueError(msg)


def open_plain(path: str, flags: int) -> int:
    """Open a file and return its descriptor; nothing but a file, and that at once.

    Whoever may write into a folder could plant a link to another file there, or a pipe that
    keeps the one waiting who opens it.

    Raises:
        NotPlain: it is a link, a pipe, a device or a socket.
        FolderInPlace: it is a folder.
    """
    mode = mode_in(path) if flags & os.O_CREAT else 0
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            check_plain(os.lstat(path).st_mode, path)
        raise
    try:
        check_plain(os.fstat(descriptor).st_mode, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_through(file: DiskFile, size: int, offset: int) -> bytes:
    """Return bytes of a file; zeros in place of those that the disk cannot read.

    So a bad sector is damage like any other: no checksum over it holds, and what stands
    behind it can be read.
    """
    data = b""
    try:
        data = file.pread(size, offset)
        if len(data) == size or not file.pread(1, offset + len(data)):
            return data  # what ends before a bad sector is short as well
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    end = min(offset + size, file.size())
    return data + b"".join(
        _page(file, min(end, (at | _PAGE - 1) + 1) - at, at)
        for at in (offset + len(data), *range((offset + len(data) | _PAGE - 1) + 1, end, _PAGE))
        if at < end
    )


def _page(file: DiskFile, size: int, offset: int) -> bytes:
    """Return bytes within one page, or as many zeros."""
    return file.pread(size, offset) if is_readable(file, size, offset) else bytes(size)


def is_readable(file: DiskFile, size: int, offset: int) -> bool:
    """Return whether the disk can read these bytes."""
    end = offset + size
    try:
        while offset < end and (data := file.pread(min(_PIECE, end - offset), offset)):
            offset += len(data)  # what ends before a bad sector is short
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    return True


#: Bytes that a disk can read or not: pages are read as a whole.
_PAGE: Final = 4096
_PIECE: Final = 4 << 20

#: Bytes of a small file, such as a place or a status.
SMALL_LIMIT: Final = 1 << 20


def read_plain(path: str | Path) -> bytes:
    """Return what a small file holds.

    Raises:
        NotPlain: it is a link, a pipe, a device or a socket.
        OSError: it cannot be read.
    """
    with open(path, "rb", opener=open_plain) as file:
        return file.read(SMALL_LIMIT)


def replace_plain(path: Path, data: bytes) -> None:
    """Replace a small file in one step; not durable.

    Raises:
        NotPlain: a link, a pipe, a device or a socket has the place of its next version.
        OSError: it cannot be written.
    """
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb", opener=open_plain) as file:
        file.write(data)
    temporary.rename(path)


def check_plain(mode: int, path: str) -> None:
    """Raise `NotPlain` for what is not a file, `FolderInPlace` for a folder."""
    if stat.S_ISDIR(mode):
        what = f"{path} is a folder, not a file; take it away"
        raise FolderInPlace(what)
    if not stat.S_ISREG(mode):
        what = f"{path} is a link, a pipe or a device, not a file; take it away"
        raise NotPlain(what)


class RealDisk:
    """A `Disk` below a folder of the machine."""

    def __init__(self, root: str | Path, mode: int | None = None) -> None:
        """Use a folder, which has to exist; paths are relative to it.

        `mode` is that of folders that are made; see `private_file`.
        """
        self._root = str(root)
        self._mode = mode

    def _path(self, path: str) -> str:
        """Return the machine's path of a path below the root."""
        names = [name for name in path.split("/") if name]
        return os.path.join(self._root, *names)  # noqa: PTH118  (called for each operation)

    def open(self, path: str, *, append: bool = False) -> "RealFile":
        """Open a file to read it, or with `append` to write as well, made if needed."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT if append else os.O_RDONLY
        place = self._path(path)
        descriptor = open_plain(place, flags)
        if append and self._mode is not None and not os.fstat(descriptor).st_size:
            os.fchmod(descriptor, mode_in(place))  # whatever the umask is
        file = RealFile(descriptor, place)
        if append:
            after_fork.register(file, after_fork.drop)
        return file

    def mkdir(self, path: str) -> None:
        """Make a folder."""
        make_one_folder(self._path(path), self._mode)

    def rename(self, old: str, new: str) -> None:
        """Rename within one folder; what has the new name is replaced, all in one step."""
        check_rename(old, new)
        Path(self._path(old)).rename(self._path(new))

    def unlink(self, path: str) -> None:
        """Remove a file's name; who has it open can go on."""
        Path(self._path(path)).unlink()

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(os.listdir(self._path(path)))  # noqa: PTH208  (names, not paths)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        found = os.lstat(self._path(path))
        check_plain(found.st_mode, path)
        return found.st_size

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        sync_path(self._path(path), os.O_DIRECTORY)


def sync_path(path: str | Path, flags: int = 0) -> None:
    """Make the contents of a file of the machine durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RealFile:
    """An open file of the machine."""

    def __init__(self, descriptor: int, path: str) -> None:
        """Take over the descriptor of what was opened at a path."""
        self._descriptor: int | None = descriptor
        self._path = path

    def fileno(self) -> int:
        """Return the descriptor; -1 if the file is closed."""
        return -1 if self._descriptor is None else self._descriptor

    def is_in_place(self) -> bool:
        """Return whether the path at which it was opened still leads to it."""
        return is_at(self._path, identity_of(self._open()))

    def write(self, data: bytes) -> int:
        """Write at the end; returns how many bytes were taken, which may be fewer."""
        return os.write(self._open(), data)

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""
        return os.pread(self._open(), size, offset)

    def truncate(self, size: int) -> None:
        """Set the size; zeros fill what is added."""
        os.ftruncate(self._open(), size)

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self._open()).st_size

    def fsync(self) -> None:
        """Make the contents durable, but not the name. After an error nothing is known."""
        os.fsync(self._open())

    def close(self) -> None:
        """Close the file; this makes nothing durable."""
        descriptor = self._open()
        self._descriptor = None
        os.close(descriptor)

    def _open(self) -> int:
        """Return the descriptor of a file that is not closed."""
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._descriptor


class MemoryDisk:
    """Files in memory below any folder; nothing is ever durable, so syncing costs nothing."""

    def __init__(self) -> None:
        """Make an empty disk."""
        self._files: dict[str, bytearray] = {}

    def open(self, path: str, *, append: bool = False) -> "MemoryFile":
        """Open a file to read it, or with `append` to write as well, made if needed."""
        if append:
            return MemoryFile(self._files.setdefault(path, bytearray()))
        return MemoryFile(self._find(path))

    def mkdir(self, path: str) -> None:
        """Do nothing: every folder is there."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        self._files[new] = self._find(old)
        del self._files[old]

    def unlink(self, path: str) -> None:
        """Remove a file's name."""
        self._find(path)
        del self._files[path]

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        start = f"{path}/"
        return sorted(
            name.removeprefix(start) for name in list(self._files) if name.startswith(start)
        )

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return len(self._find(path))

    def sync_folder(self, path: str) -> None:
        """Do nothing."""

    def _find(self, path: str) -> bytearray:
        """Return a file's contents; raise `FileNotFoundError` where there is none."""
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class MemoryFile:
    """An open file in memory."""

    def __init__(self, content: bytearray) -> None:
        """Open it."""
        self._content = content

    def write(self, data: bytes) -> int:
        """Write at the end."""
        self._content += data
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset."""
        return bytes(self._content[offset : offset + size])

    def truncate(self, size: int) -> None:
        """Set the size."""
        del self._content[size:]
        self._content += bytes(size - len(self._content))

    def size(self) -> int:
        """Return the size in bytes."""
        return len(self._content)

    def is_in_place(self) -> bool:
        """Return True: nobody else reaches it."""
        return True

    def fsync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
