"""Detection of open files that were removed, moved or replaced.

If this happens while a process has a file open, the process can continue to write, but all its
data is lost when it closes the file. So all code that acknowledges writes to a file checks, at
most `CHECK_SECONDS` before the acknowledgement, whether the file at the path has the same
device and inode number as the open file.
"""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

#: Device and inode number of a file.
Identity = tuple[int, int]

#: Seconds between two checks of a file that is written continuously. A check takes 2 µs.
CHECK_SECONDS: Final = 0.25

_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


def identity_of(file: "int | str | os.PathLike[str]") -> Identity:
    """Return the identity of an open file, or of the file at a path.

    Raises:
        OSError: the file does not exist.
    """
    status = os.stat(file)  # noqa: PTH116  # called often
    return status.st_dev, status.st_ino


def is_at(path: "str | os.PathLike[str]", identity: Identity) -> bool:
    """Return whether a path leads to a file; True if the system cannot check it now."""
    try:
        return identity_of(path) == identity
    except OSError as error:
        return error.errno not in _GONE


def replaced(path: object, remedy: str) -> str:
    """Return the text of the error for a file that is no longer at its path."""
    return (
        f"{path} was removed or replaced while it was in use: nothing more is acknowledged, and"
        f" what was written to it since then is not at this path; {remedy}"
    )


class FilePlaces:
    """The files that one owner has open, by their paths."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without files."""
        self._clock = clock
        self._files: dict[str, Identity] = {}
        self._next_check = clock() + CHECK_SECONDS
        self._misplaced = ""

    def add(self, path: "str | os.PathLike[str]") -> None:
        """Add the file that is at a path; ignore a path without a file."""
        # Absolute, because the process may change its working directory.
        absolute = os.path.abspath(path)  # noqa: PTH100  # of a text
        with suppress(OSError):
            self._files[absolute] = identity_of(absolute)

    def misplaced(self) -> str:
        """Return the path of a file that is no longer there; empty if all files are.

        The files are checked at most once in `CHECK_SECONDS`. After a file was misplaced once,
        the result does not change.
        """
        now = self._clock()
        if now >= self._next_check and not self._misplaced:
            self._next_check = now + CHECK_SECONDS
            for path, identity in self._files.items():
                if not is_at(path, identity):
                    self._misplaced = path
                    break
        return self._misplaced
