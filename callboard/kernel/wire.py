"""How a foreign protocol gets ports, dials and links on a node."""

from callboard.actors.runner.runner import ConnectionOwner, Runner
from callboard.actors.runner.timers import Timer
from callboard.basp.foreign import FIRST_BYTES, OURS, Admitted, Arrived, wire_of
from callboard.basp.link import Closed, Transmit
from callboard.proxies.link.foreign import (
    ForeignDial,
    ForeignLink,
    ForeignPeer,
    ForeignPort,
    Opening,
)
from callboard.proxies.link.stream import Parting

__all__ = [
    "Admitted",
    "Arrived",
    "Closed",
    "ConnectionOwner",
    "FIRST_BYTES",
    "ForeignDial",
    "ForeignLink",
    "ForeignPeer",
    "ForeignPort",
    "OURS",
    "Opening",
    "Parting",
    "Runner",
    "Timer",
    "Transmit",
    "wire_of",
]
