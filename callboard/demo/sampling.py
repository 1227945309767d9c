"""What the sensors see: this machine's live figures, as small samplers.

Each sampler is called ten times a second in its sensor's handler, so each is quick: counters
are read once and differences taken here; processes are looked at a tenth at a time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

SUBJECTS: Final = ("cpu", "memory", "disk", "network", "processes")
"""What each node has a sensor for."""

SLICES: Final = 10
"""In how many samples every process has been looked at once."""

BUSIEST: Final = 3
"""How many processes a sample names."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look: the figure that stands for it, and its parts."""

    level: float
    parts: dict[str, float]


Sampler = Callable[[], Sample]


class Differences:
    """Turns counters that only rise into amounts per second."""

    def __init__(self) -> None:
        self._last: tuple[float, dict[str, float]] | None = None

    def update(self, now: float, counters: Mapping[str, float]) -> dict[str, float]:
        """Return how fast each counter rose since the last call; zeros on the first."""
        last, self._last = self._last, (now, dict(counters))
        if last is None or now <= last[0]:
            return dict.fromkeys(counters, 0.0)
        elapsed = now - last[0]
        return {
            name: max(value - last[1].get(name, value), 0.0) / elapsed
            for name, value in counters.items()
        }


class BusyShare:
    """Turns the busy and total time of each core into percent."""

    def __init__(self) -> None:
        self._last: list[tuple[float, float]] = []

    def update(self, cores: Sequence[tuple[float, float]]) -> Sample:
        """Take (busy, total) seconds of each core in; the level is the mean of all cores."""
        last, self._last = self._last, list(cores)
        parts: dict[str, float] = {}
        for number, (busy, total) in enumerate(cores):
            before = last[number] if number < len(last) else (busy, total)
            elapsed = total - before[1]
            share = 100.0 * (busy - before[0]) / elapsed if elapsed > 0 else 0.0
            parts[f"core {number}"] = min(max(share, 0.0), 100.0)
        return Sample(sum(parts.values()) / max(len(parts), 1), parts)


class BusiestProcesses:
    """Finds who uses the processor, looking at a part of all processes each time."""

    def __init__(
        self,
        list_ids: Callable[[], Sequence[int]],
        look: Callable[[int], tuple[str, float] | None],
    ) -> None:
        """`look(pid)` returns name and seconds of processor time, or None when it is gone."""
        self._list_ids = list_ids
        self._look = look
        self._turn = 0
        self._used: dict[int, tuple[float, float]] = {}  # pid: when, seconds
        self._shares: dict[int, tuple[str, float]] = {}

    def update(self, now: float) -> Sample:
        """Look at the next part; the level is the share of the busiest process, in percent."""
        ids = set(self._list_ids())
        for gone in self._used.keys() - ids:
            del self._used[gone]
            self._shares.pop(gone, None)
        self._turn = (self._turn + 1) % SLICES
        for pid in ids:
            if pid % SLICES == self._turn:
                self._look_at(pid, now)
        top = sorted(self._shares.items(), key=lambda item: item[1][1], reverse=True)[:BUSIEST]
        parts = {f"{name} {pid}": share for pid, (name, share) in top}
        return Sample(max(parts.values(), default=0.0), parts)

    def _look_at(self, pid: int, now: float) -> None:
        seen = self._look(pid)
        if seen is None:
            return
        name, seconds = seen
        before = self._used.get(pid)
        self._used[pid] = (now, seconds)
        if before is not None and now > before[0]:
            self._shares[pid] = (
                name,
                100.0 * max(seconds - before[1], 0.0) / (now - before[0]),
            )


def machine_samplers() -> dict[str, Sampler]:
    """Return a sampler for each subject, reading this machine through psutil."""
    import psutil

    busy_share, disk, network = BusyShare(), Differences(), Differences()
    processes = BusiestProcesses(psutil.pids, _processor_time(psutil))

    def cpu() -> Sample:
        return busy_share.update(
            [_busy_and_total(times) for times in psutil.cpu_times(percpu=True)]
        )

    def memory() -> Sample:
        used = psutil.virtual_memory()
        return Sample(
            used.percent, {"available": float(used.available), "total": float(used.total)}
        )

    def disk_io() -> Sample:
        counters = psutil.disk_io_counters()  # None where a sandbox hides the disks
        amounts = (counters.read_bytes, counters.write_bytes) if counters else (0, 0)
        return _sum(
            disk.update(time.monotonic(), dict(zip(("read", "written"), amounts, strict=True)))
        )

    def network_io() -> Sample:
        counters = psutil.net_io_counters()
        amounts = (counters.bytes_recv, counters.bytes_sent)
        return _sum(
            network.update(
                time.monotonic(), dict(zip(("received", "sent"), amounts, strict=True))
            )
        )

    def busiest() -> Sample:
        return processes.update(time.monotonic())

    return dict(zip(SUBJECTS, (cpu, memory, disk_io, network_io, busiest), strict=True))


def _sum(parts: dict[str, float]) -> Sample:
    return Sample(sum(parts.values()), parts)


def _busy_and_total(times: Any) -> tuple[float, float]:
    # On Linux guest time is part of user time already.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return total - times.idle - getattr(times, "iowait", 0.0), total


def _processor_time(psutil: Any) -> Callable[[int], tuple[str, float] | None]:
    def look(pid: int) -> tuple[str, float] | None:
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
            return process.name(), times.user + times.system
        except psutil.Error:
            return None

    return look
