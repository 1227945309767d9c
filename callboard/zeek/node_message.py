"""Node messages of Zeek Broker 1.4: the items in the batches of its streams.

| bytes | |
|---|---|
| 1 | 0: a topic and data; 1: a topic and a command of a store |
| … | the topic, after a varbyte with its length |
| … | the value as in `zeek.value`, or the command |
| 2 | TTL: links that the message may still cross |
| … | receivers: a varbyte count and nodes; Broker sends none |

A command is a byte for its kind, and the fields in `_COMMANDS`.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from callboard.caf.wire.reader import CafReader, sized
from callboard.caf.wire.varbyte import read_varbyte
from callboard.model.data import DataType
from callboard.model.errors import InvalidData
from callboard.protocol_errors import MalformedPayload
from callboard.topics.machine.topic import TOPIC_LIMIT
from callboard.zeek.transcoder import cbor_at
from callboard.zeek.value import read_value

_DATA, _COMMAND = 0, 1

#: Longest length that fits one byte.
_ONE_BYTE: Final = 0x7F

#: Bytes after the content of a message without receivers: the TTL, and a zero count.
_TAIL: Final = 3


class DataRun(NamedTuple):
    """Consecutive data messages with the same TTL, as topics and CBOR values.

    Attributes:
        ttl: links that they may still cross.
        messages: the messages.
    """

    ttl: int
    messages: list[tuple[str, bytes]]


class CommandMessage(NamedTuple):
    """A store command.

    Attributes:
        topic: the topic of a store's masters or clones.
        content: its bytes, which were validated.
        ttl: links that it may still cross.
    """

    topic: str
    content: bytes
    ttl: int


def data_message_bytes(topic: str, value: bytes, ttl: int) -> bytes:
    """Return a data message; `value` is in Broker's encoding."""
    return _data_head(topic) + value + ttl.to_bytes(2) + b"\0"


@lru_cache(1024)
def _data_head(topic: str) -> bytes:
    """Return the beginning of a data message; cached, as publishers use few topics."""
    return b"\0" + sized(topic.encode())


def read_messages(
    buffer: bytes, offset: int, count: int
) -> tuple[list[DataRun | CommandMessage], int]:
    """Return `count` messages, and the offset after them.

    Raises:
        MalformedPayload: the bytes are not messages, or are cut off.
    """
    items: list[DataRun | CommandMessage] = []
    run: DataRun | None = None
    try:
        for _ in range(count):
            kind = buffer[offset]
            topic, offset = _topic(buffer, offset + 1)
            start, content = offset, b""
            if kind == _DATA:
                content, offset = cbor_at(buffer, offset)
            elif kind == _COMMAND:
                offset = _command_end(buffer, offset)
            else:
                msg = f"{kind} is not a kind of node message"
                raise MalformedPayload(msg)
            ttl = buffer[offset] << 8 | buffer[offset + 1]
            end = (
                offset + _TAIL
                if not buffer[offset + 2]
                else _skip_receivers(buffer, offset + 2)
            )
            if kind == _COMMAND:
                items.append(CommandMessage(topic, buffer[start:offset], ttl))
                run = None
            elif run is not None and run.ttl == ttl:
                run.messages.append((topic, content))
            else:
                run = DataRun(ttl, [(topic, content)])
                items.append(run)
            offset = end
    except (IndexError, struct.error) as cause:
        msg = f"a batch is cut off after {len(buffer):,} bytes"
        raise MalformedPayload(msg) from cause
    except (InvalidData, UnicodeDecodeError) as cause:
        msg = f"a batch cannot be read: {cause}"
        raise MalformedPayload(msg) from cause
    return items, offset


def _topic(buffer: bytes, offset: int) -> tuple[str, int]:
    """Read a topic."""
    size = buffer[offset]
    if size <= _ONE_BYTE:
        end = offset + 1 + size
        return _text(buffer[offset + 1 : end]), end
    size, offset = read_varbyte(buffer, offset)
    if size > TOPIC_LIMIT:
        msg = f"a topic of {size:,} bytes exceeds the limit of {TOPIC_LIMIT:,}"
        raise MalformedPayload(msg)
    return str(buffer[offset : offset + size], "utf-8"), offset + size


@lru_cache(1024)
def _text(topic: bytes) -> str:
    """Return a short topic as text; cached, as most messages have one of a few topics."""
    return topic.decode()


def _skip_receivers(buffer: bytes, offset: int) -> int:
    """Return the offset after a list of nodes."""
    reader = CafReader(buffer, offset)
    for _ in range(reader.count()):
        reader.node()
    return reader.at


# ---------------------------------------------------------------------- fields of commands

_Skip = Callable[[bytes, int], int]


def _value(buffer: bytes, offset: int) -> int:
    """Return the offset after a value."""
    return read_value(buffer, offset)[1]


def _expiry(buffer: bytes, offset: int) -> int:
    """Return the offset after an optional time."""
    return offset + _flag(buffer, offset, 1) + 8 * buffer[offset]


def _type(buffer: bytes, offset: int) -> int:
    """Return the offset after a data type."""
    return offset + _flag(buffer, offset, len(DataType) - 1)


def _flag(buffer: bytes, offset: int, highest: int) -> int:
    """Return the size of a byte, which must not exceed `highest`."""
    if buffer[offset] > highest:
        msg = f"{buffer[offset]} at byte {offset:,} of a batch exceeds {highest}"
        raise MalformedPayload(msg)
    return 1


def _actor(buffer: bytes, offset: int) -> int:
    """Return the offset after an actor."""
    reader = CafReader(buffer, offset)
    reader.actor()
    return reader.at


def _publisher(buffer: bytes, offset: int) -> int:
    """Return the offset after a node and an object number."""
    reader = CafReader(buffer, offset)
    reader.node()
    return reader.at + 8


def _number(_buffer: bytes, offset: int) -> int:
    """Return the offset after a number."""
    return offset + 8


def _table(buffer: bytes, offset: int) -> int:
    """Return the offset after keys and values."""
    count, offset = read_varbyte(buffer, offset)
    if count > len(buffer) - offset:
        msg = (
            f"a snapshot of {count:,} entries does not fit into the "
            f"{len(buffer) - offset:,} bytes left"
        )
        raise MalformedPayload(msg)
    for _ in range(2 * count):
        offset = _value(buffer, offset)
    return offset


#: The fields of each kind of command.
_COMMANDS: Final[tuple[tuple[_Skip, ...], ...]] = (
    (),  # none
    (_value, _value, _expiry, _publisher),  # put
    (_value, _value, _expiry, _actor, _number, _publisher),  # put_unique
    (_value, _publisher),  # erase
    (_value, _publisher),  # expire
    (_value, _value, _type, _expiry, _publisher),  # add
    (_value, _value, _expiry, _publisher),  # subtract
    (_actor, _actor),  # snapshot
    (_actor,),  # snapshot_sync
    (_table,),  # set
    (),  # clear
)


def _command_end(buffer: bytes, offset: int) -> int:
    """Return the offset after a command."""
    kind = buffer[offset]
    if kind >= len(_COMMANDS):
        msg = f"{kind} is not a kind of command"
        raise MalformedPayload(msg)
    offset += 1
    for skip in _COMMANDS[kind]:
        offset = skip(buffer, offset)
    return offset
