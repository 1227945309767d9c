"""The files of served logs, the same for every transport.

Flight (`remote.server`) and nodes (`callboard.log_service`) ask here which logs a reader may
see, which files a log has, and for their bytes. A transport adds who the reader is, how its
requests wait, and the form of an answer.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing

from callboard.commitlog.disk import DiskFile
from callboard.commitlog.folder import LAST_OFFSET, SERVED, Folder


def is_log_file(name: object) -> bool:
    """Return whether a name from a reader is that of a file that readers need."""
    return type(name) is str and SERVED.fullmatch(name) is not None


def is_position(number: object) -> bool:
    """Return whether a value from a reader is an offset or a size."""
    return type(number) is int and 0 <= number <= LAST_OFFSET


class ServedFolders:
    """The folders of logs, by the names under which they are served."""

    def __init__(self, folders: Mapping[str, Folder]) -> None:
        """Serve folders, which need not exist yet."""
        self._folders = dict(folders)

    def __contains__(self, log: str) -> bool:
        return log in self._folders

    def names(self, may_read: Callable[[str], bool]) -> list[str]:
        """Return the names of the logs that a reader may read, in order."""
        return sorted(name for name in self._folders if may_read(name))

    def files(self, log: str) -> list[str]:
        """Return the names of the files of a log that readers need.

        Raises:
            OSError: the folder cannot be read.
        """
        folder = self._folders[log]
        return [name for name in folder.disk.listdir(folder.path) if is_log_file(name)]

    def size(self, log: str, file: str) -> int:
        """Return the size of a file.

        Raises:
            OSError: the file cannot be read.
        """
        folder = self._folders[log]
        return folder.disk.size(folder.file(file))

    def opened(self, log: str, file: str) -> AbstractContextManager[DiskFile]:
        """Open a file for reading.

        Raises:
            OSError: the file cannot be read.
        """
        folder = self._folders[log]
        return closing(folder.disk.open(folder.file(file)))
