"""Frames for other nodes: they go on unchanged, a run of them at a time.

A read of a busy link brings a thousand frames for the same node. They are packed, counted and
written together, with one look at the routes and one turn of the wire's lock.
"""

from collections import deque
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from basp.frame import repack_frame
from basp.header import MESSAGE_ID_MASK, RESPONSE, Operation
from proxies.events import Undeliverable
from proxies.stats import Passage

if TYPE_CHECKING:
    from basp.frame import Frame
    from proxies.broker import Broker

PASSAGES: Final = 256
"""Asks of others that a node remembers to have forwarded."""

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_destination_of = itemgetter(4)


class Forwarding:
    """What passes through a node."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._outgoing = broker.outgoing
        #: The latest asks, and answers, that went on.
        self.passages: deque[Passage] = deque(maxlen=PASSAGES)
        self.forwarded = 0

    def forward(self, frames: "list[Frame]") -> None:
        """Send frames on in their order; what has no path is held, or counted and told."""
        for destination, run in groupby(frames, _destination_of):
            wire = self._outgoing.wire_to(destination)
            if wire is None:
                for frame in run:
                    self._hold(frame)
                continue
            packed = []
            for frame in run:
                packed.append(repack_frame(frame))
                if frame[0] == _DISPATCH and frame[2] & MESSAGE_ID_MASK:
                    self._note(frame)
            self.forwarded += len(packed)
            wire.write_run(packed)

    def _hold(self, frame: "Frame") -> None:
        with self._broker.lock:
            is_held = self._outgoing.hold(frame[4], partial(self.forward, [frame]))
        if not is_held:
            self._outgoing.undeliverable += 1
            self._broker.runtime.emit(Undeliverable(frame[3], frame[4]))

    def _note(self, frame: "Frame") -> None:
        data = frame[2]
        now_ns = int(self._broker.runtime.runner.now() * 1e9)
        passage = Passage(
            frame[3], frame[4], data & MESSAGE_ID_MASK, bool(data & RESPONSE), now_ns
        )
        self.passages.append(passage)
