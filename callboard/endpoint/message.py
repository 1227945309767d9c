"""The four kinds of messages inside an endpoint, and how runs of them travel.

- A data message is a topic and a value: what users publish and receive.
- A command message is a topic and a store's internal command.
- A packed message is either of them, or a routing update, serialized: type tag, TTL, topic and
  bytes.
- A node message is a packed message between two nodes; a receiver of None means every node
  that wants its topic.

All are immutable tuples. (Zeek Broker developer guide, section 7.1.)

Between cores a *run* of packed messages of one type and TTL is one dispatch:

    CBOR array [type tag, TTL, topic, content, topic, content, …]

Each `topic, content` pair is made once, when the message enters its first endpoint; runs are
put together from pairs and their contents are never looked at on the way.
"""

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import cbor2


class MessageType(IntEnum):
    """What a packed message holds; the numbers are those of Broker's own wire."""

    DATA = 1
    COMMAND = 2
    ROUTING_UPDATE = 3
    PING = 4
    PONG = 5


class DataMessage(NamedTuple):
    """What users publish and receive."""

    topic: str
    data: Any


class CommandMessage(NamedTuple):
    """What masters and clones of stores say to each other."""

    topic: str
    command: Any


class PackedMessage(NamedTuple):
    """A serialized message."""

    type: MessageType
    ttl: int
    topic: str
    content: bytes


class NodeMessage(NamedTuple):
    """A packed message on its way between nodes."""

    sender: bytes
    receiver: bytes | None
    packed: PackedMessage


RUN_LENGTH: Final = 1024
"""Messages of one dispatch at most: a receiver's turn stays short."""

RUN_SIZE: Final = 256 * 1024
"""Bytes after which a run is closed: a frame delays what is behind it on the link."""

_ARRAY: Final = 0x80
_SHORT: Final = 24


def array_head(length: int) -> bytes:
    """Return the CBOR head of an array (RFC 8949, section 3)."""
    if length < _SHORT:
        return bytes((_ARRAY | length,))
    if length < 1 << 8:
        return bytes((_ARRAY | 24, length))
    if length < 1 << 16:
        return bytes((_ARRAY | 25, length >> 8, length & 0xFF))
    return bytes((_ARRAY | 26,)) + length.to_bytes(4)


@lru_cache(64)
def _kind_and_ttl(kind: MessageType, ttl: int) -> bytes:
    return cbor2.dumps(int(kind)) + cbor2.dumps(ttl)


def pack_runs(kind: MessageType, ttl: int, pairs: list[bytes]) -> Iterable[tuple[bytes, int]]:
    """Put encoded `topic, content` pairs together; yields each run and how many it holds."""
    tail = _kind_and_ttl(kind, ttl)
    if len(pairs) <= RUN_LENGTH:  # nearly always
        body = b"".join(pairs)
        if len(body) <= RUN_SIZE or len(pairs) == 1:
            yield array_head(2 + 2 * len(pairs)) + tail + body, len(pairs)
            return
    start = size = 0
    for index, pair in enumerate(pairs):
        if index > start and (size + len(pair) > RUN_SIZE or index - start == RUN_LENGTH):
            count = index - start
            yield array_head(2 + 2 * count) + tail + b"".join(pairs[start:index]), count
            start, size = index, 0
        size += len(pair)
    count = len(pairs) - start
    yield array_head(2 + 2 * count) + tail + b"".join(pairs[start:]), count
