"""Files of simulated programs, on the simulated disk of their host.

During a host's turn, `open`, `pathlib`, `tempfile`, `shutil` and functions of `os` are routed
here. Written data survives a kill, because the operating system has it. After a crash, the disk
decides how much of the unsynced data is lost. Buffers of file objects belong to the program:
they are flushed when it ends normally, and lost when it is killed.

A host has the folders `/` (the initial working directory), `/tmp`, `/var/lib` and `/var/log`,
which survive crashes. Folders that contain Python modules are mounted read-only from the real
machine, so that a program finds the files next to its modules.
"""

import errno
import functools
import io
import itertools
import os
import posixpath
import stat
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol, Self

from callboard.simulation.disk import FileInode, FolderInode, SimulatedDisk, SimulatedFile
from callboard.simulation.programs.current_program import ProgramLife

Inode = FileInode | FolderInode

#: The initial folders of a host, besides `/`.
FOLDERS: Final = ("/tmp", "/var", "/var/lib", "/var/log")  # noqa: S108 - of a simulated disk

#: Paths of the real machine that programs may read.
_MOUNTED: Final = ("/usr/share/zoneinfo", "/dev/null")

_NAMES: Final = "abcdefghijklmnopqrstuvwxyz0123456789_"

_FLAGS: Final = {
    "r": os.O_RDONLY,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
}

_CHANGES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_TEMPORARY: Final = getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY

#: The real functions, for folders of code and for real descriptors of the test.
REAL: Final[dict[str, Callable[..., Any]]] = {
    name: getattr(os, name)
    for name in (
        *("access", "close", "dup", "fdatasync", "fstat", "fsync", "ftruncate", "isatty"),
        *("listdir", "lseek", "lstat", "open", "pread", "pwrite", "read", "readlink"),
        *("readv", "scandir", "stat", "write", "writev"),
    )
}
_REAL_OPEN: Final = open


class LifeWithFiles(ProgramLife, Protocol):
    """A run of a program, with its files."""

    files: "HostFiles"
    closed: bool


class FileStatus(NamedTuple):
    """The metadata of a file or folder in `os.stat`, except its size."""

    number: int
    changed_ns: int
    mode: int


class Statuses:
    """The metadata of all files of a host; kept when its program restarts."""

    def __init__(self) -> None:
        self._by_inode: weakref.WeakKeyDictionary[Inode, FileStatus] = (
            weakref.WeakKeyDictionary()
        )
        self._numbers = itertools.count(2)

    def of(self, inode: Inode, now_ns: int, mode: int | None = None) -> FileStatus:
        """Return the status of a file or folder; create it from these values if missing."""
        status = self._by_inode.get(inode)
        if status is None:
            default = 0o755 if isinstance(inode, FolderInode) else 0o644
            mode = default if mode is None else mode & ~0o022
            status = self._by_inode[inode] = FileStatus(next(self._numbers), now_ns, mode)
        return status

    def change(self, inode: Inode, now_ns: int, **changes: int) -> None:
        """Change fields of the status of a file or folder."""
        self._by_inode[inode] = self.of(inode, now_ns)._replace(**changes)


class OpenFile:
    """An open file description, shared by duplicated descriptors and file objects."""

    def __init__(self, file: SimulatedFile, inode: Inode, path: str, flags: int) -> None:
        self.file = file
        self.inode = inode
        self.path = path
        self.position = 0
        self.is_readable = flags & os.O_ACCMODE != os.O_WRONLY
        self.is_writable = flags & os.O_ACCMODE != os.O_RDONLY
        self._appends = bool(flags & os.O_APPEND)
        self._syncs = bool(flags & (os.O_SYNC | os.O_DSYNC))
        self._users = 1

    def used_again(self) -> "OpenFile":
        """Add a descriptor."""
        self._users += 1
        return self

    def pread(self, size: int, offset: int) -> bytes:
        """Read from an offset."""
        if not self.is_readable:
            raise _error(errno.EBADF)
        return self.file.pread(size, offset)

    def pwrite(self, data: Any, offset: int) -> int:
        """Write at an offset; with O_APPEND at the end, as Linux does."""
        count = self.file.pwrite(bytes(data), self.file.size() if self._appends else offset)
        if self._syncs:
            self.file.fsync()
        return count

    def read(self, size: int) -> bytes:
        """Read from the current position."""
        data = self.pread(size, self.position)
        self.position += len(data)
        return data

    def write(self, data: Any) -> int:
        """Write at the current position; return the number of bytes written."""
        start = self.file.size() if self._appends else self.position
        count = self.pwrite(data, start)
        self.position = start + count
        return count

    def seek(self, offset: int, whence: int) -> int:
        """Set the position; return it."""
        origins = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.file.size()}
        position = origins.get(whence, -1) + offset
        if whence not in origins or position < 0:
            raise _error(errno.EINVAL)
        self.position = position
        return position

    def close(self) -> None:
        """Remove a descriptor; close the file with the last one."""
        self._users -= 1
        if not self._users:
            self.file.close()


class OpenFolder:
    """An open folder, used to sync its entries and as `dir_fd`."""

    def __init__(self, inode: Inode, path: str) -> None:
        self.inode = inode
        self.path = path

    def used_again(self) -> "OpenFolder":
        """Add a descriptor."""
        return self

    def close(self) -> None:
        """Do nothing: a folder holds no resources."""


class HostFile(io.RawIOBase):
    """An unbuffered file object; `open` wraps it in Python's own buffers."""

    def __init__(self, files: "HostFiles", number: int, mode: str, *, closes: bool) -> None:
        self._files = files
        self._number = number
        self._closes = closes
        self._of = files.opened(number)
        self.name: Any = self._of.path
        self.mode = mode

    def readable(self) -> bool:
        """Return whether the file is open for reading."""
        return self._of.is_readable

    def writable(self) -> bool:
        """Return whether the file is open for writing."""
        return self._of.is_writable

    def seekable(self) -> bool:
        """Return True: files are seekable."""
        return True

    def fileno(self) -> int:
        """Return the simulated descriptor."""
        self._check()
        return self._number

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; return the number of bytes."""
        self._check()
        if not self.readable():
            message = "the file is not open for reading"
            raise io.UnsupportedOperation(message)
        data = self._of.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        """Write bytes; return their number."""
        if self._files.is_over:
            return len(data)  # the lost buffer of a killed program
        self._check()
        if not self.writable():
            message = "the file is not open for writing"
            raise io.UnsupportedOperation(message)
        count = self._of.write(memoryview(data))
        self._files.touched(self._of.inode)
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position; return it."""
        self._check()
        return self._of.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        self._check()
        return self._of.position

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size, by default to the current position; return it."""
        self._check()
        size = self._of.position if size is None else size
        self._files.ftruncate(self._number, size)
        return size

    def close(self) -> None:
        """Close the object, and its descriptor if it owns it."""
        if not self.closed:
            super().close()
            if self._closes and not self._files.is_over:
                self._files.close(self._number)

    def _check(self) -> None:
        """Raise `ValueError` for a closed file."""
        if self.closed:
            message = "I/O operation on closed file"
            raise ValueError(message)


class FolderEntry:
    """An entry of `os.scandir`, like `os.DirEntry`."""

    def __init__(self, files: "HostFiles", name: str, path: str, full_path: str) -> None:
        self.name = name
        self.path = path
        self._files = files
        self._full_path = full_path

    def __fspath__(self) -> str:
        """Return the path."""
        return self.path

    def __repr__(self) -> str:
        """Return the name."""
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        """Return the inode number."""
        return self.stat().st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the status; there are no symbolic links."""
        return self._files.stat(self._full_path)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a folder."""
        return stat.S_ISDIR(self.stat().st_mode)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a file."""
        return stat.S_ISREG(self.stat().st_mode)

    def is_symlink(self) -> bool:
        """Return False: there are no links."""
        return False

    def is_junction(self) -> bool:
        """Return False: there are no links."""
        return False


class FolderEntries:
    """The result of `os.scandir`."""

    def __init__(self, entries: list[FolderEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[FolderEntry]:
        """Return the iterator itself."""
        return self

    def __next__(self) -> FolderEntry:
        """Return the next entry."""
        return next(self._entries)

    def __enter__(self) -> Self:
        """Return the iterator itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: the iterator holds no resources."""

    def close(self) -> None:
        """Drop the remaining entries."""
        self._entries = iter(())


class HostFiles:
    """The files of one run of a program. Its methods replace functions of `os`."""

    def __init__(self, life: LifeWithFiles, disk: SimulatedDisk, statuses: Statuses) -> None:
        """Use the disk of a host and the metadata of its files."""
        self._life = life
        self._disk = disk
        self._statuses = statuses
        self._folder = "/"
        self._open: dict[int, OpenFile | OpenFolder] = {}
        self._objects: list[weakref.ref[Any]] = []
        self._mounted = _mounted(len(sys.modules), tuple(sys.path))
        for path in FOLDERS:
            parent = path.rpartition("/")[0] or "/"
            if posixpath.basename(path) not in disk.listdir(parent):
                disk.furnish(path)

    # --- life cycle ---

    @property
    def is_over(self) -> bool:
        """Whether the program has ended; later calls have no effect."""
        return self._life.closed

    def flush(self) -> None:
        """Flush the buffers of a program that ends normally."""
        for ref in self._objects:
            file = ref()
            if file is not None and not file.closed:
                try:
                    file.flush()
                except OSError as error:
                    self._life.host.troubled("a file could not be flushed at the end", error)

    def opened(self, number: int) -> OpenFile:
        """Return the open file of a descriptor.

        Raises:
            OSError: the descriptor is closed or that of a folder.
        """
        entry = self._open.get(number)
        if isinstance(entry, OpenFolder):
            raise _error(errno.EISDIR, entry.path)
        if entry is None or self._life.closed:
            raise _error(errno.EBADF)
        return entry

    def has(self, number: object) -> bool:
        """Return whether a descriptor is one of a simulated file or folder."""
        return number in self._open

    # --- paths ---

    def _path(self, path: Any, folder: int | None = None) -> str:
        """Return the absolute path of a path or of an open folder."""
        if self._life.closed:
            raise _error(errno.EIO)  # cleanup code of a killed program
        if isinstance(path, int):
            if path not in self._open:
                raise _error(errno.EBADF)
            return self._open[path].path
        base = self._folder if folder is None else self._path(folder)
        return posixpath.normpath(posixpath.join(base, os.fsdecode(path)))

    def _is_code(self, path: str) -> bool:
        """Return whether a path is in a folder of code, on the real machine."""
        return path.startswith(self._mounted) or f"{path}/" in self._mounted

    def _own(self, path: Any, folder: int | None = None) -> str:
        """Return the absolute path of a file or folder to change.

        Raises:
            OSError: the path is in a folder of code.
        """
        full_path = self._path(path, folder)
        if self._is_code(full_path):
            raise OSError(
                errno.EROFS,
                f"{os.strerror(errno.EROFS)}: folders of code are read-only for simulated "
                "hosts; write elsewhere, such as in /var/lib",
                full_path,
            )
        return full_path

    def _now_ns(self) -> int:
        """Return the wall clock of the host, in nanoseconds."""
        return self._life.node_clock.wall_ns()

    def touched(self, inode: Inode) -> None:
        """Set the modification time of a file to now."""
        now = self._now_ns()
        self._statuses.change(inode, now, changed_ns=now)

    # --- open and close ---

    def open_object(
        self,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,  # noqa: FBT001, FBT002 - as of `open`
        opener: Callable[[Any, int], int] | None = None,
    ) -> Any:
        """Replace `open`."""
        kind, flags = _parse(mode)
        is_text, is_number = "b" not in mode, isinstance(file, int)
        if is_number:
            is_real = file not in self._open
        else:
            is_real = self._is_code(self._path(file)) and not flags & _CHANGES
        if is_real:
            options = (buffering, encoding, errors, newline, closefd, opener)
            return _REAL_OPEN(file, mode, *options)
        _check_open(is_text, buffering, encoding, errors, newline)
        number = file
        if not is_number and opener is not None:
            number = opener(file, flags | os.O_CLOEXEC)
        elif not is_number:
            number = self.open(file, flags, 0o666)
        raw = HostFile(self, number, kind + "b", closes=closefd or not is_number)
        if not is_number:
            raw.name = os.fspath(file)
        if kind[0] == "a":
            raw.seek(0, os.SEEK_END)
        wrapped: Any = _buffered(raw, kind, buffering)
        if is_text:
            encoding = "utf-8" if encoding in (None, "locale") else encoding
            wrapped = io.TextIOWrapper(wrapped, encoding, errors, newline, buffering == 1)
            wrapped.mode = mode
        if wrapped is not raw and raw.writable():
            self._objects = [ref for ref in self._objects if ref() is not None]
            self._objects.append(weakref.ref(wrapped))
        return wrapped

    def open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        """Replace `os.open`."""
        full_path = self._path(path, dir_fd)
        if self._is_code(full_path) and not flags & _CHANGES:
            number: int = REAL["open"](full_path, flags)
            return number
        if flags & _TEMPORARY:
            raise _error(errno.EOPNOTSUPP, full_path)
        if flags & getattr(os, "O_DIRECT", 0):
            self._life.refuse("O_DIRECT is not simulated", "open the file without it")
        inode = self._inode(full_path)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if isinstance(inode, FolderInode):
            if writes or flags & os.O_CREAT:
                raise _error(errno.EISDIR, full_path)
            return self._number(OpenFolder(inode, full_path))
        if flags & os.O_DIRECTORY:
            raise _error(errno.ENOENT if inode is None else errno.ENOTDIR, full_path)
        if inode is not None and flags & os.O_CREAT and flags & os.O_EXCL:
            raise _error(errno.EEXIST, full_path)
        if flags & _CHANGES:
            self._own(full_path)
        file = self._disk.open(
            full_path, append=bool(flags & os.O_CREAT) or (writes and inode is not None)
        )
        inode = self._disk.find(full_path)
        self._statuses.of(inode, self._now_ns(), mode)
        if flags & os.O_TRUNC and writes and file.size():
            file.truncate(0)
            self.touched(inode)
        return self._number(OpenFile(file, inode, full_path, flags))

    def _number(self, opened: OpenFile | OpenFolder) -> int:
        """Assign a new descriptor."""
        number = self._life.new_descriptor(opened)
        self._open[number] = opened
        return number

    def close(self, number: int) -> None:
        """Replace `os.close`."""
        entry = self._open.pop(number, None)
        if entry is None:
            REAL["close"](number)
            return
        self._life.drop_descriptor(number)
        entry.close()

    def closerange(self, first: int, last: int) -> None:
        """Replace `os.closerange`, for descriptors of the program only."""
        for number in [descriptor for descriptor in self._open if first <= descriptor < last]:
            self.close(number)

    def dup(self, number: int) -> int:
        """Replace `os.dup`."""
        if number not in self._open:
            real: int = REAL["dup"](number)
            return real
        return self._number(self._open[number].used_again())

    # --- descriptors ---

    def read(self, number: int, size: int) -> bytes:
        """Replace `os.read`."""
        return self.opened(number).read(size)

    def pread(self, number: int, size: int, offset: int) -> bytes:
        """Replace `os.pread`."""
        return self.opened(number).pread(size, offset)

    def readv(self, number: int, buffers: Any) -> int:
        """Replace `os.readv`."""
        count = 0
        for buffer in buffers:
            data = self.opened(number).read(len(buffer))
            memoryview(buffer)[: len(data)] = data
            count += len(data)
        return count

    def write(self, number: int, data: Any) -> int:
        """Replace `os.write`."""
        file = self.opened(number)
        count = file.write(data)
        self.touched(file.inode)
        return count

    def writev(self, number: int, buffers: Any) -> int:
        """Replace `os.writev`."""
        return self.write(number, b"".join(bytes(buffer) for buffer in buffers))

    def pwrite(self, number: int, data: Any, offset: int) -> int:
        """Replace `os.pwrite`."""
        file = self.opened(number)
        count = file.pwrite(data, offset)
        self.touched(file.inode)
        return count

    def lseek(self, number: int, offset: int, whence: int) -> int:
        """Replace `os.lseek`."""
        return self.opened(number).seek(offset, whence)

    def fsync(self, number: Any) -> None:
        """Replace `os.fsync` and `os.fdatasync`; on a folder, make its entries durable."""
        entry = self._open[number]
        if isinstance(entry, OpenFolder):
            self._disk.sync_folder(entry.path)
        else:
            entry.file.fsync()

    fdatasync = fsync

    def ftruncate(self, number: int, size: int) -> None:
        """Replace `os.ftruncate`."""
        file = self.opened(number)
        file.file.truncate(size)
        self.touched(file.inode)

    def fstat(self, number: int) -> os.stat_result:
        """Replace `os.fstat`."""
        return self._stat_result(self._open[number].inode)

    def isatty(self, number: int) -> bool:
        """Replace `os.isatty`."""
        return False

    # --- names ---

    def _inode(self, path: str) -> Inode | None:
        """Return the file or folder at a path, or None."""
        try:
            return self._disk.find(path)
        except FileNotFoundError:
            return None

    def stat(
        self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> os.stat_result:
        """Replace `os.stat`; there are no symbolic links."""
        full_path = self._path(path, dir_fd)
        if self._is_code(full_path):
            real: os.stat_result = REAL["stat"](full_path, follow_symlinks=follow_symlinks)
            return real
        return self._stat_result(self._disk.find(full_path))

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        """Replace `os.lstat`."""
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def _stat_result(self, inode: Inode) -> os.stat_result:
        """Return the result of `os.stat` for a file or folder."""
        status, is_file = self._statuses.of(inode, self._now_ns()), isinstance(inode, FileInode)
        kind = stat.S_IFREG if is_file else stat.S_IFDIR
        size = len(inode.seen) if is_file else 4096
        seconds = status.changed_ns // 1_000_000_000
        times = {
            f"st_{name}{suffix}": value
            for name in ("atime", "mtime", "ctime")
            for suffix, value in (("", status.changed_ns / 1e9), ("_ns", status.changed_ns))
        }
        details = {**times, "st_blksize": 4096, "st_blocks": -(-size // 512), "st_rdev": 0}
        basics = (kind | status.mode, status.number, 1, 1, 0, 0, size, *[seconds] * 3)
        return os.stat_result(basics, details)

    def access(
        self, path: Any, mode: int, *, dir_fd: int | None = None, **options: Any
    ) -> bool:
        """Replace `os.access`: everything that exists is accessible."""
        full_path = self._path(path, dir_fd)
        if self._is_code(full_path):
            return not mode & os.W_OK and bool(REAL["access"](full_path, mode))
        return self._inode(full_path) is not None

    def listdir(self, path: Any = ".") -> Any:
        """Replace `os.listdir`; names are sorted."""
        full_path = self._path(path)
        names = (
            REAL["listdir"](full_path)
            if self._is_code(full_path)
            else self._disk.listdir(full_path)
        )
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    def scandir(self, path: Any = ".") -> Any:
        """Replace `os.scandir`; names are sorted."""
        full_path = self._path(path)
        if self._is_code(full_path):
            return REAL["scandir"](path if isinstance(path, bytes) else full_path)
        prefix = "" if isinstance(path, int) else os.fsdecode(path)
        return FolderEntries(
            [
                FolderEntry(
                    self, name, posixpath.join(prefix, name), posixpath.join(full_path, name)
                )
                for name in self._disk.listdir(full_path)
            ]
        )

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        """Replace `os.readlink`; there are no links."""
        full_path = self._path(path, dir_fd)
        if self._is_code(full_path):
            return REAL["readlink"](full_path)
        self._disk.find(full_path)
        raise _error(errno.EINVAL, full_path)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Replace `os.mkdir`."""
        full_path = self._path(path, dir_fd)
        if self._is_code(full_path) and REAL["access"](full_path, os.F_OK):
            raise _error(errno.EEXIST, full_path)
        self._disk.mkdir(self._own(full_path))
        self._statuses.of(self._disk.find(full_path), self._now_ns(), mode)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Replace `os.rmdir`."""
        self._disk.rmdir(self._own(path, dir_fd))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Replace `os.unlink` and `os.remove`."""
        self._disk.unlink(self._own(path, dir_fd))

    def rename(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        """Replace `os.rename` and `os.replace`, within one folder."""
        old, new = self._own(src, src_dir_fd), self._own(dst, dst_dir_fd)
        if posixpath.dirname(old) != posixpath.dirname(new):
            self._life.refuse(
                f"renaming between folders is not simulated ({old!r} to {new!r})",
                "a crash may leave both names or neither; write the file in its final folder "
                "and rename it there",
            )
        self._disk.rename(old, new)

    def truncate(self, path: Any, length: int) -> None:
        """Replace `os.truncate`."""
        if isinstance(path, int):
            self.ftruncate(path, length)
            return
        number = self.open(path, os.O_WRONLY)
        try:
            self.ftruncate(number, length)
        finally:
            self.close(number)

    def chmod(self, path: Any, mode: int, *, dir_fd: int | None = None, **options: Any) -> None:
        """Replace `os.chmod`: `stat` returns the mode, but it is not enforced."""
        inode = self._disk.find(self._own(path, dir_fd))
        self._statuses.change(inode, self._now_ns(), mode=mode & 0o7777)

    def utime(
        self,
        path: Any,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        dir_fd: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Replace `os.utime`; a file has only the modification time."""
        inode, now = self._disk.find(self._own(path, dir_fd)), self._now_ns()
        if ns is not None:
            changed_ns = ns[1]
        else:
            changed_ns = now if times is None else round(times[1] * 1e9)
        self._statuses.change(inode, now, changed_ns=changed_ns)

    def getcwd(self) -> str:
        """Replace `os.getcwd`."""
        return self._folder

    def getcwdb(self) -> bytes:
        """Replace `os.getcwdb`."""
        return os.fsencode(self._folder)

    def chdir(self, path: Any) -> None:
        """Replace `os.chdir`."""
        full_path = self._path(path)
        if not stat.S_ISDIR(self.stat(full_path).st_mode):
            raise _error(errno.ENOTDIR, full_path)
        self._folder = full_path

    def temporary_names(self) -> Iterator[str]:
        """Yield names for temporary files, drawn from the seed."""
        while True:
            yield "".join(self._life.drawn.choice(_NAMES) for _ in range(8))


def _parse(mode: str) -> tuple[str, int]:
    """Return the access letters of a mode, and its flags for `os.open`.

    Raises:
        ValueError: the mode is invalid.
    """
    kind = mode.replace("b", "").replace("t", "")
    ordered = kind.replace("+", "") + "+" * kind.count("+")
    is_known = ordered in {"r", "w", "a", "x", "r+", "w+", "a+", "x+"}
    if not is_known or len(set(mode)) < len(mode) or {"b", "t"} <= set(mode):
        message = f"invalid mode: {mode!r}"
        raise ValueError(message)
    flags = _FLAGS[ordered[0]]
    if "+" in ordered:
        flags = flags & ~os.O_ACCMODE | os.O_RDWR
    return ordered, flags


def _check_open(
    is_text: bool,  # noqa: FBT001 - part of the arguments of `open`
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> None:
    """Raise `ValueError` for combinations of arguments that `open` refuses."""
    if not is_text and (encoding, errors, newline) != (None, None, None):
        message = "binary mode doesn't take an encoding, errors or newline argument"
        raise ValueError(message)
    if is_text and not buffering:
        message = "can't have unbuffered text I/O"
        raise ValueError(message)


def _buffered(raw: HostFile, kind: str, buffering: int) -> Any:
    """Wrap a file in Python's buffer, unless `buffering` is 0."""
    if not buffering:
        return raw
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    if "+" in kind:
        return io.BufferedRandom(raw, size)
    return io.BufferedReader(raw, size) if kind == "r" else io.BufferedWriter(raw, size)


@functools.lru_cache(maxsize=1)
def _mounted(modules: int, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the prefixes of paths on the real machine: folders of code.

    A simulated folder, such as `/tmp`, is never mounted, even if a module was loaded from it.

    Args:
        modules: number of loaded modules; only a key of the cache.
        path: the import path.
    """
    folders = {sys.prefix, sys.base_prefix, *path}
    folders.update(
        posixpath.dirname(file)
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str)
    )
    folders = {posixpath.normpath(folder) for folder in folders if posixpath.isabs(folder)}
    prefixes = list(_MOUNTED)
    for folder in sorted(folders - {"/", *FOLDERS}):
        if not folder.startswith(tuple(prefixes)):
            prefixes.append(f"{folder}/")
    return tuple(prefixes)


def _error(code: int, path: str | None = None) -> OSError:
    """Return the OSError of an error number, for a path."""
    return OSError(code, os.strerror(code), path) if path else OSError(code, os.strerror(code))
