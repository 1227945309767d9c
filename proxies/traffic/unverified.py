"""Frames that came over a link of no path to their source, as far as the routes say.

A frame names its source, and any member can write any name. It is believed when it comes
from a neighbor that has a shortest path to that node, or had one a moment ago: the source may
have chosen any of them. A source may be ahead of what is known here, or behind: a link broke
or came up, for its two ends not at once. So frames from elsewhere wait until the routes say
the same, or until the source says over its path which dispatches it sent by another one
(`path_end`), and are refused when neither comes in time. All but dispatches a source says
again when its path moves, so there is nothing to tell of those that changing routes overtook.

Only the destination hears which dispatches are under way. A node between the two may doubt
true ones, for a while or for good: where a link is known to some and not yet to others, frames
go ways that no node would choose. So it *hands over* what it doubts for long: a copy goes to
the destination in a message of its own, `UnverifiedFrame`. There it waits as well, until its
source has said that there is such a dispatch and it has come in no other way.
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

#: Bytes of memory that the doubtful frames of one link may take; more are refused at once.
DOUBTED_LIMIT: Final = 4 * 1024 * 1024

#: Seconds between two looks at what waits. What is younger the routes may soon explain, or the
#: frame is handed over while the one that it copies, or forges, is still under way.
LOOK_INTERVAL: Final = 0.25

# What a frame takes beside its payload, a queue and a timer of its source included.
_FRAME_SIZE: Final = 1024

_log = logging.getLogger("callboard.broker")


@dataclass(slots=True, eq=False)
class _Doubt:
    """A frame that waits, since when, and whether its destination has a copy."""

    frame: RawFrame
    since: float
    is_handed_over: bool = False


class UnverifiedFrames:
    """The frames of one node that wait for routes, by the link that brought them."""

    def __init__(self, runtime: Runtime, routes: RouteTable, outgoing: Outgoing) -> None:
        self._runtime = runtime
        self._routes = routes
        self._outgoing = outgoing
        #: Takes frames that need not be doubted any more.
        self.deliver: Callable[[Wire, list[RawFrame]], None]
        #: Returns what orders the dispatches of a node, if any has come.
        self.order_of: Callable[[bytes], PathOrder | None]
        #: By source and link; None stands for other nodes that have handed frames over.
        self._held: dict[bytes, dict[Wire | None, list[_Doubt]]] = {}
        self._sizes: Counter[Wire | None] = Counter()
        self._is_looking = False
        #: Dispatches that waited in vain.
        self.dispatches = 0
        self._untold = 0

    def hold(self, wire: Wire | None, frame: RawFrame) -> None:
        """Keep a frame until the routes change, or refuse it."""
        if self._sizes[wire] + _size_of(frame) > DOUBTED_LIMIT:
            self._refuse(wire, frame[3], 1)
            return
        self._keep(wire, _Doubt(frame, self._runtime.now()))
        if not self._is_looking:
            self._is_looking = True
            self._runtime.call_later(LOOK_INTERVAL, self._look)

    def review(self) -> None:
        """Deliver what the routes do not speak against any more."""
        now = self._runtime.now()
        for wire, source in self._pairs():
            if wire is not None and self._routes.brings(wire.peer, source, now):
                self._believe(wire, source)

    def believe(self, source: bytes) -> None:
        """Deliver all that came in the name of a node, but what was handed over.

        That is looked at when what is under way had some time to come.
        """
        for wire in list(self._held.get(source, ())):
            if wire is not None:
                self._believe(wire, source)

    def _believe(self, wire: Wire, source: bytes) -> None:
        """Deliver what one link brought in the name of a node."""
        self.deliver(wire, [doubt.frame for doubt in self._take(wire, source)])

    def _pairs(self) -> list[tuple[Wire | None, bytes]]:
        """List what is held, by link and source."""
        return [(wire, source) for source, wires in self._held.items() for wire in wires]

    def _keep(self, wire: Wire | None, doubt: _Doubt) -> None:
        """Put a frame behind the others of its source."""
        self._sizes[wire] += _size_of(doubt.frame)
        self._held.setdefault(doubt.frame[3], {}).setdefault(wire, []).append(doubt)

    def _take(self, wire: Wire | None, source: bytes) -> list[_Doubt]:
        """Take the frames of one source out."""
        by_wire = self._held.get(source, {})
        doubts = by_wire.pop(wire, [])
        if not by_wire:
            self._held.pop(source, None)
        self._sizes[wire] -= sum(_size_of(doubt.frame) for doubt in doubts)
        if not self._sizes[wire]:
            del self._sizes[wire]
        return doubts

    def _look(self) -> None:
        """Hand over what has waited for a while, and refuse what has for long enough."""
        now, oldest = self._runtime.now(), self._runtime.now() - OLD_PATH_LIMIT
        for wire, source in self._pairs():
            refused = 0
            for doubt in self._take(wire, source):
                if doubt.since <= oldest:
                    refused += self._is_refused(wire, doubt)
                elif doubt.since > now - LOOK_INTERVAL or not self._settle(wire, doubt):
                    self._keep(wire, doubt)
            if refused:
                self._refuse(wire, source, refused)
        self._is_looking = bool(self._held)
        if self._is_looking:
            self._runtime.call_later(LOOK_INTERVAL, self._look)

    def _settle(self, wire: Wire | None, doubt: _Doubt) -> bool:
        """Hand over a dispatch for elsewhere, or take one that is owed; True if that is all."""
        frame = doubt.frame
        if wire is not None:
            is_passing = frame[0] == Operation.DISPATCH_MESSAGE
            is_passing &= frame[4] != self._routes.node_id
            if is_passing and not doubt.is_handed_over:
                doubt.is_handed_over = self._hand_over(frame)
            return False
        order, path = self.order_of(frame[3]), self._routes.wire_to(frame[3])
        if order is None or path is None or not order.is_owed(frame):
            return False
        self.deliver(path, [frame])
        return True

    def _hand_over(self, frame: RawFrame) -> bool:
        """Give the destination of a dispatch a copy of it; False while that cannot be."""
        node = frame[4]
        if node not in self._routes.router.next_hops or not self._outgoing.can(node, "doubts"):
            return False
        with contextlib.suppress(CallboardError):  # it is too large by now, or nobody reads
            copy = UnverifiedFrame(repack_frame(frame))
            self._runtime.ref_of(node, NODE_ACTOR).target.post(copy, None)
        return True

    def _is_refused(self, wire: Wire | None, doubt: _Doubt) -> bool:
        """Return whether a frame that has waited in vain is to be told of."""
        frame = doubt.frame
        is_dispatch = frame[0] == Operation.DISPATCH_MESSAGE
        if wire is None:
            order = self.order_of(frame[3])
            is_refused = order is None or not order.has_come(frame)
        elif doubt.since < self._routes.changed_at + OLD_PATH_LIMIT:
            is_refused = is_dispatch and not doubt.is_handed_over  # its destination tells
        else:
            is_refused = True
        self.dispatches += is_refused and is_dispatch
        return is_refused

    def _refuse(self, wire: Wire | None, source: bytes, count: int) -> None:
        """Count frames that are refused, and tell so at most once a second."""
        self._routes.refused += count
        self._untold += count
        if self._untold == count:
            peer = b"" if wire is None else wire.peer or b""
            self._runtime.call_later(1.0, self._tell, peer, source)

    def _tell(self, peer: bytes, source: bytes) -> None:
        """Tell of what was refused since the last time."""
        count, self._untold = self._untold, 0
        text = "refused %d frames, as of node %s over the link of node %s: no path leads there"
        _log.warning(text, count, source.hex(), peer.hex())
        self._runtime.report(FramesRefused(source, peer, count))


def _size_of(frame: RawFrame) -> int:
    return _FRAME_SIZE + len(frame[7])
