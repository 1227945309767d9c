"""ZIO messages: a prefix header, a coordinate header and payload frames.

    prefix   "ZIO", one digit 0-8 (the level), four characters (the form), label in UTF-8
    coord    origin, granule, seqno: three unsigned 64-bit integers, little-endian
    payload  any number of frames

As one byte string (for sockets without frames), each frame follows its length: one byte below
255, else 0xFF and four bytes, big-endian. This is the encoding of CZMQ's `zmsg`. The original
implementations write coordinates in the machine's byte order; here it is always little-endian.
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NoReturn, Self

from callboard.flow.errors import MalformedMessage
from callboard.support.nesting import parse_json

#: The form of messages of the flow protocol.
FLOW: Final = "FLOW"

#: Bytes of one message: the limit of a frame between nodes.
MESSAGE_LIMIT: Final = 16 * 1024 * 1024

#: Frames of one message: a message of empty frames would need one object for each byte.
FRAME_LIMIT: Final = 4096

#: Bytes of a label: it is for people and for routing; data belongs in the payload.
LABEL_LIMIT: Final = 64 * 1024

#: A label object: the attributes of a message.
Attributes = Mapping[str, Any]

_COORD: Final = struct.Struct("<QQQ")
_SHORT: Final = tuple(bytes([length]) for length in range(255))
_PREFIX_LENGTH: Final = 8
_LEVELS: Final = b"012345678"
_CACHED_LABEL: Final = 64


@dataclass(frozen=True, slots=True)
class Message:
    """A ZIO message.

    Attributes:
        form: kind of the message, up to four ASCII characters.
        label: text about the message; for flows a JSON object.
        payload: frames.
        origin: number of the sender.
        granule: a time, or another number of the sender.
        seqno: increases with each message from a sender.
        level: 0 undefined, 1 trace, 2 verbose, 3 debug, 4 info, 5 summary, 6 warning,
            7 error, 8 fatal.
    """

    form: str = FLOW
    label: str = ""
    payload: tuple[bytes, ...] = ()
    origin: int = 0
    granule: int = 0
    seqno: int = 0
    level: int = 0

    @property
    def prefix(self) -> bytes:
        """The first frame.

        Raises:
            MalformedMessage: form or level cannot be encoded.
        """
        if not self.form.isascii() or len(self.form) > 4 or not 0 <= self.level <= 8:
            _malformed(
                f"form {self.form!r}, level {self.level!r}: up to 4 ASCII characters, 0 to 8"
            )
        label = self.label.encode()
        if len(label) > LABEL_LIMIT:
            _malformed(
                f"a label of {len(label):,} B exceeds {LABEL_LIMIT:,} B; use the payload"
            )
        return b"ZIO%d%s%s" % (self.level, self.form.ljust(4).encode(), label)

    @property
    def coord(self) -> bytes:
        """The second frame.

        Raises:
            MalformedMessage: a number has no place in 64 bits.
        """
        try:
            return _COORD.pack(self.origin, self.granule, self.seqno)
        except struct.error:
            numbers = f"{self.origin!r}, {self.granule!r}, {self.seqno!r}"
            _malformed(f"origin, granule, seqno {numbers}: each is from 0 to 2**64 - 1")

    @property
    def label_object(self) -> dict[str, Any]:
        """The label as a JSON object.

        Raises:
            MalformedMessage: the label is not a JSON object.
        """
        return dict(_parsed(self.label.encode()))

    def with_object(self, attributes: Attributes) -> Self:
        """Return the message with another label object."""
        return replace(self, label=object_text(attributes))

    def to_parts(self) -> list[bytes]:
        """Return the message as frames: prefix, coordinates, payload."""
        return [self.prefix, self.coord, *self.payload]

    @classmethod
    def from_parts(cls, parts: Sequence[bytes]) -> Self:
        """Read a message from its frames.

        Raises:
            MalformedMessage: the frames are not a message.
        """
        if len(parts) < 2:
            _malformed(f"{len(parts)} frames: a message has at least a prefix and coordinates")
        prefix, coord, *payload = parts
        level, form = _read_prefix(prefix)
        if len(coord) != _COORD.size:
            _malformed(f"coordinates of {len(coord)} B: they have {_COORD.size}")
        try:
            label = prefix[_PREFIX_LENGTH:].decode()
        except UnicodeDecodeError as error:
            _malformed(f"the label is not UTF-8: {error}")
        origin, granule, seqno = _COORD.unpack(coord)
        return cls(form, label, tuple(map(bytes, payload)), origin, granule, seqno, level)

    def encode(self) -> bytes:
        """Return the message as one byte string."""
        return encode_frames(self.to_parts())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a message from one byte string.

        Raises:
            MalformedMessage: the bytes are not a message.
        """
        return cls.from_parts(decode_frames(data))


def as_frames(payload: object) -> tuple[bytes, ...]:
    """Return the payload of a user as frames.

    Raises:
        TypeError: the payload is not bytes, text (sent as UTF-8) or a sequence of these.
    """
    if isinstance(payload, bytes):
        return (payload,)
    if isinstance(payload, Sequence) and not isinstance(payload, str | bytearray | memoryview):
        return tuple(map(_frame, payload))
    return (_frame(payload),)


def _frame(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    msg = f"a payload must be bytes, text, or a sequence of these, not {type(value).__name__}"
    raise TypeError(msg)


def encode_frames(frames: Iterable[bytes]) -> bytes:
    """Encode frames as one byte string, each after its length."""
    out = []
    for frame in frames:
        length = len(frame)
        out.append(_SHORT[length] if length < 255 else b"\xff" + length.to_bytes(4, "big"))
        out.append(frame)
    return b"".join(out)


def decode_frames(data: bytes, offset: int = 0) -> list[bytes]:
    """Decode the frames of one byte string, from an offset on.

    Raises:
        MalformedMessage: the bytes end inside a frame, or exceed a limit.
    """
    size = len(data)
    if size > MESSAGE_LIMIT:
        _malformed(f"a message of {size:,} B exceeds {MESSAGE_LIMIT:,} B")
    frames = []
    while offset < size:
        start, offset = _frame_bounds(data, offset, size)
        frames.append(data[start:offset])
        if len(frames) > FRAME_LIMIT:
            _malformed(f"a message has more than {FRAME_LIMIT:,} frames")
    return frames


def _frame_bounds(data: bytes, offset: int, size: int) -> tuple[int, int]:
    """Return start and end of the frame whose length is at an offset."""
    length = data[offset] if offset < size else 0
    start = offset + 1
    if length == 255:
        length = int.from_bytes(data[start : start + 4], "big")
        start += 4
    if start > size or start + length > size:
        _malformed(f"the frame at byte {offset} exceeds the message of {size:,} B")
    return start, start + length


def encode_flow(label: bytes, seqno: int, payload: tuple[bytes, ...] = ()) -> bytes:
    """Encode a message of the flow protocol as one byte string."""
    return encode_frames((b"ZIO0FLOW" + label, _COORD.pack(0, 0, seqno), *payload))


_DAT_START: Final = encode_flow(b'{"flow":"DAT"}', 0)[: -_COORD.size]
_DAT_END: Final = len(_DAT_START) + _COORD.size
_DAT_OBJECT: Final[Attributes] = {"flow": "DAT"}


def read_head(data: bytes) -> tuple[Attributes, int, int]:
    """Return the label object and seqno of a flow message, and the offset of its payload.

    For brokers, which forward the payload without reading it. The object is shared and must
    not be changed.

    Raises:
        MalformedMessage: the message is not a flow message.
    """
    size = len(data)
    if size >= _DAT_END and data.startswith(_DAT_START):  # most messages are plain DATs
        return _DAT_OBJECT, int.from_bytes(data[_DAT_END - 8 : _DAT_END], "little"), _DAT_END
    start, end = _frame_bounds(data, 0, size)
    attributes = flow_object(data[start:end])
    begin, stop = _frame_bounds(data, end, size)
    if stop - begin != _COORD.size:
        _malformed(f"coordinates of {stop - begin} B: they have {_COORD.size}")
    return attributes, int.from_bytes(data[begin + 16 : stop], "little"), stop


def flow_object(prefix: bytes) -> Attributes:
    """Read the flow object of a prefix frame; it is shared and must not be changed.

    Raises:
        MalformedMessage: the message has another form, or its label is not a JSON object.
    """
    return _known_object(prefix) if len(prefix) <= _CACHED_LABEL else _read_object(prefix)


def _read_object(prefix: bytes) -> Attributes:
    _, form = _read_prefix(prefix)
    if form != FLOW:
        _malformed(f"a message of form {form!r} is not of the flow protocol")
    return _parsed(prefix[_PREFIX_LENGTH:])


# The labels of the DATs and PAYs of a flow repeat.
_known_object = lru_cache(maxsize=1024)(_read_object)


def _read_prefix(prefix: bytes) -> tuple[int, str]:
    if len(prefix) < _PREFIX_LENGTH or prefix[:3] != b"ZIO" or prefix[3] not in _LEVELS:
        _malformed(
            f"a message begins with ZIO, a level 0-8 and a form, not with {prefix[:8]!r}"
        )
    if len(prefix) > LABEL_LIMIT + _PREFIX_LENGTH:
        _malformed(f"a label of {len(prefix) - _PREFIX_LENGTH:,} B exceeds {LABEL_LIMIT:,} B")
    form = prefix[4:8]
    if not form.isascii():
        _malformed(f"form {form!r} is not ASCII")
    return prefix[3] - 48, form.decode().rstrip(" ")


def _parsed(label: bytes) -> Attributes:
    try:
        value = parse_json(label)
    except ValueError as error:
        _malformed(f"the label is not JSON: {str(error)[:100]}")
    if not isinstance(value, dict):
        _malformed(f"the label is a JSON {type(value).__name__}, not an object")
    return value


def object_text(attributes: Attributes) -> str:
    """Encode a label object as JSON.

    Raises:
        MalformedMessage: a value is not a JSON value.
    """
    try:
        return json.dumps(attributes, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        _malformed(f"attributes of a message must be JSON values: {error}")


def _malformed(text: str) -> NoReturn:
    """Raise the error of a malformed message."""
    raise MalformedMessage(text) from None
