"""CAF's own BASP, version 0.17, which carries Zeek Broker 1.4: frames, nodes, actors, messages.

A frame is a header of 32 bytes, big-endian, and a payload:

| offset | size | field |
|---|---|---|
| 0 | 1 | operation |
| 1 | 2 | padding |
| 3 | 1 | flags: 1 if the target is a name, 2 in a client's second handshake |
| 4 | 4 | length of the payload |
| 8 | 8 | version in a server's handshake; kind and number of a message |
| 16 | 8 | source: an actor's number, 0 for none |
| 24 | 8 | target: an actor's number, or a name of at most ten characters |

Strings and lists follow a varbyte with their length. A node is a name (`default`), its process
id and 20 bytes for its host; an actor is a number and a node. The payload of a direct message
is a list of the actors that forward it (empty on Broker's wire) and a message: two zero bytes,
the names of its types as one text, and the values. Source: captured bytes (see the tests).
"""

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from callboard.kernel.codec import (
    MalformedFrame,
    MalformedPayload,
    PayloadTooLarge,
    SpeaksTls,
    UnknownOperation,
)
from callboard.kernel.wire import OURS, wire_of
from callboard.model.errors import InvalidData
from callboard.zeek.varbyte import read_varbyte, write_varbyte

_HEADER: Final = struct.Struct(">B2xBIQQQ")

#: Version in a server's handshake.
CAF_VERSION: Final = 3

#: Layout of a node; `_NOBODY` stands for no node.
_NODE: Final = struct.Struct(">QI20s")

_LETTERS: Final = " 0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"


def atom(name: str) -> int:
    """Return the number that stands for a name of at most ten characters.

    >>> hex(atom("default"))
    '0x3e9aab9bac79'
    """
    number = 0xF
    for letter in name:
        number = number << 6 | _LETTERS.index(letter)
    return number & 0xFFFFFFFFFFFFFFFF


_DEFAULT: Final = atom("default")
_NOBODY: Final = atom("").to_bytes(8)


class CafOperation(IntEnum):
    """Operation of a frame."""

    SERVER_HANDSHAKE = 0
    CLIENT_HANDSHAKE = 1
    DIRECT = 2
    ROUTED = 3
    MONITOR = 4
    DOWN = 5
    HEARTBEAT = 6


class CafFlag(IntFlag):
    """Flags of a frame."""

    NAMED = 1
    SELECTED = 2


class CafFrame(NamedTuple):
    """A received frame.

    Attributes:
        operation: see `CafOperation`.
        flags: see `CafFlag`.
        data: a version, or the kind and number of a message.
        source: an actor's number; 0 for none.
        target: an actor's number, or a name.
        payload: the bytes after the header.
    """

    operation: int
    flags: int
    data: int
    source: int
    target: int
    payload: bytes


def caf_frame(
    operation: CafOperation,
    payload: bytes = b"",
    *,
    flags: int = 0,
    data: int = 0,
    source: int = 0,
    target: int = 0,
) -> bytes:
    """Return a frame as bytes."""
    return _HEADER.pack(operation, flags, len(payload), data, source, target) + payload


#: For each operation, whether the header fields data, source, target and payload length must be
#: nonzero (True) or zero (False); None: either. CAF closes a connection that breaks this.
_NEEDS: Final = {
    CafOperation.SERVER_HANDSHAKE: (True, None, None, True),
    CafOperation.CLIENT_HANDSHAKE: (None, False, False, True),
    CafOperation.DIRECT: (None, None, True, True),
    CafOperation.ROUTED: (None, None, True, True),
    CafOperation.MONITOR: (False, None, None, True),
    CafOperation.DOWN: (False, True, False, True),
    CafOperation.HEARTBEAT: (False, False, False, False),
}
_FIELDS: Final = ("operation data", "source", "target", "payload")


class CafFrames:
    """Splits a stream into frames.

    Attributes:
        limit: largest payload in bytes; a header that announces more is refused at once.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        self._needed = _HEADER.size

    def take(self, data: bytes) -> Iterator[CafFrame]:
        """Yield the complete frames; consume all of them before the next call.

        Raises:
            UnknownOperation: the header belongs to another protocol.
            MalformedFrame: a field contradicts the operation.
            PayloadTooLarge: the header announces a payload above the limit.
        """
        self._chunks.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        offset, end = 0, len(buffer)
        self._needed = _HEADER.size
        while end - offset >= _HEADER.size:
            operation, flags, size, number, source, target = _HEADER.unpack_from(buffer, offset)
            start = offset + _HEADER.size
            stop = start + size
            self._check(operation, size, (number, source, target), buffer[offset:start])
            if stop > end:
                self._needed = stop - offset
                break
            offset = stop
            yield CafFrame(operation, flags, number, source, target, buffer[start:stop])
        self._chunks = [buffer[offset:]] if offset < end else []
        self._size = end - offset

    def _check(
        self, operation: int, size: int, ids: tuple[int, int, int], header: bytes
    ) -> None:
        """Raise for a header that CAF would refuse, or for a large payload."""
        needs = _NEEDS.get(operation)  # type: ignore[call-overload]
        wire = wire_of(header) if operation == 0 or needs is None else ""
        if wire == "TLS":
            msg = "it speaks TLS; set disable_ssl on both sides or on neither"
            raise SpeaksTls(msg)
        if needs is None or wire == OURS:
            msg = (
                f"CAF 0.17 has no operation {operation}" if needs is None else "not CAF's BASP"
            )
            raise UnknownOperation(f"{msg}; it speaks {wire}" if wire else msg)
        if size > self.limit:
            hint = f"; it speaks {wire}" if wire.startswith("Zeek") else ""
            msg = f"payload {size:,} B exceeds limit {self.limit:,} B{hint}"
            raise PayloadTooLarge(msg)
        for name, number, must_be_set in zip(_FIELDS, (*ids, size), needs, strict=True):
            if must_be_set is not None and bool(number) != must_be_set:
                label = CafOperation(operation).name.lower()
                rule = "must not be 0" if must_be_set else "must be 0"
                msg = f"{name} of a {label} frame is {number:,}; it {rule}"
                raise MalformedFrame(msg)


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

    def __init__(self, buffer: bytes, at: int = 0) -> None:
        self.buffer, self.at = buffer, at

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes.

        Raises:
            MalformedPayload: fewer are left. The other methods also raise it for wrong bytes.
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
        try:
            number, self.at = read_varbyte(self.buffer, self.at)
        except (IndexError, InvalidData) as cause:
            msg = f"the count at byte {self.at:,} does not end"
            raise MalformedPayload(msg) from cause
        if number > len(self.buffer) - self.at:
            left = len(self.buffer) - self.at
            msg = (
                f"{number:,} items are announced before byte {self.at:,}, and {left:,} B follow"
            )
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

    def node(self) -> CafNode | None:
        """Return a node, or None."""
        if self.buffer.startswith(_NOBODY, self.at):
            self.at += len(_NOBODY)
            return None
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
        """Return the type names of a message; its values follow."""
        if self.number(2):
            msg = (
                f"the message at byte {self.at:,} has a numeric type, which Broker does not use"
            )
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
