"""What a hub counts, read at one moment: the source of metrics and of the status."""

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from callboard.endpoint.message import MessageType

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub

__all__ = ["TYPES", "EndpointFigures", "PeeringFigures", "figures_of"]

#: Message types as Broker's metrics call them.
TYPES: Final = {kind: kind.name.lower().replace("_", "-") for kind in MessageType}


@dataclass(frozen=True, slots=True)
class PeeringFigures:
    """One peer: its id, where it is, and what was written to it and waits."""

    endpoint: str
    address: str
    status: str
    waiting_bytes: int


@dataclass(frozen=True, slots=True)
class EndpointFigures:
    """Everything at one moment.

    Attributes:
        id: the endpoint's id.
        name: what people call it: the name of its node.
        peerings: the peers.
        subscribers: subscribers that are not closed.
        publishers: publishers that are not closed.
        published: data messages that were published here.
        delivered: messages that receivers here were given, counted for each.
        dropped: messages that were dropped because a peer did not read.
        malformed: runs from others that were no messages.
        processed: messages that went through the core, by type.
        buffered: messages that wait, by type.
    """

    id: str
    name: str
    peerings: tuple[PeeringFigures, ...]
    subscribers: int
    publishers: int
    published: int
    delivered: int
    dropped: int
    malformed: int
    processed: dict[str, int]
    buffered: dict[str, int]


def figures_of(hub: "Hub") -> EndpointFigures:
    """Read the figures of a hub; from any thread."""
    core = hub.core
    processed, buffered = core.counters.processed, dict.fromkeys(TYPES.values(), 0)
    buffered["data"] = hub.buffered
    waiting = {link.peer: link.waiting for link in hub.node.overlay.links()}
    peerings = [
        PeeringFigures(
            "" if other is None else str(uuid.UUID(bytes=other)),
            "" if address is None else f"{address[0]}:{address[1]}",
            "peered" if is_introduced else "connected",
            waiting.get(node, 0),
        )
        for node, other, address, is_introduced in core.peers()
    ]
    return EndpointFigures(
        id=str(uuid.UUID(bytes=hub.endpoint_id)),
        name=hub.name,
        peerings=tuple(peerings),
        subscribers=len(hub.subscribers),
        publishers=len(hub.publishers),
        published=core.counters.data_published,
        delivered=core.counters.delivered,
        dropped=core.counters.dropped,
        malformed=core.counters.malformed,
        processed={TYPES[kind]: count for kind, count in processed.items()},
        buffered=buffered,
    )
