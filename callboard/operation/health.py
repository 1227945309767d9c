"""Health and metrics over HTTP, for what starts, watches and restarts nodes.

- `/livez` 200 while the node's runner makes progress, else 503: restart it
- `/readyz` 200 while the node may get work, else 503 and why: it starts, joins or drains, or a
  supervisor gave up that no other one starts again
- `/metrics` its figures in Prometheus's text format, those of its topics included
- `/v1/status/json` the status of its topics, under Zeek Broker's keys; 404 where it has none

It answers on a thread of its own, reads counters when asked, and changes nothing. Every program
that reaches the port may ask, so it belongs on 127.0.0.1 or a network of yours.
"""

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from callboard.endpoint.monitoring import METRICS_PATH, STATUS_PATH, status_page
from callboard.kernel.events import RestartsExhausted
from callboard.operation.metrics import node_metrics
from callboard.pages import Page, PageServer, metrics_page, text_page

if TYPE_CHECKING:
    from callboard.node import Node

#: Seconds in which the runner of a node that lives takes a turn: its watcher needs far less.
LIVE_LIMIT: Final = 2.0


class HealthServer(PageServer):
    """Serves `/livez`, `/readyz`, `/metrics` and the status of one node until it is closed."""

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
        """Open the port and begin to answer.

        Args:
            node: that runs.
            host: local address.
            port: TCP port; 0 picks one.
            joins: the node is not ready before it has reached another node once.
            hosts: names by which the port is reached, beside addresses, `localhost` and the
                name of the machine; `*` for all. `/livez`, `/readyz` and `/metrics` need none
                if other machines reach the port.
            option: what the option for `hosts` is called.

        Raises:
            OSError: the address is not ours or the port is taken.
        """
        self._node = node
        self._is_set_up = False
        self._has_joined = not joins
        #: What is done by nobody any more.
        self._given_up = ""
        self._subscription = ExitStack()
        self._subscription.enter_context(node.subscribed(self._note))
        pages = {
            "/livez": self.livez,
            "/readyz": self.readyz,
            METRICS_PATH: lambda: metrics_page(node_metrics(node)),
            STATUS_PATH: lambda: status_page(node),
        }
        super().__init__(pages, host, port, hosts=hosts, option=option)

    def set_ready(self) -> None:
        """Say that the node's set-up is over."""
        self._is_set_up = True

    def close(self) -> None:
        """Close the port. Idempotent."""
        self._subscription.close()
        super().close()

    def _note(self, event: object) -> None:
        """Look at an event of the node: a service may be dead though its node lives."""
        if isinstance(event, RestartsExhausted) and event.is_top:
            self._given_up = given_up(event)

    # --- pages ---

    def livez(self) -> Page:
        """Tell whether the runner takes turns."""
        text = f"the runner took no turn within {LIVE_LIMIT:g} s"
        return _page("live", "" if is_live(self._node, LIVE_LIMIT) else text)

    def readyz(self) -> Page:
        """Tell whether the node may get work."""
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
    """Return what is to be said of a supervisor that gave up."""
    often = f"{event.restarts} restarts within {event.seconds:g} s"
    return f"supervisor {event.supervisor} gave up: {event.child} needed more than {often}"


def _page(word: str, problem: str) -> Page:
    """Return the page of a check that found no problem, or that found one."""
    return text_page(problem, HTTPStatus.SERVICE_UNAVAILABLE) if problem else text_page(word)


def is_live(node: "Node", limit: float) -> bool:
    """Return whether a node's runner takes a turn within `limit` seconds; blocks until then."""
    turned = threading.Event()
    node.context.post(turned.set)
    return not node.context.is_closed and turned.wait(limit)
