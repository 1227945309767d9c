"""Names of Zeek Broker's Python package that stand for numbers."""

import time
from enum import Enum, IntEnum, IntFlag
from typing import Final

from callboard.model.timespan import Timespan, Timestamp


class APIFlags(IntFlag):
    """How an endpoint of Broker's old interface was used; kept for programs that name it."""

    Blocking = 1
    NonBlocking = 2

    __str__ = Enum.__str__


class Backend(IntEnum):
    """Where a store keeps its entries."""

    Memory = 0
    SQLite = 1
    RocksDB = 2

    __str__ = Enum.__str__


class Frontend(IntEnum):
    """Which side of a store an object is."""

    Clone = 0
    Master = 1

    __str__ = Enum.__str__


class Version:
    """The version of Zeek Broker whose Python interface this package has."""

    MAJOR: Final = 1
    MINOR: Final = 4
    PATCH: Final = 0
    PROTOCOL: Final = 2

    @staticmethod
    def string() -> str:
        """Return the version as text."""
        return f"{Version.MAJOR}.{Version.MINOR}.{Version.PATCH}"

    @staticmethod
    def compatible(protocol: int) -> bool:
        """Tell whether a peer with this protocol version could be understood."""
        return protocol == Version.PROTOCOL


def now() -> Timestamp:
    """Return the time of the wall clock."""
    return Timestamp(Timespan(time.time_ns()))
