"""Messages between producers and consumers of a channel, and the reasons for its end.

Sequence numbers start at 1 with the first event of a producer and never repeat. The transport
may lose, duplicate, delay and reorder messages; no message depends on an earlier one.
"""

from enum import StrEnum
from typing import Generic, TypeVar

from callboard.support.dataclass import dataclass

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Handshake:
    """The first sequence number that a consumer receives, and the ticks between heartbeats."""

    first: int
    heartbeat_interval: int


@dataclass(frozen=True, slots=True)
class Event(Generic[P]):
    """Ordered data."""

    seq: int
    payload: P


@dataclass(frozen=True, slots=True)
class RetransmitFailed:
    """A requested event that is no longer available."""

    seq: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life of the producer, with the sequence number of its last event."""

    seq: int


@dataclass(frozen=True, slots=True)
class CumulativeAck:
    """A sign of life of the consumer, which has processed all events up to this number."""

    seq: int


@dataclass(frozen=True, slots=True)
class Nack:
    """Events that did not arrive; the producer sends them again."""

    seqs: tuple[int, ...]


ProducerMessage = Handshake | Event[P] | RetransmitFailed | Heartbeat
ConsumerMessage = CumulativeAck | Nack


class EndOfChannel(StrEnum):
    """Reasons for which a producer drops a consumer, or a consumer closes."""

    #: The other side was silent for too long.
    CONNECTION_TIMEOUT = "connection_timeout"
    #: A lost event did not arrive despite repeated requests.
    RETRANSMISSION_TIMEOUT = "retransmission_timeout"
