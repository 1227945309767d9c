"""A wire: the stream of one link, with its peer."""

import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from callboard.basp.frame import RawFrame
from callboard.basp.link import Effect, Link
from callboard.basp.node_id import NodeId
from callboard.proxies.address import Endpoint
from callboard.proxies.link.limits import Limits, Throttle
from callboard.proxies.link.stream import READ_SIZE, Stream, Turns
from callboard.proxies.link.tls_socket import TlsSocket
from callboard.support.dataclass import dataclass

#: The reason that a node gives when its program closes it.
CLOSING: Final = "the node is closing"


@dataclass(frozen=True, slots=True)
class Wiring:
    """Settings shared by the wires of one node.

    Attributes:
        turns: the turns of the node's runner.
        deliver: called with the frames of a read.
        carry_out: carries out effects of a link.
        limits: limits for the input of one link.
    """

    turns: Turns
    deliver: "Callable[[Wire, list[RawFrame]], object]"
    carry_out: "Callable[[Wire, list[Effect]], object]"
    limits: Limits


class Wire(Stream[RawFrame, Effect]):
    """A connection between two nodes, and the link on it."""

    def __init__(
        self,
        wiring: Wiring,
        sock: "socket.socket | TlsSocket",
        link: Link,
        remote: Endpoint | None,
        *,
        dialer: bool,
    ) -> None:
        """Take over a connected socket.

        Args:
            wiring: settings shared with the node's other wires.
            sock: the socket.
            link: the machine of the connection.
            remote: the other end of the connection, whichever side dialed.
            dialer: whether this side dialed.
        """
        limits, throttle = wiring.limits, None
        if limits.messages_per_second or limits.bytes_per_second:
            throttle = Throttle(
                limits.messages_per_second,
                limits.bytes_per_second,
                now=wiring.turns.runner.now(),
                read_size=READ_SIZE,
            )
        super().__init__(
            wiring.turns,
            sock,
            link,
            partial(wiring.deliver, self),
            partial(wiring.carry_out, self),
            throttle,
        )
        self.link = link
        self.remote = remote
        #: The address that this side dialed; None if the other side did.
        self.endpoint = remote if dialer else None
        #: Whether it is guarded by the secrets of the node, not by secrets of its port.
        self.has_node_keys = False
        #: The peer, once the link is established.
        self.peer: NodeId | None = None
        self.peer_name = ""
        #: Nodes whose frames may arrive on this link by the current routes.
        self.sources: set[bytes] = set()

    def broken(self, error: BaseException) -> None:
        """Cut the connection, and free the partial frame."""
        self.link.discard_input()
        super().broken(error)

    def deliver(self, frames: list[RawFrame]) -> None:
        """Pass frames to the node."""
        self._deliver(frames)

    def guard(
        self,
        admit: Callable[[list[RawFrame]], list[RawFrame]],
        outgoing: Callable[[bytes], bytes],
    ) -> None:
        """Filter the frames of a link with a leaf.

        Args:
            admit: returns those of the received frames that the leaf may send.
            outgoing: returns the bytes to write for a frame, or none to drop it. Called on any
                thread.
        """
        deliver, write, write_run = self._deliver, self.write, self.write_run

        def deliver_admitted(frames: list[RawFrame]) -> None:
            admitted = admit(frames)
            if admitted:
                deliver(admitted)

        def write_allowed(frame: bytes, *, at_once: bool = False) -> None:
            if passed := outgoing(frame):
                write(passed, at_once=at_once)

        self._deliver = deliver_admitted
        self.write = write_allowed  # type: ignore[method-assign]
        self.write_run = lambda frames: write_run(  # type: ignore[method-assign]
            [passed for frame in frames if (passed := outgoing(frame))]
        )

    @property
    def name(self) -> str:
        """The node at the other end, for people."""
        return f"node {self.peer_name or (self.peer or b'').hex()}"
