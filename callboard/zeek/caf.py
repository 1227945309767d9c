"""CAF's own BASP, version 0.17, which carries Zeek Broker 1.4: frames, nodes, actors, messages.

A frame is a header of 32 bytes, big-endian, and a payload:

| offset | size | field |
|---|---|---|
| 0 | 1 | operation |
| 1 | 2 | padding |
| 3 | 1 | flags: 1 where the target is a name, 2 in the second handshake of a client |
| 4 | 4 | bytes of the payload |
| 8 | 8 | version of a server's handshake; the kind and number of a message |
| 16 | 8 | source: an actor's number, 0 for nobody |
| 24 | 8 | target: an actor's number, or a name of at most ten characters |

Strings and lists have a varbyte count before them. A node is a name (`default`), its process id
and 20 bytes of its host; an actor is a number and a node. The payload of a direct message is a
list of actors that it passes by (none, on Broker's wire) and a message: two bytes 0, the names
of its types as one text, and the values. Source: captured bytes (see the tests).
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

#: What a server's handshake says.
CAF_VERSION: Final = 3

#: Bytes of a node, but for the one that stands for none.
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
    """What a frame is for."""

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
    """A frame that came.

    Attributes:
        operation: what it is for.
        flags: see `CafFlag`.
        data: a version, or the kind and number of a message.
        source: an actor's number; 0 for nobody.
        target: an actor's number, or a name.
        payload: what follows the header.
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
    """Return the bytes of a frame."""
    return _HEADER.pack(operation, flags, len(payload), data, source, target) + payload


#: What each operation needs in its header: data, source, target, payload. CAF itself closes
#: a connection on which one is missing.
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
    """Takes frames out of reads.

    Attributes:
        limit: bytes of a payload; more of them end the connection before they are there.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._chunks: list[bytes] = []
        self._size = 0
        self._needed = _HEADER.size

    def take(self, data: bytes) -> Iterator[CafFrame]:
        """Yield the frames that are whole; all of them have to be taken before the next read.

        Raises:
            UnknownOperation: a header of another protocol.
            MalformedFrame: a field contradicts the operation.
            PayloadTooLarge: a payload is announced that is over the limit.
        """
        self._chunks.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        at, end = 0, len(buffer)
        self._needed = _HEADER.size
        while end - at >= _HEADER.size:
            operation, flags, size, number, source, target = _HEADER.unpack_from(buffer, at)
            start = at + _HEADER.size
            behind = start + size
            self._check(operation, size, (number, source, target), buffer[at:start])
            if behind > end:
                self._needed = behind - at
                break
            at = behind
            yield CafFrame(operation, flags, number, source, target, buffer[start:behind])
        self._chunks = [buffer[at:]] if at < end else []
        self._size = end - at

    def _check(
        self, operation: int, size: int, ids: tuple[int, int, int], header: bytes
    ) -> None:
        """Refuse a header that CAF would refuse, or a payload that is too large."""
        needs = _NEEDS.get(operation)  # type: ignore[call-overload]
        other = wire_of(header) if operation == 0 or needs is None else ""
        if other == "TLS":
            msg = "it speaks TLS; set disable_ssl on both sides, or on none"
            raise SpeaksTls(msg)
        if needs is None or other == OURS:
            msg = (
                f"CAF 0.17 has no operation {operation}" if needs is None else "not CAF's BASP"
            )
            raise UnknownOperation(f"{msg}; it speaks {other}" if other else msg)
        if size > self.limit:
            hint = f"; it speaks {other}" if other.startswith("Zeek") else ""
            msg = f"payload {size:,} B exceeds limit {self.limit:,} B{hint}"
            raise PayloadTooLarge(msg)
        for name, number, need in zip(_FIELDS, (*ids, size), needs, strict=True):
            if need is not None and bool(number) != need:
                what = CafOperation(operation).name.lower()
                msg = f"a {what} frame has the {name} {number:,}"
                raise MalformedFrame(msg)


class CafNode(NamedTuple):
    """A process that speaks CAF.

    Attributes:
        process: its process id.
        host: 20 bytes that stand for its machine.
    """

    process: int
    host: bytes

    def to_bytes(self) -> bytes:
        """Return its bytes."""
        return _NODE.pack(_DEFAULT, self.process, self.host)

    def __str__(self) -> str:
        return f"{self.host.hex().upper()}#{self.process}"


class CafActor(NamedTuple):
    """An actor by its number and node."""

    number: int
    node: CafNode

    def to_bytes(self) -> bytes:
        """Return its bytes."""
        return self.number.to_bytes(8) + self.node.to_bytes()


def varbyte(number: int) -> bytes:
    """Return the bytes of a length or count."""
    out = bytearray()
    write_varbyte(number, out)
    return bytes(out)


def sized(content: bytes) -> bytes:
    """Return a run of bytes with its length before it."""
    return varbyte(len(content)) + content


def texts_bytes(texts: tuple[str, ...]) -> bytes:
    """Return the bytes of a list of texts."""
    return varbyte(len(texts)) + b"".join(sized(text.encode()) for text in texts)


def message_bytes(types: str, *values: bytes) -> bytes:
    """Return a message: the names of its types (`@atom+@str`), and its values."""
    return b"\0\0" + sized(f"@<>+{types}".encode()) + b"".join(values)


class CafReader:
    """Reads a payload from its beginning on.

    Attributes:
        buffer: the payload.
        at: the next byte.
    """

    __slots__ = ("at", "buffer")

    def __init__(self, buffer: bytes, at: int = 0) -> None:
        self.buffer, self.at = buffer, at

    def take(self, size: int) -> bytes:
        """Return so many bytes.

        Raises:
            MalformedPayload: there are fewer; as from all methods, where the bytes are wrong.
        """
        end = self.at + size
        if end > len(self.buffer):
            left = len(self.buffer) - self.at
            msg = f"{size:,} bytes are announced at byte {self.at:,}, and {left:,} are left"
            raise MalformedPayload(msg)
        piece, self.at = self.buffer[self.at : end], end
        return piece

    def number(self, size: int, *, signed: bool = False) -> int:
        """Return a number of so many bytes."""
        return int.from_bytes(self.take(size), signed=signed)

    def count(self) -> int:
        """Return the number of items that follow: there are at least as many bytes."""
        try:
            number, self.at = read_varbyte(self.buffer, self.at)
        except (IndexError, InvalidData) as cause:
            msg = f"the count at byte {self.at:,} does not end"
            raise MalformedPayload(msg) from cause
        if number > len(self.buffer) - self.at:
            msg = f"{number:,} items are announced before byte {self.at:,}, which do not fit"
            raise MalformedPayload(msg)
        return number

    def text(self) -> str:
        """Return a text."""
        size = self.count()
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as cause:
            msg = f"the text before byte {self.at:,} is no UTF-8"
            raise MalformedPayload(msg) from cause

    def texts(self) -> tuple[str, ...]:
        """Return a list of texts."""
        return tuple([self.text() for _ in range(self.count())])

    def node(self) -> CafNode | None:
        """Return a node; None for the one that stands for none."""
        if self.buffer.startswith(_NOBODY, self.at):
            self.at += len(_NOBODY)
            return None
        name, process, host = _NODE.unpack(self.take(_NODE.size))
        if name != _DEFAULT or not process or not any(host):
            msg = f"bytes {self.at - _NODE.size:,} to {self.at:,} are no node"
            raise MalformedPayload(msg)
        return CafNode(process, host)

    def actor(self) -> CafActor | None:
        """Return an actor; None for nobody."""
        number, node = self.number(8), self.node()
        return CafActor(number, node) if node is not None and number else None

    def types(self) -> str:
        """Return the names of a message's types; its values follow."""
        if self.number(2):
            msg = f"the message at byte {self.at:,} has a type by number"
            raise MalformedPayload(msg)
        name = self.text()
        if not name.startswith("@<>"):
            msg = f"the message at byte {self.at:,} is of {name[:80]!r}"
            raise MalformedPayload(msg)
        return name[4:]

    def finish(self) -> None:
        """Refuse bytes that follow."""
        if self.at != len(self.buffer):
            msg = f"{len(self.buffer) - self.at:,} bytes follow a payload of {self.at:,} bytes"
            raise MalformedPayload(msg)
