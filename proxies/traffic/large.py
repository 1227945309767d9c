"""Large messages: read in pieces, between other turns of the node.

A message of many parts takes seconds to read. Its reading is a generator here, which gets a
few milliseconds at a time; one message is read after the other, so the memory of one is
enough. What its source sent behind it waits in order; too much of that stops reading on the
link that brings it. On the runner, with its role.
"""

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Final

from callboard.actors.runtime import Runtime
from callboard.basp.errors import RemoteProtocolError
from callboard.basp.frame import RawFrame
from callboard.basp.payload import PayloadCodec
from callboard.basp.routing.path_order import PathOrder
from callboard.proxies.link.wire import Wire

#: Seconds of reading between two turns of others.
SLICE: Final = 0.002

#: Seconds that a link is not read when too much waits behind a large message of it.
PAUSE: Final = 0.1

#: Bytes that may wait behind a large message before its link is not read for a while.
WAITING_BYTES: Final = 1 << 20

_PAYLOAD: Final = 7


@dataclass(eq=False, slots=True)
class Reading:
    """A large message that is being read, or waits for that.

    Attributes:
        wire: the link that brought it.
        order: of its source, which is stopped.
        frame: the message.
        pieces: reads it.
        value: the message, when it was read.
        error: why it cannot be read.
        waiting: what its source sent behind it.
        octets: bytes of those.
    """

    wire: Wire
    order: PathOrder
    frame: RawFrame
    pieces: Generator[None, None, object]
    value: object = None
    error: RemoteProtocolError | None = None
    waiting: deque[RawFrame] = field(default_factory=deque)
    octets: int = 0

    def result(self) -> object:
        """Return the message.

        Raises:
            RemoteProtocolError: it cannot be read.
        """
        if self.error is not None:
            raise self.error
        return self.value

    def wait(self, frames: list[RawFrame]) -> None:
        """Let frames wait behind it."""
        self.waiting += frames
        self.octets += sum(len(frame[_PAYLOAD]) for frame in frames)
        if self.octets > WAITING_BYTES:
            self.wire.put_off(PAUSE)


class LargeMessages:
    """The large messages that are being read, by their sources."""

    def __init__(
        self, runtime: Runtime, codec: PayloadCodec, take: Callable[[Reading], object]
    ) -> None:
        """Begin without any; `take` gets each message that was read, or cannot be."""
        self._runtime, self._codec, self._take = runtime, codec, take
        self._by_source: dict[bytes, Reading] = {}

    def of(self, source: bytes) -> Reading | None:
        """Return the message of a source that is being read."""
        return self._by_source.get(source)

    def read(self, wire: Wire, order: PathOrder, frame: RawFrame) -> Reading:
        """Begin to read a message; its source's next ones wait."""
        order.stop()
        pieces = self._codec.decode_in_pieces(frame[_PAYLOAD])
        reading = Reading(wire, order, frame, pieces)
        self._by_source[frame[3]] = reading
        if len(self._by_source) == 1:
            self._runtime.call_later(0.0, self._go_on)
        return reading

    def _go_on(self) -> None:
        """Read the oldest message for a while, and hand it over when it is complete."""
        source, reading = next(iter(self._by_source.items()))
        for other in self._by_source.values():
            if other.octets > WAITING_BYTES and not other.wire.is_paused:
                other.wire.put_off(PAUSE)  # after each read, and one is no whole message
        now = self._runtime.now
        end = now() + SLICE
        try:
            while now() < end:
                next(reading.pieces)
        except StopIteration as done:
            reading.value = done.value
        except RemoteProtocolError as error:
            reading.error = error
        else:
            self._runtime.call_later(0.0, self._go_on)
            return
        del self._by_source[source]
        if self._by_source:
            self._runtime.call_later(0.0, self._go_on)
        reading.order.go_on()
        self._take(reading)
