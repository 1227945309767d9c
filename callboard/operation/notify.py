"""Report the state of a node to the service manager: systemd's notification protocol.

The node sends datagrams of `KEY=VALUE` lines to the Unix socket in NOTIFY_SOCKET; a name that
starts with @ is in the abstract namespace. WATCHDOG_USEC is the time in microseconds after
which a silent service counts as hung; it applies to the process in WATCHDOG_PID. See
sd_notify(3) and sd_watchdog_enabled(3).
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from callboard.node import Node

log = logging.getLogger("callboard.operation")


class ServiceManager:
    """Connection to the service manager that started this process; a no-op without one."""

    def __init__(self, path: str = "", watchdog: float | None = None) -> None:
        """Create the connection; nothing is sent yet.

        Args:
            path: path of the socket; "" without a service manager.
            watchdog: seconds after which a silent service counts as hung; None for never.
        """
        self._path = "\0" + path[1:] if path.startswith("@") else path
        self._watchdog = watchdog

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Create a connection from NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID."""
        variables = os.environ if environment is None else environment
        usec, pid = variables.get("WATCHDOG_USEC", ""), variables.get("WATCHDOG_PID", "")
        is_for_us = not pid or pid == str(os.getpid())
        watchdog = int(usec) / 1e6 if usec.isdecimal() and int(usec) and is_for_us else None
        return cls(variables.get("NOTIFY_SOCKET", ""), watchdog)

    def ready(self, node: "Node") -> None:
        """Report that the node is up, then ping the watchdog while its runner takes turns."""
        self._send("READY=1", f"STATUS={node.name} listens on {node.address}")
        if self._path and self._watchdog is not None:
            self._keep_alive(node, self._watchdog / 2)

    def _keep_alive(self, node: "Node", interval: float) -> None:
        """Ping the watchdog, and schedule the next ping on the runner."""
        self._send("WATCHDOG=1")
        node.context.call_later(interval, self._keep_alive, node, interval)

    def stopping(self, timeout: float) -> None:
        """Report that the node drains, which may take `timeout` seconds."""
        grace = int((timeout + 10) * 1e6)  # 10 s more to close
        self._send("STOPPING=1", "STATUS=draining", f"EXTEND_TIMEOUT_USEC={grace}")

    def _send(self, *lines: str) -> None:
        """Send lines in one datagram; log a failure."""
        if not self._path:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)  # noqa: FBT003  # its signature
                sock.sendto("\n".join(lines).encode(), self._path)
        except OSError as error:
            log.warning("cannot send %s to the service manager: %s", lines[0], error)
