"""Health and metrics over HTTP, for whoever starts, watches and restarts nodes.

- `/livez` 200 while the node's runner makes progress, else 503: restart it
- `/readyz` 200 while the node may get work, else 503 and why: it starts, joins or drains
- `/metrics` its figures in Prometheus's text format, those of its topics included
- `/v1/status/json` the status of its topics, under Zeek Broker's keys; 404 where it has none

It answers on a thread of its own, reads counters when asked, and changes nothing. Anybody who
reaches the port may ask, so it belongs on 127.0.0.1 or a network of yours.
"""

import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self

from callboard.endpoint.pages import METRICS_PATH, STATUS_PATH, status_page
from callboard.exposition import CONTENT_TYPE, exposition
from callboard.operation.metrics import node_metrics
from callboard.page_server import PLAIN, Page, PageServer

if TYPE_CHECKING:
    from callboard import Node

LIVE_LIMIT: Final = 2.0
"""Seconds in which the runner of a node that lives takes a turn: its watcher needs far less."""


class HealthServer:
    """Serves `/livez`, `/readyz`, `/metrics` and the status of one node until it is closed."""

    def __init__(
        self, node: "Node", host: str = "127.0.0.1", port: int = 0, *, joins: bool = False
    ) -> None:
        """Open the port and begin to answer.

        Args:
            node: that runs.
            host: local address.
            port: TCP port; 0 picks one.
            joins: the node is not ready before it has reached another node once.

        Raises:
            OSError: the address is not ours or the port is taken.
        """
        self._node = node
        self._is_set_up = False
        self._has_joined = not joins
        self._server = PageServer(
            {
                "/livez": self.livez,
                "/readyz": self.readyz,
                METRICS_PATH: self.metrics,
                STATUS_PATH: self.status,
            },
            host,
            port,
        )

    @property
    def port(self) -> int:
        """The port that was opened."""
        return self._server.port

    @property
    def url(self) -> str:
        """Where it answers, without a path."""
        return self._server.url

    def set_ready(self) -> None:
        """Say that the node's set-up is over."""
        self._is_set_up = True

    def close(self) -> None:
        """Close the port. Idempotent."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- pages ---

    def livez(self) -> Page:
        """Tell whether the runner takes turns."""
        if is_live(self._node, LIVE_LIMIT):
            return Page(HTTPStatus.OK, PLAIN, "live\n")
        text = f"the runner took no turn within {LIVE_LIMIT:g} s\n"
        return Page(HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, text)

    def readyz(self) -> Page:
        """Tell whether the node may get work."""
        reason = self._reason_not_ready()
        if not reason:
            return Page(HTTPStatus.OK, PLAIN, "ready\n")
        return Page(HTTPStatus.SERVICE_UNAVAILABLE, PLAIN, f"{reason}\n")

    def _reason_not_ready(self) -> str:
        node = self._node
        self._has_joined = self._has_joined or bool(node.nodes())
        if node.runtime.closed:
            return "closed"
        if node.is_draining:
            return "draining"
        if not self._is_set_up:
            return "starting"
        return "" if self._has_joined else "joining: no other node is reached yet"

    def metrics(self) -> Page:
        """Tell the node's figures."""
        return Page(HTTPStatus.OK, CONTENT_TYPE, exposition(node_metrics(self._node)))

    def status(self) -> Page:
        """Tell the status of the node's topics."""
        return status_page(self._node)


def is_live(node: "Node", limit: float) -> bool:
    """Return whether a node's runner takes a turn within `limit` seconds; blocks until then."""
    turned = threading.Event()
    node.runtime.runner.post(turned.set)
    return not node.runtime.closed and turned.wait(limit)
