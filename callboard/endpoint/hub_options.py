"""How a node takes part in topics."""

from dataclasses import dataclass

from callboard.endpoint.core_peers import DEFAULT_TTL

__all__ = ["HubOptions"]


@dataclass(frozen=True, slots=True)
class HubOptions:
    """How a node takes part in topics.

    Attributes:
        endpoint_id: 16 bytes; a random UUID by default.
        ttl: links that messages may cross.
        forwards: whether messages for others may pass through this node.
        peer_buffer_size: messages that may wait for a peer which does not read.
        overflow_policy: what happens then: `disconnect`, `drop_newest` or `drop_oldest`.
    """

    endpoint_id: bytes | None = None
    ttl: int = DEFAULT_TTL
    forwards: bool = True
    peer_buffer_size: int = 2048
    overflow_policy: str = "disconnect"
