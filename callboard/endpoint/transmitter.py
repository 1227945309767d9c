"""From a core to the hubs of other nodes: at once, or when a peer that reads slowly has room.

It is used with the lock of a hub's core held.
"""

from collections.abc import Callable
from typing import Any

from callboard.actors.reference import ActorRef
from callboard.actors.system_actor import ActorContext
from callboard.endpoint.events import Undelivered
from callboard.endpoint.machine.effect import CoreCounters, TransmitRun
from callboard.endpoint.machine.peer_buffer import LINK_ROOM, PeerBuffer
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.overlay import Overlay


class Transmitter:
    """Sends runs to the hubs of other nodes."""

    def __init__(
        self,
        context: ActorContext,
        network: Overlay,
        counters: CoreCounters,
        *,
        make_buffer: Callable[[], PeerBuffer],
        drain_later: Callable[[], object],
        congested: Callable[[bool], object],
    ) -> None:
        """Make a transmitter that knows no core.

        Args:
            context: of the hub, the sender of the runs.
            network: the links of its node.
            counters: of the core.
            make_buffer: makes what holds what waits for a peer that reads too slowly.
            drain_later: called when something waits: `drain` is wanted soon.
            congested: told whether a peer reads more slowly than is written.
        """
        #: The hubs of other nodes.
        self.hubs: dict[bytes, ActorRef[Any]] = {}
        self._context = context
        self._network = network
        self._counters = counters
        self._make_buffer = make_buffer
        self._drain_later = drain_later
        self._congested = congested
        self._buffers: dict[bytes, PeerBuffer] = {}
        self._is_draining = False

    @property
    def waiting(self) -> int:
        """Messages that wait because a peer reads too slowly."""
        return sum(buffer.waiting for buffer in list(self._buffers.values()))

    def transmit(self, run: TransmitRun) -> None:
        """Send a run with the next write of its link, or let it wait until there is room."""
        hub = self.hubs.get(run.node)
        if hub is None:
            return
        link = self._network.link_towards(run.node)
        if link is not None and (link.waiting >= LINK_ROOM or link.peer in self._buffers):
            self._keep(link.peer, run)
        else:
            hub.target.post(run.payload, self._context)

    def is_free(self, node: bytes) -> bool:
        """Return whether a link leads to a node and nothing has to wait for it."""
        return not self._buffers and self._network.takes_at_once(node, LINK_ROOM)

    def transmit_at_once(self, run: TransmitRun) -> None:
        """Send a run to a node that is free, from a thread outside of ours."""
        hub = self.hubs.get(run.node)
        if hub is not None and isinstance(hub.target, Proxy):
            hub.target.post_at_once(run.payload, self._context)

    def link_lost(self, peer: bytes) -> None:
        """Drop what waits for a link that ended."""
        buffer = self._buffers.pop(peer, None)
        if buffer is not None:
            self._note_dropped(peer, buffer, buffer.drop_all())

    def drain(self) -> None:
        """Send on what waited, as far as there is room."""
        now = self._context.runtime.now()
        links = {link.peer: link for link in self._network.links()}
        is_congested = False
        for peer, buffer in list(self._buffers.items()):
            link = links.get(peer)
            if link is None:
                self.link_lost(peer)
                continue
            for run in buffer.take(link.waiting, link.bytes_sent, now):
                hub = self.hubs.get(run.node)
                if hub is not None:
                    hub.target.post(run.payload, self._context)
            if not len(buffer):
                del self._buffers[peer]
            elif not buffer.is_stuck(now):
                is_congested = True
        self._is_draining = bool(self._buffers)
        if self._is_draining:
            self._drain_later()
        self._congested(is_congested)

    def _keep(self, peer: bytes, run: TransmitRun) -> None:
        """Let a run wait until its link has room."""
        now = self._context.runtime.now()
        buffer = self._buffers.get(peer)
        if buffer is None:
            buffer = self._buffers[peer] = self._make_buffer()
        dropped = buffer.dropped
        if not buffer.offer(run, now):
            self._network.cut(peer, "too much waits for it, and it does not read")
        self._note_dropped(peer, buffer, buffer.dropped - dropped)
        if not buffer.is_stuck(now):
            self._congested(True)  # noqa: FBT003  # told of it, as the listeners are
        if not self._is_draining:
            self._is_draining = True
            self._drain_later()

    def _note_dropped(self, peer: bytes, buffer: PeerBuffer, count: int) -> None:
        """Count messages that were dropped, and tell of them."""
        if count:
            self._counters.dropped += count
            self._context.runtime.report(Undelivered(peer, count, str(buffer.policy)))
