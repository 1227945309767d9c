"""Whether the path of an open file still leads to it.

A file can be removed, moved away or replaced while a process has it open. The process writes
on, and all that it writes is lost with its last descriptor. So everything that acknowledges
what it has written to a file asks, at most `CHECK_SECONDS` before the acknowledgement, whether
device and number of the file at the path are those of the open file.
"""

import errno
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

#: Device and number of a file.
Identity = tuple[int, int]

#: Seconds between two checks of a file that is written all the time. A check takes 2 µs.
CHECK_SECONDS: Final = 0.25

_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})


def identity_of(file: "int | str | os.PathLike[str]") -> Identity:
    """Return the identity of an open file, or of that at a path.

    Raises:
        OSError: there is none.
    """
    found = os.stat(file)  # noqa: PTH116  # called often
    return found.st_dev, found.st_ino


def is_at(path: "str | os.PathLike[str]", identity: Identity) -> bool:
    """Return whether a path leads to a file; True where the system does not tell."""
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
        """Check that the file which is now at a path stays there; none may be there."""
        place = os.path.abspath(path)  # noqa: PTH100  # of a text; the process may go elsewhere
        with suppress(OSError):
            self._files[place] = identity_of(place)

    def misplaced(self) -> str:
        """Return the path of a file that is no longer at its place; empty if all are.

        The system is asked at most once in `CHECK_SECONDS`. A file that was found misplaced
        once stays so.
        """
        now = self._clock()
        if now >= self._next_check and not self._misplaced:
            self._next_check = now + CHECK_SECONDS
            for path, identity in self._files.items():
                if not is_at(path, identity):
                    self._misplaced = path
                    break
        return self._misplaced
