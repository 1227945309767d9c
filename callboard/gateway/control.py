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
from typing import Final

from callboard.gateway.errors import MalformedControl

__all__ = [
    "DETACH",
    "FAILED",
    "OK",
    "Create",
    "Destroy",
    "Reply",
    "Start",
    "decode_control",
    "encode_control",
]

OK: Final = 0
"""Status of a reply: the module was created."""

FAILED: Final = 1
"""Status of a reply: the module could not be created, or failed."""

DETACH: Final = 0xFF
"""Status of a reply: the module leaves."""

CONTROL_LIMIT: Final = 1 << 20
"""Bytes of a control message: it carries an address and a configuration, no data."""

NN_PAIR: Final = 16
"""The number that nanomsg gives to the protocol PAIR."""

GATEWAY_MESSAGE_VERSION: Final = 1

_MAGIC: Final = b"\xa1\x6c"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">2sBBI")
_SIZE: Final = struct.Struct(">I")
_SMALLEST_CREATE: Final = 20


@dataclass(frozen=True, slots=True)
class Create:
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
class Reply:
    """Module to gateway: its creation ended (`OK`, `FAILED`), or it leaves (`DETACH`)."""

    status: int


@dataclass(frozen=True, slots=True)
class Start:
    """Gateway to module: all links are there."""


@dataclass(frozen=True, slots=True)
class Destroy:
    """Gateway to module: end."""


Control = Create | Reply | Start | Destroy

_TYPES: Final[dict[type, int]] = {Create: 1, Reply: 2, Start: 3, Destroy: 4}


def encode_control(message: Control) -> bytes:
    """Return a control message as bytes.

    Raises:
        ValueError: a text holds a NUL character, or a number has no place in a byte.
    """
    body = b""
    if isinstance(message, Create):
        _check_byte("message_version", message.message_version)
        _check_byte("uri_type", message.uri_type)
        uri, args = _text(message.uri), _text(message.args)
        head = bytes((message.message_version, message.uri_type))
        body = b"".join((head, _SIZE.pack(len(uri)), uri, _SIZE.pack(len(args)), args))
    elif isinstance(message, Reply):
        _check_byte("status", message.status)
        body = bytes((message.status,))
    size = _HEAD.size + len(body)
    if size > CONTROL_LIMIT:
        msg = f"a control message of {size:,} B exceeds {CONTROL_LIMIT:,} B; shorten args"
        raise ValueError(msg)
    return _HEAD.pack(_MAGIC, _VERSION, _TYPES[type(message)], size) + body


def decode_control(data: bytes) -> Control:
    """Read a control message.

    Raises:
        MalformedControl: it is none.
    """
    if len(data) < _HEAD.size or len(data) > CONTROL_LIMIT:
        msg = (
            f"{len(data):,} B are no control message: it has {_HEAD.size} to {CONTROL_LIMIT:,}"
        )
        raise MalformedControl(msg)
    magic, version, kind, size = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        msg = f"a control message begins with a16c01, not {data[:3].hex()}"
        raise MalformedControl(msg)
    if size != len(data):
        msg = f"a control message of {size} B is told, {len(data)} B are there"
        raise MalformedControl(msg)
    body = data[_HEAD.size :]
    return _read_body(kind, body)


def _read_body(kind: int, body: bytes) -> Control:
    match kind, len(body):
        case 1, _:
            return _read_create(body)
        case 2, 1:
            return Reply(body[0])
        case 3, 0:
            return Start()
        case 4, 0:
            return Destroy()
    msg = f"a control message of type {kind} with a body of {len(body)} B: there is none"
    raise MalformedControl(msg)


def _read_create(body: bytes) -> Create:
    if len(body) + _HEAD.size < _SMALLEST_CREATE:
        msg = f"a create of {len(body) + _HEAD.size} B: it has {_SMALLEST_CREATE} at least"
        raise MalformedControl(msg)
    uri, at = _read_text(body, 2, "uri")
    args, at = _read_text(body, at, "args")
    if at != len(body):
        msg = f"a create has {len(body) - at} B behind its args"
        raise MalformedControl(msg)
    if body[0] != GATEWAY_MESSAGE_VERSION:
        msg = f"a create for version {body[0]} of messages; this is {GATEWAY_MESSAGE_VERSION}"
        raise MalformedControl(msg)
    return Create(uri, args, uri_type=body[1], message_version=body[0])


def _read_text(body: bytes, at: int, name: str) -> tuple[str, int]:
    if at + _SIZE.size > len(body):
        msg = f"a create ends before the size of its {name}"
        raise MalformedControl(msg)
    (size,) = _SIZE.unpack_from(body, at)
    at += _SIZE.size
    if size > len(body) - at:
        msg = f"{name} of {size} B, and only {len(body) - at} B are left"
        raise MalformedControl(msg)
    text = body[at : at + size]
    if size < 1 or text.find(0) != size - 1:
        msg = f"{name} does not end with its only NUL"
        raise MalformedControl(msg)
    try:
        return text[:-1].decode(), at + size
    except UnicodeDecodeError as error:
        msg = f"{name} is no UTF-8: {error}"
        raise MalformedControl(msg) from None


def _text(text: str) -> bytes:
    data = text.encode()
    if 0 in data:
        msg = f"{text!r} holds a NUL character, which ends texts"
        raise ValueError(msg)
    return data + b"\0"


def _check_byte(name: str, value: int) -> None:
    if not 0 <= value <= 0xFF:
        msg = f"{name}={value!r}: it has one byte, 0 to 255"
        raise ValueError(msg)
