"""Hosts on one machine: namespaces of networks and mounts, which end with the program.

A program runs itself again with `again`. This second process is root of its own namespaces
(networks, mounts and processes), so its changes are not visible outside, and all its children
end with it. In these namespaces, `Network` creates hosts: each has an address in 10.77.0.0/24,
its own view of the disk, and reaches the others only over the network.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

_NEEDED: Final = ("unshare", "nsenter", "ip", "mount")
_BRIDGE: Final = "hosts"
#: Seconds that looking takes at most.
_PATIENCE: Final = 20.0


def again(*command: str) -> list[str]:
    """Return a command that runs another one in its own namespaces."""
    flags = "-mnpf" if os.geteuid() == 0 else "-Urmnpf"
    return ["unshare", flags, "--mount-proc", "--kill-child", *command]


@cache
def why_not() -> str:
    """Return why there can be no namespaces here; "" if there can."""
    if sys.platform != "linux":
        return "namespaces are of Linux"
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        return f"namespaces need {', '.join(missing)}"
    probe = f"ip link add {_BRIDGE} type bridge && ip link add one type veth peer name two"
    command = again("sh", "-c", f"{probe} && unshare -mn mount -t tmpfs none /mnt")
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
    return "" if done.returncode == 0 else f"no namespaces here: {done.stderr.strip()}"


class Host:
    """A host of a network.

    Attributes:
        address: Where others reach it.
    """

    def __init__(self, address: str, holder: "subprocess.Popen[str]") -> None:
        self.address = address
        self._holder = holder

    def command(self, *command: str) -> list[str]:
        """Return a command that runs another one on this host, in the root folder."""
        return ["nsenter", "-m", "-n", "-t", str(self._holder.pid), *command]

    def run(self, *command: str) -> None:
        """Run a command on this host."""
        subprocess.run(self.command(*command), check=True)

    def show(self, folder: Path, at: Path) -> None:
        """Mount a folder of this machine at another path, too."""
        at.mkdir(parents=True, exist_ok=True)
        self.run("mount", "--bind", str(folder), str(at))

    def hide(self, folder: Path) -> None:
        """Mount an empty folder over a folder of this machine."""
        self.run("mount", "-t", "tmpfs", "none", str(folder))

    def cut_off(self, *, is_off: bool = True) -> None:
        """Pull the plug of the network, or put it back."""
        self.run("ip", "link", "set", "eth0", "down" if is_off else "up")


class Network:
    """Hosts at one bridge; the program that makes it is one of them, 10.77.0.1.

    Attributes:
        address: Where hosts reach this program.
    """

    address: Final = "10.77.0.1"

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._hosts = 0

    def __enter__(self) -> Self:
        _ip("link set lo up")
        _ip(f"link add {_BRIDGE} type bridge")
        _ip(f"addr add {self.address}/24 dev {_BRIDGE}")
        _ip(f"link set {_BRIDGE} up")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        _ip(f"link delete {_BRIDGE}")

    def add_host(self) -> Host:
        """Make a host, which is there until the network is left."""
        self._hosts += 1
        holder = subprocess.Popen(
            ["unshare", "-mn", "sh", "-c", "echo here; exec sleep infinity"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.callback(holder.wait)
        self._stack.callback(holder.kill)
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.stdout.close()
        host = Host(f"10.77.0.{self._hosts + 1}", holder)
        plug = f"host{self._hosts}"
        _ip(f"link add {plug} type veth peer name eth0 netns {holder.pid}")
        _ip(f"link set {plug} master {_BRIDGE} up")
        for each in ("link set lo up", f"addr add {host.address}/24 dev eth0"):
            host.run("ip", *each.split())
        host.cut_off(is_off=False)
        return host


def _ip(arguments: str) -> None:
    """Change the network of this program."""
    subprocess.run(["ip", *arguments.split()], check=True)


def run_again(module: str, arguments: Sequence[str], **options: Any) -> int:
    """Run a module in its own namespaces; return its exit code."""
    command = again(sys.executable, "-m", module, *arguments)
    return subprocess.run(command, check=False, **options).returncode
