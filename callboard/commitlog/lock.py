"""One writer for each log: a lock on a file, which ends with the process that holds it."""

import fcntl
import os
from pathlib import Path

from callboard.commitlog.errors import LogLocked
from callboard.commitlog.folder import LOCK


class WriterLock:
    """Held while a log is open to write."""

    def __init__(self, folder: str) -> None:
        """Take the lock.

        Raises:
            LogLocked: somebody else holds it; the text names the process.
        """
        path = Path(folder) / LOCK
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            who = f"process {holder}" if holder.isdecimal() else "another process"
            if holder == str(os.getpid()):
                who = f"this process ({holder})"
            what = f"the log {folder} is written by {who}; close it there, or use LogReader"
            raise LogLocked(what) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)
