"""The receiving side of a channel: all events in order, once each, or an end with a reason.

States:

- *waiting* for the handshake. Events that arrive before it are buffered.
- *open*: events are consumed in order; early ones are buffered. After some ticks without the
  next event it is requested again; after too many ticks without any message the channel closes.
- *closed*, because the producer was silent, because an event never arrived, or because the
  user cannot continue without a lost one. A closed consumer ignores all calls.

Each event is passed to the user by exactly one call of `consume`, or of `consume_nil` if the
producer no longer has it.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, field
from typing import Any, Final, Generic, Protocol, TypeVar

from callboard.channel import message
from callboard.channel.producer import HEARTBEAT_INTERVAL, NACK_LIMIT, TIMEOUT
from callboard.support.dataclass import dataclass

P = TypeVar("P")

#: Ticks that a consumer waits for a missing event before it requests it.
NACK_AFTER: Final = 2
#: Range of numbers from the next event on that are buffered; later events are dropped and
#: requested again.
WINDOW: Final = 65_536
#: Marks an event in the buffer that the producer no longer has.
_LOST: Final[Any] = object()


class ConsumerBackend(Protocol[P]):
    """Transport of a consumer to its producer, and the user of its events.

    The first argument of each method is the calling consumer, so that one backend can serve
    many. A backend may call back into the consumer, and must not raise.
    """

    def consume(self, consumer: "Consumer[P]", payload: P) -> None:
        """Process the next event."""

    def send(self, consumer: "Consumer[P]", msg: message.ConsumerMessage) -> None:
        """Send a message to the producer."""

    def consume_nil(self, consumer: "Consumer[P]") -> object | None:
        """Process a lost event. Return None to continue, or the error to close with."""

    def close(self, consumer: "Consumer[P]", error: object) -> None:
        """Called once when the consumer has closed; no call follows."""


@dataclass(eq=False, repr=False)
class Consumer(Generic[P]):
    """Receives the events of one producer.

    Attributes:
        backend: transport to the producer, and user of the events.
        nack_after: ticks to wait for a missing event before requesting it.
        timeout: ticks without any message, or with the same event missing, until it closes.
        window: range of numbers from the next event on that are buffered.
        next_seq: the sequence number of the next event; 0 before the handshake.
        is_closed: whether the consumer has closed.
    """

    backend: ConsumerBackend[P]
    _: KW_ONLY
    nack_after: int = NACK_AFTER
    timeout: int = TIMEOUT
    window: int = WINDOW
    next_seq: int = field(default=0, init=False)
    is_closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.nack_after < self.timeout or self.window < 1:
            msg = (
                f"a consumer needs 0 < nack_after < timeout and a window of at least 1, "
                f"not {self.nack_after}, {self.timeout} and {self.window}"
            )
            raise ValueError(msg)
        self._last = 0  # the highest number known to exist
        self._buffer: dict[int, P] = {}
        self._ack_interval = HEARTBEAT_INTERVAL
        self._acked = -1
        self._unacked_ticks = self._silent_ticks = 0
        self._stuck_at = self._stuck_ticks = 0

    @property
    def buffered(self) -> int:
        """Number of early events in the buffer."""
        return len(self._buffer)

    @property
    def is_idle(self) -> bool:
        """Whether it is connected and has consumed every event that it knows of."""
        return self.next_seq > 0 and not self._buffer and self._last < self.next_seq

    def handle(self, msg: message.ProducerMessage[P]) -> None:
        """Handle a message from the producer."""
        match msg:
            case message.Event():
                self.handle_event(msg.seq, msg.payload)
            case message.Heartbeat():
                self.handle_heartbeat(msg.seq)
            case message.Handshake():
                self.handle_handshake(msg.first, msg.heartbeat_interval)
            case _:
                self.handle_retransmit_failed(msg.seq)

    def handle_handshake(self, first: int, heartbeat_interval: int) -> bool:
        """Start with event `first`; False when it had started, or `first` is none.

        A repeated handshake is acknowledged again: the acknowledgement was lost.
        """
        if self.is_closed or first < 1:
            return False
        self._silent_ticks = 0
        if self.next_seq:
            self._acknowledge()
            return False
        self.next_seq = first
        self._last = max(self._last, first - 1)
        # An interval near the timeout would make this side look dead.
        self._ack_interval = max(1, min(heartbeat_interval, self.timeout // 4))
        self._buffer = {seq: kept for seq, kept in self._buffer.items() if seq >= first}
        self._acknowledge()
        self._consume_ready()
        return True

    def handle_event(self, seq: int, payload: P) -> None:
        """Consume an event, or keep it until its turn; `_LOST` is the news that it is lost."""
        if self.is_closed:
            return
        self._silent_ticks = 0
        awaited = self.next_seq
        if seq == awaited and seq and payload is not _LOST and not self._buffer:
            # The usual case: the next event, and nothing waits.
            self.next_seq = seq + 1
            if seq > self._last:
                self._last = seq
            self.backend.consume(self, payload)
            return
        if seq < max(awaited, 1):
            return
        self._last = max(self._last, seq)
        if not awaited and len(self._buffer) >= self.window:
            return
        if awaited and seq >= awaited + self.window:
            return
        # An event may still arrive after its loss was reported, and then it counts.
        if payload is not _LOST or seq not in self._buffer:
            self._buffer[seq] = payload
        if seq == awaited:
            self._consume_ready()

    def handle_run(self, first: int, payloads: Sequence[P]) -> None:
        """Take in consecutive events; the same as `handle_event` for each of them."""
        if first and first == self.next_seq and not self._buffer and not self.is_closed:
            # The usual case, in one loop: the next events, and nothing waits.
            self._silent_ticks = 0
            self._last = max(self._last, first + len(payloads) - 1)
            consume = self.backend.consume
            for seq, payload in enumerate(payloads, first + 1):
                self.next_seq = seq
                consume(self, payload)
            return
        for seq, payload in enumerate(payloads, first):
            self.handle_event(seq, payload)

    def handle_retransmit_failed(self, seq: int) -> None:
        """Record that an event is lost; `consume_nil` is called at its position."""
        self.handle_event(seq, _LOST)

    def handle_heartbeat(self, seq: int) -> None:
        """Record a sign of life and the number of the producer's last event."""
        if not self.is_closed:
            self._silent_ticks = 0
            self._last = max(self._last, seq)

    def acknowledge(self, least: int = 1) -> None:
        """Acknowledge now if at least `least` processed events are not acknowledged yet.

        Ticks acknowledge as well; this only saves the producer the wait.
        """
        if not self.is_closed and self.next_seq and self.next_seq - 1 - self._acked >= least:
            self._acknowledge()

    def tick(self) -> None:
        """Advance by one tick: acknowledge, request missing events, or close."""
        if self.is_closed:
            return
        self._silent_ticks += 1
        if self._silent_ticks > self.timeout:
            self._close(message.EndOfChannel.CONNECTION_TIMEOUT)
            return
        if not self.next_seq:
            return
        self._unacked_ticks += 1
        if self._acked != self.next_seq - 1 or self._unacked_ticks >= self._ack_interval:
            self._acknowledge()
        self._watch_missing()

    def _consume_ready(self) -> None:
        """Consume buffered events up to the first gap."""
        buffer = self._buffer
        while self.next_seq in buffer:  # the buffer is empty after the end
            payload = buffer.pop(self.next_seq)
            self.next_seq += 1
            if payload is not _LOST:
                self.backend.consume(self, payload)
                continue
            error = self.backend.consume_nil(self)
            if error is not None:
                self._close(error)

    def _watch_missing(self) -> None:
        """Request missing events when they are due, or close after the timeout."""
        if self._last < self.next_seq:
            self._stuck_ticks = 0
            return
        if self._stuck_at != self.next_seq:
            self._stuck_at, self._stuck_ticks = self.next_seq, 0
        self._stuck_ticks += 1
        if self._stuck_ticks > self.timeout:
            self._close(message.EndOfChannel.RETRANSMISSION_TIMEOUT)
        elif self._stuck_ticks % self.nack_after == 0:
            self.backend.send(self, message.Nack(self._missing()))

    def _missing(self) -> tuple[int, ...]:
        """Return the first missing numbers, up to the limit of one message."""
        buffer, missing = self._buffer, []
        for seq in range(self.next_seq, min(self._last + 1, self.next_seq + self.window)):
            if seq not in buffer:
                missing.append(seq)
                if len(missing) == NACK_LIMIT:
                    break
        return tuple(missing)

    def _acknowledge(self) -> None:
        """Acknowledge all consumed events."""
        self._unacked_ticks = 0
        self._acked = self.next_seq - 1
        self.backend.send(self, message.CumulativeAck(self._acked))

    def _close(self, error: object) -> None:
        """Close the consumer and pass the reason to its backend."""
        self.is_closed = True
        self._buffer.clear()
        self.backend.close(self, error)
