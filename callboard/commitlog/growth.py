"""Telling followers in the same process at once that a log has grown.

A writer and the readers of one folder in one process share a `Growth`; who reads from another
process has to look.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary


class Growth:
    """Calls once, at the next growth, whoever waits."""

    __slots__ = ("__weakref__", "_waiters", "is_awaited")

    def __init__(self) -> None:
        """Begin with nobody who waits."""
        #: Looked at for each append, so a plain attribute.
        self.is_awaited = False
        self._waiters: set[Callable[[], object]] = set()

    def tell(self) -> None:
        """Wake all who wait; from any thread."""
        with _LOCK:
            waiters, self._waiters = self._waiters, set()
            self.is_awaited = False
        for wake in waiters:
            wake()

    def add(self, wake: Callable[[], object]) -> None:
        """Call `wake` at the next growth, on the thread that appends; look once more then."""
        with _LOCK:
            self._waiters.add(wake)
            self.is_awaited = True

    def discard(self, wake: Callable[[], object]) -> None:
        """Wait no more."""
        with _LOCK:
            self._waiters.discard(wake)
            self.is_awaited = bool(self._waiters)


def growth_of(folder: str) -> Growth:
    """Return what all who use a folder in this process share."""
    place = str(Path(folder).resolve())
    with _LOCK:
        return _KNOWN.setdefault(place, Growth())


_LOCK: Final = threading.Lock()
_KNOWN: Final[WeakValueDictionary[str, Growth]] = WeakValueDictionary()
"""By folder: two objects that know nothing of each other meet here."""
