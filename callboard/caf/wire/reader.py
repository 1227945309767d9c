"""Fields of CAF's payloads: names, nodes, actors, texts and the types of messages.

A varbyte with the length precedes each string and list. A node is written as a name
(`default`), its process id and 20 bytes for its host; an actor as a number and a node. The
payload of a direct message has a list of the actors that forward it (empty on Broker's wire)
and then the message: two zero bytes, the names of its types as one text, and the values.
Source: captured bytes (see the tests).
"""

import struct
from typing import Final, NamedTuple

from callboard.caf.wire.varbyte import read_varbyte, write_varbyte
from callboard.model.errors import InvalidData
from callboard.protocol_errors import MalformedPayload, UnknownMessageType

#: Layout of a node; `_NOBODY` stands for no node.
_NODE: Final = struct.Struct(">QI20s")

#: Characters of names, by the number that stands for each.
_LETTERS: Final = " 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"


def atom(name: str) -> int:
    """Return the number that stands for a name of at most ten characters.

    >>> hex(atom("default"))
    '0x3e9aab9bac79'
    """
    if len(name) > 10:
        msg = f"{name[:80]!r} has more than 10 characters"
        raise ValueError(msg)
    number = 0xF
    for letter in name:
        number = number << 6 | _LETTERS.index(letter)
    return number


def atom_text(number: int) -> str:
    """Return the name that a number stands for.

    Raises:
        MalformedPayload: no name has this number.

    >>> atom_text(0x3E9AAB9BAC79)
    'default'
    """
    letters: list[str] = []
    rest = number
    while rest > 0xF and len(letters) < 10:
        letters.append(_LETTERS[rest & 63])
        rest >>= 6
    if rest != 0xF:
        msg = f"{number:#x} is not the number of a name"
        raise MalformedPayload(msg)
    return "".join(reversed(letters))


_DEFAULT: Final = atom("default")
_NOBODY: Final = atom("").to_bytes(8)
_URI: Final = atom("uri").to_bytes(8)


class CafNode(NamedTuple):
    """A process that uses CAF.

    Attributes:
        process: its process id.
        host: 20 bytes that identify its machine.
    """

    process: int
    host: bytes

    def to_bytes(self) -> bytes:
        """Return the encoded node."""
        return _NODE.pack(_DEFAULT, self.process, self.host)

    def __str__(self) -> str:
        return f"{self.host.hex().upper()}#{self.process}"


class CafActor(NamedTuple):
    """An actor: its number and node."""

    number: int
    node: CafNode

    def to_bytes(self) -> bytes:
        """Return the encoded actor."""
        return self.number.to_bytes(8) + self.node.to_bytes()


def varbyte(number: int) -> bytes:
    """Return an encoded length or count."""
    out = bytearray()
    write_varbyte(number, out)
    return bytes(out)


def sized(content: bytes) -> bytes:
    """Return bytes with their length in front."""
    return varbyte(len(content)) + content


def texts_bytes(texts: tuple[str, ...]) -> bytes:
    """Return an encoded list of texts."""
    return varbyte(len(texts)) + b"".join(sized(text.encode()) for text in texts)


def message_bytes(types: str, *values: bytes) -> bytes:
    """Return an encoded message: its type names (`@atom+@str`) and its values."""
    return b"\0\0" + sized(f"@<>+{types}".encode()) + b"".join(values)


class CafReader:
    """Reads the fields of a payload in order.

    Attributes:
        buffer: the payload.
        at: offset of the next byte.
    """

    __slots__ = ("at", "buffer")

    def __init__(self, buffer: bytes, offset: int = 0) -> None:
        self.buffer, self.at = buffer, offset

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes.

        Raises:
            MalformedPayload: fewer bytes are left. The other methods also raise it for wrong
                bytes.
        """
        end = self.at + size
        if end > len(self.buffer):
            left = len(self.buffer) - self.at
            msg = f"{size:,} bytes are announced at byte {self.at:,}, and {left:,} are left"
            raise MalformedPayload(msg)
        content, self.at = self.buffer[self.at : end], end
        return content

    def number(self, size: int, *, signed: bool = False) -> int:
        """Return the number in the next `size` bytes."""
        return int.from_bytes(self.take(size), signed=signed)

    def count(self) -> int:
        """Return a number of items; no larger than the number of bytes left."""
        number = self.count_up_to(1 << 32)
        if number > len(self.buffer) - self.at:
            left = len(self.buffer) - self.at
            msg = (
                f"{number:,} items are announced before byte {self.at:,}, and {left:,} B follow"
            )
            raise MalformedPayload(msg)
        return number

    def count_up_to(self, limit: int) -> int:
        """Return a count that may exceed the number of bytes left."""
        try:
            number, self.at = read_varbyte(self.buffer, self.at)
        except (IndexError, InvalidData) as cause:
            msg = f"the count at byte {self.at:,} does not end"
            raise MalformedPayload(msg) from cause
        if number > limit:
            msg = f"a count before byte {self.at:,} is {number:,}, more than {limit:,}"
            raise MalformedPayload(msg)
        return number

    def text(self) -> str:
        """Return a text."""
        size = self.count()
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as cause:
            msg = f"the text before byte {self.at:,} is not UTF-8"
            raise MalformedPayload(msg) from cause

    def texts(self) -> tuple[str, ...]:
        """Return a list of texts."""
        return tuple([self.text() for _ in range(self.count())])

    def name(self) -> str:
        """Return a name of at most ten characters."""
        return atom_text(self.number(8))

    def node(self) -> CafNode | None:
        """Return a node, or None."""
        if self.buffer.startswith(_NOBODY, self.at):
            self.at += len(_NOBODY)
            return None
        if self.buffer.startswith(_URI, self.at):
            msg = f"the node at byte {self.at:,} is a URI; nodes of CAF 0.17 have no such ids"
            raise UnknownMessageType(msg)
        name, process, host = _NODE.unpack(self.take(_NODE.size))
        if name != _DEFAULT or not process or not any(host):
            msg = f"bytes {self.at - _NODE.size:,} to {self.at:,} are not a node"
            raise MalformedPayload(msg)
        return CafNode(process, host)

    def actor(self) -> CafActor | None:
        """Return an actor, or None."""
        number, node = self.number(8), self.node()
        return CafActor(number, node) if node is not None and number else None

    def types(self) -> str:
        """Read the type names of a message. The caller then reads its values."""
        if self.number(2):
            msg = f"the message at byte {self.at:,} has a numeric type; CAF 0.17 sends names"
            raise MalformedPayload(msg)
        name = self.text()
        if not name.startswith("@<>"):
            msg = f"the message at byte {self.at:,} has the unknown type {name[:80]!r}"
            raise MalformedPayload(msg)
        return name[4:]

    def finish(self) -> None:
        """Raise if bytes are left."""
        if self.at != len(self.buffer):
            msg = f"{len(self.buffer) - self.at:,} bytes follow a payload of {self.at:,} bytes"
            raise MalformedPayload(msg)
