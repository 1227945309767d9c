"""The thread that writes the columns of segments, when they are sealed."""

import logging
import threading

from callboard.commitlog.errors import LogCorrupt, LogError
from callboard.commitlog.folder import COLUMNS, Folder
from callboard.commitlog.sealed import sealed_segments_in, write_segment

_log = logging.getLogger("callboard.commitlog")


class Sealing:
    """Writes what is missing when it begins and after each `wake`; sleeps in between."""

    def __init__(self, folder: Folder) -> None:
        """Start the thread."""
        self._folder = folder
        self._left: set[int] = set()  # damaged segments
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._wanted.set()
        self._thread = threading.Thread(
            target=self._run, name="callboard-log-columns", daemon=True
        )
        self._thread.start()

    def wake(self) -> None:
        """Tell that a segment was sealed."""
        self._wanted.set()

    def end(self) -> None:
        """End the thread, behind the segment that it is at; the next opening goes on."""
        self._ended.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._sweep()
            while True:
                self._wanted.wait()
                if self._ended.is_set():
                    return
                self._wanted.clear()
                self._write_missing()
        except OSError as error:
            _log.error("the columns of %s are not written: %s", self._folder.path, error)

    def _sweep(self) -> None:
        """Remove columns whose segment is gone."""
        bases = {self._folder.segment(base, COLUMNS) for base in self._folder.bases()}
        for name in self._folder.disk.listdir(self._folder.path):
            path = self._folder.file(name)
            if name.endswith(COLUMNS) and path not in bases:
                self._folder.remove(path)

    def _write_missing(self) -> None:
        for segment in sealed_segments_in(self._folder):
            if segment.columns is not None or segment.base in self._left:
                continue
            if self._ended.is_set():
                return
            try:
                write_segment(self._folder, segment)
            except LogCorrupt as error:
                self._left.add(segment.base)
                _log.warning("no columns of a damaged segment: %s", error)
            except LogError as error:  # tried again when the next segment is sealed
                _log.warning("%s", error)
                return
