"""Who an endpoint knows: other endpoints, where they are, how peering with them stands."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum, IntFlag

__all__ = [
    "EndpointInfo",
    "NetworkInfo",
    "OptionalNetworkInfo",
    "PeerFlags",
    "PeerInfo",
    "PeerStatus",
]

#: What stands for the id of an endpoint that nobody has reached yet.
INVALID_NODE = "invalid-node"


class PeerStatus(IntEnum):
    """How far peering has come."""

    Initialized = 0
    Connecting = 1
    Connected = 2
    Peered = 3
    Disconnected = 4
    Reconnecting = 5
    Unknown = 6

    __str__ = Enum.__str__


class PeerFlags(IntFlag):
    """Where a peer is, and who connects: a peer over the network has more than one."""

    Invalid = 0
    Local = 1
    Remote = 2
    Outbound = 4
    Inbound = 8


@dataclass(frozen=True, slots=True, order=True)
class NetworkInfo:
    """Where an endpoint listens; `retry` is the seconds between attempts, 0 for no second."""

    address: str
    port: int
    retry: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class OptionalNetworkInfo:
    """Where an endpoint listens, if that is known."""

    info: NetworkInfo | None = None

    def is_set(self) -> bool:
        """Tell whether it is known."""
        return self.info is not None

    def get(self) -> NetworkInfo:
        """Return it.

        Raises:
            LookupError: it is not known.
        """
        if self.info is None:
            msg = "the address of this endpoint is not known: ask is_set() first"
            raise LookupError(msg)
        return self.info

    def __bool__(self) -> bool:
        return self.info is not None

    def __str__(self) -> str:
        return "none" if self.info is None else f"*{self.info}"


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """An endpoint: its id, empty as long as it was not reached, and where it listens."""

    id: str = ""
    network: OptionalNetworkInfo = field(default_factory=OptionalNetworkInfo)

    def node_id(self) -> str:
        """Return the id."""
        return self.id

    def __str__(self) -> str:
        return self.id or INVALID_NODE


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """A peer, where it is, and how peering with it stands."""

    peer: EndpointInfo
    flags: PeerFlags
    status: PeerStatus
