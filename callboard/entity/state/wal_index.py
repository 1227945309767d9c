"""The header of SQLite's WAL index, which changes with each commit of any process.

It stands at the beginning of the file `FILE-shm`, twice, and SQLite's own readers learn from it
what is committed (https://sqlite.org/walformat.html, "WAL-Index Header"): a commit becomes
visible when both copies are written, the second one first. So where both copies still are what
they were before a look at the database, no process has committed since, and what was seen then
is so now.

They are read where SQLite has mapped them into this process. To open the file a second time
would be a trap: when any descriptor of a file is closed, the system lets go of all locks that
the process holds on it, SQLite's among them.
"""

import os
import sys
from pathlib import Path
from typing import Any, Final

from callboard import locks

#: Bytes of the header, of which there are two copies.
_SIZE: Final = 48

#: What a header begins with that SQLite has made ready, but for four bytes that are not used.
_VERSION: Final = (3_007_000).to_bytes(4, sys.byteorder)
_IS_READY: Final = 12

_MAPS: Final = Path("/proc/self/maps")


class WalIndex:
    """The header of a database that a connection of this process has open until `close`."""

    def __init__(self, path: Path) -> None:
        """Look where SQLite has mapped it; where nobody tells, it is not known."""
        self._lock = locks.lock("index of a WAL", 583)
        self._bytes: Any = None
        address = _address(path)
        if address is not None:
            from ctypes import c_char  # it takes long to import

            self._bytes = (c_char * (2 * _SIZE)).from_address(address)

    def mark(self) -> bytes:
        """Return what is the same again only if nothing was committed meanwhile.

        Empty where the header is not known, or a commit is just writing it.
        """
        with self._lock:  # it is there until `close`
            both: bytes = b"" if self._bytes is None else self._bytes.raw
        is_whole = both[:_SIZE] == both[_SIZE:] and both.startswith(_VERSION)
        return both if is_whole and both[_IS_READY] == 1 else b""

    def close(self) -> None:
        """Read nothing more: SQLite is about to unmap it."""
        with self._lock:
            self._bytes = None


def _address(path: Path) -> int | None:
    """Return where the beginning of `FILE-shm` is in memory, if it is and the system tells."""
    try:
        found = Path(f"{path.resolve()}-shm").stat()
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    for line in lines:
        span, rights, offset, *place = line.split(maxsplit=5)[:5]
        start, end = (int(each, 16) for each in span.split("-"))
        is_shared = rights.startswith("r") and rights.endswith("s")
        if place == [device, str(found.st_ino)] and is_shared and not int(offset, 16):
            return start if end - start >= 2 * _SIZE else None
    return None
