"""Channels: ordered and complete delivery over a transport that guarantees neither.

A channel has one producer and any number of consumers. The code is independent of transports,
clocks and threads; see `docs/channels.md`. It imports nothing else of this project.
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
