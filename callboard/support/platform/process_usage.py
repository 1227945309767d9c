"""Memory, processor time, threads and descriptors of the process of a node.

The figures are those of the operating system, so nodes that share a process report the same.
Unknown figures are left out.
"""

import gc
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from callboard.support.platform import system

#: Seconds for which the figures are reused: listing 10,000 descriptors takes some 5 ms.
REUSED_SECONDS: Final = 2.0


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


def read_figures() -> dict[str, float]:
    """Return the figures of the process: bytes, seconds, and numbers."""
    generations = gc.get_stats()
    figures = {
        "cpu_seconds": time.process_time(),
        "gc_collections": float(sum(entry["collections"] for entry in generations)),
        "gc_collected": float(sum(entry["collected"] for entry in generations)),
    }
    figures["resident_bytes"] = float(system.resident_bytes())
    figures["threads"] = float(system.threads())
    with suppress(OSError):
        # The listing itself has a descriptor open.
        figures["descriptors"] = float(len(os.listdir(system.DESCRIPTORS)) - 1)  # noqa: PTH208
    with suppress(ImportError, OSError):
        import resource  # not on Windows

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY:
            figures["descriptors_max"] = float(limit)
    return figures
