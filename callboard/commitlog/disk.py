"""Disks: the file system interface of a log, the machine's file system, and one in memory.

`callboard.simulation` has a disk that injects faults.
"""

import errno
import os
import stat
from pathlib import Path
from typing import Final, Protocol

from callboard.commitlog.errors import FolderInPlace, NotPlain
from callboard.support import after_fork
from callboard.support.files.file_place import identity_of, is_at
from callboard.support.files.private_file import make_one_folder, mode_in


class DiskFile(Protocol):
    """An open file. Failures raise `OSError` with the error number of the system."""

    def write(self, data: bytes) -> int:
        """Append data; return the number of bytes written, which may be fewer."""

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Set the size; a larger one is filled with zeros."""

    def size(self) -> int:
        """Return the size in bytes."""

    def fsync(self) -> None:
        """Make the contents durable, but not the name. After an error any may be lost."""

    def is_in_place(self) -> bool:
        """Return whether the path at which it was opened still leads to it."""

    def close(self) -> None:
        """Close the file, without making anything durable."""


class Disk(Protocol):
    """A file system with `/` between names. Failures raise `OSError` of the system."""

    def open(self, path: str, *, append: bool = False) -> DiskFile:
        """Open a file for reading; with `append`, create it if needed and allow writing."""

    def mkdir(self, path: str) -> None:
        """Create a folder."""

    def rename(self, old: str, new: str) -> None:
        """Rename within one folder, atomically; an existing file is replaced."""

    def unlink(self, path: str) -> None:
        """Remove the name of a file; open files remain usable."""

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
    """Open a regular file without blocking, and return its descriptor.

    A user who may write into the folder could plant a link to another file there, or a pipe on
    which opening would block forever.

    Raises:
        NotPlain: a link, a pipe, a device or a socket is at the path.
        FolderInPlace: a folder is at the path.
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
    """Return bytes of a file, with zeros in place of pages that the disk cannot read.

    Thus a bad sector is damage like any other: its checksum fails, and the bytes after it can
    still be read.
    """
    data = b""
    try:
        data = file.pread(size, offset)
        if len(data) == size or not file.pread(1, offset + len(data)):
            return data  # a read that stops before a bad sector is short as well
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    start, end = offset + len(data), min(offset + size, file.size())
    return data + b"".join(
        _page(file, min(end, (page | _PAGE - 1) + 1) - page, page)
        for page in (start, *range((start | _PAGE - 1) + 1, end, _PAGE))
        if page < end
    )


def _page(file: DiskFile, size: int, offset: int) -> bytes:
    """Return bytes within one page, or zeros if the page cannot be read."""
    return file.pread(size, offset) if is_readable(file, size, offset) else bytes(size)


def is_readable(file: DiskFile, size: int, offset: int) -> bool:
    """Return whether the disk can read these bytes."""
    end = offset + size
    try:
        while offset < end and (data := file.pread(min(_PIECE, end - offset), offset)):
            offset += len(data)  # a read that stops before a bad sector is short
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    return True


#: Bytes of a page, which the disk can only read as a whole.
_PAGE: Final = 4096
_PIECE: Final = 4 << 20

#: Limit in bytes of a small file, such as a reader's place or a status.
SMALL_LIMIT: Final = 1 << 20


def read_plain(path: str | Path) -> bytes:
    """Return the contents of a small file.

    Raises:
        NotPlain: a link, a pipe, a device or a socket is at the path.
        OSError: the file cannot be read.
    """
    with open(path, "rb", opener=open_plain) as file:
        return file.read(SMALL_LIMIT)


def replace_plain(path: Path, data: bytes) -> None:
    """Replace a small file atomically, but not durably.

    Raises:
        NotPlain: a link, a pipe, a device or a socket is at the path of the temporary file.
        OSError: the file cannot be written.
    """
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb", opener=open_plain) as file:
        file.write(data)
    temporary.rename(path)


def check_plain(mode: int, path: str) -> None:
    """Raise `FolderInPlace` for a folder, `NotPlain` for anything else but a file."""
    if stat.S_ISDIR(mode):
        msg = f"{path} is a folder, not a file; remove it"
        raise FolderInPlace(msg)
    if not stat.S_ISREG(mode):
        msg = f"{path} is a link, a pipe or a device, not a file; remove it"
        raise NotPlain(msg)


class RealDisk:
    """A `Disk` below a folder of the machine."""

    def __init__(self, root: str | Path, mode: int | None = None) -> None:
        """Use an existing folder; paths are relative to it.

        `mode` is the mode of new folders; see `private_file`.
        """
        self._root = str(root)
        self._mode = mode

    def _path(self, path: str) -> str:
        """Return the machine's path of a path below the root."""
        names = [name for name in path.split("/") if name]
        return os.path.join(self._root, *names)  # noqa: PTH118  (called for each operation)

    def open(self, path: str, *, append: bool = False) -> "RealFile":
        """Open a file for reading; with `append`, create it if needed and allow writing."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT if append else os.O_RDONLY
        place = self._path(path)
        descriptor = open_plain(place, flags)
        if append and self._mode is not None and not os.fstat(descriptor).st_size:
            os.fchmod(descriptor, mode_in(place))  # regardless of the umask
        file = RealFile(descriptor, place)
        if append:
            after_fork.register(file, after_fork.drop)
        return file

    def mkdir(self, path: str) -> None:
        """Create a folder."""
        make_one_folder(self._path(path), self._mode)

    def rename(self, old: str, new: str) -> None:
        """Rename within one folder, atomically; an existing file is replaced."""
        check_rename(old, new)
        Path(self._path(old)).rename(self._path(new))

    def unlink(self, path: str) -> None:
        """Remove the name of a file; open files remain usable."""
        Path(self._path(path)).unlink()

    def listdir(self, path: str) -> list[str]:
        """Return the names in a folder, sorted."""
        return sorted(os.listdir(self._path(path)))  # noqa: PTH208  (names, not paths)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        status = os.lstat(self._path(path))
        check_plain(status.st_mode, path)
        return status.st_size

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""
        sync_path(self._path(path), os.O_DIRECTORY)


def sync_path(path: str | Path, flags: int = 0) -> None:
    """Make durable the contents of a file of the machine, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RealFile:
    """An open file of the machine."""

    def __init__(self, descriptor: int, path: str) -> None:
        """Own the descriptor of a file that was opened at `path`."""
        self._descriptor: int | None = descriptor
        self._path = path

    def fileno(self) -> int:
        """Return the descriptor; -1 if the file is closed."""
        return -1 if self._descriptor is None else self._descriptor

    def is_in_place(self) -> bool:
        """Return whether the path at which it was opened still leads to it."""
        return is_at(self._path, identity_of(self._open()))

    def write(self, data: bytes) -> int:
        """Append data; return the number of bytes written, which may be fewer."""
        return os.write(self._open(), data)

    def pread(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset; fewer only at the end of the file."""
        return os.pread(self._open(), size, offset)

    def truncate(self, size: int) -> None:
        """Set the size; a larger one is filled with zeros."""
        os.ftruncate(self._open(), size)

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self._open()).st_size

    def fsync(self) -> None:
        """Make the contents durable, but not the name. After an error any may be lost."""
        os.fsync(self._open())

    def close(self) -> None:
        """Close the file, without making anything durable."""
        descriptor = self._open()
        self._descriptor = None
        os.close(descriptor)

    def _open(self) -> int:
        """Return the descriptor; raise `OSError` if the file is closed."""
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._descriptor


class MemoryDisk:
    """Files in memory, in any folder; nothing is durable, so syncing does nothing."""

    def __init__(self) -> None:
        """Start with no files."""
        self._files: dict[str, bytearray] = {}

    def open(self, path: str, *, append: bool = False) -> "MemoryFile":
        """Open a file for reading; with `append`, create it if needed and allow writing."""
        if append:
            return MemoryFile(self._files.setdefault(path, bytearray()))
        return MemoryFile(self._find(path))

    def mkdir(self, path: str) -> None:
        """Do nothing: every folder exists."""

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
        """Return the contents of a file; raise `FileNotFoundError` if it does not exist."""
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None


class MemoryFile:
    """An open file in memory."""

    def __init__(self, content: bytearray) -> None:
        """Share the contents with the disk."""
        self._content = content

    def write(self, data: bytes) -> int:
        """Append data."""
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
        """Return True: no other process can replace it."""
        return True

    def fsync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
