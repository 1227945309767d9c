"""Frames received on a link that, by this node's routes, is not on a path from their source.

A frame names its source, and any member can write any name. So a frame is accepted only on the
link with a neighbor that is the first hop of a shortest path to the source, or was so a moment
ago. All neighbors on shortest paths count, because the source may use any of these paths. The
routes of the source may differ from ours for a while, because the two ends of a link do not
notice its loss or return at the same time. So a frame from another link is held until the
routes agree, or until its source confirms over its path how many dispatches it sent on an older
path (`path_end`). A held frame is refused when neither arrives in time. Control frames that
arrive on the wrong link because routes have just changed are dropped without a report, because
their source sends them again when its path changes.

Only the destination learns how many dispatches were sent on an old path. An intermediate node
may hold genuine dispatches for a long time: while a link is known to some nodes and not to
others, frames take paths that no node would choose. So it sends a copy of a dispatch that it
holds for long to the destination, in a message of type `UnverifiedFrame`. The destination holds
the copy, too. It delivers the copy if the source confirms that the dispatch exists, and the
original does not arrive.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from callboard.actors.errors import CallboardError
from callboard.actors.runtime import Runtime
from callboard.basp.frame import RawFrame, repack_frame
from callboard.basp.header import NODE_ACTOR, Operation
from callboard.basp.routing.path_order import PathOrder
from callboard.proxies.events import FramesRefused
from callboard.proxies.link.wire import Wire
from callboard.proxies.messages import UnverifiedFrame
from callboard.proxies.route_table import OLD_PATH_LIMIT, RouteTable
from callboard.proxies.traffic.outgoing import Outgoing
from callboard.support.dataclass import dataclass

#: Bytes of memory for the held frames of one link; further frames are refused at once.
DOUBTED_LIMIT: Final = 4 * 1024 * 1024

#: Seconds between two reviews of held frames. Younger frames are left alone: new routes may
#: soon explain them, and the frame that a copy duplicates, or forges, may still be under way.
REVIEW_SECONDS: Final = 0.25

# Memory of a frame in addition to its payload, including a queue and a timer of its source.
_FRAME_SIZE: Final = 1024

_log = logging.getLogger("callboard.broker")


@dataclass(slots=True, eq=False)
class _HeldFrame:
    """A held frame, the time since which it is held, and whether a copy of it was sent."""

    frame: RawFrame
    since: float
    is_handed_over: bool = False


class UnverifiedFrames:
    """The frames that one node holds, by source and by the link that brought them."""

    def __init__(self, runtime: Runtime, routes: RouteTable, outgoing: Outgoing) -> None:
        self._runtime = runtime
        self._routes = routes
        self._outgoing = outgoing
        #: Delivers frames that are verified.
        self.deliver: Callable[[Wire, list[RawFrame]], None]
        #: Returns the order of the dispatches of a node; None if it has sent none.
        self.order_of: Callable[[bytes], PathOrder | None]
        #: By source and link; None stands for copies that other nodes sent.
        self._held: dict[bytes, dict[Wire | None, list[_HeldFrame]]] = {}
        self._sizes: Counter[Wire | None] = Counter()
        self._is_review_planned = False
        #: Number of dispatches that were refused.
        self.dispatches = 0
        self._untold = 0

    def hold(self, wire: Wire | None, frame: RawFrame) -> None:
        """Hold a frame until the routes change, or refuse it if the link has too many."""
        if self._sizes[wire] + _size_of(frame) > DOUBTED_LIMIT:
            self._refuse(wire, frame[3], 1)
            return
        self._keep(wire, _HeldFrame(frame, self._runtime.now()))
        if not self._is_review_planned:
            self._is_review_planned = True
            self._runtime.call_later(REVIEW_SECONDS, self._review)

    def review(self) -> None:
        """Deliver the frames that the current routes allow."""
        now = self._runtime.now()
        for wire, source in self._pairs():
            if wire is not None and self._routes.brings(wire.peer, source, now):
                self._believe(wire, source)

    def believe(self, source: bytes) -> None:
        """Deliver the held frames from a node, except copies from other nodes.

        The copies are reviewed later, so that the originals have time to arrive.
        """
        for wire in list(self._held.get(source, ())):
            if wire is not None:
                self._believe(wire, source)

    def _believe(self, wire: Wire, source: bytes) -> None:
        """Deliver the held frames of one source and link."""
        self.deliver(wire, [entry.frame for entry in self._pop(wire, source)])

    def _pairs(self) -> list[tuple[Wire | None, bytes]]:
        """List the pairs of link and source with held frames."""
        return [(wire, source) for source, wires in self._held.items() for wire in wires]

    def _keep(self, wire: Wire | None, entry: _HeldFrame) -> None:
        """Append a frame to the others of its source and link."""
        self._sizes[wire] += _size_of(entry.frame)
        self._held.setdefault(entry.frame[3], {}).setdefault(wire, []).append(entry)

    def _pop(self, wire: Wire | None, source: bytes) -> list[_HeldFrame]:
        """Remove and return the frames of one source and link."""
        by_wire = self._held.get(source, {})
        frames = by_wire.pop(wire, [])
        if not by_wire:
            self._held.pop(source, None)
        self._sizes[wire] -= sum(_size_of(entry.frame) for entry in frames)
        if not self._sizes[wire]:
            del self._sizes[wire]
        return frames

    def _review(self) -> None:
        """Send copies of frames that have been held for a while, and refuse expired frames."""
        now, oldest = self._runtime.now(), self._runtime.now() - OLD_PATH_LIMIT
        for wire, source in self._pairs():
            refused = 0
            for entry in self._pop(wire, source):
                if entry.since <= oldest:
                    refused += self._is_refused(wire, entry)
                elif entry.since > now - REVIEW_SECONDS or not self._settle(wire, entry):
                    self._keep(wire, entry)
            if refused:
                self._refuse(wire, source, refused)
        self._is_review_planned = bool(self._held)
        if self._is_review_planned:
            self._runtime.call_later(REVIEW_SECONDS, self._review)

    def _settle(self, wire: Wire | None, entry: _HeldFrame) -> bool:
        """Send a copy of a dispatch for another node, or deliver a copy that was confirmed.

        Returns whether the frame need no longer be held.
        """
        frame = entry.frame
        if wire is not None:
            is_passing = frame[0] == Operation.DISPATCH_MESSAGE
            is_passing &= frame[4] != self._routes.node_id
            if is_passing and not entry.is_handed_over:
                entry.is_handed_over = self._send_copy(frame)
            return False
        order, path = self.order_of(frame[3]), self._routes.wire_to(frame[3])
        if order is None or path is None or not order.is_owed(frame):
            return False
        self.deliver(path, [frame])
        return True

    def _send_copy(self, frame: RawFrame) -> bool:
        """Send a copy of a dispatch to its destination; return False to try again later."""
        node = frame[4]
        if node not in self._routes.router.next_hops or not self._outgoing.can(node, "doubts"):
            return False
        # The copy may be too large, or the link may be full. Then the original frame is refused
        # when it expires.
        with contextlib.suppress(CallboardError):
            copy = UnverifiedFrame(repack_frame(frame))
            self._runtime.ref_of(node, NODE_ACTOR).target.post(copy, None)
        return True

    def _is_refused(self, wire: Wire | None, entry: _HeldFrame) -> bool:
        """Return whether an expired frame counts as refused."""
        frame = entry.frame
        is_dispatch = frame[0] == Operation.DISPATCH_MESSAGE
        if wire is None:
            order = self.order_of(frame[3])
            is_refused = order is None or not order.has_come(frame)
        elif entry.since < self._routes.changed_at + OLD_PATH_LIMIT:
            # Not if the destination has a copy and decides.
            is_refused = is_dispatch and not entry.is_handed_over
        else:
            is_refused = True
        self.dispatches += is_refused and is_dispatch
        return is_refused

    def _refuse(self, wire: Wire | None, source: bytes, count: int) -> None:
        """Count refused frames; report them at most once a second."""
        self._routes.refused += count
        self._untold += count
        if self._untold == count:
            peer = b"" if wire is None else wire.peer or b""
            self._runtime.call_later(1.0, self._report_refused, peer, source)

    def _report_refused(self, peer: bytes, source: bytes) -> None:
        """Log and report the frames refused since the last report."""
        count, self._untold = self._untold, 0
        text = "refused %d frames of node %s received from node %s: no path leads there"
        _log.warning(text, count, source.hex(), peer.hex())
        self._runtime.report(FramesRefused(source, peer, count))


def _size_of(frame: RawFrame) -> int:
    return _FRAME_SIZE + len(frame[7])
