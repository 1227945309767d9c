"""The receiving side of a channel: everything in order, once, or a named end.

States:

- *waiting* for the handshake. Events that outran it are kept.
- *open*: events are consumed in order; what comes too early waits. Every tick without the next
  event counts towards asking for it again, every tick without any message towards the end.
- *closed*, by silence, by an event that never came, or because the user could not do without
  a lost one. A closed consumer makes no call and ignores everything.

Each event is handed to the user as exactly one `consume`, or as one `consume_nil` when the
producer has it no longer.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, field
from typing import Any, Final, Generic, Protocol, TypeVar

from callboard.channel import message
from callboard.channel.producer import HEARTBEAT_INTERVAL, NACK_LIMIT, TIMEOUT
from callboard.support.dataclass import dataclass

P = TypeVar("P")

#: Ticks that a consumer waits for a missing event before it asks for it.
NACK_AFTER: Final = 2
#: How far ahead of the next event others are kept; those beyond are asked for later.
WINDOW: Final = 65_536
#: Stands in the buffer for an event that the producer has no longer.
_LOST: Final[Any] = object()


class ConsumerBackend(Protocol[P]):
    """Transport of a consumer to its producer, and what it does with events.

    The first argument of each call is the consumer that calls, so one backend can serve many.
    A backend may call back into it; it must not raise.
    """

    def consume(self, consumer: "Consumer[P]", payload: P) -> None:
        """Process the next event."""

    def send(self, consumer: "Consumer[P]", msg: message.ConsumerMessage) -> None:
        """Send a message to the producer."""

    def consume_nil(self, consumer: "Consumer[P]") -> object | None:
        """Process a lost event. Whatever is returned, unless None, closes the consumer."""

    def close(self, consumer: "Consumer[P]", error: object) -> None:
        """Hear that the consumer ended; it makes no further call."""


@dataclass(eq=False, repr=False)
class Consumer(Generic[P]):
    """Receives the events of one producer.

    Attributes:
        backend: transport to the producer, and what to do with events.
        nack_after: ticks to wait for a missing event before asking for it.
        timeout: ticks without any message, or with the same event missing, until it closes.
        window: how far ahead of the next event others are kept.
        next_seq: the sequence number of the next event; 0 before the handshake.
        is_closed: whether the consumer has ended.
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
                f"a consumer needs 0 < nack after < timeout and room for one event, "
                f"not {self.nack_after}, {self.timeout} and {self.window}"
            )
            raise ValueError(msg)
        self._last = 0  # the highest number that is known to exist
        self._buffer: dict[int, P] = {}
        self._ack_interval = HEARTBEAT_INTERVAL
        self._acked = -1
        self._unacked_ticks = self._silent_ticks = 0
        self._stuck_at = self._stuck_ticks = 0

    @property
    def buffered(self) -> int:
        """Events that came too early and wait."""
        return len(self._buffer)

    @property
    def is_idle(self) -> bool:
        """Whether it is connected and, as far as it knows, misses nothing."""
        return self.next_seq > 0 and not self._buffer and self._last < self.next_seq

    def handle(self, msg: message.ProducerMessage[P]) -> None:
        """Take in a message of the producer."""
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

        A handshake that comes again is acknowledged again: the acknowledgement was lost.
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
        """Note that an event will not come; `consume_nil` is called in its turn."""
        self.handle_event(seq, _LOST)

    def handle_heartbeat(self, seq: int) -> None:
        """Note that the producer lives and which event was its last."""
        if not self.is_closed:
            self._silent_ticks = 0
            self._last = max(self._last, seq)

    def acknowledge(self, least: int = 1) -> None:
        """Tell the producer at once what was processed, if at least so much was not told yet.

        Ticks do it anyway; this saves the producer the wait.
        """
        if not self.is_closed and self.next_seq and self.next_seq - 1 - self._acked >= least:
            self._acknowledge()

    def tick(self) -> None:
        """Let one unit of time pass: acknowledge, ask for what is missing, or give up."""
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
        """Consume events from the buffer as far as they follow each other."""
        buffer = self._buffer
        while self.next_seq in buffer:  # which is empty after the end
            payload = buffer.pop(self.next_seq)
            self.next_seq += 1
            if payload is not _LOST:
                self.backend.consume(self, payload)
                continue
            error = self.backend.consume_nil(self)
            if error is not None:
                self._close(error)

    def _watch_missing(self) -> None:
        """Ask for missing events when they are due, or give up after the timeout."""
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
        """Return the first missing numbers; all are wanted, but not all in one message."""
        buffer, found = self._buffer, []
        for seq in range(self.next_seq, min(self._last + 1, self.next_seq + self.window)):
            if seq not in buffer:
                found.append(seq)
                if len(found) == NACK_LIMIT:
                    break
        return tuple(found)

    def _acknowledge(self) -> None:
        """Tell the producer how far events were consumed."""
        self._unacked_ticks = 0
        self._acked = self.next_seq - 1
        self.backend.send(self, message.CumulativeAck(self._acked))

    def _close(self, error: object) -> None:
        """End the consumer and tell its backend why."""
        self.is_closed = True
        self._buffer.clear()
        self.backend.close(self, error)
