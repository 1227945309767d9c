"""Monitoring of an endpoint: metrics for Prometheus, and the status as JSON."""

from collections.abc import Sequence
from typing import Any

from callboard.broker.endpoint import Endpoint
from callboard.figures import Metric, exposition
from callboard.topics import monitoring


def metrics_of(endpoint: Endpoint) -> list[Metric]:
    """Return the metrics of an endpoint, including imported ones."""
    return monitoring.all_metrics(endpoint.hub)


def metrics_text(endpoint: Endpoint, prefixes: Sequence[str] = ()) -> str:
    """Return the metrics in Prometheus's text format.

    Args:
        endpoint: the endpoint.
        prefixes: only metrics whose names have one of these prefixes; by default all.
    """
    name_prefixes = tuple(prefixes) or ("",)
    return exposition(
        metric for metric in metrics_of(endpoint) if metric.name.startswith(name_prefixes)
    )


def status_of(endpoint: Endpoint) -> dict[str, Any]:
    """Return the status with Broker's keys. See `callboard.topics.monitoring`."""
    return monitoring.status_of(endpoint.hub)


def status_json(endpoint: Endpoint) -> str:
    """Return the status as JSON text."""
    return monitoring.status_json(endpoint.hub)
