"""Messages of gateway modules: text properties and bytes, immutable, with one byte format.

| offset | bytes | |
|---|---|---|
| 0 | 2 | A1 60 |
| 2 | 4 | size of the whole message |
| 6 | 4 | number of properties |
| 10 | | for each property: key, NUL, value, NUL, in UTF-8 |
| | 4 | size of the content |
| | | the content |

Integers are signed, 32 bits, big-endian; the smallest message has 14 bytes. This is the format
of the Azure IoT gateway's code. Its documents show another one, with a version byte 01 behind
the first two: `decode(data, versioned=True)` reads it.
"""

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Self

from callboard.gateway.errors import MalformedMessage

__all__ = ["LARGEST", "MAGIC", "SMALLEST", "Message"]

MAGIC: Final = b"\xa1\x60"
SMALLEST: Final = 14
"""Bytes of a message without properties and content."""

LARGEST: Final = 2**31 - 1
"""Bytes of the largest message: sizes are signed."""

_HEAD: Final = struct.Struct(
    ">2siii"
)  # the last one is the content's size if no properties are
_SIZE: Final = struct.Struct(">i")
_VERSION: Final = b"\x01"
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class Message:
    """What modules publish and receive: `Message(b"21.5", {"unit": "C"})`.

    It cannot be changed, so all who have it may share it; it was serialized when it was made.
    """

    __slots__ = ("_content", "_frame", "_properties", "_start")

    _content: bytes
    _properties: Mapping[str, str]
    #: The serialized message, behind `_start` bytes that do not belong to it.
    _frame: bytes
    _start: int

    def __init__(
        self,
        content: Any = b"",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Make a message.

        Args:
            content: bytes, or what they can be made of at once: bytearray, memoryview.
            properties: text by text.

        Raises:
            TypeError: the content is not bytes, or a property is not text.
            ValueError: a property holds a NUL character, or the message would be too large.
        """
        if content.__class__ is not bytes:
            content = _as_bytes(content)
        if properties:
            held = dict(properties)
            packed = _pack(held)
            self._properties = MappingProxyType(held)
        else:
            _check_none(properties)
            held, packed = {}, b""
            self._properties = _NO_PROPERTIES
        size = SMALLEST + len(packed) + len(content)
        if size > LARGEST:
            msg = f"a message of {size:,} B exceeds {LARGEST:,} B; send it in parts"
            raise ValueError(msg)
        self._content = content
        if packed:
            head = _HEAD.pack(MAGIC, size, len(held), 0)[:10]
            self._frame = b"".join((head, packed, _SIZE.pack(len(content)), content))
        else:
            self._frame = _HEAD.pack(MAGIC, size, 0, len(content)) + content
        self._start = 0

    @property
    def content(self) -> bytes:
        """The content; may be empty."""
        return self._content

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties, read-only."""
        return self._properties

    @property
    def data(self) -> bytes:
        """The message as bytes."""
        return self._frame[self._start :] if self._start else self._frame

    @classmethod
    def decode(cls, data: Any, *, versioned: bool = False) -> Self:
        """Read a message from its bytes.

        Args:
            data: exactly one message.
            versioned: read the form with a version byte behind the first two.

        Raises:
            MalformedMessage: it is none.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            msg = f"{data!r} is no bytes, so no message"
            raise MalformedMessage(msg)
        data = bytes(data)
        if versioned:
            data = _without_version(data)
        return cls.of_frame(data)

    @classmethod
    def of_frame(cls, frame: bytes, start: int = 0) -> Self:
        """Read the message that fills a frame from `start` on; the frame is kept.

        Raises:
            MalformedMessage: it is none.
        """
        size = len(frame) - start
        if size < SMALLEST:
            msg = f"{size} bytes are no message: the smallest has {SMALLEST}"
            raise MalformedMessage(msg)
        magic, total, count, length = _HEAD.unpack_from(frame, start)
        if magic != MAGIC or total != size:
            raise _wrong_head(magic, total, size)
        self = cls.__new__(cls)
        if count:
            self._properties, at = _read_properties(frame, start + 10, count)
            if at + _SIZE.size > len(frame):
                msg = f"the message ends after {count} properties, before its content"
                raise MalformedMessage(msg)
            (length,) = _SIZE.unpack_from(frame, at)
            at += _SIZE.size
        else:
            self._properties = _NO_PROPERTIES
            at = start + SMALLEST
        if length != len(frame) - at:
            msg = f"a content of {length} B is told, {len(frame) - at} B are there"
            raise MalformedMessage(msg)
        self._content = frame[at:]
        self._frame = frame
        self._start = start
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self._content == other._content and self._properties == other._properties

    def __hash__(self) -> int:
        return hash(self._content)

    def __repr__(self) -> str:
        shown = self._content if len(self._content) <= 40 else self._content[:40] + b"..."
        return f"Message({shown!r}, {dict(self._properties)!r})"


def _read_properties(frame: bytes, at: int, count: int) -> tuple[Mapping[str, str], int]:
    if count < 0 or 2 * count > len(frame) - at:
        msg = f"{count} properties have no place in {len(frame) - at} bytes"
        raise MalformedMessage(msg)
    properties: dict[str, str] = {}
    for _ in range(count):
        key_end = frame.find(0, at)
        value_end = frame.find(0, key_end + 1) if key_end >= 0 else -1
        if value_end < 0:
            msg = f"property {len(properties) + 1} of {count} has no end"
            raise MalformedMessage(msg)
        try:
            key, value = frame[at:key_end].decode(), frame[key_end + 1 : value_end].decode()
        except UnicodeDecodeError as error:
            msg = f"property {len(properties) + 1} of {count} is no UTF-8: {error}"
            raise MalformedMessage(msg) from None
        if key in properties:
            msg = f"property {key!r} is there twice"
            raise MalformedMessage(msg)
        properties[key] = value
        at = value_end + 1
    return MappingProxyType(properties), at


def _wrong_head(magic: bytes, total: int, size: int) -> MalformedMessage:
    if magic != MAGIC:
        return MalformedMessage(f"a message begins with a160, not {magic.hex()}")
    return MalformedMessage(f"a message of {total} B is told, {size} B are there")


def _without_version(data: bytes) -> bytes:
    """Turn the form with a version byte into the one without."""
    if len(data) < SMALLEST + 1 or data[:2] != MAGIC or data[2:3] != _VERSION:
        msg = f"{data[:3].hex()}… of {len(data)} B is no message with a version: a16001"
        raise MalformedMessage(msg)
    (total,) = _SIZE.unpack_from(data, 3)
    if total != len(data):
        raise _wrong_head(MAGIC, total, len(data))
    return MAGIC + _SIZE.pack(total - 1) + data[7:]


def _as_bytes(content: object) -> bytes:
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    msg = f"the content of a message is bytes, not {type(content).__name__}; encode it first"
    raise TypeError(msg)


def _pack(properties: Mapping[Any, Any]) -> bytes:
    packed = []
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str):
            msg = f"property {key!r}: {value!r}: both are text; use str()"
            raise TypeError(msg)
        if "\0" in key or "\0" in value:
            msg = f"property {key!r}: {value!r} holds a NUL character, which ends texts"
            raise ValueError(msg)
        try:
            packed.append(b"%s\0%s\0" % (key.encode(), value.encode()))
        except UnicodeEncodeError as error:
            msg = f"property {key!r}: {value!r} cannot be written in UTF-8: {error.reason}"
            raise ValueError(msg) from None
    return b"".join(packed)


def _check_none(properties: Any) -> None:
    if properties is not None and not isinstance(properties, Mapping):
        msg = f"properties are a mapping of text to text, not {type(properties).__name__}"
        raise TypeError(msg)
