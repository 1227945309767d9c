"""Watching a configuration file for changes."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["FileWatch", "mark_of"]

log = logging.getLogger("callboard.gateway")

INTERVAL: Final = 0.5
"""Seconds between looks at the file."""


class FileWatch:
    """Calls `changed(path)` on a thread of its own when a file was written or replaced."""

    def __init__(
        self,
        path: Path,
        changed: Callable[[Path], None],
        *,
        seen: tuple[int, int, int] | None = None,
        interval: float | None = None,
    ) -> None:
        """Watch a file.

        Args:
            path: of the file.
            changed: called with the path.
            seen: what `mark_of` said before the file was read; a change since then is told.
            interval: seconds between looks.
        """
        self._path = path
        self._changed = changed
        self._interval = INTERVAL if interval is None else interval
        self._over = threading.Event()
        self._seen = seen or mark_of(path)
        self._thread = threading.Thread(
            target=self._run, name=f"callboard-watch-{path.name}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Watch no more; in `changed` it does not wait for itself."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            found = mark_of(self._path)
            if found is None or found == self._seen:
                continue  # a file that is gone is about to be replaced
            self._seen = found
            try:
                self._changed(self._path)
            except Exception:
                log.exception("%s changed, and that failed", self._path)


def mark_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
