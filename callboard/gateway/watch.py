"""Watching a configuration file for changes."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["FileWatch"]

log = logging.getLogger("callboard.gateway")

INTERVAL: Final = 0.5
"""Seconds between looks at the file."""


class FileWatch:
    """Calls `changed(path)` on a thread of its own when a file was written or replaced."""

    def __init__(
        self, path: Path, changed: Callable[[Path], None], interval: float | None = None
    ) -> None:
        self._path = path
        self._changed = changed
        self._interval = INTERVAL if interval is None else interval
        self._over = threading.Event()
        self._seen = self._look()
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
            found = self._look()
            if found is None or found == self._seen:
                continue  # a file that is gone is about to be replaced
            self._seen = found
            try:
                self._changed(self._path)
            except Exception:
                log.exception("%s changed, and that failed", self._path)

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
