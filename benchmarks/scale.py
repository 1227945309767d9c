"""What a file in `scales/` offers: one `Scale`, measured at growing sizes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

NOISE: Final = 2 << 20
"""Bytes by which resident memory grows and shrinks by itself; less than this tells nothing."""


@dataclass(frozen=True)
class Scale:
    """A quantity that grows, and what is measured at each size.

    Figures whose names end with `/s` are drawn as throughput, those that begin with
    `bytes of` as memory; others are only told.

    Attributes:
        title: What grows, in a few words.
        size: What a size counts.
        sizes: Growing; each one is measured in a process of its own.
        run: Return the figures at one size, by their names.
        is_binary: Sizes are bytes, and written in powers of 1024.
    """

    title: str
    size: str
    sizes: tuple[int, ...]
    run: Callable[[int], dict[str, float]]
    is_binary: bool = False


def resident(*others: psutil.Process) -> int:
    """Return the bytes of memory that this process and others occupy."""
    return sum(int(process.memory_info().rss) for process in (psutil.Process(), *others))


def resident_at_most(process: psutil.Process) -> int:
    """Return the bytes of memory that a process has occupied at most so far (Linux)."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return int(process.memory_info().rss)


def each(name: str, occupied: int, count: int) -> dict[str, float]:
    """Return the memory of each of many as a figure; none where it is not above the noise."""
    return {name: occupied / count} if occupied > NOISE else {}


class Processor:
    """What processes do with their time, between two moments."""

    def __init__(self, *processes: psutil.Process) -> None:
        """Begin to count; this process if none is named."""
        self._processes = processes or (psutil.Process(),)
        self._began = self._used()

    def figures(self) -> dict[str, float]:
        """Return CPU seconds for each second, and what part of them the kernel took."""
        wall, user, system = (
            now - before for now, before in zip(self._used(), self._began, strict=True)
        )
        busy = user + system
        return {"cores busy": busy / wall, "kernel's part": system / busy if busy else 0.0}

    def _used(self) -> tuple[float, float, float]:
        used = [process.cpu_times() for process in self._processes]
        return (
            time.perf_counter(),
            sum(times.user for times in used),
            sum(times.system for times in used),
        )
