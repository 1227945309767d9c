"""Names of the compiled module in Zeek Broker's Python package, for programs that use it.

Its `Data` is the base class of `broker.Data`, and the class of items in containers.
"""

from callboard.broker import zeek
from callboard.broker.constants import APIFlags, Backend, Frontend, Version, now
from callboard.broker.containers import Set, Table, Vector
from callboard.broker.endpoint import Endpoint
from callboard.broker.options import BrokerOptions, Configuration
from callboard.broker.publisher import Publisher
from callboard.broker.subscriber import StatusSubscriber, Subscriber
from callboard.model.address import Address, Port, Subnet
from callboard.model.data import Data
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp
from callboard.store import Store
from callboard.topics.machine.status import (
    EC,
    SC,
    EndpointInfo,
    Error,
    NetworkInfo,
    OptionalNetworkInfo,
    PeerFlags,
    PeerInfo,
    PeerStatus,
    Status,
)
from callboard.topics.machine.topic import Topic

__all__ = [
    "EC",
    "SC",
    "APIFlags",
    "Address",
    "Backend",
    "BrokerOptions",
    "Configuration",
    "Count",
    "Data",
    "Endpoint",
    "EndpointInfo",
    "Enum",
    "Error",
    "Frontend",
    "NetworkInfo",
    "OptionalNetworkInfo",
    "PeerFlags",
    "PeerInfo",
    "PeerStatus",
    "Port",
    "Publisher",
    "Set",
    "Status",
    "StatusSubscriber",
    "Store",
    "Subnet",
    "Subscriber",
    "Table",
    "Timespan",
    "Timestamp",
    "Topic",
    "Vector",
    "Version",
    "now",
    "zeek",
]
