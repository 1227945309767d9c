"""The kinds of messages inside an endpoint, and how runs of them travel, as bytes.

- A data message is a topic and a value: what users publish and receive.
- A command message is a topic and commands of a store.
- A packed message is either of them, or a routing update, serialized: type tag, TTL, topic and
  bytes.
- A node message is a packed message between two nodes.

(Zeek Broker developer guide, section 7.1.)

Between cores a *run* of packed messages of one type and TTL is one dispatch:

    CBOR array [type tag, TTL, topic, content, topic, content, …]

Each `topic, content` pair is encoded once, when the message enters its first endpoint; runs are
put together from pairs, and decoded where they end, by one call of cbor2. What comes out of it
is handed to subscribers; only a run that is odd or malformed is gone through item by item.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

import cbor2

from callboard.endpoint.machine.topic import checked_topic
from callboard.kernel.codec import CborReader, RemoteProtocolError, head
from callboard.model.data import DEPTH_LIMIT
from callboard.model.encoding import (
    MAX_ITEMS,
    immutable_from_cbor,
    immutable_of_item,
    python_to_cbor,
    read_item,
    refuse_heavy,
)
from callboard.model.errors import EndpointError, MalformedMessage
from callboard.model.scalar import Count, Enum


class PackedType(IntEnum):
    """What a packed message holds; the numbers are those of Broker's own wire, and one more."""

    DATA = 1
    COMMAND = 2
    ROUTING_UPDATE = 3
    PING = 4
    PONG = 5
    #: To a leaf: rights that it does not have, and what it wanted with them.
    REFUSED = 6


_ARRAY: Final = 0x80

#: Messages of one dispatch at most: a receiver's turn stays short.
RUN_LENGTH: Final = 1024

#: Bytes after which a run is closed: a frame delays what is behind it on the link.
RUN_SIZE: Final = 256 * 1024

#: How each of our tags (48920 to 48928) begins. Text that holds it only takes the long way.
_TAG_HEAD: Final = b"\xd9\xbf"

#: Topics whose bytes are kept: publishers use few, again and again.
KNOWN_TOPICS: Final = 4096

_LENGTH_MASK: Final = 0x1F
#: Bytes of an array's length behind its first byte (RFC 8949, section 3).
_LENGTH_BYTES: Final = {24: 1, 25: 2, 26: 4}
#: Numbers below it stand in the first byte of an item.
_ONE_BYTE: Final = 24

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1

#: Bytes that begin neither an integer of more than 32 bits nor one of CBOR's odd values.
_SURE: Final = bytes({*range(256)} - {0x1B, 0x3B, *range(0xE0, 0xF4), 0xF7, 0xF8})

#: Bytes that an entity has; fewer than these cost nothing to read.
_ENTITY_LENGTH: Final = 16

_MODEL: Final = {
    str, bytes, float, bool, int, tuple, type(None), Count, Enum, IPv4Address, IPv6Address,
    datetime, timedelta,
}  # fmt: skip
_FOREIGN: Final = {cbor2.CBORSimpleValue, type(cbor2.undefined)}

_HEAD: Final = 2
_DATA: Final = PackedType.DATA
_KINDS: Final = {int(kind): kind for kind in PackedType}
_TEXT: Final = {str}


@lru_cache(64)
def _kind_and_ttl(kind: PackedType, ttl: int) -> bytes:
    return cbor2.dumps(int(kind)) + cbor2.dumps(ttl)


def pack_runs(kind: PackedType, ttl: int, pairs: list[bytes]) -> Iterable[tuple[bytes, int]]:
    """Put encoded `topic, content` pairs together; yields each run and how many it holds."""
    tail = _kind_and_ttl(kind, ttl)
    if len(pairs) <= RUN_LENGTH:  # nearly always
        body = b"".join(pairs)
        if len(body) <= RUN_SIZE or len(pairs) == 1:
            yield head(_ARRAY, 2 + 2 * len(pairs)) + tail + body, len(pairs)
            return
    start = size = 0
    for index, pair in enumerate(pairs):
        if index > start and (size + len(pair) > RUN_SIZE or index - start == RUN_LENGTH):
            count = index - start
            yield head(_ARRAY, 2 + 2 * count) + tail + b"".join(pairs[start:index]), count
            start, size = index, 0
        size += len(pair)
    count = len(pairs) - start
    yield head(_ARRAY, 2 + 2 * count) + tail + b"".join(pairs[start:]), count


def encode_pair(topic: str, value: Any) -> bytes:
    """Encode a topic and a Python value: what runs are put together from.

    Raises:
        InvalidTopic: the topic is too long, or has no UTF-8 form.
        EndpointError: the data model has no such value.
    """
    content = python_to_cbor(value)
    if len(content) > MAX_ITEMS:
        refuse_heavy(content)
    return _TOPICS[topic] + content


class _KnownTopics(dict[str, bytes]):
    """Topics that were checked, and how they travel."""

    def __missing__(self, topic: str) -> bytes:
        checked_topic(topic)
        if len(self) >= KNOWN_TOPICS:
            self.clear()
        encoded = self[topic] = cbor2.dumps(topic)
        return encoded


_TOPICS: Final = _KnownTopics()


def pair_of(topic: str, content: bytes) -> tuple[str, bytes]:
    """Return a topic and a value that is CBOR of the model already, as it enters a core.

    Raises:
        InvalidTopic: the topic is too long, or has no UTF-8 form.
    """
    return topic, _TOPICS[topic] + content


def content_of(pair: tuple[str, bytes]) -> bytes:
    """Return the encoded value of a message that entered."""
    topic, encoded = pair
    return encoded[len(_TOPICS[topic]) :]


def encode_plain_pair(topic: str, content: Any) -> bytes:
    """Encode a topic and content of our own making that is plain CBOR: bytes stay bytes."""
    return cbor2.dumps(topic) + cbor2.dumps(content)


def decode_run(payload: bytes) -> tuple[PackedType, list[tuple[str, Any]]]:
    """Decode a run: its type, and each topic with its value as immutable Python values.

    Raises:
        MalformedMessage: it is no run, or a value in it is none.
    """
    try:
        weight = refuse_heavy(payload)
        is_tagged = _TAG_HEAD in payload and _is_data(payload)
        if is_tagged:
            values = _read_tagged(payload)
        else:
            values = _READER.read(payload)
            if len(payload) > MAX_ITEMS and not _is_data(payload):
                _refuse_heavy_parts(values, weight)
    except (EndpointError, RemoteProtocolError) as cause:
        msg = f"a run of {len(payload):,} B cannot be read: {cause}"
        raise MalformedMessage(msg) from cause
    if type(values) is not tuple or len(values) < _HEAD or len(values) % 2:
        msg = "a run is an array of type, TTL, and pairs of topic and value"
        raise MalformedMessage(msg)
    topics = values[2::2]
    is_known = type(values[0]) is int and values[0] in _KINDS
    if not is_known or not {*map(type, topics)} <= _TEXT:
        msg = f"a run of type {str(values[0])[:20]} with topics that are no text"
        raise MalformedMessage(msg)
    kind, contents = _KINDS[values[0]], values[3::2]
    is_odd = kind is _DATA and not is_tagged and payload.translate(None, _SURE)
    if is_odd and not _is_model(contents):
        msg = "a run holds an integer of more than 64 bits, or a value that is no data"
        raise MalformedMessage(msg)
    return kind, list(zip(topics, contents))  # noqa: B905  # the number of both is even


def ttl_of(payload: bytes) -> int:
    """Return the links that a run which was read may cross; 0 where it says none.

    The type, before it, is one byte.
    """
    place = 2 + _LENGTH_BYTES.get(payload[0] & _LENGTH_MASK, 0)
    first = payload[place]
    if first < _ONE_BYTE:
        return first
    size = _LENGTH_BYTES.get(first, 0)
    return int.from_bytes(payload[place + 1 : place + 1 + size])


def _read_tagged(payload: bytes) -> Any:
    """Read a run that holds tags of ours: in one pass, or as what defines values does."""
    with suppress(RemoteProtocolError):
        values = immutable_from_cbor(payload)
        if not payload.translate(None, _SURE) or _is_model((values,)):
            return values
    return read_item(payload, _immutable_items)


def _refuse_heavy_parts(values: Any, weight: int) -> None:
    """Refuse byte strings that hold too much CBOR: commands carry values with tags so."""
    level = [values]
    while level:
        for part in level:
            if type(part) is bytes and len(part) > _ENTITY_LENGTH:
                weight = refuse_heavy(part, weight)
        level = [part for value in level if type(value) is tuple for part in value]


def _is_model(values: Iterable[Any]) -> bool:
    """Return whether the data model has all of these values, level by level."""
    level = list(values)
    while level:
        kinds = {*map(type, level)}
        if not kinds <= _MODEL and any(type(value) in _FOREIGN for value in level):
            return False
        if int in kinds:
            numbers = [value for value in level if type(value) is int]
            if min(numbers) < _LOWEST or max(numbers) > _HIGHEST:
                return False
        level = [part for value in level if type(value) is tuple for part in value]
    return True


def _is_data(payload: bytes) -> bool:
    """Return whether a run holds values of users; in all others, bytes are bytes."""
    place = 1 + _LENGTH_BYTES.get(payload[0] & _LENGTH_MASK, 0)
    return payload[place : place + 1] == bytes((PackedType.DATA,))


def _immutable_items(node: Any, _depth: int) -> tuple[Any, ...]:
    """Convert the parts of a run, each of which may be nested as deep as the model allows."""
    if type(node) is not list:
        msg = "a run is an array"
        raise MalformedMessage(msg)
    return tuple([immutable_of_item(part, 0) for part in node])


#: Tables travel as arrays of keys and values, so a run holds no maps.
_READER: Final = CborReader(
    "runs", max_depth=DEPTH_LIMIT + 3, has_maps=False, is_immutable=True
)
