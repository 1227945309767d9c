"""How others see an endpoint: its metrics for Prometheus, its status as JSON, and over HTTP."""

from collections.abc import Sequence
from typing import Any

from callboard.broker.endpoint import Endpoint
from callboard.endpoint import monitoring
from callboard.figures import Metric, exposition


def metrics_of(endpoint: Endpoint) -> list[Metric]:
    """Return the metrics of an endpoint, and those that it imports."""
    return monitoring.all_metrics(endpoint.hub)


def metrics_text(endpoint: Endpoint, prefixes: Sequence[str] = ()) -> str:
    """Return them in Prometheus's text format.

    Args:
        endpoint: whose.
        prefixes: only metrics whose names begin so; all by default.
    """
    wanted = tuple(prefixes) or ("",)
    return exposition(one for one in metrics_of(endpoint) if one.name.startswith(wanted))


def status_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the status: Broker's keys, plain values. See `callboard.endpoint.monitoring`."""
    return monitoring.status_of(endpoint.hub)


def status_json(endpoint: Endpoint) -> str:
    """Return the status as JSON text."""
    return monitoring.status_json(endpoint.hub)
