"""The thread that syncs a log a short while after something was appended."""

import logging
import threading

from callboard.commitlog.errors import LogError
from callboard.commitlog.writer import Writer

_log = logging.getLogger("callboard.commitlog")


class Grouping:
    """Syncs all that was appended in an interval at once; sleeps while nothing is."""

    def __init__(self, writer: Writer, interval: float) -> None:
        """Start the thread; `interval` is in seconds."""
        self._writer, self._interval = writer, interval
        self._is_due = False
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="callboard-log-sync", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Tell that something was appended."""
        if not self._is_due:
            self._is_due = True
            self._wanted.set()

    def end(self) -> None:
        """End the thread; the writer syncs what is left."""
        self._ended.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._wanted.wait()
            if self._ended.wait(self._interval):
                return
            self._wanted.clear()
            self._is_due = False  # before the sync: what comes during it is for the next one
            try:
                self._writer.sync()
            except LogError as error:
                _log.error("%s", error)  # appends and flushes of this log raise from here on
                return
