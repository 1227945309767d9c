"""The header of SQLite's WAL index, which changes with each commit of any process.

The file `FILE-shm` begins with two copies of it. SQLite's own readers learn from the header
which transactions are committed (https://sqlite.org/walformat.html, "WAL-Index Header"). A
commit becomes visible when both copies are written, the second one first. So if both copies are
equal to what they were before an earlier query, no process has committed since, and its result
still holds.

The copies are read where SQLite has mapped the file into this process. Opening the file a
second time would be a mistake: when a process closes any descriptor of a file, the system
releases all locks of the process on it, including SQLite's.

With this check, a read-only ask on the entity's own node takes 36 µs of CPU time instead of 47
µs, and one from another node 121 µs instead of 133 µs (measured alternately on two busy cores).
"""

import sys
from pathlib import Path
from typing import Any, Final

from callboard import locks
from callboard.support.platform.system import mapped_at

#: Bytes of one copy of the header.
_SIZE: Final = 48

#: First bytes of an initialized header; the next four bytes are not used.
_VERSION: Final = (3_007_000).to_bytes(4, sys.byteorder)
_IS_READY: Final = 12


class WalIndex:
    """The WAL index header of a database that this process keeps open until `close`."""

    def __init__(self, path: Path) -> None:
        """Find where the file is mapped into memory; if it is not, `mark` returns no bytes."""
        self._lock = locks.lock("index of a WAL", 583)
        self._bytes: Any = None
        address = _address(path)
        if address is not None:
            from ctypes import c_char  # slow to import

            self._bytes = (c_char * (2 * _SIZE)).from_address(address)

    def mark(self) -> bytes:
        """Return bytes that stay the same only while nothing is committed.

        Empty if the header is not known, or while a commit writes it.
        """
        with self._lock:  # keeps the memory mapped until `close`
            both: bytes = b"" if self._bytes is None else self._bytes.raw
        is_whole = both[:_SIZE] == both[_SIZE:] and both.startswith(_VERSION)
        return both if is_whole and both[_IS_READY] == 1 else b""

    def close(self) -> None:
        """Stop reading: SQLite is about to unmap the header."""
        with self._lock:
            self._bytes = None


def _address(path: Path) -> int | None:
    """Return the address of the mapping of `FILE-shm`; None if it is not known."""
    try:
        file = Path(f"{path.resolve()}-shm").stat()
    except OSError:
        return None
    span = mapped_at(file.st_dev, file.st_ino)
    return None if span is None or span[1] - span[0] < 2 * _SIZE else span[0]
