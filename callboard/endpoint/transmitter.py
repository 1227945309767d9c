"""From a core to the cores of other nodes: at once, or when a peer that reads slowly has room.

It belongs to a core actor, and is used by whoever holds the core's lock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from callboard.endpoint.core_effect import CoreCounters, Transmit
from callboard.endpoint.peer_buffer import LINK_ROOM, OverflowPolicy, PeerBuffer
from proxies.proxy import Proxy

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.reference import ActorRef
    from proxies.overlay import Overlay

__all__ = ["Transmitter", "Undelivered"]


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Event: messages of topics were dropped, because a peer does not read.

    Attributes:
        peer: the neighbour's node id.
        count: messages.
        policy: what decided.
    """

    peer: bytes
    count: int
    policy: str


class Transmitter:
    """Sends runs to the core actors of other nodes."""

    def __init__(
        self,
        cell: "Cell",
        network: "Overlay",
        counters: CoreCounters,
        *,
        limit: int,
        policy: OverflowPolicy,
        drain_later: Callable[[], object],
        congested: Callable[[bool], object],
    ) -> None:
        """Make a transmitter that knows no core.

        Args:
            cell: of the core actor.
            network: the links of its node.
            counters: of the core.
            limit: messages that may wait for a peer that does not read.
            policy: what happens then.
            drain_later: called when something waits: `drain` is wanted soon.
            congested: told whether a peer reads more slowly than is written.
        """
        #: The core actors of other nodes.
        self.cores: dict[bytes, ActorRef[Any]] = {}
        self._cell = cell
        self._network = network
        self._counters = counters
        self._limit = limit
        self._policy = policy
        self._drain_later = drain_later
        self._congested = congested
        self._buffers: dict[bytes, PeerBuffer] = {}
        self._is_draining = False

    @property
    def waiting(self) -> int:
        """Messages that wait because a peer reads too slowly."""
        return sum(buffer.waiting for buffer in list(self._buffers.values()))

    def transmit(self, run: Transmit) -> None:
        """Send a run with the next write of its link, or let it wait until there is room."""
        core = self.cores.get(run.node)
        if core is None:
            return
        link = self._network.link_towards(run.node)
        if link is not None and (link.waiting >= LINK_ROOM or link.peer in self._buffers):
            self._keep(link.peer, run)
        else:
            core.target.post(run.payload, self._cell)

    def is_free(self, node: bytes) -> bool:
        """Return whether a link leads to a node and nothing has to wait for it."""
        return not self._buffers and self._network.takes_at_once(node, LINK_ROOM)

    def transmit_at_once(self, run: Transmit) -> None:
        """Send a run to a node that is free, from a thread outside of ours."""
        core = self.cores.get(run.node)
        if core is not None and isinstance(core.target, Proxy):
            core.target.post_at_once(run.payload, self._cell)

    def link_lost(self, peer: bytes) -> None:
        """Drop what waits for a link that ended."""
        buffer = self._buffers.pop(peer, None)
        if buffer is not None:
            self._note_dropped(peer, buffer.drop_all())

    def drain(self) -> None:
        """Send on what waited, as far as there is room."""
        now = self._cell.runner.now()
        links = {link.peer: link for link in self._network.links()}
        is_congested = False
        for peer, buffer in list(self._buffers.items()):
            link = links.get(peer)
            if link is None:
                self.link_lost(peer)
                continue
            for run in buffer.take(link.waiting, link.bytes_sent, now):
                core = self.cores.get(run.node)
                if core is not None:
                    core.target.post(run.payload, self._cell)
            if not len(buffer):
                del self._buffers[peer]
            elif not buffer.is_stuck(now):
                is_congested = True
        self._is_draining = bool(self._buffers)
        if self._is_draining:
            self._drain_later()
        self._congested(is_congested)

    def _keep(self, peer: bytes, run: Transmit) -> None:
        """Let a run wait until its link has room."""
        now = self._cell.runner.now()
        buffer = self._buffers.get(peer)
        if buffer is None:
            buffer = self._buffers[peer] = PeerBuffer(self._limit, self._policy)
        dropped = buffer.dropped
        if not buffer.offer(run, now):
            self._network.cut(peer, "too much waits for it, and it does not read")
        self._note_dropped(peer, buffer.dropped - dropped)
        if not buffer.is_stuck(now):
            self._congested(True)  # noqa: FBT003  # told of it, as the listeners are
        if not self._is_draining:
            self._is_draining = True
            self._drain_later()

    def _note_dropped(self, peer: bytes, count: int) -> None:
        if count:
            self._counters.dropped += count
            self._cell.runtime.emit(Undelivered(peer, count, str(self._policy)))
