"""Node messages of Zeek Broker 1.4: what the batches of its streams hold.

| bytes | |
|---|---|
| 1 | 0: a topic and data; 1: a topic and a command of a store |
| … | the topic, a varbyte length before it |
| … | the value as in `zeek.value`, or the command |
| 2 | links that the message may still cross |
| … | receivers: a varbyte count and nodes; Broker sends none |

A command is one byte of its kind and the fields in `_COMMANDS`.
"""

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from callboard.endpoint.machine.topic import TOPIC_LIMIT
from callboard.kernel.codec import MalformedPayload
from callboard.model.data import DataType
from callboard.model.errors import InvalidData
from callboard.zeek.caf import CafReader, sized
from callboard.zeek.transcoder import cbor_at
from callboard.zeek.value import read_value
from callboard.zeek.varbyte import read_varbyte

_DATA, _COMMAND = 0, 1

#: The highest length of one byte.
_ONE_BYTE: Final = 0x7F

#: Bytes behind the content of a message that has no receivers: the TTL, and their number.
_TAIL: Final = 3


class DataRun(NamedTuple):
    """Data messages in their order, each a topic and the CBOR of its value.

    Attributes:
        ttl: links that they may still cross.
        messages: the messages.
    """

    ttl: int
    messages: list[tuple[str, bytes]]


class CommandMessage(NamedTuple):
    """A command of a store.

    Attributes:
        topic: of a store's masters or clones.
        content: its bytes, which were looked through.
        ttl: links that it may still cross.
    """

    topic: str
    content: bytes
    ttl: int


def data_message_bytes(topic: str, value: bytes, ttl: int) -> bytes:
    """Return a data message; `value` is as `zeek.value` and the transcoder write it."""
    return _data_head(topic) + value + ttl.to_bytes(2) + b"\0"


@lru_cache(1024)
def _data_head(topic: str) -> bytes:
    """Return what a data message begins with; publishers use few topics, again and again."""
    return b"\0" + sized(topic.encode())


def read_messages(
    buffer: bytes, at: int, count: int
) -> tuple[list[DataRun | CommandMessage], int]:
    """Return the messages at a place, and the place behind them.

    Data messages that follow each other with the same TTL are one run.

    Raises:
        MalformedPayload: they are none, or do not end.
    """
    found: list[DataRun | CommandMessage] = []
    run: DataRun | None = None
    try:
        for _ in range(count):
            kind = buffer[at]
            topic, at = _topic(buffer, at + 1)
            start, content = at, b""
            if kind == _DATA:
                content, at = cbor_at(buffer, at)
            elif kind == _COMMAND:
                at = _command_end(buffer, at)
            else:
                msg = f"{kind} is no kind of a node message"
                raise MalformedPayload(msg)
            ttl = buffer[at] << 8 | buffer[at + 1]
            end = at + _TAIL if not buffer[at + 2] else _behind_receivers(buffer, at + 2)
            if kind == _COMMAND:
                found.append(CommandMessage(topic, buffer[start:at], ttl))
                run = None
            elif run is not None and run.ttl == ttl:
                run.messages.append((topic, content))
            else:
                run = DataRun(ttl, [(topic, content)])
                found.append(run)
            at = end
    except (IndexError, struct.error) as cause:
        msg = f"a batch ends behind the {len(buffer):,} bytes that there are"
        raise MalformedPayload(msg) from cause
    except (InvalidData, UnicodeDecodeError) as cause:
        msg = f"a batch cannot be read: {cause}"
        raise MalformedPayload(msg) from cause
    return found, at


def _topic(buffer: bytes, at: int) -> tuple[str, int]:
    """Read a topic."""
    size = buffer[at]
    if size <= _ONE_BYTE:
        end = at + 1 + size
        return _text(buffer[at + 1 : end]), end
    size, at = read_varbyte(buffer, at)
    if size > TOPIC_LIMIT:
        msg = f"a topic of {size:,} bytes exceeds the limit of {TOPIC_LIMIT:,}"
        raise MalformedPayload(msg)
    return str(buffer[at : at + size], "utf-8"), at + size


@lru_cache(1024)
def _text(topic: bytes) -> str:
    """Return the text of a short topic; most messages have one of a few."""
    return topic.decode()


def _behind_receivers(buffer: bytes, at: int) -> int:
    """Pass by a list of nodes."""
    reader = CafReader(buffer, at)
    for _ in range(reader.count()):
        reader.node()
    return reader.at


# ---------------------------------------------------------------------- fields of commands

_Pass = Callable[[bytes, int], int]


def _value(buffer: bytes, at: int) -> int:
    """Pass by a value."""
    return read_value(buffer, at)[1]


def _expiry(buffer: bytes, at: int) -> int:
    """Pass by an optional time."""
    return at + _flag(buffer, at, 1) + 8 * buffer[at]


def _type(buffer: bytes, at: int) -> int:
    """Pass by a type of data."""
    return at + _flag(buffer, at, len(DataType) - 1)


def _flag(buffer: bytes, at: int, highest: int) -> int:
    """Return the size of a byte that is not higher than this."""
    if buffer[at] > highest:
        msg = f"{buffer[at]} at byte {at:,} of a batch is over {highest}"
        raise MalformedPayload(msg)
    return 1


def _actor(buffer: bytes, at: int) -> int:
    """Pass by an actor."""
    reader = CafReader(buffer, at)
    reader.actor()
    return reader.at


def _publisher(buffer: bytes, at: int) -> int:
    """Pass by a node and the number of an object there."""
    reader = CafReader(buffer, at)
    reader.node()
    return reader.at + 8


def _number(_buffer: bytes, at: int) -> int:
    """Pass by a number."""
    return at + 8


def _table(buffer: bytes, at: int) -> int:
    """Pass by keys and values."""
    count, at = read_varbyte(buffer, at)
    if count > len(buffer) - at:
        msg = (
            f"a snapshot of {count:,} entries does not fit the {len(buffer) - at:,} bytes left"
        )
        raise MalformedPayload(msg)
    for _ in range(2 * count):
        at = _value(buffer, at)
    return at


#: The fields of each kind of command.
_COMMANDS: Final[tuple[tuple[_Pass, ...], ...]] = (
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


def _command_end(buffer: bytes, at: int) -> int:
    """Return the place behind a command."""
    kind = buffer[at]
    if kind >= len(_COMMANDS):
        msg = f"there is no command of kind {kind}"
        raise MalformedPayload(msg)
    at += 1
    for pass_by in _COMMANDS[kind]:
        at = pass_by(buffer, at)
    return at
