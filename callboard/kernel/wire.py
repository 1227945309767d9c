"""Ports, dials and links of a foreign protocol on a node.

`node.overlay.foreign` is the node's `ForeignWires`. A package passes it a `ForeignDoor`, which
creates a `WireMachine` for each connection. The machine receives bytes and times, and returns
effects.
"""

from callboard.actors.runner.runner import ConnectionOwner, Runner
from callboard.actors.runner.timers import Timer
from callboard.basp.foreign import FIRST_BYTES, OURS, Admitted, Arrived, wire_of
from callboard.basp.link import Closed, Transmit
from callboard.proxies.link.foreign import (
    ForeignDial,
    ForeignDoor,
    ForeignLink,
    ForeignPeer,
    ForeignPort,
    ForeignWires,
    Opening,
)
from callboard.proxies.link.stream import Machine as WireMachine
from callboard.proxies.link.stream import Parting

__all__ = [
    "FIRST_BYTES",
    "OURS",
    "Admitted",
    "Arrived",
    "Closed",
    "ConnectionOwner",
    "ForeignDial",
    "ForeignDoor",
    "ForeignLink",
    "ForeignPeer",
    "ForeignPort",
    "ForeignWires",
    "Opening",
    "Parting",
    "Runner",
    "Timer",
    "Transmit",
    "WireMachine",
    "wire_of",
]
