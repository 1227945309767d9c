"""Topics between endpoints: the interface of Zeek Broker's Python package, version 1.4.

A program for `import broker` works with that line changed to
`import callboard.broker as broker`.
"""

import datetime

from callboard.broker import _broker as _broker
from callboard.broker import bro, zeek
from callboard.broker.constants import APIFlags, Backend, Frontend, Version, now
from callboard.broker.containers import Data, ImmutableData, Set, Table, Vector
from callboard.broker.endpoint import Endpoint
from callboard.broker.message import Message
from callboard.broker.options import BrokerOptions, Configuration
from callboard.broker.publisher import Publisher
from callboard.broker.recording import Recording
from callboard.broker.subscriber import SafeSubscriber, StatusSubscriber, Subscriber
from callboard.model.address import Address, Port, Subnet
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp
from callboard.store import Store
from callboard.topics.machine.status import (
    EC,
    SC,
    EndpointInfo,
    Error,
    NetworkInfo,
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
    "ImmutableData",
    "Message",
    "NetworkInfo",
    "PeerFlags",
    "PeerInfo",
    "PeerStatus",
    "Port",
    "Publisher",
    "Recording",
    "SafeSubscriber",
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
    "bro",
    "now",
    "utc",
    "zeek",
]

#: The time zone in which timestamps arrive.
utc = datetime.UTC
