"""The public `Node`: a node of `callboard.proxies`, and what the rooms above add to it.

The facade, the simulation, the command line and every other room take the class from here, so
that a method added here is there wherever a node is made, in worker processes too.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from callboard.basp.header import LOG_SERVICE
from callboard.proxies import node
from callboard.proxies.link.limits import Limits
from callboard.serving.log_service import LogService, checked_logs

__all__ = ["Node"]


class Node(node.Node):
    """A container for actors that can be linked to others.

    It runs in the background from the moment it is made; no port is open until `listen`. Use
    it as a context manager, or call `close`. All methods may be called from any thread.
    Blocking methods have an awaitable twin with an `a` in front.
    """

    worker_class: ClassVar[str] = "callboard.node:Node"

    def _start_parts(self, limits: Limits, logs: Mapping[str, Any] | None) -> None:
        """Start the actors that every node has, and who serves logs."""
        served = checked_logs(logs)
        super()._start_parts(limits, logs)
        if served:
            parts = (served, self.overlay, limits.payload)
            self.runtime.start_actor(LogService, parts, number=LOG_SERVICE)
