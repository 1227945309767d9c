"""The status of a hub as JSON, under Broker's keys (`/v1/status/json`)."""

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from callboard.endpoint.figures import figures_of

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub

__all__ = ["status_json", "status_of"]


def status_of(hub: "Hub") -> dict[str, Any]:
    """Return the status: Broker's keys, plain values.

    | key | meaning |
    |---|---|
    | `id` | the endpoint's id |
    | `cluster-node` | its name |
    | `time` | now, ISO 8601 in UTC |
    | `peerings` | one entry for each peer |
    | `native-connections` | how many these are |
    | `local-subscribers`, `local-publishers` | how many are open |
    | `published-via-async-msg` | data messages that were published here |
    | `message-metrics` | by type: messages that wait, and that went through |
    """
    figures = figures_of(hub)
    return {
        "id": figures.id,
        "cluster-node": figures.name,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "peerings": [
            {
                "id": peering.endpoint,
                "address": peering.address,
                "status": peering.status,
                "waiting-bytes": peering.waiting_bytes,
            }
            for peering in figures.peerings
        ],
        "native-connections": len(figures.peerings),
        "local-subscribers": figures.subscribers,
        "local-publishers": figures.publishers,
        "published-via-async-msg": figures.published,
        "message-metrics": {
            name: {"buffered": figures.buffered[name], "processed": processed}
            for name, processed in figures.processed.items()
        },
    }


def status_json(hub: "Hub") -> str:
    """Return the status as JSON text."""
    return json.dumps(status_of(hub), ensure_ascii=False)
