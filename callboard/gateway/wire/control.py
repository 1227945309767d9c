"""Control messages between a gateway and a module in a separate process.

| offset | bytes | |
|---|---|---|
| 0 | 2 | A1 6C |
| 2 | 1 | version, 1 |
| 3 | 1 | type: 1 create, 2 reply, 3 start, 4 destroy |
| 4 | 4 | size of the whole message |

A create continues with the version of the gateway's messages (1 byte), the type of the message
channel's URI (1 byte), the size of the URI with its NUL (4 bytes), the URI and a NUL, the size
of the arguments with their NUL (4 bytes), the arguments and a NUL. A reply continues with a
status (1 byte). Integers are unsigned, big-endian. The Azure IoT gateway defines the format.
"""

import struct
from dataclasses import dataclass
from typing import Final, NoReturn

from callboard.gateway.errors import MalformedControl

#: Status of a reply: the module was created.
OK: Final = 0

#: Status of a reply: the module could not be created, or failed.
FAILED: Final = 1

#: Status of a reply: the module detaches.
DETACH: Final = 0xFF

#: Bytes of a control message, which has an address and a configuration, but no data.
CONTROL_LIMIT: Final = 1 << 20

#: The number that nanomsg gives to the protocol PAIR.
NN_PAIR: Final = 16

GATEWAY_MESSAGE_VERSION: Final = 1

_MAGIC: Final = b"\xa1\x6c"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">2sBBI")
_SIZE: Final = struct.Struct(">I")
_SMALLEST_CREATE: Final = 20


@dataclass(frozen=True, slots=True)
class ControlCreate:
    """Gateway to module: create the module.

    Attributes:
        uri: the URI of the message channel.
        args: the module's arguments, as a JSON text.
        uri_type: the protocol of the channel, as numbered by nanomsg.
        message_version: the version of the message format.
    """

    uri: str
    args: str = ""
    uri_type: int = NN_PAIR
    message_version: int = GATEWAY_MESSAGE_VERSION


@dataclass(frozen=True, slots=True)
class ControlReply:
    """Module to gateway: the result of its creation (`OK`, `FAILED`), or its end (`DETACH`)."""

    status: int


@dataclass(frozen=True, slots=True)
class ControlStart:
    """Gateway to module: start, all links exist."""


@dataclass(frozen=True, slots=True)
class ControlDestroy:
    """Gateway to module: end."""


Control = ControlCreate | ControlReply | ControlStart | ControlDestroy

_TYPES: Final = (ControlCreate, ControlReply, ControlStart, ControlDestroy)


def encode_control(message: Control) -> bytes:
    """Encode a control message.

    Raises:
        ValueError: a text contains a NUL character, or a number does not fit into a byte.
    """
    body = b""
    if isinstance(message, ControlCreate):
        version = _byte("message_version", message.message_version)
        uri_type = _byte("uri_type", message.uri_type)
        body = b"".join((version, uri_type, *_text(message.uri), *_text(message.args)))
    elif isinstance(message, ControlReply):
        body = _byte("status", message.status)
    size = _HEAD.size + len(body)
    if size > CONTROL_LIMIT:
        msg = f"a control message of {size:,} B exceeds {CONTROL_LIMIT:,} B; shorten args"
        raise ValueError(msg)
    return _HEAD.pack(_MAGIC, _VERSION, 1 + _TYPES.index(type(message)), size) + body


def decode_control(data: bytes) -> Control:
    """Parse a control message.

    Raises:
        MalformedControl: the bytes are not a control message.
    """
    if len(data) < _HEAD.size or len(data) > CONTROL_LIMIT:
        _malformed(
            f"{len(data):,} B are not a control message of {_HEAD.size} to {CONTROL_LIMIT:,} B"
        )
    magic, version, kind, size = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        _malformed(f"a control message begins with a16c01, not {data[:3].hex()}")
    if size != len(data):
        _malformed(f"the size of a control message is {size} B, but it has {len(data)} B")
    body = data[_HEAD.size :]
    match kind, len(body):
        case 1, _:
            return _read_create(body)
        case 2, 1:
            return ControlReply(body[0])
        case 3, 0:
            return ControlStart()
        case 4, 0:
            return ControlDestroy()
    msg = f"there is no control message of type {kind} with a body of {len(body)} B"
    raise MalformedControl(msg)


def _read_create(body: bytes) -> ControlCreate:
    """Read the body of a create."""
    if len(body) + _HEAD.size < _SMALLEST_CREATE:
        _malformed(
            f"a create has at least {_SMALLEST_CREATE} B, not {len(body) + _HEAD.size} B"
        )
    uri, offset = _read_text(body, 2, "uri")
    args, offset = _read_text(body, offset, "args")
    if offset != len(body):
        _malformed(f"a create has {len(body) - offset} B after its args")
    if body[0] != GATEWAY_MESSAGE_VERSION:
        _malformed(
            f"a create for version {body[0]} of messages; this is {GATEWAY_MESSAGE_VERSION}"
        )
    return ControlCreate(uri, args, uri_type=body[1], message_version=body[0])


def _read_text(body: bytes, offset: int, name: str) -> tuple[str, int]:
    """Read the size of a text, and the text; return it and the offset after it."""
    if offset + _SIZE.size > len(body):
        _malformed(f"a create ends before the size of its {name}")
    (size,) = _SIZE.unpack_from(body, offset)
    offset += _SIZE.size
    if size > len(body) - offset:
        _malformed(f"{name} has {size} B, but only {len(body) - offset} B are left")
    text = body[offset : offset + size]
    if size < 1 or text.find(0) != size - 1:
        _malformed(f"{name} must end with its only NUL")
    try:
        return text[:-1].decode(), offset + size
    except UnicodeDecodeError as error:
        _malformed(f"{name} is not UTF-8: {error}")


def _text(text: str) -> tuple[bytes, bytes]:
    """Return the size of a text, and the text with its NUL."""
    data = text.encode()
    if 0 in data:
        msg = f"{text!r} contains a NUL character"
        raise ValueError(msg)
    return _SIZE.pack(len(data) + 1), data + b"\0"


def _byte(name: str, value: int) -> bytes:
    """Encode a number as one byte."""
    if not 0 <= value <= 0xFF:
        msg = f"{name}={value!r}: it must fit into one byte, 0 to 255"
        raise ValueError(msg)
    return bytes((value,))


def _malformed(text: str) -> NoReturn:
    """Raise an error about malformed bytes."""
    raise MalformedControl(text) from None
