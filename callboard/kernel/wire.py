"""Ports, dials and links of a foreign protocol on a node.

`node.overlay.foreign` is the node's `ForeignWires`. A package passes it a `ForeignDoor`, which
creates a `WireMachine` for each connection. The machine receives bytes and times, and returns
effects.

A protocol between nodes, such as that of CAF, is a `NodeWire`.
"""

import ssl
from typing import Any, Protocol, TypedDict, Unpack

from callboard.actors.reference import ActorRef
from callboard.actors.runner.runner import ConnectionOwner as ConnectionOwner
from callboard.actors.runner.runner import Runner as Runner
from callboard.actors.runner.timers import Timer as Timer
from callboard.basp.foreign import FIRST_BYTES as FIRST_BYTES
from callboard.basp.foreign import OURS as OURS
from callboard.basp.foreign import Admitted as Admitted
from callboard.basp.foreign import Arrived as Arrived
from callboard.basp.foreign import wire_of as wire_of
from callboard.basp.link import Closed as Closed
from callboard.basp.link import Transmit as Transmit
from callboard.proxies.link.foreign import ForeignDial as ForeignDial
from callboard.proxies.link.foreign import ForeignDoor as ForeignDoor
from callboard.proxies.link.foreign import ForeignLink as ForeignLink
from callboard.proxies.link.foreign import ForeignPeer as ForeignPeer
from callboard.proxies.link.foreign import ForeignPort as ForeignPort
from callboard.proxies.link.foreign import ForeignWires as ForeignWires
from callboard.proxies.link.foreign import Opening as Opening
from callboard.proxies.link.stream import Parting as Parting
from callboard.tls.certificates import TlsSource


class NodeWirePort(TypedDict):
    """Options of `node.listen` for a port of another protocol between nodes."""

    publish: ActorRef | None
    interface: tuple[str, ...]
    tls: TlsSource | ssl.SSLContext | None
    insecure: bool


class NodeWire(Protocol):
    """Another protocol between nodes; `node.listen(wire=…)` and addresses choose it."""

    def listen(self, address: str, port: int, **options: Unpack[NodeWirePort]) -> int:
        """Accept connections; return the port."""

    async def connect(self, address: str, timeout: float) -> bytes:
        """Link with the node at an address; return its id."""

    async def remote_actor(self, address: str, timeout: float) -> ActorRef:
        """Return the actor at an address."""

    async def spawn(
        self, address: str, name: str, args: tuple[Any, ...], timeout: float
    ) -> ActorRef:
        """Create an actor at a node."""

    def disconnect(self, node: bytes) -> None:
        """End the connection with a node."""
