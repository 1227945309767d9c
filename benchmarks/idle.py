"""Idle actors on this node: the rate of creation, and the memory of each."""

import gc
import os
import time
from pathlib import Path

from callboard import Actor, Node, handler


class Idle(Actor):
    """Two attributes, and nothing to do."""

    def __init__(self) -> None:
        self.name = "idle"
        self.seen = 0

    @handler
    def on_number(self, number: int) -> None:
        """Count one message."""
        self.seen += 1


def resident() -> int:
    """Return the bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make(count: int) -> tuple[float, float]:
    """Spawn actors, after a tenth of them as warm-up; return seconds and bytes for each."""
    with Node() as node:
        kept = [node.spawn(Idle) for _ in range(max(1, count // 10))]
        gc.collect()
        before, started = resident(), time.perf_counter()
        kept += [node.spawn(Idle) for _ in range(count)]
        took = time.perf_counter() - started
        gc.collect()
        return took / count, (resident() - before) / count
