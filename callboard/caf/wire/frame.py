"""The header of CAF's own BASP, version 0.17, and its frames.

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

`callboard.caf.wire.reader` describes the payloads. Source: captured bytes (see the tests).
"""

import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag
from typing import Final, NamedTuple

from callboard.kernel.wire import OURS, wire_of
from callboard.protocol_errors import (
    MalformedFrame,
    PayloadTooLarge,
    SpeaksTls,
    UnknownOperation,
)

_HEADER: Final = struct.Struct(">B2xBIQQQ")

#: Bytes below which a piece of a frame is joined with the one before it.
_SMALL: Final = 4_096

#: Version in a server's handshake.
CAF_VERSION: Final = 3


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
        #: The pieces of an incomplete frame. Small pieces are appended to one bytearray,
        #: because separate objects would take 25 times the memory.
        self._pieces: list[bytes | bytearray] = []
        self._size = 0
        self._needed = _HEADER.size

    def take(self, data: bytes) -> Iterator[CafFrame]:
        """Yield the complete frames; the caller must consume all of them before the next call.

        Raises:
            UnknownOperation: the header belongs to another protocol.
            MalformedFrame: a field contradicts the operation.
            PayloadTooLarge: the header announces a payload above the limit.
        """
        if self._size + len(data) < self._needed:
            self._keep(data)
            return
        buffer = b"".join((*self._pieces, data)) if self._pieces else data
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
        self._pieces = [buffer[offset:]] if offset < end else []
        self._size = end - offset

    def _keep(self, data: bytes) -> None:
        """Keep a piece of an incomplete frame."""
        self._size += len(data)
        last = self._pieces[-1] if self._pieces else b""
        if isinstance(last, bytearray) and len(data) < _SMALL:
            last += data
        else:
            self._pieces.append(bytearray(data) if len(data) < _SMALL else data)

    def _check(
        self, operation: int, size: int, ids: tuple[int, int, int], header: bytes
    ) -> None:
        """Raise an error for a header that CAF would refuse, or for too large a payload."""
        needs = _NEEDS.get(operation)  # type: ignore[call-overload]
        wire = wire_of(header) if operation == 0 or needs is None else ""
        if wire == "TLS":
            msg = "the peer speaks TLS; encrypt both sides of the connection, or neither"
            raise SpeaksTls(msg)
        if needs is None or wire == OURS:
            msg = (
                f"CAF 0.17 has no operation {operation}" if needs is None else "not CAF's BASP"
            )
            raise UnknownOperation(f"{msg}; the peer speaks {wire}" if wire else msg)
        if size > self.limit:
            hint = f"; the peer speaks {wire}" if wire.startswith("Zeek") else ""
            msg = f"payload {size:,} B exceeds limit {self.limit:,} B{hint}"
            raise PayloadTooLarge(msg)
        for name, number, must_be_set in zip(_FIELDS, (*ids, size), needs, strict=True):
            if must_be_set is not None and bool(number) != must_be_set:
                label = CafOperation(operation).name.lower()
                rule = "must not be 0" if must_be_set else "must be 0"
                msg = f"{name} of a {label} frame is {number:,}; it {rule}"
                raise MalformedFrame(msg)
