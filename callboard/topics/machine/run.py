"""Message types of an endpoint, and the encoding of runs of messages.

- A data message is a topic and a value. Users publish and receive these.
- A command message is a topic and commands of a store.
- A packed message is a serialized data message, command message or routing update: type tag,
  TTL, topic and bytes.
- A node message is a packed message between two nodes.

(Zeek Broker developer guide, section 7.1.)

Between cores a *run* of packed messages of one type and TTL is one dispatch:

    CBOR array [type tag, TTL, topic, content, topic, content, …]

Each `topic, content` pair is encoded once, when the message enters its first endpoint. A run is
built by joining encoded pairs, and its receiver decodes it with one call of cbor2. The decoded
values are passed to subscribers unchanged. Only an unusual or malformed run is checked item by
item.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

import cbor2

from callboard.cbor.reader import CborReader
from callboard.cbor.writer import head
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
from callboard.protocol_errors import RemoteProtocolError
from callboard.topics.machine.topic import checked_topic


class PackedType(IntEnum):
    """Type of a packed message: the numbers of Broker's wire format, and `REFUSED`."""

    DATA = 1
    COMMAND = 2
    ROUTING_UPDATE = 3
    PING = 4
    PONG = 5
    #: To a leaf: the rights that it lacks, each with the topic or store that it tried to use.
    REFUSED = 6


_ARRAY: Final = 0x80

#: Maximum number of messages in one dispatch, so that a receiver's turn stays short.
RUN_LENGTH: Final = 1024

#: Bytes after which a run is closed: a large frame delays the frames queued after it on a link.
RUN_SIZE: Final = 256 * 1024

#: First bytes of each of our tags (48920 to 48928). Text may contain them too; such a run is
#: only decoded by the slower reader.
_TAG_HEAD: Final = b"\xd9\xbf"

#: Maximum number of cached topics: publishers use few topics again and again.
KNOWN_TOPICS: Final = 4096

_LENGTH_MASK: Final = 0x1F
#: Number of length bytes after the first byte of an array (RFC 8949, section 3).
_LENGTH_BYTES: Final = {24: 1, 25: 2, 26: 4}
#: Smaller numbers are stored in the first byte of an item.
_ONE_BYTE: Final = 24

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1

#: Bytes that start neither an integer of more than 32 bits nor a CBOR simple value that the
#: data model lacks. A run of such bytes alone holds no value outside the data model.
_SURE: Final = bytes({*range(256)} - {0x1B, 0x3B, *range(0xE0, 0xF4), 0xF7, 0xF8})

#: Bytes of an entity id. A byte string up to this length is too short to hold heavy CBOR.
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
    """Join encoded `topic, content` pairs; yields each run and its number of messages."""
    tail = _kind_and_ttl(kind, ttl)
    if len(pairs) <= RUN_LENGTH:
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
    """Encode a topic and a Python value as one pair of a run.

    Raises:
        InvalidTopic: the topic is too long, or cannot be encoded in UTF-8.
        EndpointError: the data model has no such value.
    """
    content = python_to_cbor(value)
    if len(content) > MAX_ITEMS:
        refuse_heavy(content)
    return _TOPICS[topic] + content


class _KnownTopics(dict[str, bytes]):
    """The encoded forms of valid topics; a missing one is checked and encoded."""

    def __missing__(self, topic: str) -> bytes:
        checked_topic(topic)
        if len(self) >= KNOWN_TOPICS:
            self.clear()
        encoded = self[topic] = cbor2.dumps(topic)
        return encoded


_TOPICS: Final = _KnownTopics()


def pair_of(topic: str, content: bytes) -> tuple[str, bytes]:
    """Return the pair of a topic and a value that is already encoded as CBOR of the data model.

    Raises:
        InvalidTopic: the topic is too long, or cannot be encoded in UTF-8.
    """
    return topic, _TOPICS[topic] + content


def content_of(pair: tuple[str, bytes]) -> bytes:
    """Return the encoded value of a pair made by `pair_of` or `encode_pair`."""
    topic, encoded = pair
    return encoded[len(_TOPICS[topic]) :]


def encode_plain_pair(topic: str, content: Any) -> bytes:
    """Encode a topic and content of the endpoints' own messages, as CBOR without our tags."""
    return cbor2.dumps(topic) + cbor2.dumps(content)


def decode_run(payload: bytes) -> tuple[PackedType, list[tuple[str, Any]]]:
    """Return the type of a run, and its topics and values; values are immutable.

    Raises:
        MalformedMessage: the payload is not a run, or contains an invalid value.
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
        msg = "the payload is not a run: an array of type, TTL, and pairs of topic and value"
        raise MalformedMessage(msg)
    topics = values[2::2]
    is_known = type(values[0]) is int and values[0] in _KINDS
    if not is_known or not {*map(type, topics)} <= _TEXT:
        msg = f"a run has the unknown type {str(values[0])[:20]}, or a topic that is not text"
        raise MalformedMessage(msg)
    kind, contents = _KINDS[values[0]], values[3::2]
    is_odd = kind is _DATA and not is_tagged and payload.translate(None, _SURE)
    if is_odd and not _is_model(contents):
        msg = "a run holds an integer of more than 64 bits, or a value outside the data model"
        raise MalformedMessage(msg)
    return kind, list(zip(topics, contents))  # noqa: B905  # the array has an even length


def ttl_of(payload: bytes) -> int:
    """Return the number of links that a decoded run may cross; 0 if its TTL is not a number.

    The TTL follows the array's head and the type, which is one byte.
    """
    offset = 2 + _LENGTH_BYTES.get(payload[0] & _LENGTH_MASK, 0)
    first = payload[offset]
    if first < _ONE_BYTE:
        return first
    size = _LENGTH_BYTES.get(first, 0)
    return int.from_bytes(payload[offset + 1 : offset + 1 + size])


def _read_tagged(payload: bytes) -> Any:
    """Decode a run that may hold our tags.

    The fast decoder rejects some valid runs. For these, the slower general reader decides.
    """
    with suppress(RemoteProtocolError):
        values = immutable_from_cbor(payload)
        if not payload.translate(None, _SURE) or _is_model((values,)):
            return values
    return read_item(payload, _immutable_items)


def _refuse_heavy_parts(values: Any, weight: int) -> None:
    """Refuse byte strings that contain too much CBOR.

    Commands of stores contain tagged values in byte strings.
    """
    level = [values]
    while level:
        for part in level:
            if type(part) is bytes and len(part) > _ENTITY_LENGTH:
                weight = refuse_heavy(part, weight)
        level = [part for value in level if type(value) is tuple for part in value]


def _is_model(values: Iterable[Any]) -> bool:
    """Return whether all values, and the values in them, belong to the data model."""
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
    """Return whether a run holds users' values.

    Only these have tags; the bytes of a tag in another run are part of a byte string.
    """
    offset = 1 + _LENGTH_BYTES.get(payload[0] & _LENGTH_MASK, 0)
    return payload[offset : offset + 1] == bytes((PackedType.DATA,))


def _immutable_items(node: Any, _depth: int) -> tuple[Any, ...]:
    """Convert the items of a run; each may have the full depth of the data model."""
    if type(node) is not list:
        msg = "the payload is not a run: it is not an array"
        raise MalformedMessage(msg)
    return tuple([immutable_of_item(part, 0) for part in node])


#: Tables travel as arrays of keys and values, so a run holds no maps.
_READER: Final = CborReader(
    "runs", max_depth=DEPTH_LIMIT + 3, has_maps=False, is_immutable=True
)
