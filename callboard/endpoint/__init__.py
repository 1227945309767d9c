"""Topics and their data: the data model, topic filters, statuses and errors."""

from callboard.endpoint.address import Address, Port, Subnet
from callboard.endpoint.code import EC, SC, ErrorCode, StatusCode
from callboard.endpoint.container import FrozenTable, Set, Table, Vector
from callboard.endpoint.data import Data, DataType, ImmutableData
from callboard.endpoint.errors import (
    DataOverflow,
    EndpointError,
    InvalidData,
    InvalidTopic,
    UnsupportedData,
)
from callboard.endpoint.peer import (
    EndpointInfo,
    NetworkInfo,
    OptionalNetworkInfo,
    PeerFlags,
    PeerInfo,
    PeerStatus,
)
from callboard.endpoint.scalar import Count, Enum
from callboard.endpoint.status import Error, Status
from callboard.endpoint.subscriptions import SubscriptionTable
from callboard.endpoint.timespan import Timespan, Timestamp
from callboard.endpoint.topic import Topic
from callboard.endpoint.topic_filter import TopicFilter

__all__ = [
    "EC",
    "SC",
    "Address",
    "Count",
    "Data",
    "DataOverflow",
    "DataType",
    "EndpointError",
    "EndpointInfo",
    "Enum",
    "Error",
    "ErrorCode",
    "FrozenTable",
    "ImmutableData",
    "InvalidData",
    "InvalidTopic",
    "NetworkInfo",
    "OptionalNetworkInfo",
    "PeerFlags",
    "PeerInfo",
    "PeerStatus",
    "Port",
    "Set",
    "Status",
    "StatusCode",
    "Subnet",
    "SubscriptionTable",
    "Table",
    "Timespan",
    "Timestamp",
    "Topic",
    "TopicFilter",
    "UnsupportedData",
    "Vector",
]
