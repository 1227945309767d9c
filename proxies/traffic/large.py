"""Large messages: read in pieces, between other turns of the node.

A message of many parts takes seconds to read. Its reading is a generator here, which gets a
few milliseconds at a time; one message is read after the other, so the memory of one is
enough. What its source sent behind it waits in order. A link that brings more than that while
a message of it is read, or waits, is not read: what is here of one link is a message, and
`WAITING_BYTES` with the message that goes beyond them. On the runner, with its role.
"""

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import field
from typing import Final

from callboard.actors.runner.collector import Collector
from callboard.actors.runtime import Runtime
from callboard.basp.cbor.reader import RunsUserCode
from callboard.basp.errors import RemoteProtocolError
from callboard.basp.frame import RawFrame
from callboard.basp.payload import PayloadCodec
from callboard.basp.routing.path_order import PathOrder
from callboard.proxies.link.wire import Wire
from callboard.support.dataclass import dataclass

#: Seconds of reading between two turns of others.
SLICE: Final = 0.002

#: Bytes of memory that may wait behind a large message while its link is read.
WAITING_BYTES: Final = 1 << 20

# What a frame takes beside its payload.
_FRAME_SIZE: Final = 300

_PAYLOAD: Final = 7


def _nothing() -> Generator[None, None, None]:
    """Read no message."""
    yield from ()


@dataclass(eq=False, slots=True)
class Reading:
    """A large message that is being read, or waits for that.

    Attributes:
        wire: the link that brought it.
        order: of its source, which is stopped.
        source: the node that sent it.
        frame: the message; None if its source only waits for the next turn.
        pieces: reads it.
        value: the message, when it was read.
        error: why it cannot be read.
        runs_code: whether it is read elsewhere, as it has a class with code of its user.
        waiting: what its source sent behind it.
    """

    wire: Wire
    order: PathOrder
    source: bytes
    frame: RawFrame | None = None
    pieces: Generator[None, None, object] = field(default_factory=_nothing)
    value: object = None
    error: RemoteProtocolError | None = None
    runs_code: bool = False
    waiting: list[RawFrame] = field(default_factory=list)

    def result(self) -> object:
        """Return the message.

        Raises:
            RemoteProtocolError: it cannot be read.
            RunsUserCode: it is read elsewhere.
        """
        if self.runs_code:
            raise RunsUserCode
        if self.error is not None:
            raise self.error
        return self.value


class LargeMessages:
    """The large messages that are being read, by their sources."""

    def __init__(
        self, runtime: Runtime, codec: PayloadCodec, take: Callable[[Reading], object]
    ) -> None:
        """Begin without any; `take` gets each message that was read, or cannot be."""
        self._runtime, self._codec, self._take = runtime, codec, take
        self._by_source: dict[bytes, Reading] = {}
        #: Bytes that are here of each link, and the links that are not read for it.
        self._octets: Counter[Wire] = Counter()
        self._held: set[Wire] = set()
        self._collector = Collector()

    def of(self, source: bytes) -> Reading | None:
        """Return the message of a source that is being read."""
        return self._by_source.get(source)

    def octets_of(self, wire: Wire) -> int:
        """Return the bytes that are here of a link."""
        return self._octets[wire]

    def read(self, wire: Wire, order: PathOrder, frame: RawFrame) -> Reading:
        """Begin to read a message; its source's next ones wait."""
        pieces = self._codec.decode_in_pieces(frame[_PAYLOAD])
        return self._begin(Reading(wire, order, frame[3], frame, pieces), [frame])

    def postpone(self, wire: Wire, order: PathOrder, source: bytes) -> Reading:
        """Begin to wait for the next turn with what a source sent."""
        return self._begin(Reading(wire, order, source), [])

    def wait(self, reading: Reading, frames: list[RawFrame]) -> None:
        """Let frames wait behind a message."""
        reading.waiting += frames
        self._note(reading.wire, _size_of(frames))

    def _begin(self, reading: Reading, frames: list[RawFrame]) -> Reading:
        """Put a reading behind the others."""
        reading.order.stop()
        self._by_source[reading.source] = reading
        self._note(reading.wire, _size_of(frames))
        if len(self._by_source) == 1:
            self._runtime.call_later(0.0, self._go_on)
        return reading

    def _note(self, wire: Wire, octets: int) -> None:
        """Count what is here of a link, and read it while that is not too much."""
        size = self._octets[wire] = self._octets[wire] + octets
        if size > WAITING_BYTES:  # the message itself does not count
            own = (one.frame for one in self._by_source.values() if one.wire is wire)
            size -= next((len(frame[_PAYLOAD]) for frame in own if frame is not None), 0)
        elif not size:
            del self._octets[wire]
        if (size > WAITING_BYTES) is (wire in self._held):
            return
        if size > WAITING_BYTES:
            self._held.add(wire)
            wire.hold()
        else:
            self._held.remove(wire)
            wire.release()

    def _go_on(self) -> None:
        """Read the oldest message for a while, and hand it over when it is complete."""
        source, reading = next(iter(self._by_source.items()))
        now = self._runtime.now
        end = now() + SLICE
        try:
            with self._collector.away():
                while now() < end:
                    next(reading.pieces)
        except StopIteration as done:
            reading.value = done.value
        except RemoteProtocolError as error:
            reading.error = error
        except RunsUserCode:
            reading.runs_code = True
        else:
            self._runtime.call_later(0.0, self._go_on)
            return
        del self._by_source[source]
        if self._by_source:
            self._runtime.call_later(0.0, self._go_on)
        reading.order.go_on()
        try:
            self._take(reading)
        except BaseException as error:  # noqa: BLE001  # as in a callback of the link
            self._runtime.runner.failed(reading.wire.release, error)
        frames = reading.waiting if reading.frame is None else [reading.frame, *reading.waiting]
        self._note(reading.wire, -_size_of(frames))
        reading.value = reading.error = None  # its traceback leads back here
        self._collector.catch_up()


def _size_of(frames: list[RawFrame]) -> int:
    return sum(_FRAME_SIZE + len(frame[_PAYLOAD]) for frame in frames)
