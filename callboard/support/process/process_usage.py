"""Memory, processor time, threads and descriptors of the process of a node.

The figures are those of the operating system, so nodes that share a process report the same.
Unknown figures are left out.
"""

import gc
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

#: Seconds for which the figures are reused: listing 10,000 descriptors takes some 5 ms.
REUSED_SECONDS: Final = 2.0

#: Folders that list the open descriptors of a process, by system.
_DESCRIPTORS: Final = (Path("/proc/self/fd"), Path("/dev/fd"))
_TASKS: Final = Path("/proc/self/task")
_MEMORY: Final = Path("/proc/self/statm")


class ProcessUsage:
    """The latest figures of this process. Call it on any thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._read_at = -1e9
        self._figures: dict[str, float] = {}

    def figures(self) -> dict[str, float]:
        """Return the figures by name, at most `REUSED_SECONDS` old."""
        now = self._now()
        if not 0.0 <= now - self._read_at < REUSED_SECONDS:
            self._read_at, self._figures = now, read_figures()
        return dict(self._figures)


def resident_bytes() -> float:
    """Return the resident memory of the process; 0 if it is unknown."""
    try:
        pages = int(_MEMORY.read_text().split()[1])
    except (OSError, ValueError, IndexError):  # not Linux
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def read_figures() -> dict[str, float]:
    """Return the figures of the process: bytes, seconds, and numbers."""
    generations = gc.get_stats()
    figures = {
        "cpu_seconds": time.process_time(),
        "gc_collections": float(sum(entry["collections"] for entry in generations)),
        "gc_collected": float(sum(entry["collected"] for entry in generations)),
    }
    if resident := resident_bytes():
        figures["resident_bytes"] = resident
    with suppress(OSError):
        figures["threads"] = float(_count(_TASKS))
    for folder in _DESCRIPTORS:
        with suppress(OSError):
            # The listing itself has a descriptor open.
            figures["descriptors"] = float(_count(folder) - 1)
            break
    with suppress(ImportError, OSError):
        import resource  # not on Windows

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY:
            figures["descriptors_max"] = float(limit)
    return figures


def _count(folder: Path) -> int:
    """Return the number of entries of a folder."""
    return sum(1 for _ in folder.iterdir())
