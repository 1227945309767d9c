"""Topics: filters, what peers are told, statuses and errors."""

from callboard.endpoint.machine.status import (
    EC,
    SC,
    EndpointInfo,
    Error,
    ErrorCode,
    NetworkInfo,
    OptionalNetworkInfo,
    PeerFlags,
    PeerInfo,
    PeerStatus,
    Status,
    StatusCode,
)
from callboard.endpoint.machine.subscriptions import SubscriptionTable
from callboard.endpoint.machine.topic import Topic

__all__ = [
    "EC",
    "SC",
    "EndpointInfo",
    "Error",
    "ErrorCode",
    "NetworkInfo",
    "OptionalNetworkInfo",
    "PeerFlags",
    "PeerInfo",
    "PeerStatus",
    "Status",
    "StatusCode",
    "SubscriptionTable",
    "Topic",
]
