"""Channels: order and completeness over a transport that has neither.

One producer, any number of consumers. Knows no transport, clock or thread; see
`docs/channels.md`. Imports nothing else of this project.
"""

from callboard.channel.consumer import Consumer, ConsumerBackend
from callboard.channel.message import (
    ConsumerMessage,
    CumulativeAck,
    EndOfChannel,
    Event,
    Handshake,
    Heartbeat,
    Nack,
    ProducerMessage,
    RetransmitFailed,
)
from callboard.channel.producer import Producer, ProducerBackend

__all__ = [
    "Consumer",
    "ConsumerBackend",
    "ConsumerMessage",
    "CumulativeAck",
    "EndOfChannel",
    "Event",
    "Handshake",
    "Heartbeat",
    "Nack",
    "Producer",
    "ProducerBackend",
    "ProducerMessage",
    "RetransmitFailed",
]
