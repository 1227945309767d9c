"""Metrics and status of a hub, and their pages; Broker's metrics keep Broker's names."""

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from callboard import figures, pages
from callboard.node import Node
from callboard.pages import JSON, PLAIN, Page, PageServer
from callboard.support.json_form import json_of
from callboard.topics.hub import Hub
from callboard.topics.machine.run import PackedType
from callboard.topics.machine.status import foreign_id

_log: Final = logging.getLogger("callboard.broker")

METRICS_PATH: Final = "/metrics"

#: Path of the status page, as in Broker.
STATUS_PATH: Final = "/v1/status/json"

#: Names of message types in Broker's metrics.
_TYPES: Final = {kind: kind.name.lower().replace("_", "-") for kind in PackedType}

_NO_TOPICS: Final = Page(HTTPStatus.NOT_FOUND, PLAIN, "this node has no topics\n")


def _by_type(read: Callable[[Hub], dict[str, int]]) -> Callable[[Hub], figures.Samples]:
    """Return a reader of figures by message type."""
    return lambda hub: figures.by_label("type", read(hub))


def _connected(hub: Hub) -> dict[str, int]:
    """Return the number of linked peers by wire."""
    foreign = Counter(peer.wire for peer in hub.overlay.foreign.peers() if peer.is_linked)
    return {"native": len(hub.core.peers()), **foreign}


def _processed(hub: Hub) -> dict[str, int]:
    return {_TYPES[kind]: count for kind, count in hub.counters.processed.items()}


def _buffered(hub: Hub) -> dict[str, int]:
    return {**dict.fromkeys(_TYPES.values(), 0), "data": hub.buffered}


_BROKER_ROWS: Final[tuple[figures.FigureRow[Hub], ...]] = (
    ("connections", "Peers that are connected.", _by_type(_connected)),
    ("processed_messages_total", "Messages that went through the core.", _by_type(_processed)),
    (
        "buffered_messages",
        "Messages that wait for the core, or for a peer that reads slowly.",
        _by_type(_buffered),
    ),
)
_TOPIC_ROWS: Final[tuple[figures.FigureRow[Hub], ...]] = (
    ("subscribers", "Subscribers that are open.", lambda hub: len(hub.subscribers)),
    ("publishers", "Publishers that are open.", lambda hub: len(hub.publishers)),
    ("published_total", "Data messages that were published here.", "counters.data_published"),
    (
        "delivered_total",
        "Messages handed to receivers here, once for each of them.",
        "counters.delivered",
    ),
    ("dropped_total", "Messages dropped because a peer did not read.", "counters.dropped"),
    (
        "malformed_total",
        "Runs from other endpoints that were no messages.",
        "counters.malformed",
    ),
    (
        "unwritten_total",
        "Messages that a foreign wire, such as WebSocket JSON, has no form for.",
        "counters.unwritten",
    ),
    (
        "refused_total",
        "Values, commands and filters of leaves that their rights did not include.",
        "counters.refused",
    ),
)
_FIGURES: Final = (
    *figures.figures_of("broker_", _BROKER_ROWS),
    *figures.figures_of("callboard_topic_", _TOPIC_ROWS),
)


def topic_metrics(hub: Hub) -> list[figures.Metric]:
    """Return the metrics of a hub and its stores; may be called from any thread."""
    metered = [metric for meter in list(hub.meters) for metric in meter()]
    return [*figures.metrics_of(_FIGURES, hub, (("endpoint", hub.name),)), *metered]


def all_metrics(hub: Hub) -> list[figures.Metric]:
    """Return the metrics of a hub and of its other sources, merged by name."""
    imported = [metric for source in tuple(hub.metric_sources) for metric in source()]
    return figures.merged((*topic_metrics(hub), *imported))


def status_of(hub: Hub) -> dict[str, Any]:
    """Return the status with Broker's keys (`/v1/status/json`). Can be called from any thread.

    | key | meaning |
    |---|---|
    | `id` | the endpoint's id |
    | `cluster-node` | its name |
    | `time` | now, ISO 8601 in UTC |
    | `peerings` | one entry for each peer |
    | `native-connections` | number of peers that are endpoints of nodes |
    | `local-subscribers`, `local-publishers` | number of open ones |
    | `published-via-async-msg` | number of data messages published here |
    | `message-metrics` | by type: numbers of waiting and of processed messages |
    """
    peers = hub.core.peers()
    waiting = {link.peer: link.waiting for link in hub.overlay.links()}
    buffered = _buffered(hub)
    return {
        "id": str(uuid.UUID(bytes=hub.endpoint_id)),
        "cluster-node": hub.name,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "peerings": [
            {
                "id": "" if endpoint is None else str(uuid.UUID(bytes=endpoint)),
                "address": "" if address is None else f"{address[0]}:{address[1]}",
                "status": "peered" if is_introduced else "connected",
                "waiting-bytes": waiting.get(node, 0),
            }
            for node, endpoint, address, is_introduced in peers
        ]
        + [
            {
                "id": str(
                    uuid.UUID(bytes=peer.endpoint or foreign_id(peer.wire, peer.address))
                ),
                "wire": peer.wire,
                "name": peer.name,
                "address": f"{peer.address[0]}:{peer.address[1]}",
                "status": "peered" if peer.is_linked else "connecting",
                "waiting-bytes": peer.waiting,
            }
            for peer in hub.overlay.foreign.peers()
        ],
        "native-connections": len(peers),
        "local-subscribers": len(hub.subscribers),
        "local-publishers": len(hub.publishers),
        "published-via-async-msg": hub.counters.data_published,
        "message-metrics": {
            name: {"buffered": buffered[name], "processed": processed}
            for name, processed in _processed(hub).items()
        },
    }


def status_json(hub: Hub) -> str:
    """Return the status as JSON text."""
    return json_of(status_of(hub))


def status_page(node: Node) -> Page:
    """Return the status of a node's topics; 404 if it does not use topics or is closed."""
    hub = Hub.found(node)
    return _NO_TOPICS if hub is None else Page(HTTPStatus.OK, JSON, status_json(hub))


def metrics_page(node: Node) -> Page:
    """Return the metrics of a node's topics; 404 if it does not use topics or is closed."""
    hub = Hub.found(node)
    return _NO_TOPICS if hub is None else pages.metrics_page(all_metrics(hub))


def serve_topics(
    node: Node, address: tuple[str, int], hosts: Iterable[str] = ()
) -> PageServer | None:
    """Serve `/metrics` and `/v1/status/json` of a node's topics.

    If the port cannot be opened, that is logged and the node works without these pages.
    """
    pages = {METRICS_PATH: partial(metrics_page, node), STATUS_PATH: partial(status_page, node)}
    try:
        return PageServer(pages, *address, hosts=hosts, option="metrics_hosts")
    except (OSError, UnicodeError) as error:  # the latter: a host that is not a name
        text = "cannot serve metrics at %s:%s: %s; choose another port, 0 picks one"
        _log.error(text, *address, error)
        return None
