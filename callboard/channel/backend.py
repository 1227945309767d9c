"""What users of a channel bring along: the transport, and what happens with events.

The first argument is the producer or consumer that calls, so one backend can serve many.
Backends may call back into it; they must not raise.
"""

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeVar

from callboard.channel.message import ConsumerMessage, ProducerMessage

if TYPE_CHECKING:
    from callboard.channel.consumer import Consumer
    from callboard.channel.producer import Producer

__all__ = ["ConsumerBackend", "EndOfChannel", "ProducerBackend"]

H = TypeVar("H")
P = TypeVar("P")


class EndOfChannel(StrEnum):
    """Why a producer dropped a consumer, or a consumer closed."""

    CONNECTION_TIMEOUT = "connection_timeout"
    """Nothing was heard from the other side for too long."""
    RETRANSMISSION_TIMEOUT = "retransmission_timeout"
    """A lost event was asked for again and again, in vain."""


class ProducerBackend(Protocol[H, P]):
    """Transport of a producer; `H` is the handle of a consumer, `P` the payload."""

    def send(self, producer: "Producer[H, P]", hdl: H, msg: ProducerMessage[P]) -> None:
        """Send a message to one consumer."""

    def broadcast(self, producer: "Producer[H, P]", msg: ProducerMessage[P]) -> None:
        """Send a message to all consumers."""

    def drop(self, producer: "Producer[H, P]", hdl: H, reason: EndOfChannel) -> None:
        """Hear that the producer removed a consumer."""

    def handshake_completed(self, producer: "Producer[H, P]", hdl: H) -> None:
        """Hear that the first acknowledgement of a consumer arrived."""


class ConsumerBackend(Protocol[P]):
    """Transport of a consumer to its producer, and what it does with events."""

    def consume(self, consumer: "Consumer[P]", payload: P) -> None:
        """Process the next event."""

    def send(self, consumer: "Consumer[P]", msg: ConsumerMessage) -> None:
        """Send a message to the producer."""

    def consume_nil(self, consumer: "Consumer[P]") -> object | None:
        """Process a lost event. Whatever is returned, unless None, closes the consumer."""

    def close(self, consumer: "Consumer[P]", error: object) -> None:
        """Hear that the consumer ended; it makes no further call."""
