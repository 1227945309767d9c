"""What a node with topics answers over HTTP, beside what it is asked as a node."""

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from callboard.endpoint.hub import Hub
from callboard.endpoint.status_json import status_json
from callboard.endpoint.topic_metrics import all_metrics
from callboard.exposition import CONTENT_TYPE, exposition
from callboard.page_server import JSON, PLAIN, Page

if TYPE_CHECKING:
    from proxies.node import Node

__all__ = ["METRICS_PATH", "STATUS_PATH", "metrics_page", "status_page"]

METRICS_PATH: Final = "/metrics"

STATUS_PATH: Final = "/v1/status/json"
"""Broker's path."""

_NO_TOPICS: Final = Page(HTTPStatus.NOT_FOUND, PLAIN, "this node has no topics\n")


def status_page(node: "Node") -> Page:
    """Return the status of a node's topics; 404 where it has none, or is closed."""
    hub = Hub.found(node)
    return _NO_TOPICS if hub is None else Page(HTTPStatus.OK, JSON, status_json(hub))


def metrics_page(node: "Node") -> Page:
    """Return the metrics of a node's topics; 404 where it has none, or is closed."""
    hub = Hub.found(node)
    if hub is None:
        return _NO_TOPICS
    return Page(HTTPStatus.OK, CONTENT_TYPE, exposition(all_metrics(hub)))
