"""What an endpoint counts, read at one moment: the source of metrics and of the status."""

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from callboard.broker.publisher import Publisher
from callboard.broker.subscriber import Subscriber
from callboard.endpoint.message import MessageType

if TYPE_CHECKING:
    from callboard.broker.endpoint import Endpoint

__all__ = ["TYPES", "EndpointFigures", "figures_of"]

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
        processed: messages that went through the core, by type.
        buffered: messages that wait, by type.
    """

    id: str
    name: str
    peerings: tuple[PeeringFigures, ...]
    subscribers: int
    publishers: int
    published: int
    processed: dict[str, int]
    buffered: dict[str, int]


def figures_of(endpoint: "Endpoint") -> EndpointFigures:
    """Read the figures of an endpoint; from any thread."""
    hub, core = endpoint.hub, endpoint.hub.core
    members = list(endpoint.members)
    processed, buffered = core.counters.processed, dict.fromkeys(TYPES.values(), 0)
    buffered["data"] = hub.buffered
    waiting = {link.peer: link.waiting for link in endpoint.node.overlay.links()}
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
        id=endpoint.node_id(),
        name=endpoint.name,
        peerings=tuple(peerings),
        subscribers=sum(isinstance(member, Subscriber) for member in members),
        publishers=sum(isinstance(member, Publisher) for member in members),
        published=core.counters.data_published,
        processed={TYPES[kind]: count for kind, count in processed.items()},
        buffered=buffered,
    )
