"""Runs of messages as bytes: pairs are encoded when they enter, runs decoded where they end.

A run is one CBOR array (see `endpoint.message`), so one call of cbor2 reads all its messages.
Values of plain CBOR, nearly all there are, come out of that call as they are handed to
subscribers; only a run that holds one of our tags is gone through item by item.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NoReturn

import cbor2

from basp.cbor_tags import REFUSED
from basp.errors import RemoteProtocolError
from basp.plain_cbor import parse_one
from callboard.endpoint.data import DEPTH_LIMIT
from callboard.endpoint.data_cbor import read_item
from callboard.endpoint.errors import EndpointError, MalformedMessage
from callboard.endpoint.message import MessageType
from callboard.endpoint.python_cbor import immutable_of_item, python_to_cbor
from callboard.endpoint.topic import checked_topic

__all__ = ["decode_run", "encode_pair", "encode_plain_pair"]

_TAG_HEAD: Final = b"\xd9\xbf"
"""How each of our tags (48920 to 48928) begins. Text that holds it only takes the long way."""

KNOWN_TOPICS: Final = 4096
"""Topics whose bytes are kept: publishers use few, again and again."""

_LENGTH_MASK: Final = 0x1F
_LENGTH_BYTES: Final = {24: 1, 25: 2, 26: 4}
"""Bytes of an array's length behind its first byte (RFC 8949, section 3)."""

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1

_SURE: Final = bytes({*range(256)} - {0x1B, 0x3B, *range(0xE0, 0xF4), 0xF7, 0xF8})
"""Bytes that begin neither an integer of more than 32 bits nor one of CBOR's odd values."""

_MODEL: Final = {str, bytes, float, bool, int, tuple, type(None)}
_FOREIGN: Final = {cbor2.CBORSimpleValue, type(cbor2.undefined)}

_HEAD: Final = 2
_KINDS: Final = {int(kind): kind for kind in MessageType}
_TEXT: Final = {str}


def encode_pair(topic: str, value: Any) -> bytes:
    """Encode a topic and a Python value: what runs are put together from.

    Raises:
        InvalidTopic: the topic is too long, or has no UTF-8 form.
        EndpointError: the data model has no such value.
    """
    return _TOPICS[topic] + python_to_cbor(value)


class _KnownTopics(dict[str, bytes]):
    """Topics that were checked, and how they travel."""

    def __missing__(self, topic: str) -> bytes:
        checked_topic(topic)
        if len(self) >= KNOWN_TOPICS:
            self.clear()
        encoded = self[topic] = cbor2.dumps(topic)
        return encoded


_TOPICS: Final = _KnownTopics()


def encode_plain_pair(topic: str, content: Any) -> bytes:
    """Encode a topic and content of our own making that is plain CBOR: bytes stay bytes."""
    return cbor2.dumps(topic) + cbor2.dumps(content)


def decode_run(payload: bytes) -> tuple[MessageType, list[tuple[str, Any]]]:
    """Decode a run: its type, and each topic with its value as immutable Python values.

    Raises:
        MalformedMessage: it is no run, or a value in it is none.
    """
    try:
        if _TAG_HEAD in payload and _is_data(payload):
            values = read_item(payload, _immutable_items)
        else:
            values = parse_one(_loads_immutable, payload)
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
    if kind is MessageType.DATA and payload.translate(None, _SURE) and not _is_model(contents):
        msg = "a run holds an integer of more than 64 bits, or a value that is no data"
        raise MalformedMessage(msg)
    return kind, list(zip(topics, contents))  # noqa: B905  # the number of both is even


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
    return payload[place : place + 1] == bytes((MessageType.DATA,))


def _immutable_items(node: Any, _depth: int) -> tuple[Any, ...]:
    """Convert the parts of a run, each of which may be nested as deep as the model allows."""
    if type(node) is not list:
        msg = "a run is an array"
        raise MalformedMessage(msg)
    return tuple([immutable_of_item(part, 0) for part in node])


def _refuse(_content: object, _is_key: bool) -> NoReturn:  # noqa: FBT001
    msg = "a run holds none of CBOR's own tags"
    raise MalformedMessage(msg)


def _refuse_map(_content: object, _is_key: bool) -> NoReturn:  # noqa: FBT001
    msg = "a run holds no maps: tables travel as arrays of keys and values"
    raise MalformedMessage(msg)


_loads_immutable: Final = partial(
    cbor2.loads,
    semantic_decoders=dict.fromkeys((*REFUSED, 2, 3, 37, 258, 1004), _refuse),
    tag_hook=_refuse,
    object_hook=_refuse_map,
    max_depth=DEPTH_LIMIT + 3,
    strict_hashable_types=True,
    immutable=True,
)
