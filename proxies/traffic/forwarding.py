"""Forwards frames for other nodes unchanged, in runs.

One read of a busy link may return a thousand frames for the same node. They are packed, counted
and written together, with one look-up of the route and one acquisition of the wire's lock.
"""

from collections import deque
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

from callboard.actors.runtime import Runtime
from callboard.basp.frame import RawFrame, repack_frame
from callboard.basp.header import MESSAGE_ID_MASK, RESPONSE, Operation
from callboard.proxies.events import Undeliverable
from callboard.proxies.route_table import RouteTable
from callboard.proxies.stats import ForwardedAsk
from callboard.proxies.traffic.unrouted import Unrouted

#: Forwarded asks that a node remembers.
PASSAGES: Final = 256

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_destination_of = itemgetter(4)


class Forwarding:
    """Forwards the frames that pass through a node."""

    def __init__(self, runtime: Runtime, routes: RouteTable, unrouted: Unrouted) -> None:
        self._runtime = runtime
        self._routes = routes
        self._unrouted = unrouted
        #: The latest forwarded asks and answers.
        self.passages: deque[ForwardedAsk] = deque(maxlen=PASSAGES)
        self.forwarded = 0

    def forward(self, frames: list[RawFrame]) -> None:
        """Forward frames in order.

        A frame without a path is held while a path is sought; otherwise it is counted and
        reported.
        """
        for destination, run in groupby(frames, _destination_of):
            wire = self._routes.wire_to(destination)
            if wire is None:
                for frame in run:
                    self._hold(frame)
                continue
            packed = []
            for frame in run:
                packed.append(repack_frame(frame))
                if frame[0] == _DISPATCH and frame[2] & MESSAGE_ID_MASK:
                    self._record(frame)
            self.forwarded += len(packed)
            wire.write_run(packed)

    def _hold(self, frame: RawFrame) -> None:
        """Hold a frame until a path is found, or count it as undeliverable."""
        with self._routes.lock:
            is_held = self._unrouted.hold(frame[4], partial(self.forward, [frame]))
        if not is_held:
            self._routes.undeliverable += 1
            self._runtime.report(Undeliverable(frame[3], frame[4]))

    def _record(self, frame: RawFrame) -> None:
        """Record that an ask or its answer was forwarded."""
        data = frame[2]
        now_ns = int(self._runtime.now() * 1e9)
        passage = ForwardedAsk(
            frame[3], frame[4], data & MESSAGE_ID_MASK, bool(data & RESPONSE), now_ns
        )
        self.passages.append(passage)
