"""The field types of MQTT (MQTT 5, section 1.5): reading them from a body, and writing them.

| type | bytes |
|---|---|
| byte, two byte and four byte integer | big-endian |
| variable byte integer | 7 bits a byte, low ones first; the fewest bytes, at most 4 |
| binary data | two byte length, then the bytes |
| UTF-8 string | like binary data; no surrogates, no U+0000 |
| string pair | two strings |
"""

from struct import Struct
from typing import Final

from callboard.mqtt.wire.errors import InvalidPacket, MalformedPacket

#: The largest variable byte integer, which is also the longest body of a packet in bytes.
MAX_VARIABLE: Final = 268_435_455
#: The longest string or binary field in bytes.
MAX_LENGTH: Final = 65_535


class Reader:
    """Reads the fields of a body in order; a missing byte makes the packet malformed."""

    __slots__ = ("_body", "_end", "position")

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._end = len(body)
        self.position = 0

    @property
    def left(self) -> int:
        """The number of unread bytes."""
        return self._end - self.position

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        start = self.position
        if count > self._end - start:
            message = f"a field of {count} bytes exceeds the {self._end - start} bytes left"
            raise MalformedPacket(message)
        self.position = start + count
        return self._body[start : self.position]

    def byte(self) -> int:
        """Return a byte."""
        start = self.position
        if start == self._end:
            self.take(1)
        self.position = start + 1
        return self._body[start]

    def two(self) -> int:
        """Return a two byte integer."""
        start = self.position
        if start + 2 > self._end:
            self.take(2)
        self.position = start + 2
        return self._body[start] << 8 | self._body[start + 1]

    def passes(self, expected: bytes) -> bool:
        """Skip the next bytes if they are the expected ones; return whether they were."""
        if not self._body.startswith(expected, self.position):
            return False
        self.position += len(expected)
        return True

    def four(self) -> int:
        """Return a four byte integer."""
        return int.from_bytes(self.take(4), "big")

    def variable(self) -> int:
        """Return a variable byte integer.

        A longer encoding than needed is an error (MQTT 5).
        """
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if shift and not byte:
                    message = f"the number {value} is encoded in more bytes than needed"
                    raise MalformedPacket(message)
                return value
        message = "a variable byte integer has more than 4 bytes"
        raise MalformedPacket(message)

    def binary(self) -> bytes:
        """Return binary data."""
        body, start = self._body, self.position + 2
        if start > self._end:
            self.take(2)
        end = start + (body[start - 2] << 8 | body[start - 1])
        self.position = start
        if end > self._end:
            self.take(end - start)
        self.position = end
        return body[start:end]

    def string(self) -> str:
        """Return a UTF-8 string."""
        return read_text(self.binary())

    def unpack(self, layout: Struct) -> tuple[int, ...]:
        """Return the integers of some fields with fixed sizes."""
        start = self.position
        end = start + layout.size
        if end > self._end:
            self.take(layout.size)
        self.position = end
        return layout.unpack_from(self._body, start)

    def rest(self) -> bytes:
        """Return all unread bytes."""
        return self.take(self.left)

    def close(self) -> None:
        """Raise an error if bytes are left."""
        if self.position != self._end:
            message = f"{self.left} bytes follow the last field of a packet"
            raise MalformedPacket(message)


def read_text(data: bytes) -> str:
    """Decode the bytes of a UTF-8 string.

    Raises:
        MalformedPacket: the bytes are not valid UTF-8 (MQTT 5, 1.5.4-1), or contain U+0000.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        message = f"a string is not UTF-8 at byte {error.start}: {data[:40]!r}"
        raise MalformedPacket(message) from None
    if "\0" in text:
        message = f"a string contains U+0000: {data[:40]!r}"
        raise MalformedPacket(message)
    return text


def write_number(value: int, size: int, label: str, minimum: int = 0) -> bytes:
    """Encode an integer in `size` bytes.

    Raises:
        InvalidPacket: the integer does not fit, or is below `minimum`.
    """
    limit = (1 << 8 * size) - 1
    if not minimum <= value <= limit:
        message = f"{label} is {value}, which is not in {minimum}…{limit}"
        raise InvalidPacket(message)
    return value.to_bytes(size, "big")


def write_variable(value: int) -> bytes:
    """Encode a variable byte integer.

    Raises:
        InvalidPacket: the integer is negative, or above 268,435,455.
    """
    if not value >> 7:
        return bytes((value,))
    if not value >> 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if not 0 <= value <= MAX_VARIABLE:
        message = f"{value} does not fit a variable byte integer (0…{MAX_VARIABLE})"
        raise InvalidPacket(message)
    return bytes((value & 0x7F | 0x80,)) + write_variable(value >> 7)


def write_binary(data: bytes, label: str) -> bytes:
    """Encode binary data with its length.

    Raises:
        InvalidPacket: the data is longer than 65,535 bytes.
    """
    if len(data) > MAX_LENGTH:
        message = f"{label} has {len(data)} bytes; at most {MAX_LENGTH} are allowed"
        raise InvalidPacket(message)
    return len(data).to_bytes(2, "big") + data


def write_string(text: str, label: str) -> bytes:
    """Encode a UTF-8 string with its length.

    Raises:
        InvalidPacket: the string is too long, or contains U+0000 or a surrogate.
    """
    if "\0" in text:
        message = f"{label} contains U+0000: {text[:40]!r}"
        raise InvalidPacket(message)
    try:
        return write_binary(text.encode(), label)
    except UnicodeEncodeError:
        message = f"{label} contains a surrogate: {text[:40]!r}"
        raise InvalidPacket(message) from None
