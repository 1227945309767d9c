"""Telling the service manager how the node is: systemd's notification protocol.

Datagrams of `KEY=VALUE` lines to the Unix socket that NOTIFY_SOCKET names; a name that begins
with @ is in the abstract name space. WATCHDOG_USEC is the time in microseconds after which a
silent service counts as hung, for the process that WATCHDOG_PID names. (sd_notify(3),
sd_watchdog_enabled(3))
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
    """The service manager that started this process; silent where there is none."""

    def __init__(self, path: str = "", watchdog: float | None = None) -> None:
        """Talk to a socket.

        Args:
            path: of the socket; "" for no service manager.
            watchdog: seconds after which a silent service counts as hung; None for never.
        """
        self._path = "\0" + path[1:] if path.startswith("@") else path
        self._watchdog = watchdog

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Take the socket and the watchdog's time from the environment."""
        given = os.environ if environment is None else environment
        usec, pid = given.get("WATCHDOG_USEC", ""), given.get("WATCHDOG_PID", "")
        is_ours = not pid or pid == str(os.getpid())
        watchdog = int(usec) / 1e6 if usec.isdecimal() and int(usec) and is_ours else None
        return cls(given.get("NOTIFY_SOCKET", ""), watchdog)

    def ready(self, node: "Node") -> None:
        """Say that the node is up, and from then on that it lives, while its runner turns."""
        self._send("READY=1", f"STATUS={node.name} listens on {node.address}")
        if self._path and self._watchdog is not None:
            self._keep_alive(node, self._watchdog / 2)

    def _keep_alive(self, node: "Node", interval: float) -> None:
        """Tell the service manager that the runner turns, again and again."""
        self._send("WATCHDOG=1")
        node.context.call_later(interval, self._keep_alive, node, interval)

    def stopping(self, timeout: float) -> None:
        """Say that the node drains, and how many seconds that may take."""
        grace = int((timeout + 10) * 1e6)  # and time to close
        self._send("STOPPING=1", "STATUS=draining", f"EXTEND_TIMEOUT_USEC={grace}")

    def _send(self, *lines: str) -> None:
        """Send lines; a manager that does not hear is logged."""
        if not self._path:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)  # noqa: FBT003  # its signature
                sock.sendto("\n".join(lines).encode(), self._path)
        except OSError as error:
            log.warning("the service manager does not hear %s: %s", lines[0], error)
