"""The data model that topics, stores and wires share: fifteen types of values."""

from callboard.model.address import Address, Port, Subnet
from callboard.model.data import (
    Data,
    DataType,
    FrozenTable,
    ImmutableData,
    Set,
    Table,
    Vector,
)
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp

__all__ = [
    "Address",
    "Count",
    "Data",
    "DataType",
    "Enum",
    "FrozenTable",
    "ImmutableData",
    "Port",
    "Set",
    "Subnet",
    "Table",
    "Timespan",
    "Timestamp",
    "Vector",
]
