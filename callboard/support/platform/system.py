"""Facts and functions of the operating system, with a portable form of each that Linux has.

Everything here works on every system, with less precision or more slowly where the form of
Linux is missing. The environment variable CALLBOARD_PORTABLE selects the portable forms on
Linux, too, so that tests can run with them.
"""

import os
import selectors
import socket
import sys
import time
from typing import Final

#: Whether the forms that only Linux has are used.
IS_LINUX: Final = sys.platform == "linux" and not os.environ.get("CALLBOARD_PORTABLE")

#: Whether runners poll with epoll, and with system calls that keep the interpreter's lock.
HAS_EPOLL: Final = IS_LINUX and hasattr(selectors, "EpollSelector")

#: The folder that lists the open descriptors of this process.
DESCRIPTORS: Final = "/proc/self/fd" if IS_LINUX else "/dev/fd"


def portable_selector() -> selectors.BaseSelector:
    """Return the best selector of the system except for epoll: kqueue, poll or select."""
    kinds = (getattr(selectors, name, None) for name in ("KqueueSelector", "PollSelector"))
    return next((kind() for kind in kinds if kind), selectors.SelectSelector())


def processors() -> int:
    """Return the number of processors that this process may use."""
    if IS_LINUX:
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def defer_accept(listener: socket.socket, seconds: int) -> None:
    """Accept a connection only when its first bytes have arrived, where the system can.

    Other systems accept connections that have sent nothing yet, and these time out.

    Args:
        listener: a TCP socket.
        seconds: how long the system waits for the first bytes.
    """
    if IS_LINUX:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, seconds)


def boot_id() -> str:
    """Return a text that differs for each start of this machine; empty if it is unknown."""
    return _contents("/proc/sys/kernel/random/boot_id").strip()


def resident_bytes() -> int:
    """Return the bytes of physical memory that this process occupies."""
    if fields := _contents("/proc/self/statm").split():
        return int(fields[1]) * os.sysconf("SC_PAGESIZE")
    import psutil  # slower, on every system

    return int(psutil.Process().memory_info().rss)


def threads() -> int:
    """Return the number of threads of this process, those of libraries included."""
    if IS_LINUX:
        return len(os.listdir("/proc/self/task"))  # noqa: PTH208  # avoids importing pathlib
    import psutil

    return int(psutil.Process().num_threads())


def process_start_ns() -> int:
    """Return when this process started, as a time of `time.monotonic_ns`, to 10 ms."""
    now_ns = time.monotonic_ns()
    if status := _contents("/proc/self/stat"):
        ticks = int(status.rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    else:
        import psutil

        age = time.time() - psutil.Process().create_time()  # noqa: TID251  # a wall-clock time
    return now_ns - int(max(age, 0.0) * 1e9)


def file_system_of(path: str) -> str:
    """Return the type of the file system of an absolute path; empty if it is unknown."""
    best, kind = "", ""
    for point, name in _mounts():
        is_above = path == point or path.startswith(point.rstrip("/") + "/")
        if is_above and len(point) >= len(best):
            best, kind = point, name
    return kind


def _mounts() -> list[tuple[str, str]]:
    """Return all mount points, each with the type of its file system."""
    mounts = []
    for line in _contents("/proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        point = fields.split()[4].encode().decode("unicode_escape")
        mounts.append((point, rest.split()[0]))
    if mounts:
        return mounts
    import psutil

    return [(part.mountpoint, part.fstype) for part in psutil.disk_partitions(all=True)]


def lock_holder(inode: int) -> tuple[int, str] | None:
    """Return the id and name of another process that has locked a file for writing.

    None if no process has, or the system does not say which.

    Args:
        inode: the inode number of the file.
    """
    for line in _contents("/proc/locks").splitlines():
        fields = line.split()
        if "WRITE" in fields and fields[-3].split(":")[-1] == str(inode):
            process = int(fields[fields.index("WRITE") + 1])
            if process != os.getpid():
                return process, _contents(f"/proc/{process}/comm").strip()
    return None


def mapped_at(device: int, inode: int) -> tuple[int, int] | None:
    """Return first and last address at which the start of a file is mapped, shared, here.

    None if the file is not mapped, or the system does not say where.

    Args:
        device: `st_dev` of the file.
        inode: `st_ino` of the file.
    """
    number = f"{os.major(device):02x}:{os.minor(device):02x}"
    for line in _contents("/proc/self/maps").splitlines():
        span, rights, offset, *target = line.split(maxsplit=5)[:5]
        is_shared = rights.startswith("r") and rights.endswith("s")
        if target == [number, str(inode)] and is_shared and not int(offset, 16):
            start, end = (int(address, 16) for address in span.split("-"))
            return start, end
    return None


def _contents(path: str) -> str:
    """Return the text of a file of `/proc`; empty on other systems."""
    if not IS_LINUX:
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  # avoids importing pathlib
            return file.read()
    except OSError:
        return ""
