"""The common part of the disks of served logs, for any transport.

A served log is a disk with one folder whose files can be read. Flight (`remote.disk`) and nodes
(`callboard.log_service.node_disk`) ask for names, sizes and bytes each in their way.
"""

import errno
from abc import ABC, abstractmethod
from contextlib import closing
from functools import partial
from typing import Generic, NoReturn, TypeVar

from callboard.commitlog.disk import SMALL_LIMIT, DiskFile
from callboard.commitlog.errors import LogFailed
from callboard.commitlog.folder import EPOCHS, IDENTITY
from callboard.commitlog.identity.identity import identity_in
from callboard.commitlog.identity.position import LogIdentity

F = TypeVar("F", bound=DiskFile)


def read_only(name: str, *_: object, **__: object) -> NoReturn:
    """Raise the error of a write."""
    message = f"{name} is served read-only; write the log in its folder"
    raise LogFailed(message)


class ReadOnlyDisk(ABC, Generic[F]):
    """A `Disk` with the files of one served log."""

    def __init__(self, place: str, log: str) -> None:
        """Serve the folder of a log.

        Args:
            place: the address of the log, which is the only folder.
            log: the name of the log, for errors.
        """
        self._place = place
        self.mkdir = self.rename = self.unlink = self.sync_folder = partial(read_only, log)

    def open(self, path: str, *, append: bool = False) -> F:
        """Open a file for reading."""
        if append:
            read_only(path)
        return self._open(path.rpartition("/")[2])

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names of the log's files; folders below it are not served."""
        if path != self._place:
            raise FileNotFoundError(errno.ENOENT, "it is not served", path)
        return sorted(self._names())

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return self._size(path.rpartition("/")[2])

    def identity(self) -> LogIdentity:
        """Ask for the identity of the log; an older server does not know it."""
        files = self._names()
        if IDENTITY not in files or EPOCHS not in files:
            return LogIdentity()
        return identity_in(self._read)

    def _read(self, name: str) -> bytes:
        """Return the contents of a small file; empty if it is missing."""
        try:
            with closing(self._open(name)) as file:
                return file.pread(SMALL_LIMIT, 0)
        except FileNotFoundError:
            return b""

    @abstractmethod
    def _open(self, name: str) -> F:
        """Open a file by its name."""

    @abstractmethod
    def _names(self) -> "list[str] | tuple[str, ...]":
        """Ask for the names of the files."""

    @abstractmethod
    def _size(self, name: str) -> int:
        """Ask for the size of a file."""


def are_names(answer: object) -> bool:
    """Return whether the answer of a server is a list of names."""
    return isinstance(answer, list | tuple) and all(type(name) is str for name in answer)


class ReadOnlyFile:
    """The part of a `DiskFile` that is equal in all served files."""

    def __init__(self, name: str) -> None:
        """Refuse writes to a file."""
        self.write = self.truncate = self.fsync = partial(read_only, name)

    def is_in_place(self) -> bool:
        """Return True: a reader checks the contents of served files itself."""
        return True
