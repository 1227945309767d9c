"""Sending of runs to hubs of other nodes, and buffers for peers that read slowly."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from callboard.bounded_queue import Overflow
from callboard.kernel.activation import Proxy
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import CallBack, SystemActor
from callboard.kernel.topology import Topology
from callboard.topics.events import Undelivered
from callboard.topics.machine.effect import CoreCounters, TransmitRun
from callboard.topics.machine.peer_buffer import LINK_ROOM, PeerBuffer

#: Seconds between checks of a full link.
DRAIN_INTERVAL: Final = 0.005


class RunTransmitter:
    """Sends runs with the next write of a link, or stores them until the link has room.

    Used on the node's thread, or with the core's lock.
    """

    #: Slots, because each run reads several of these; see `Runtime`.
    __slots__ = (
        "_actor", "_buffers", "_counters", "_hubs", "_is_draining", "_make_buffer", "_overlay",
        "_set_congested",
    )  # fmt: skip

    def __init__(
        self,
        actor: SystemActor,
        hubs: Mapping[bytes, ActorRef],
        counters: CoreCounters,
        make_buffer: Callable[[], PeerBuffer],
        set_congested: Callable[[bool], None],
    ) -> None:
        """Start without buffers.

        Args:
            actor: the hub, which is the sender.
            hubs: the hubs of other nodes; a live view.
            counters: counters of the core.
            make_buffer: returns an empty buffer for a slow peer.
            set_congested: makes publishing threads wait, or stops it.
        """
        self._actor, self._hubs, self._counters = actor, hubs, counters
        self._make_buffer, self._set_congested = make_buffer, set_congested
        self._overlay: Topology = actor.node.overlay
        self._buffers: dict[bytes, PeerBuffer] = {}
        self._is_draining = False

    @property
    def waiting(self) -> int:
        """Number of messages that wait for slow peers. Can be read from any thread."""
        return sum(buffer.waiting for buffer in list(self._buffers.values()))

    def runs_for(self, peer: bytes) -> int:
        """Return the number of runs that wait for a peer."""
        return len(self._buffers[peer]) if peer in self._buffers else 0

    def is_free(self, node: bytes) -> bool:
        """Return whether a run for a node can be sent at once."""
        return not self._buffers and self._overlay.takes_at_once(node, LINK_ROOM)

    def send_at_once(self, runs: Iterable[TransmitRun]) -> None:
        """Write runs to their links on this thread. The links must have room."""
        for run in runs:
            hub = self._hubs.get(run.node)
            if hub is not None and isinstance(hub.target, Proxy):
                hub.target.post_at_once(run.payload, self._actor.context)

    def send(self, run: TransmitRun) -> None:
        """Send a run with the next write of its link, or keep it until the link has room."""
        hub = self._hubs.get(run.node)
        if hub is None:
            return
        link = self._overlay.link_towards(run.node)
        if link is not None and (link.waiting >= LINK_ROOM or link.peer in self._buffers):
            self._keep(link.peer, run)
        else:
            hub.target.post(run.payload, self._actor.context)

    def drop(self, peer: bytes) -> None:
        """Drop the buffer of a peer whose link ended."""
        buffer = self._buffers.pop(peer, None)
        if buffer is not None:
            self._report_dropped(peer, buffer.drop_all(), buffer.policy)

    def _keep(self, peer: bytes, run: TransmitRun) -> None:
        """Buffer a run until its link has room."""
        now = self._actor.now()
        buffer = self._buffers.get(peer)
        if buffer is None:
            buffer = self._buffers[peer] = self._make_buffer()
        dropped = buffer.dropped
        if not buffer.offer(run, now):
            self._overlay.cut(peer, "too many messages wait for it because it does not read")
        self._report_dropped(peer, buffer.dropped - dropped, buffer.policy)
        if not buffer.is_stuck(now):
            self._set_congested(True)  # noqa: FBT003
        if not self._is_draining:
            self._is_draining = True
            self._actor.after(DRAIN_INTERVAL, CallBack(self._drain))

    def _drain(self) -> None:
        """Send buffered runs while links have room; schedule the next check."""
        now = self._actor.now()
        links = {link.peer: link for link in self._overlay.links()}
        is_congested = False
        for peer, buffer in list(self._buffers.items()):
            link = links.get(peer)
            if link is None:
                self.drop(peer)
                continue
            for run in buffer.take(link.waiting, link.bytes_sent, now):
                hub = self._hubs.get(run.node)
                if hub is not None:
                    hub.target.post(run.payload, self._actor.context)
            if not len(buffer):
                del self._buffers[peer]
            elif not buffer.is_stuck(now):
                is_congested = True
        self._is_draining = bool(self._buffers)
        if self._is_draining:
            self._actor.after(DRAIN_INTERVAL, CallBack(self._drain))
        self._set_congested(is_congested)

    def _report_dropped(self, peer: bytes, count: int, policy: Overflow) -> None:
        """Count and report dropped messages."""
        if count:
            self._counters.dropped += count
            self._actor.runtime.report(Undelivered(peer, count, str(policy)))
