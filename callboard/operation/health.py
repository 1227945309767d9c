"""Health checks and metrics over HTTP, for service managers and monitoring.

- `/livez`: 200 while the node's runner makes progress, else 503: restart the node
- `/readyz`: 200 while the node may get work, else 503 and the reason: it is starting, joining
  or draining, or a top-level supervisor gave up
- `/metrics`: the node's figures in Prometheus's text format, including those of its topics
- `/v1/status/json`: the status of its topics under Zeek Broker's keys; 404 without topics

The server runs on its own thread, reads counters for each request, and changes nothing. It does
not authenticate clients, so bind it to 127.0.0.1 or a private network.
"""

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from callboard.kernel.events import RestartsExhausted
from callboard.operation.metrics import node_metrics
from callboard.pages import Page, PageServer, metrics_page, text_page
from callboard.topics.monitoring import METRICS_PATH, STATUS_PATH, status_page

if TYPE_CHECKING:
    from callboard.node import Node

#: Seconds within which a live runner must take a turn; it normally needs far less.
LIVE_LIMIT: Final = 2.0


class HealthServer(PageServer):
    """Serves `/livez`, `/readyz`, `/metrics` and the status page of one node until closed."""

    def __init__(
        self,
        node: "Node",
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        joins: bool = False,
        hosts: Iterable[str] = (),
        option: str = "hosts",
    ) -> None:
        """Open the port and start serving.

        Args:
            node: the running node.
            host: local address.
            port: TCP port; 0 picks a free one.
            joins: whether the node becomes ready only after it has reached another node.
            hosts: host names that requests may use, besides addresses, `localhost` and the
                name of the machine; `*` allows all. `/livez`, `/readyz` and `/metrics` accept
                any name if other machines reach the port.
            option: the name of the option for `hosts`, quoted in refusals.

        Raises:
            OSError: the address is not local or the port is in use.
        """
        self._node = node
        self._is_set_up = False
        self._has_joined = not joins
        #: The last top-level supervisor that gave up; "" if none did.
        self._given_up = ""
        self._subscription = ExitStack()
        self._subscription.enter_context(node.subscribed(self._record))
        pages = {
            "/livez": self.livez,
            "/readyz": self.readyz,
            METRICS_PATH: lambda: metrics_page(node_metrics(node)),
            STATUS_PATH: lambda: status_page(node),
        }
        super().__init__(pages, host, port, hosts=hosts, option=option)

    def set_ready(self) -> None:
        """Mark the node's set-up as finished."""
        self._is_set_up = True

    def close(self) -> None:
        """Close the port. Idempotent."""
        self._subscription.close()
        super().close()

    def _record(self, event: object) -> None:
        """Record a supervisor that gave up: its service is down although the node is up."""
        if isinstance(event, RestartsExhausted) and event.is_top:
            self._given_up = given_up(event)

    # --- pages ---

    def livez(self) -> Page:
        """Return the page of `/livez`: whether the runner takes turns."""
        text = f"the runner took no turn within {LIVE_LIMIT:g} s"
        return _page("live", "" if is_live(self._node, LIVE_LIMIT) else text)

    def readyz(self) -> Page:
        """Return the page of `/readyz`: whether the node may get work."""
        return _page("ready", self._reason_not_ready())

    def _reason_not_ready(self) -> str:
        node = self._node
        self._has_joined = self._has_joined or bool(node.nodes()) or node.is_alone
        if node.context.is_closed:
            return "closed"
        if node.is_draining:
            return "draining"
        if not self._is_set_up:
            return "starting"
        if self._given_up:
            return self._given_up
        return "" if self._has_joined else "joining: no other node is reached yet"


def given_up(event: RestartsExhausted) -> str:
    """Return a line about a supervisor that gave up."""
    often = f"{event.restarts} restarts within {event.seconds:g} s"
    return f"supervisor {event.supervisor} gave up: {event.child} needed more than {often}"


def _page(word: str, problem: str) -> Page:
    """Return 200 and `word` without a problem, else 503 and the problem."""
    return text_page(problem, HTTPStatus.SERVICE_UNAVAILABLE) if problem else text_page(word)


def is_live(node: "Node", limit: float) -> bool:
    """Return whether a node's runner takes a turn within `limit` seconds; block until then."""
    turned = threading.Event()
    node.context.post(turned.set)
    return not node.context.is_closed and turned.wait(limit)
