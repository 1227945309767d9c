"""What producers and consumers of a channel send each other, and how a channel ends.

Sequence numbers start at 1 with the first event of a producer and never repeat. The transport
may lose, double, delay and reorder all of these; no message depends on an earlier one.
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
    """An event that a consumer asked for is no longer available."""

    seq: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The producer lives, and this is the sequence number of its last event."""

    seq: int


@dataclass(frozen=True, slots=True)
class CumulativeAck:
    """The consumer lives, and has processed everything up to this sequence number."""

    seq: int


@dataclass(frozen=True, slots=True)
class Nack:
    """Events that did not arrive; the producer sends them again."""

    seqs: tuple[int, ...]


ProducerMessage = Handshake | Event[P] | RetransmitFailed | Heartbeat
ConsumerMessage = CumulativeAck | Nack


class EndOfChannel(StrEnum):
    """Why a producer dropped a consumer, or a consumer closed."""

    #: Nothing was heard from the other side for too long.
    CONNECTION_TIMEOUT = "connection_timeout"
    #: A lost event was asked for again and again, in vain.
    RETRANSMISSION_TIMEOUT = "retransmission_timeout"
