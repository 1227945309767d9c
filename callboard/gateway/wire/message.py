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
of the Azure IoT gateway's code. Its documents show another one, with a version byte 01 after
the first two bytes: `decode(data, versioned=True)` reads it.
"""

import json
import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NoReturn, Self

from callboard.gateway.errors import MalformedMessage
from callboard.support.json_form import json_of
from callboard.support.nesting import parse_json

MAGIC: Final = b"\xa1\x60"
#: Bytes of a message without properties and content.
SMALLEST: Final = 14

#: Bytes of the largest message: sizes are signed.
LARGEST: Final = 2**31 - 1

#: The last number is the size of the content in a message without properties.
_HEAD: Final = struct.Struct(">2siii")
_SIZE: Final = struct.Struct(">i")
_VERSION: Final = b"\x01"
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class Message:
    """A message that modules publish and receive: `Message(b"21.5", {"unit": "C"})`.

    A message is immutable, so threads may share it. It is serialized when it is made.
    """

    __slots__ = ("_content", "_frame", "_properties", "_start")

    _content: bytes
    _properties: Mapping[str, str]
    #: The serialized message, after `_start` bytes that are not part of it.
    _frame: bytes
    _start: int

    def __init__(self, content: Any = b"", properties: Mapping[str, str] | None = None) -> None:
        """Make a message.

        Args:
            content: bytes, bytearray or memoryview.
            properties: texts by name.

        Raises:
            TypeError: the content is not bytes, or a property is not text.
            ValueError: a property contains a NUL character, or the message would be too large.
        """
        if content.__class__ is not bytes:
            content = _as_bytes(content)
        if properties:
            texts = dict(properties)
            packed = _pack(texts)
            self._properties = MappingProxyType(texts)
        else:
            _check_none(properties)
            texts, packed = {}, b""
            self._properties = _NO_PROPERTIES
        size = SMALLEST + len(packed) + len(content)
        if size > LARGEST:
            msg = f"a message of {size:,} B exceeds {LARGEST:,} B; send it in parts"
            raise ValueError(msg)
        self._content = content
        if packed:
            head = _HEAD.pack(MAGIC, size, len(texts), 0)[:10]
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
        """Parse a message from its bytes.

        Args:
            data: exactly one message.
            versioned: whether a version byte follows the first two bytes.

        Raises:
            MalformedMessage: the bytes are not a message.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            _malformed(f"{data!r} is not bytes, so not a message")
        data = bytes(data)
        if versioned:
            data = _without_version(data)
        return cls.of_frame(data)

    @classmethod
    def of_frame(cls, frame: bytes, start: int = 0) -> Self:
        """Parse the message in a frame from `start` to the end; the frame is kept.

        Raises:
            MalformedMessage: the bytes are not a message.
        """
        size = len(frame) - start
        if size < SMALLEST:
            _malformed(f"{size} bytes are not a message: the smallest has {SMALLEST}")
        magic, total, count, length = _HEAD.unpack_from(frame, start)
        if magic != MAGIC:
            _malformed(f"a message begins with a160, not {magic.hex()}")
        if total != size:
            _malformed(f"the size of a message is {total} B, but it has {size} B")
        self = cls.__new__(cls)
        if count:
            self._properties, offset = _read_properties(frame, start + 10, count)
            if offset + _SIZE.size > len(frame):
                _malformed(f"the message ends after {count} properties, before its content")
            (length,) = _SIZE.unpack_from(frame, offset)
            offset += _SIZE.size
        else:
            self._properties = _NO_PROPERTIES
            offset = start + SMALLEST
        if length != len(frame) - offset:
            _malformed(
                f"the size of a content is {length} B, but it has {len(frame) - offset} B"
            )
        self._content = frame[offset:]
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
        content = self._content if len(self._content) <= 40 else self._content[:40] + b"..."
        return f"Message({content!r}, {dict(self._properties)!r})"


def _read_properties(frame: bytes, offset: int, count: int) -> tuple[Mapping[str, str], int]:
    """Read `count` properties; return them and the offset after them."""
    if count < 0 or 2 * count > len(frame) - offset:
        _malformed(f"{count} properties do not fit into {len(frame) - offset} bytes")
    properties: dict[str, str] = {}
    for _ in range(count):
        key_end = frame.find(0, offset)
        value_end = frame.find(0, key_end + 1) if key_end >= 0 else -1
        if value_end < 0:
            _malformed(f"property {len(properties) + 1} of {count} is not terminated")
        try:
            key, value = frame[offset:key_end].decode(), frame[key_end + 1 : value_end].decode()
        except UnicodeDecodeError as error:
            _malformed(f"property {len(properties) + 1} of {count} is not UTF-8: {error}")
        if key in properties:
            _malformed(f"property {key!r} is repeated")
        properties[key] = value
        offset = value_end + 1
    return MappingProxyType(properties), offset


def _without_version(data: bytes) -> bytes:
    """Convert the form with a version byte to the one without."""
    if len(data) < SMALLEST + 1 or data[:2] != MAGIC or data[2:3] != _VERSION:
        _malformed(
            f"{data[:3].hex()}… of {len(data)} B is not a message with a version: a16001"
        )
    (total,) = _SIZE.unpack_from(data, 3)
    if total != len(data):
        _malformed(f"the size of a message is {total} B, but it has {len(data)} B")
    return MAGIC + _SIZE.pack(total - 1) + data[7:]


def _as_bytes(content: object) -> bytes:
    """Convert a content to bytes."""
    if isinstance(content, bytes | bytearray | memoryview):
        return bytes(content)
    name = type(content).__name__
    msg = f"the content of a message must be bytes, not {name}; encode it first"
    raise TypeError(msg)


def _pack(properties: Mapping[Any, Any]) -> bytes:
    """Encode properties."""
    packed = []
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str):
            msg = f"property {key!r}: {value!r}: both must be text; use str()"
            raise TypeError(msg)
        if "\0" in key or "\0" in value:
            msg = f"property {key!r}: {value!r} contains a NUL character"
            raise ValueError(msg)
        try:
            packed.append(b"%s\0%s\0" % (key.encode(), value.encode()))
        except UnicodeEncodeError as error:
            msg = f"property {key!r}: {value!r} cannot be encoded in UTF-8: {error.reason}"
            raise ValueError(msg) from None
    return b"".join(packed)


def _check_none(properties: Any) -> None:
    """Raise if properties are not a mapping."""
    if properties is not None and not isinstance(properties, Mapping):
        msg = f"properties must be a mapping of text to text, not {type(properties).__name__}"
        raise TypeError(msg)


def to_line(message: Message) -> str:
    """Return a message as one line, without the newline."""
    try:
        fields: dict[str, Any] = {"content": message.content.decode()}
    except UnicodeDecodeError:
        fields = {"hex": message.content.hex()}
    if message.properties:
        fields["properties"] = dict(message.properties)
    return json.dumps(fields, ensure_ascii=False)


def read_line(line: str | bytes) -> dict[str, Any]:
    """Parse a line as a JSON object.

    Raises:
        MalformedMessage: the line is not a JSON object.
    """
    try:
        fields = parse_json(line)
    except ValueError as error:
        _malformed(f"a line is not JSON: {error}")
    if not isinstance(fields, dict):
        _malformed(f"a line is a {type(fields).__name__}, not an object with content")
    return fields


def message_of(fields: dict[str, Any]) -> Message:
    """Make the message of a parsed line; its content may also be any JSON value.

    Raises:
        MalformedMessage: the line is not a message.
    """
    try:
        if "hex" in fields:
            content = bytes.fromhex(fields["hex"])
        else:
            value = fields["content"]
            text = value if isinstance(value, str) else json_of(value, ensure_ascii=True)
            content = text.encode()
        return Message(content, fields.get("properties"))
    except KeyError:
        _malformed(f"a line has neither content nor hex, only {', '.join(fields) or 'nothing'}")
    except (TypeError, ValueError, AttributeError) as error:
        _malformed(f"a line is not a message: {error}")


def _malformed(text: str) -> NoReturn:
    """Raise an error about malformed bytes."""
    raise MalformedMessage(text) from None
