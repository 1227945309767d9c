"""Control messages between a gateway and a module in a process of its own.

| offset | bytes | |
|---|---|---|
| 0 | 2 | A1 6C |
| 2 | 1 | version, 1 |
| 3 | 1 | type: 1 create, 2 reply, 3 start, 4 destroy |
| 4 | 4 | size of the whole message |

A create goes on with the version of the gateway's messages (1 byte), the type of the URI of the
channel for messages (1 byte), its size with the NUL (4 bytes), the URI and a NUL, the size of
the arguments with their NUL (4 bytes), the arguments and a NUL. A reply goes on with a status
(1 byte). Integers are unsigned, big-endian. The format is that of the Azure IoT gateway.
"""

import struct
from dataclasses import dataclass
from typing import Final, NoReturn

from callboard.gateway.errors import MalformedControl

#: Status of a reply: the module was created.
OK: Final = 0

#: Status of a reply: the module could not be created, or failed.
FAILED: Final = 1

#: Status of a reply: the module leaves.
DETACH: Final = 0xFF

#: Bytes of a control message: it carries an address and a configuration, no data.
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
    """Gateway to module: be created.

    Attributes:
        uri: where the channel for messages is.
        args: the module's arguments, as a JSON text.
        uri_type: its protocol, as nanomsg numbers them.
        message_version: of the format of messages.
    """

    uri: str
    args: str = ""
    uri_type: int = NN_PAIR
    message_version: int = GATEWAY_MESSAGE_VERSION


@dataclass(frozen=True, slots=True)
class ControlReply:
    """Module to gateway: its creation ended (`OK`, `FAILED`), or it leaves (`DETACH`)."""

    status: int


@dataclass(frozen=True, slots=True)
class ControlStart:
    """Gateway to module: all links are there."""


@dataclass(frozen=True, slots=True)
class ControlDestroy:
    """Gateway to module: end."""


Control = ControlCreate | ControlReply | ControlStart | ControlDestroy

_TYPES: Final = (ControlCreate, ControlReply, ControlStart, ControlDestroy)


def encode_control(message: Control) -> bytes:
    """Return a control message as bytes.

    Raises:
        ValueError: a text holds a NUL character, or a number has no place in a byte.
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
    """Read a control message.

    Raises:
        MalformedControl: it is none.
    """
    if len(data) < _HEAD.size or len(data) > CONTROL_LIMIT:
        _malformed(
            f"{len(data):,} B are no control message: it has {_HEAD.size} to {CONTROL_LIMIT:,}"
        )
    magic, version, kind, size = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        _malformed(f"a control message begins with a16c01, not {data[:3].hex()}")
    if size != len(data):
        _malformed(f"a control message of {size} B is told, {len(data)} B are there")
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
    msg = f"a control message of type {kind} with a body of {len(body)} B: there is none"
    raise MalformedControl(msg)


def _read_create(body: bytes) -> ControlCreate:
    """Read the body of a create."""
    if len(body) + _HEAD.size < _SMALLEST_CREATE:
        _malformed(
            f"a create of {len(body) + _HEAD.size} B: it has {_SMALLEST_CREATE} at least"
        )
    uri, at = _read_text(body, 2, "uri")
    args, at = _read_text(body, at, "args")
    if at != len(body):
        _malformed(f"a create has {len(body) - at} B behind its args")
    if body[0] != GATEWAY_MESSAGE_VERSION:
        _malformed(
            f"a create for version {body[0]} of messages; this is {GATEWAY_MESSAGE_VERSION}"
        )
    return ControlCreate(uri, args, uri_type=body[1], message_version=body[0])


def _read_text(body: bytes, at: int, name: str) -> tuple[str, int]:
    """Read a text and its size; return it and the place behind it."""
    if at + _SIZE.size > len(body):
        _malformed(f"a create ends before the size of its {name}")
    (size,) = _SIZE.unpack_from(body, at)
    at += _SIZE.size
    if size > len(body) - at:
        _malformed(f"{name} of {size} B, and only {len(body) - at} B are left")
    text = body[at : at + size]
    if size < 1 or text.find(0) != size - 1:
        _malformed(f"{name} does not end with its only NUL")
    try:
        return text[:-1].decode(), at + size
    except UnicodeDecodeError as error:
        _malformed(f"{name} is no UTF-8: {error}")


def _text(text: str) -> tuple[bytes, bytes]:
    """Return the size of a text, and the text with its NUL."""
    data = text.encode()
    if 0 in data:
        msg = f"{text!r} holds a NUL character, which ends texts"
        raise ValueError(msg)
    return _SIZE.pack(len(data) + 1), data + b"\0"


def _byte(name: str, value: int) -> bytes:
    """Return a number as one byte."""
    if not 0 <= value <= 0xFF:
        msg = f"{name}={value!r}: it has one byte, 0 to 255"
        raise ValueError(msg)
    return bytes((value,))


def _malformed(text: str) -> NoReturn:
    """Raise because of bytes that do not follow the format."""
    raise MalformedControl(text) from None
