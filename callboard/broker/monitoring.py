"""How others see an endpoint: its metrics for Prometheus, its status as JSON, and over HTTP."""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from callboard.broker.options import BrokerOptions
from callboard.endpoint import status_json as hub_status
from callboard.endpoint.errors import InvalidOption
from callboard.endpoint.pages import METRICS_PATH, STATUS_PATH, metrics_page, status_page
from callboard.endpoint.topic_metrics import topic_metrics
from callboard.exposition import Metric, exposition
from callboard.page_server import PageServer

if TYPE_CHECKING:
    from callboard.broker.endpoint import Endpoint
    from proxies.node import Node

__all__ = ["metrics_of", "metrics_text", "status_json", "status_of"]

log = logging.getLogger("callboard.broker")

PORTS: Final = range(65_536)


def metrics_of(endpoint: "Endpoint") -> list[Metric]:
    """Return the metrics of an endpoint."""
    return topic_metrics(endpoint.hub)


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


def serving_address(
    options: BrokerOptions, environment: Mapping[str, str]
) -> tuple[str, int] | None:
    """Return host and port where metrics and the status are to be served; None for nowhere.

    Raises:
        InvalidOption: `BROKER_METRICS_PORT` is no port.
    """
    host = environment.get("BROKER_METRICS_ADDRESS") or options.metrics_address
    text = environment.get("BROKER_METRICS_PORT", "")
    if not text:
        return None if options.metrics_port < 0 else (host, options.metrics_port)
    if not (text.isascii() and text.isdecimal()) or int(text) not in PORTS:
        msg = f"BROKER_METRICS_PORT={text!r} is no port; it is one of 0 to {PORTS[-1]}"
        raise InvalidOption(msg)
    return host, int(text)


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
