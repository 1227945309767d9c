"""Frames that came over a link of no path to their source, as far as the routes say.

A frame names its source, and any member can write any name. It is believed when it comes
from a neighbor that has a shortest path to that node, or had one a moment ago: the source may
have chosen any of them. A source may be ahead of what is known here, or behind: a link broke
or came up, for its two ends not at once. So frames from elsewhere wait until the routes say
the same, or until the source says over its path which dispatches it sent by another one
(`path_end`), and are refused when neither comes in time. All but dispatches a source says
again when its path moves, so there is nothing to tell of those that changing routes overtook.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from callboard.actors.runtime import Runtime
from callboard.basp.frame import RawFrame
from callboard.basp.header import Operation
from callboard.proxies.events import FramesRefused
from callboard.proxies.link.wire import Wire
from callboard.proxies.route_table import OLD_PATH_LIMIT, RouteTable

#: Bytes of memory that the doubtful frames of one link may take; more are refused at once.
DOUBTED_LIMIT: Final = 4 * 1024 * 1024

# What a frame takes beside its payload, a queue and a timer of its source included.
_FRAME_SIZE: Final = 1024

_log = logging.getLogger("callboard.broker")


class Doubts:
    """The frames of one node that wait for routes, by the link that brought them."""

    def __init__(self, runtime: Runtime, routes: RouteTable) -> None:
        self._runtime = runtime
        self._routes = routes
        #: Takes frames that need not be doubted any more.
        self.deliver: Callable[[Wire, list[RawFrame]], None]
        #: By source and link.
        self._held: dict[bytes, dict[Wire, list[RawFrame]]] = {}
        self._sizes: Counter[Wire] = Counter()
        #: Dispatches that waited in vain.
        self.dispatches = 0
        self._untold = 0

    def hold(self, wire: Wire, frame: RawFrame) -> None:
        """Keep a frame until the routes change, or refuse it."""
        size, source = _size_of(frame), frame[3]
        if self._sizes[wire] + size > DOUBTED_LIMIT:
            self._refuse(wire, source, 1)
            return
        self._sizes[wire] += size
        by_wire = self._held.setdefault(source, {})
        frames = by_wire.get(wire)
        if frames is None:
            frames = by_wire[wire] = []
            now = self._runtime.now()
            self._runtime.call_at(now + OLD_PATH_LIMIT, self._expire, wire, source, frames, now)
        frames.append(frame)

    def review(self) -> None:
        """Deliver what the routes do not speak against any more."""
        now = self._runtime.now()
        held = [(wire, source) for source, wires in self._held.items() for wire in wires]
        for wire, source in held:
            if self._routes.brings(wire.peer, source, now):
                self.deliver(wire, self._take(wire, source))

    def believe(self, source: bytes) -> None:
        """Deliver all that came in the name of a node."""
        for wire in list(self._held.get(source, ())):
            self.deliver(wire, self._take(wire, source))

    def _take(self, wire: Wire, source: bytes) -> list[RawFrame]:
        """Take the frames of one source out."""
        by_wire = self._held.get(source, {})
        frames = by_wire.pop(wire, [])
        if not by_wire:
            self._held.pop(source, None)
        self._sizes[wire] -= sum(map(_size_of, frames))
        if not self._sizes[wire]:
            del self._sizes[wire]
        return frames

    def _expire(self, wire: Wire, source: bytes, frames: list[RawFrame], since: float) -> None:
        """Refuse what has waited for long enough."""
        if self._held.get(source, {}).get(wire) is not frames:
            return
        self._take(wire, source)
        dispatches = sum(frame[0] == Operation.DISPATCH_MESSAGE for frame in frames)
        self.dispatches += dispatches
        has_changed = since < self._routes.changed_at + OLD_PATH_LIMIT
        if dispatches or not has_changed:
            self._refuse(wire, source, dispatches if has_changed else len(frames))

    def _refuse(self, wire: Wire, source: bytes, count: int) -> None:
        """Count frames that are refused, and tell so at most once a second."""
        self._routes.refused += count
        self._untold += count
        if self._untold == count:
            self._runtime.call_later(1.0, self._tell, wire.peer or b"", source)

    def _tell(self, peer: bytes, source: bytes) -> None:
        """Tell of what was refused since the last time."""
        count, self._untold = self._untold, 0
        text = "refused %d frames, as of node %s over the link of node %s: no path leads there"
        _log.warning(text, count, source.hex(), peer.hex())
        self._runtime.report(FramesRefused(source, peer, count))


def _size_of(frame: RawFrame) -> int:
    return _FRAME_SIZE + len(frame[7])
