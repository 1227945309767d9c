"""How others see an endpoint: its metrics for Prometheus, its status as JSON, and over HTTP."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from callboard.broker.options import BrokerOptions
from callboard.endpoint import status_json as hub_status
from callboard.endpoint.pages import METRICS_PATH, STATUS_PATH, metrics_page, status_page
from callboard.endpoint.topic_metrics import all_metrics
from callboard.exposition import Metric, exposition
from callboard.page_server import PageServer

if TYPE_CHECKING:
    from callboard.broker.endpoint import Endpoint
    from proxies.node import Node

__all__ = ["metrics_of", "metrics_text", "status_json", "status_of"]

log = logging.getLogger("callboard.broker")


def metrics_of(endpoint: "Endpoint") -> list[Metric]:
    """Return the metrics of an endpoint, and those that it imports."""
    return all_metrics(endpoint.hub)


def metrics_text(endpoint: "Endpoint", prefixes: Sequence[str] = ()) -> str:
    """Return them in Prometheus's text format.

    Args:
        endpoint: whose.
        prefixes: only metrics whose names begin so; all by default.
    """
    wanted = tuple(prefixes) or ("",)
    return exposition(one for one in metrics_of(endpoint) if one.name.startswith(wanted))


def status_of(endpoint: "Endpoint") -> dict[str, Any]:
    """Return the status: Broker's keys, plain values. See `callboard.endpoint.status_json`."""
    return hub_status.status_of(endpoint.hub)


def status_json(endpoint: "Endpoint") -> str:
    """Return the status as JSON text."""
    return hub_status.status_json(endpoint.hub)


def serving_address(options: BrokerOptions) -> tuple[str, int] | None:
    """Return host and port where metrics and the status are to be served; None for nowhere."""
    if options.metrics_port < 0:
        return None
    return options.metrics_address, options.metrics_port


def serve(node: "Node", address: tuple[str, int]) -> PageServer | None:
    """Serve `/metrics` and `/v1/status/json` of a node's topics.

    A port that cannot be opened is logged: the endpoint does its work without.
    """
    pages = {METRICS_PATH: partial(metrics_page, node), STATUS_PATH: partial(status_page, node)}
    try:
        return PageServer(pages, *address)
    except (OSError, UnicodeError) as error:  # the latter: a host that is no name
        text = "cannot serve metrics at %s:%s: %s; choose another port, 0 picks one"
        log.error(text, *address, error)  # noqa: TRY400
        return None
