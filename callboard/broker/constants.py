"""Enumerations and constants of Zeek Broker's Python package."""

import time
from enum import Enum, IntEnum, IntFlag
from typing import Final

from callboard.model.timespan import Timespan, Timestamp


class APIFlags(IntFlag):
    """Modes of Broker's old interface; kept for programs that use the names."""

    Blocking = 1
    NonBlocking = 2

    __str__ = Enum.__str__


class Backend(IntEnum):
    """Storage of a store's entries."""

    Memory = 0
    SQLite = 1
    RocksDB = 2

    __str__ = Enum.__str__


class Frontend(IntEnum):
    """Role of a store object."""

    Clone = 0
    Master = 1

    __str__ = Enum.__str__


class Version:
    """The version of Zeek Broker whose Python interface this package provides."""

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
        """Return whether a peer with this protocol version is compatible."""
        return protocol == Version.PROTOCOL


def now() -> Timestamp:
    """Return the time of the wall clock."""
    return Timestamp(Timespan(time.time_ns()))
