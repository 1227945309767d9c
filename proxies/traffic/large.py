"""Large messages, which are decoded in slices between other turns of the node.

Decoding a message with many parts takes seconds, so it is a generator that runs for a few
milliseconds at a time. Messages are decoded one after the other, so the memory of one is
enough. Later frames of the same source wait, which keeps the order. The link is not read while
more than `WAITING_BYTES` wait; so at most one large message and `WAITING_BYTES` plus one frame
of a link are in memory. On the runner, with its role.
"""

from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import field
from typing import Final

from callboard.actors.runner.collector import Collector
from callboard.actors.runtime import Runtime
from callboard.actors.values import Answer
from callboard.basp.errors import RemoteProtocolError
from callboard.basp.frame import RawFrame
from callboard.basp.payload import PayloadCodec
from callboard.basp.routing.path_order import PathOrder
from callboard.cbor.reader import RunsUserCode
from callboard.proxies.link.wire import Wire
from callboard.support.dataclass import dataclass

#: Seconds of decoding in one slice.
SLICE: Final = 0.002

#: Bytes of memory that may wait for a large message before its link is no longer read.
WAITING_BYTES: Final = 1 << 20

# Memory of a frame in addition to its payload.
_FRAME_SIZE: Final = 300

_PAYLOAD: Final = 7


def _nothing() -> Generator[None, None, None]:
    """Decode nothing."""
    yield from ()


@dataclass(eq=False, slots=True)
class Reading:
    """A large message that is being decoded, or is next.

    Attributes:
        wire: the link on which it arrived.
        order: the order of messages of its source, which is stopped while this one is decoded.
        source: the node that sent it.
        frame: the message; None if frames of the source only wait for the next turn.
        pieces: the decoding generator.
        value: the decoded message.
        error: why the message is malformed.
        runs_code: whether its class runs user code, so that it must be decoded elsewhere.
        waiting: later frames of the source.
    """

    wire: Wire
    order: PathOrder
    source: bytes
    frame: RawFrame | None = None
    pieces: Generator[None, None, object] = field(default_factory=_nothing)
    value: Answer = None
    error: RemoteProtocolError | None = None
    runs_code: bool = False
    waiting: list[RawFrame] = field(default_factory=list)

    def result(self) -> object:
        """Return the decoded message.

        Raises:
            RemoteProtocolError: the message is malformed.
            RunsUserCode: the message must be decoded elsewhere.
        """
        if self.runs_code:
            raise RunsUserCode
        if self.error is not None:
            raise self.error
        return self.value


class LargeMessages:
    """The large messages that are being decoded, by source."""

    def __init__(
        self, runtime: Runtime, codec: PayloadCodec, take: Callable[[Reading], object]
    ) -> None:
        """Start empty; `take` is called with each message when its decoding has ended."""
        self._runtime, self._codec, self._deliver = runtime, codec, take
        self._by_source: dict[bytes, Reading] = {}
        #: Bytes in memory for each link, and the links that are not read because of them.
        self._octets: Counter[Wire] = Counter()
        self._held: set[Wire] = set()
        self._collector = Collector()

    def of(self, source: bytes) -> Reading | None:
        """Return the large message of a source; None if it has none."""
        return self._by_source.get(source)

    def octets_of(self, wire: Wire) -> int:
        """Return the bytes in memory for a link."""
        return self._octets[wire]

    def read(self, wire: Wire, order: PathOrder, frame: RawFrame) -> Reading:
        """Start decoding a message; later frames of its source wait."""
        pieces = self._codec.decode_in_pieces(frame[_PAYLOAD])
        return self._begin(Reading(wire, order, frame[3], frame, pieces), [frame])

    def postpone(self, wire: Wire, order: PathOrder, source: bytes) -> Reading:
        """Defer frames of a source to the next turn."""
        return self._begin(Reading(wire, order, source), [])

    def wait(self, reading: Reading, frames: list[RawFrame]) -> None:
        """Add frames that wait for a message."""
        reading.waiting += frames
        self._count_bytes(reading.wire, _size_of(frames))

    def _begin(self, reading: Reading, frames: list[RawFrame]) -> Reading:
        """Queue a message to decode."""
        reading.order.stop()
        self._by_source[reading.source] = reading
        self._count_bytes(reading.wire, _size_of(frames))
        if len(self._by_source) == 1:
            self._runtime.call_later(0.0, self._decode_slice)
        return reading

    def _count_bytes(self, wire: Wire, octets: int) -> None:
        """Change the bytes of a link by an amount, and pause or resume reading it."""
        size = self._octets[wire] = self._octets[wire] + octets
        if size > WAITING_BYTES:  # the large message itself does not count
            own = (
                reading.frame for reading in self._by_source.values() if reading.wire is wire
            )
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

    def _decode_slice(self) -> None:
        """Decode a slice of the oldest message; deliver it when it is complete."""
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
            self._runtime.call_later(0.0, self._decode_slice)
            return
        del self._by_source[source]
        if self._by_source:
            self._runtime.call_later(0.0, self._decode_slice)
        reading.order.resume()
        try:
            self._deliver(reading)
        except BaseException as error:  # noqa: BLE001  # as in a callback of the link
            self._runtime.runner.failed(reading.wire.release, error)
        frames = reading.waiting if reading.frame is None else [reading.frame, *reading.waiting]
        self._count_bytes(reading.wire, -_size_of(frames))
        reading.value = reading.error = (
            None  # break the cycle: the error's traceback refers to this frame
        )
        self._collector.catch_up()


def _size_of(frames: list[RawFrame]) -> int:
    return sum(_FRAME_SIZE + len(frame[_PAYLOAD]) for frame in frames)
