"""Files of programs: on the simulated disk of their host.

`open`, `pathlib`, `tempfile`, `shutil` and the functions of `os` come here in a host's turn.
What was written is kept by a kill, since it was handed to the system, and what was not synced
is lost by a crash, as far as the disk says. Buffers of file objects belong to the program: they
are written out when it ends by itself, and lost when it is killed.

A host has the folders `/`, where its program begins, `/tmp`, `/var/lib` and `/var/log`, which
last over crashes. Folders of code, which are those from which modules come, are mounted from
the machine on which the tests run, to be read only: a program finds the files beside its
modules.
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
from callboard.simulation.programs.here import ProgramLife

Inode = FileInode | FolderInode

#: What a host has from the beginning, besides `/`.
FOLDERS: Final = ("/tmp", "/var", "/var/lib", "/var/log")  # noqa: S108 - of a simulated disk

#: Whose files are read for what the machine is, not for what a program stores.
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

#: The machine's own functions, for folders of code and for descriptors of the test.
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
    """A life of a program, with its files."""

    files: "HostFiles"
    closed: bool


class Status(NamedTuple):
    """What `os.stat` says of a file or folder besides its size."""

    number: int
    changed_ns: int
    mode: int


class Statuses:
    """What `os.stat` says of all files of a host; it outlasts the lives of its program."""

    def __init__(self) -> None:
        self._by_inode: weakref.WeakKeyDictionary[Inode, Status] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count(2)

    def of(self, inode: Inode, now_ns: int, mode: int | None = None) -> Status:
        """Return the status of a file or folder; one that has none begins with these."""
        found = self._by_inode.get(inode)
        if found is None:
            usual = 0o755 if isinstance(inode, FolderInode) else 0o644
            mode = usual if mode is None else mode & ~0o022
            found = self._by_inode[inode] = Status(next(self._numbers), now_ns, mode)
        return found

    def change(self, inode: Inode, now_ns: int, **changes: int) -> None:
        """Change what is known of a file or folder."""
        self._by_inode[inode] = self.of(inode, now_ns)._replace(**changes)


class OpenFile:
    """An open file: what its descriptors and file objects share."""

    def __init__(self, file: SimulatedFile, inode: Inode, path: str, flags: int) -> None:
        self.file = file
        self.inode = inode
        self.path = path
        self.at = 0
        self.is_readable = flags & os.O_ACCMODE != os.O_WRONLY
        self.is_writable = flags & os.O_ACCMODE != os.O_RDONLY
        self._appends = bool(flags & os.O_APPEND)
        self._syncs = bool(flags & (os.O_SYNC | os.O_DSYNC))
        self._users = 1

    def used_again(self) -> "OpenFile":
        """Count one more descriptor."""
        self._users += 1
        return self

    def pread(self, size: int, offset: int) -> bytes:
        """Return bytes from an offset."""
        if not self.is_readable:
            raise _error(errno.EBADF)
        return self.file.pread(size, offset)

    def pwrite(self, data: Any, offset: int) -> int:
        """Write at an offset, or at the end if that is how it was opened, as Linux does."""
        taken = self.file.pwrite(bytes(data), self.file.size() if self._appends else offset)
        if self._syncs:
            self.file.fsync()
        return taken

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        data = self.pread(size, self.at)
        self.at += len(data)
        return data

    def write(self, data: Any) -> int:
        """Write the next bytes; returns how many were taken."""
        begin = self.file.size() if self._appends else self.at
        taken = self.pwrite(data, begin)
        self.at = begin + taken
        return taken

    def seek(self, offset: int, whence: int) -> int:
        """Go to a place; returns it."""
        begin = {os.SEEK_SET: 0, os.SEEK_CUR: self.at, os.SEEK_END: self.file.size()}
        at = begin.get(whence, -1) + offset
        if whence not in begin or at < 0:
            raise _error(errno.EINVAL)
        self.at = at
        return at

    def close(self) -> None:
        """Close one descriptor, and the file with the last one."""
        self._users -= 1
        if not self._users:
            self.file.close()


class OpenFolder:
    """An open folder: to sync its names, or to name what is in it."""

    def __init__(self, inode: Inode, path: str) -> None:
        self.inode = inode
        self.path = path

    def used_again(self) -> "OpenFolder":
        """Count one more descriptor."""
        return self

    def close(self) -> None:
        """Close it."""


class HostFile(io.RawIOBase):
    """A file object without a buffer; `open` puts Python's own buffers around it."""

    def __init__(self, files: "HostFiles", number: int, mode: str, *, closes: bool) -> None:
        self._files = files
        self._number = number
        self._closes = closes
        self._of = files.opened(number)
        self.name: Any = self._of.path
        self.mode = mode

    def readable(self) -> bool:
        """Return whether it is open to read."""
        return self._of.is_readable

    def writable(self) -> bool:
        """Return whether it is open to write."""
        return self._of.is_writable

    def seekable(self) -> bool:
        """Return that it is a file."""
        return True

    def fileno(self) -> int:
        """Return the number that stands for its descriptor."""
        self._check()
        return self._number

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; returns how many bytes."""
        self._check()
        if not self.readable():
            message = "the file is not open to read"
            raise io.UnsupportedOperation(message)
        data = self._of.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write(self, data: Any) -> int:
        """Write bytes; returns how many were taken."""
        if self._files.is_over:
            return len(data)  # a buffer of a program that was killed: nobody writes it
        self._check()
        if not self.writable():
            message = "the file is not open to write"
            raise io.UnsupportedOperation(message)
        taken = self._of.write(memoryview(data))
        self._files.touched(self._of.inode)
        return taken

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a place; returns it."""
        self._check()
        return self._of.seek(offset, whence)

    def tell(self) -> int:
        """Return the place."""
        self._check()
        return self._of.at

    def truncate(self, size: int | None = None, /) -> int:
        """Set the size, to the place by default; returns it."""
        self._check()
        size = self._of.at if size is None else size
        self._files.ftruncate(self._number, size)
        return size

    def close(self) -> None:
        """Close it, and its descriptor if it is its own."""
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
    """What `os.scandir` says of a name: an `os.DirEntry`."""

    def __init__(self, files: "HostFiles", name: str, path: str, found: str) -> None:
        self.name = name
        self.path = path
        self._files = files
        self._found = found

    def __fspath__(self) -> str:
        """Return the path."""
        return self.path

    def __repr__(self) -> str:
        """Return the name."""
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        """Return its number."""
        return self.stat().st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return its status; there are no links."""
        return self._files.stat(self._found)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a folder."""
        return stat.S_ISDIR(self.stat().st_mode)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Return whether it is a file."""
        return stat.S_ISREG(self.stat().st_mode)

    def is_symlink(self) -> bool:
        """Return that it is no link."""
        return False

    def is_junction(self) -> bool:
        """Return that it is no link."""
        return False


class FolderEntries:
    """The iterator that `os.scandir` returns."""

    def __init__(self, entries: list[FolderEntry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[FolderEntry]:
        """Return itself."""
        return self

    def __next__(self) -> FolderEntry:
        """Return the next entry."""
        return next(self._entries)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""

    def close(self) -> None:
        """Have no more entries."""
        self._entries = iter(())


class HostFiles:
    """The files of one life of a program. Its methods stand for functions of `os`."""

    def __init__(self, life: LifeWithFiles, disk: SimulatedDisk, statuses: Statuses) -> None:
        """Use the disk of a host, and what is known of its files besides what they hold."""
        self._life = life
        self._disk = disk
        self._statuses = statuses
        self._folder = "/"
        self._open: dict[int, OpenFile | OpenFolder] = {}
        self._objects: list[weakref.ref[Any]] = []
        self._mounted = _mounted(len(sys.modules), tuple(sys.path))
        for path in FOLDERS:
            above = path.rpartition("/")[0] or "/"
            if posixpath.basename(path) not in disk.listdir(above):
                disk.furnish(path)

    # --- of the life ---

    @property
    def is_over(self) -> bool:
        """Whether the program ended: what it does from now on changes nothing."""
        return self._life.closed

    def flush(self) -> None:
        """Write out the buffers of a program that ends by itself."""
        for each in self._objects:
            found = each()
            if found is not None and not found.closed:
                try:
                    found.flush()
                except OSError as error:
                    self._life.host.troubled("a file was not written at the end", error)

    def opened(self, number: int) -> OpenFile:
        """Return the open file of a descriptor.

        Raises:
            OSError: it is a folder, or closed.
        """
        found = self._open.get(number)
        if isinstance(found, OpenFolder):
            raise _error(errno.EISDIR, found.path)
        if found is None or self._life.closed:
            raise _error(errno.EBADF)
        return found

    def has(self, number: object) -> bool:
        """Return whether a descriptor is one of these files."""
        return number in self._open

    # --- paths ---

    def _path(self, path: Any, folder: int | None = None) -> str:
        """Return the whole path of a path or an open folder."""
        if self._life.closed:
            raise _error(
                errno.EIO
            )  # the end of a program that was killed, as it is thrown away
        if isinstance(path, int):
            if path not in self._open:
                raise _error(errno.EBADF)
            return self._open[path].path
        base = self._folder if folder is None else self._path(folder)
        return posixpath.normpath(posixpath.join(base, os.fsdecode(path)))

    def _is_code(self, path: str) -> bool:
        """Return whether a path is in a folder of code, which is the machine's."""
        return path.startswith(self._mounted) or f"{path}/" in self._mounted

    def _own(self, path: Any, folder: int | None = None) -> str:
        """Return the whole path of what is to be changed.

        Raises:
            OSError: it is in a folder of code.
        """
        found = self._path(path, folder)
        if self._is_code(found):
            raise OSError(
                errno.EROFS,
                f"{os.strerror(errno.EROFS)}: it holds code, which simulated hosts only read; "
                "let the program write elsewhere, such as /var/lib",
                found,
            )
        return found

    def _now_ns(self) -> int:
        """Return the date of the host in nanoseconds."""
        return self._life.node_clock.wall_ns()

    def touched(self, inode: Inode) -> None:
        """Take note of the time at which a file's contents changed."""
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
        """Stand for `open`."""
        kind, flags = _parse(mode)
        is_text, is_number = "b" not in mode, isinstance(file, int)
        if is_number:
            is_real = file not in self._open
        else:
            is_real = self._is_code(self._path(file)) and not flags & _CHANGES
        if is_real:
            more = (buffering, encoding, errors, newline, closefd, opener)
            return _REAL_OPEN(file, mode, *more)
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
        made: Any = _buffered(raw, kind, buffering)
        if is_text:
            encoding = "utf-8" if encoding in (None, "locale") else encoding
            made = io.TextIOWrapper(made, encoding, errors, newline, buffering == 1)
            made.mode = mode
        if made is not raw and raw.writable():
            self._objects = [each for each in self._objects if each() is not None]
            self._objects.append(weakref.ref(made))
        return made

    def open(
        self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
    ) -> int:
        """Stand for `os.open`."""
        found = self._path(path, dir_fd)
        if self._is_code(found) and not flags & _CHANGES:
            number: int = REAL["open"](found, flags)
            return number
        if flags & _TEMPORARY:
            raise _error(errno.EOPNOTSUPP, found)
        if flags & getattr(os, "O_DIRECT", 0):
            self._life.refuse("O_DIRECT is not simulated", "open the file without it")
        inode = self._inode(found)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if isinstance(inode, FolderInode):
            if writes or flags & os.O_CREAT:
                raise _error(errno.EISDIR, found)
            return self._number(OpenFolder(inode, found))
        if flags & os.O_DIRECTORY:
            raise _error(errno.ENOENT if inode is None else errno.ENOTDIR, found)
        if inode is not None and flags & os.O_CREAT and flags & os.O_EXCL:
            raise _error(errno.EEXIST, found)
        if flags & _CHANGES:
            self._own(found)
        file = self._disk.open(
            found, append=bool(flags & os.O_CREAT) or (writes and inode is not None)
        )
        inode = self._disk.find(found)
        self._statuses.of(inode, self._now_ns(), mode)
        if flags & os.O_TRUNC and writes and file.size():
            file.truncate(0)
            self.touched(inode)
        return self._number(OpenFile(file, inode, found, flags))

    def _number(self, of: OpenFile | OpenFolder) -> int:
        """Return a new descriptor."""
        number = self._life.new_descriptor(of)
        self._open[number] = of
        return number

    def close(self, number: int) -> None:
        """Stand for `os.close`."""
        found = self._open.pop(number, None)
        if found is None:
            REAL["close"](number)
            return
        self._life.drop_descriptor(number)
        found.close()

    def closerange(self, first: int, last: int) -> None:
        """Stand for `os.closerange`: for what the program has open itself."""
        for number in [each for each in self._open if first <= each < last]:
            self.close(number)

    def dup(self, number: int) -> int:
        """Stand for `os.dup`."""
        if number not in self._open:
            real: int = REAL["dup"](number)
            return real
        return self._number(self._open[number].used_again())

    # --- descriptors ---

    def read(self, number: int, size: int) -> bytes:
        """Stand for `os.read`."""
        return self.opened(number).read(size)

    def pread(self, number: int, size: int, offset: int) -> bytes:
        """Stand for `os.pread`."""
        return self.opened(number).pread(size, offset)

    def readv(self, number: int, buffers: Any) -> int:
        """Stand for `os.readv`."""
        taken = 0
        for buffer in buffers:
            data = self.opened(number).read(len(buffer))
            memoryview(buffer)[: len(data)] = data
            taken += len(data)
        return taken

    def write(self, number: int, data: Any) -> int:
        """Stand for `os.write`."""
        found = self.opened(number)
        taken = found.write(data)
        self.touched(found.inode)
        return taken

    def writev(self, number: int, buffers: Any) -> int:
        """Stand for `os.writev`."""
        return self.write(number, b"".join(bytes(each) for each in buffers))

    def pwrite(self, number: int, data: Any, offset: int) -> int:
        """Stand for `os.pwrite`."""
        found = self.opened(number)
        taken = found.pwrite(data, offset)
        self.touched(found.inode)
        return taken

    def lseek(self, number: int, offset: int, whence: int) -> int:
        """Stand for `os.lseek`."""
        return self.opened(number).seek(offset, whence)

    def fsync(self, number: Any) -> None:
        """Stand for `os.fsync` and `os.fdatasync`: of a folder it makes names durable."""
        found = self._open[number]
        if isinstance(found, OpenFolder):
            self._disk.sync_folder(found.path)
        else:
            found.file.fsync()

    fdatasync = fsync

    def ftruncate(self, number: int, size: int) -> None:
        """Stand for `os.ftruncate`."""
        found = self.opened(number)
        found.file.truncate(size)
        self.touched(found.inode)

    def fstat(self, number: int) -> os.stat_result:
        """Stand for `os.fstat`."""
        return self._stat_result(self._open[number].inode)

    def isatty(self, number: int) -> bool:
        """Stand for `os.isatty`."""
        return False

    # --- names ---

    def _inode(self, path: str) -> Inode | None:
        """Return what has a path, or None."""
        try:
            return self._disk.find(path)
        except FileNotFoundError:
            return None

    def stat(
        self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> os.stat_result:
        """Stand for `os.stat`; there are no links."""
        found = self._path(path, dir_fd)
        if self._is_code(found):
            real: os.stat_result = REAL["stat"](found, follow_symlinks=follow_symlinks)
            return real
        return self._stat_result(self._disk.find(found))

    def lstat(self, path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        """Stand for `os.lstat`."""
        return self.stat(path, dir_fd=dir_fd, follow_symlinks=False)

    def _stat_result(self, inode: Inode) -> os.stat_result:
        """Return what `os.stat` says of a file or folder."""
        status, is_file = self._statuses.of(inode, self._now_ns()), isinstance(inode, FileInode)
        kind = stat.S_IFREG if is_file else stat.S_IFDIR
        size = len(inode.seen) if is_file else 4096
        seconds = status.changed_ns // 1_000_000_000
        times = {
            f"st_{name}{suffix}": value
            for name in ("atime", "mtime", "ctime")
            for suffix, value in (("", status.changed_ns / 1e9), ("_ns", status.changed_ns))
        }
        more = {**times, "st_blksize": 4096, "st_blocks": -(-size // 512), "st_rdev": 0}
        whole = (kind | status.mode, status.number, 1, 1, 0, 0, size, *[seconds] * 3)
        return os.stat_result(whole, more)

    def access(
        self, path: Any, mode: int, *, dir_fd: int | None = None, **options: Any
    ) -> bool:
        """Stand for `os.access`: what is there may be used."""
        found = self._path(path, dir_fd)
        if self._is_code(found):
            return not mode & os.W_OK and bool(REAL["access"](found, mode))
        return self._inode(found) is not None

    def listdir(self, path: Any = ".") -> Any:
        """Stand for `os.listdir`; names are sorted."""
        found = self._path(path)
        names = REAL["listdir"](found) if self._is_code(found) else self._disk.listdir(found)
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else list(names)

    def scandir(self, path: Any = ".") -> Any:
        """Stand for `os.scandir`; names are sorted."""
        found = self._path(path)
        if self._is_code(found):
            return REAL["scandir"](path if isinstance(path, bytes) else found)
        shown = "" if isinstance(path, int) else os.fsdecode(path)
        return FolderEntries(
            [
                FolderEntry(
                    self, name, posixpath.join(shown, name), posixpath.join(found, name)
                )
                for name in self._disk.listdir(found)
            ]
        )

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> Any:
        """Stand for `os.readlink`; there are no links."""
        found = self._path(path, dir_fd)
        if self._is_code(found):
            return REAL["readlink"](found)
        self._disk.find(found)
        raise _error(errno.EINVAL, found)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        """Stand for `os.mkdir`."""
        found = self._path(path, dir_fd)
        if self._is_code(found) and REAL["access"](found, os.F_OK):
            raise _error(errno.EEXIST, found)
        self._disk.mkdir(self._own(found))
        self._statuses.of(self._disk.find(found), self._now_ns(), mode)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Stand for `os.rmdir`."""
        self._disk.rmdir(self._own(path, dir_fd))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        """Stand for `os.unlink` and `os.remove`."""
        self._disk.unlink(self._own(path, dir_fd))

    def rename(
        self,
        src: Any,
        dst: Any,
        *,
        src_dir_fd: int | None = None,
        dst_dir_fd: int | None = None,
    ) -> None:
        """Stand for `os.rename` and `os.replace`, within one folder."""
        old, new = self._own(src, src_dir_fd), self._own(dst, dst_dir_fd)
        if posixpath.dirname(old) != posixpath.dirname(new):
            self._life.refuse(
                f"to rename from one folder to another is not simulated ({old!r} to {new!r})",
                "a crash may leave both names or none; write the file in its folder and "
                "rename it there",
            )
        self._disk.rename(old, new)

    def truncate(self, path: Any, length: int) -> None:
        """Stand for `os.truncate`."""
        if isinstance(path, int):
            self.ftruncate(path, length)
            return
        number = self.open(path, os.O_WRONLY)
        try:
            self.ftruncate(number, length)
        finally:
            self.close(number)

    def chmod(self, path: Any, mode: int, *, dir_fd: int | None = None, **options: Any) -> None:
        """Stand for `os.chmod`: `stat` shows it, and nobody is held back."""
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
        """Stand for `os.utime`; a file has one time."""
        inode, now = self._disk.find(self._own(path, dir_fd)), self._now_ns()
        if ns is not None:
            changed_ns = ns[1]
        else:
            changed_ns = now if times is None else round(times[1] * 1e9)
        self._statuses.change(inode, now, changed_ns=changed_ns)

    def getcwd(self) -> str:
        """Stand for `os.getcwd`."""
        return self._folder

    def getcwdb(self) -> bytes:
        """Stand for `os.getcwdb`."""
        return os.fsencode(self._folder)

    def chdir(self, path: Any) -> None:
        """Stand for `os.chdir`."""
        found = self._path(path)
        if not stat.S_ISDIR(self.stat(found).st_mode):
            raise _error(errno.ENOTDIR, found)
        self._folder = found

    def temporary_names(self) -> Iterator[str]:
        """Yield names for temporary files, drawn from the seed."""
        while True:
            yield "".join(self._life.drawn.choice(_NAMES) for _ in range(8))


def _parse(mode: str) -> tuple[str, int]:
    """Return the letters of a mode that say what is done, and the flags for it.

    Raises:
        ValueError: there is no such mode.
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
    is_text: bool,  # noqa: FBT001 - of what `open` was asked
    buffering: int,
    encoding: str | None,
    errors: str | None,
    newline: str | None,
) -> None:
    """Raise `ValueError` for what `open` does not take together."""
    if not is_text and (encoding, errors, newline) != (None, None, None):
        message = "binary mode doesn't take an encoding, errors or newline argument"
        raise ValueError(message)
    if is_text and not buffering:
        message = "can't have unbuffered text I/O"
        raise ValueError(message)


def _buffered(raw: HostFile, kind: str, buffering: int) -> Any:
    """Put Python's buffer around a file, unless none is wanted."""
    if not buffering:
        return raw
    size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
    if "+" in kind:
        return io.BufferedRandom(raw, size)
    return io.BufferedReader(raw, size) if kind == "r" else io.BufferedWriter(raw, size)


@functools.lru_cache(maxsize=1)
def _mounted(modules: int, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the beginnings of paths that are the machine's: folders of code.

    A folder that hosts have themselves, such as `/tmp`, is theirs, also where a module
    comes from it.

    Args:
        modules: how many there are; another number is looked at anew.
        path: on which modules are looked for.
    """
    folders = {sys.prefix, sys.base_prefix, *path}
    folders.update(
        posixpath.dirname(file)
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str)
    )
    folders = {posixpath.normpath(each) for each in folders if posixpath.isabs(each)}
    found = list(_MOUNTED)
    for each in sorted(folders - {"/", *FOLDERS}):
        if not each.startswith(tuple(found)):
            found.append(f"{each}/")
    return tuple(found)


def _error(code: int, path: str | None = None) -> OSError:
    """Return the system's error of a number for a path."""
    return OSError(code, os.strerror(code), path) if path else OSError(code, os.strerror(code))
