"""When this process started: what the demo counts its seconds from."""

import os
import time


def process_start_ns() -> int:
    """Return when this process started, on the monotonic clock; from /proc, to 10 ms."""
    now_ns = time.monotonic_ns()
    try:
        with open("/proc/self/stat", encoding="ascii") as stat:  # noqa: PTH123  # pathlib costs its import
            ticks = int(stat.read().rpartition(")")[2].split()[19])
    except OSError:
        return now_ns
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return now_ns - int(max(age, 0.0) * 1e9)
