"""The interface of a file in `scales/`: one `Scale`, measured at growing sizes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

NOISE: Final = 2 << 20
"""Bytes by which resident memory varies; smaller differences are not reported."""


@dataclass(frozen=True)
class Scale:
    """A quantity that grows, with the figures measured at each size.

    Figures whose names end with `/s` are drawn as throughput, figures whose names start with
    `bytes of` as memory; others are only printed.

    Attributes:
        title: The growing quantity, in a few words.
        size: Unit of the sizes.
        sizes: Sizes in increasing order; each one is measured in its own process.
        run: Returns the figures at one size, by their names.
        is_binary: Whether sizes are bytes, written in powers of 1024.
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
    """Return the peak memory of a process in bytes (Linux)."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return int(process.memory_info().rss)


def each(name: str, occupied: int, count: int) -> dict[str, float]:
    """Return the memory of one of many objects as a figure; none below the noise."""
    return {name: occupied / count} if occupied > NOISE else {}


class Processor:
    """Processor time of some processes during a measurement."""

    def __init__(self, *processes: psutil.Process) -> None:
        """Start the measurement; of this process if none is given."""
        self._processes = processes or (psutil.Process(),)
        self._began = self._used()

    def figures(self) -> dict[str, float]:
        """Return CPU seconds per second, and the kernel's share of them."""
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
