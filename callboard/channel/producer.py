"""The sending side of a channel: one producer, any number of consumers.

States of a consumer, as its producer sees it:

- *pending*, from `add` until its first acknowledgement: the handshake is repeated at each
  heartbeat. Events are kept for it already, so it misses none of them.
- *connected*, until it has been silent for `timeout` ticks and is dropped.

Each event is broadcast once and kept until every consumer has acknowledged it. Consumers
request missing events. The buffer is bounded: when it is full, the oldest event is dropped, and
a consumer that requests it gets `RetransmitFailed`. The code does not read a clock: its owner
calls `tick` at a steady pace.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import KW_ONLY, field
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

from callboard.channel import message
from callboard.support.dataclass import dataclass

H = TypeVar("H", bound=Hashable)
P = TypeVar("P")

#: Ticks between heartbeats, and ticks of silence after which the other side is lost.
HEARTBEAT_INTERVAL: Final = 5
TIMEOUT: Final = 100
#: Events kept for consumers that have not acknowledged them.
BUFFER_LIMIT: Final = 65_536
#: Events that one nack can request; the next nack requests the rest.
NACK_LIMIT: Final = 256


@dataclass(slots=True)
class _Path:
    """The producer's state of one consumer."""

    first: int
    acked: int
    last_seen: int
    is_pending: bool = True


class ProducerBackend(Protocol[H, P]):
    """Transport of a producer; `H` is the handle of a consumer, `P` the payload.

    The first argument of each method is the calling producer, so that one backend can serve
    many. A backend may call back into the producer, and must not raise.
    """

    def send(self, producer: "Producer[H, P]", hdl: H, msg: message.ProducerMessage[P]) -> None:
        """Send a message to one consumer."""

    def broadcast(self, producer: "Producer[H, P]", msg: message.ProducerMessage[P]) -> None:
        """Send a message to all consumers."""

    def drop(self, producer: "Producer[H, P]", hdl: H, reason: message.EndOfChannel) -> None:
        """Called when the producer has removed a consumer."""

    def handshake_completed(self, producer: "Producer[H, P]", hdl: H) -> None:
        """Called when the first acknowledgement of a consumer arrives."""


@dataclass(eq=False, repr=False)
class Producer(Generic[H, P]):
    """Sends events to consumers, in order and completely, over an unreliable transport.

    A handle identifies one consumer, not an address. A consumer that closed must return under
    another handle; else delayed messages of the closed one would count as its own.

    Attributes:
        backend: the transport.
        heartbeat_interval: ticks between heartbeats.
        timeout: ticks without a sign of life after which a consumer is dropped.
        buffer_limit: events kept for consumers that have not acknowledged them.
        seq: the sequence number of the last event; 0 before the first. To continue an earlier
            producer, pass its last number.
        given_up: events dropped from the full buffer before all consumers acknowledged them.
    """

    backend: ProducerBackend[H, P]
    _: KW_ONLY
    heartbeat_interval: int = HEARTBEAT_INTERVAL
    timeout: int = TIMEOUT
    buffer_limit: int = BUFFER_LIMIT
    seq: int = 0
    given_up: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval < self.timeout or self.buffer_limit < 1:
            msg = (
                "a producer needs 0 < heartbeat_interval < timeout and a buffer_limit of at "
                "least 1, "
                f"not {self.heartbeat_interval}, {self.timeout} and {self.buffer_limit}"
            )
            raise ValueError(msg)
        self._tick = self._last_broadcast = 0
        self._paths: dict[H, _Path] = {}
        # Events from `_oldest` to `seq` without gaps, by number. (Finding the first key of a
        # dict that shrinks at its front is slow, so that number is stored.)
        self._buffer: dict[int, P] = {}
        self._oldest = self.seq + 1

    @property
    def consumers(self) -> tuple[H, ...]:
        """The handles of all consumers, including pending ones."""
        return tuple(self._paths)

    @property
    def buffered(self) -> int:
        """Events not acknowledged by all; at `buffer_limit`, a new one evicts the oldest."""
        return len(self._buffer)

    @property
    def is_idle(self) -> bool:
        """Whether no handshake is pending and all consumers have acknowledged everything."""
        seq = self.seq
        return all(not p.is_pending and p.acked == seq for p in self._paths.values())

    def add(self, hdl: H) -> bool:
        """Add a consumer, which receives all later events; return False if it exists."""
        if hdl in self._paths:
            return False
        path = self._paths[hdl] = _Path(self.seq + 1, self.seq, self._tick)
        self.backend.send(self, hdl, message.Handshake(path.first, self.heartbeat_interval))
        return True

    def remove(self, hdl: H) -> bool:
        """Remove a consumer without notice; return False if it does not exist."""
        if self._paths.pop(hdl, None) is None:
            return False
        self._trim()
        return True

    def produce(self, payload: P) -> int:
        """Send the next event to all consumers and return its sequence number.

        Without consumers, this only increments the number.
        """
        seq = self.produce_run((payload,))
        if self._paths:
            self.backend.broadcast(self, message.Event(seq, payload))
        return seq

    def produce_run(self, payloads: Sequence[P]) -> int:
        """Number and buffer a run of events; return the number of the first.

        Like `produce` for each event, but without the broadcast: the caller sends the whole run
        as one message, if there are consumers.
        """
        first = self.seq + 1
        self.seq += len(payloads)
        if self._paths:
            if not self._buffer:
                self._oldest = first
            self._buffer.update(zip(range(first, self.seq + 1), payloads, strict=True))
            if len(self._buffer) > self.buffer_limit:
                self._give_up(len(self._buffer) - self.buffer_limit)
            self._last_broadcast = self._tick
        return first

    def handle(self, hdl: H, msg: message.ConsumerMessage) -> bool:
        """Handle a message from a consumer; return False if it is unknown or invalid."""
        if isinstance(msg, message.CumulativeAck):
            return self.handle_ack(hdl, msg.seq)
        return self.handle_nack(hdl, msg.seqs)

    def handle_ack(self, hdl: H, seq: int) -> bool:
        """Record that a consumer has processed all events up to `seq`."""
        path = self._paths.get(hdl)
        # A consumer can only acknowledge events that were sent after it was added.
        if path is None or not path.first - 1 <= seq <= self.seq:
            return False
        path.last_seen = self._tick
        if seq > path.acked:
            path.acked = seq
            self._trim()
        if path.is_pending:
            path.is_pending = False
            self.backend.handshake_completed(self, hdl)
        return True

    def handle_nack(self, hdl: H, seqs: Iterable[int]) -> bool:
        """Send events again, or report that they are no longer available."""
        path = self._paths.get(hdl)
        if path is None:
            return False
        path.last_seen = self._tick
        for seq in islice(seqs, NACK_LIMIT):
            if path.acked < seq <= self.seq:
                self.backend.send(self, hdl, self._answer(seq))
        return True

    def tick(self) -> None:
        """Advance by one tick: drop silent consumers, repeat handshakes, send heartbeats."""
        self._tick += 1
        self._drop_silent()
        if self._tick % self.heartbeat_interval == 0:
            for hdl, path in tuple(self._paths.items()):
                if path.is_pending:
                    handshake = message.Handshake(path.first, self.heartbeat_interval)
                    self.backend.send(self, hdl, handshake)
        if self._paths and self._tick - self._last_broadcast >= self.heartbeat_interval:
            self._last_broadcast = self._tick
            self.backend.broadcast(self, message.Heartbeat(self.seq))

    def _answer(self, seq: int) -> message.Event[P] | message.RetransmitFailed:
        """Return a buffered event, or the message that it is no longer available."""
        if seq in self._buffer:
            return message.Event(seq, self._buffer[seq])
        return message.RetransmitFailed(seq)

    def _give_up(self, count: int) -> None:
        """Drop the oldest events, although not all consumers have acknowledged them."""
        for seq in range(self._oldest, self._oldest + count):
            del self._buffer[seq]
        self._oldest += count
        self.given_up += count

    def _drop_silent(self) -> None:
        """Drop consumers that were silent for the timeout."""
        oldest = self._tick - self.timeout
        silent = [hdl for hdl, path in self._paths.items() if path.last_seen < oldest]
        for hdl in silent:
            del self._paths[hdl]
        if silent:
            self._trim()
        for hdl in silent:
            self.backend.drop(self, hdl, message.EndOfChannel.CONNECTION_TIMEOUT)

    def _trim(self) -> None:
        """Drop events that all consumers have acknowledged."""
        acked = min((path.acked for path in self._paths.values()), default=self.seq)
        end = min(acked + 1, self._oldest + len(self._buffer))
        for seq in range(self._oldest, end):
            del self._buffer[seq]
        self._oldest = max(self._oldest, end)
