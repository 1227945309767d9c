"""Frames: splits a byte stream into tuples, and packs these byte for byte.

A frame is a header (:mod:`callboard.basp.header`) and its payload. The reader returns plain
tuples, because one read of a busy link brings hundreds of frames; code that handles single
frames converts them with `Frame._make`.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from callboard.basp import errors
from callboard.basp.foreign import FIRST_BYTES, OURS, wire_of
from callboard.basp.header import HEADER, HEADER_SIZE, OPERATION_COUNT, RESPONSE, Operation
from callboard.basp.node_id import node_id_text

#: 16 MiB: stores, logs and snapshots are sent in chunks of 256 KiB, so only users' messages
#: come near it.
DEFAULT_PAYLOAD_LIMIT: Final = 16 * 1024 * 1024

# Reads smaller than this many bytes are joined: as separate objects they would take more memory
# than their data.
_DROP_SIZE: Final = 4096

#: A frame as returned by the reader: the fields of `Frame` in a plain tuple.
RawFrame = tuple[int, int, int, bytes, bytes, int, int, bytes]


class Frame(NamedTuple):
    """One frame; for its fields see :mod:`callboard.basp.header`."""

    operation: int
    length: int
    data: int
    source: bytes
    destination: bytes
    source_actor: int
    destination_actor: int
    payload: bytes


_NO_FIELDS: Final = (0, 0, 0, b"", b"", 0, 0)

_DISPATCH: Final = int(Operation.DISPATCH_MESSAGE)
_NO_MEMORY: Final = "there is no memory left for its bytes"

_join = b"".join
_pack_header = HEADER.pack
_unpack_header = HEADER.unpack_from


def pack_frame(
    operation: int,
    data: int,
    source: bytes,
    destination: bytes,
    source_actor: int,
    destination_actor: int,
    payload: bytes,
) -> bytes:
    """Pack a frame; the caller has checked the payload against its limit."""
    return (
        _pack_header(
            operation, len(payload), data, source, destination, source_actor, destination_actor
        )
        + payload
    )


def repack_frame(frame: RawFrame) -> bytes:
    """Pack a frame exactly as it was read: forwarding does not change a byte."""
    return _pack_header(*frame[:7]) + frame[7]


class FrameReader:
    """Splits a byte stream into frames.

    The announced length and the operation are checked as soon as the header is complete,
    before memory is allocated for the payload. After a violation the reader stays failed:
    :attr:`error` has the reason, the frames before the bad one are still returned, and all
    later bytes are ignored, because the start of the next frame is unknown.

    If memory runs out during a read, `feed` raises `MemoryError`, and the reader stays failed:
    after lost bytes, part of a payload would be read as a header. The exception is a payload
    whose pieces could not be joined. Then no byte is missing, and `drop_payload` continues
    after that frame.
    """

    __slots__ = (
        "_fields", "_head", "_missing", "_pieces", "_unjoined", "error", "payload_limit"
    )  # fmt: skip

    def __init__(self, payload_limit: int = DEFAULT_PAYLOAD_LIMIT) -> None:
        """Accept payloads of at most ``payload_limit`` bytes."""
        self.payload_limit = payload_limit
        #: The reason why reading has failed; None while the reader works.
        self.error: errors.RemoteProtocolError | None = None
        # Start of an incomplete header.
        self._head = b""
        # After the header: its fields, the pieces of the payload, and the number of bytes that
        # are missing. The pieces are joined once, so a 16 MiB payload that arrives in 64 KiB
        # reads is copied once. Small reads are appended to one piece, because separate objects
        # would take 25 times their size.
        self._fields: tuple[int, int, int, bytes, bytes, int, int] = _NO_FIELDS
        self._pieces: list[bytes | bytearray | memoryview] = []
        self._missing = 0
        # Bytes read after a payload that could not be joined for lack of memory.
        self._unjoined: bytes | None = None

    @property
    def other_wire(self) -> str:
        """Name of the other protocol of an incomplete header; "" if it is not known."""
        wire = wire_of(self._head)
        return "" if wire == OURS else wire

    @property
    def missing(self) -> int:
        """Number of bytes missing from the current payload; 0 between frames."""
        return self._missing

    @property
    def wanted(self) -> int:
        """Number of bytes that complete the current header or payload."""
        return self._missing or HEADER_SIZE - len(self._head)

    def feed(self, data: bytes) -> list[RawFrame]:
        """Return the frames that ``data`` completes, in order.

        A memory view may be passed if it has at most `missing` bytes.

        Violations by a peer do not raise: check :attr:`error` after the call.

        Raises:
            MemoryError: memory ran out; :attr:`error` is set.
        """
        if self.error is not None:
            return []
        try:
            if self._missing:
                return self._continue(data)
            if self._head:
                data = self._head + data
                self._head = b""
            size = len(data)
            if HEADER_SIZE <= size < _DROP_SIZE:  # usually one small frame: an ask or an answer
                fields = _unpack_header(data)
                length = fields[1]
                if (
                    length == size - HEADER_SIZE
                    and length <= self.payload_limit
                    and fields[0] < OPERATION_COUNT
                ):
                    return [(*fields, data[HEADER_SIZE:])]
            return self._cut(data)
        except MemoryError:
            if self._unjoined is None:
                self._pieces.clear()
            self.error = errors.OutOfMemory(_NO_MEMORY)
            raise

    def discard(self) -> None:
        """Stop reading, and free the incomplete frame."""
        self._pieces.clear()
        self._head, self._unjoined = b"", None
        self.error = self.error or errors.OutOfMemory(_NO_MEMORY)

    def drop_payload(self) -> list[RawFrame]:
        """Return the frames of the failed `feed`, the first one without its payload.

        The frame whose payload did not fit into memory has an empty one: its sender learns that
        the message could not be read, and all other messages arrive.

        Returns:
            The frames; none if the reader cannot continue and stays failed.
        """
        rest, self._unjoined = self._unjoined, None
        if rest is None:
            return []
        self.error = None
        self._pieces.clear()
        try:
            return [self._emptied(), *self._cut(rest)]
        except MemoryError:
            self.error = errors.OutOfMemory(_NO_MEMORY)
            return []

    def _emptied(self) -> RawFrame:
        """Return the frame that is being read, without its payload."""
        operation, _, *fields = self._fields
        return (operation, 0, *fields, b"")  # type: ignore[return-value]

    def _continue(self, data: bytes) -> list[RawFrame]:
        """Add bytes to the current payload; return the frames that are complete."""
        size, missing = len(data), self._missing
        if size < missing:
            self._append(data, size)
            self._missing = missing - size
            return []
        rest = data[missing:]
        self._pieces.append(data[:missing])
        self._missing = 0
        try:
            payload = _join(self._pieces)
        except MemoryError:
            if self._fields[0] == _DISPATCH:
                self._unjoined = rest
            raise
        self._pieces.clear()
        return [(*self._fields, payload), *self._cut(rest)]

    def _append(self, data: bytes, size: int) -> None:
        """Add a piece to the incomplete payload."""
        pieces = self._pieces
        if size >= _DROP_SIZE:
            pieces.append(data)
            return
        last = pieces[-1]
        if isinstance(last, bytearray):
            last += data
        else:
            pieces.append(bytearray(data))

    def _cut(self, data: bytes) -> list[RawFrame]:
        """Split bytes that start with a header into frames; keep the rest."""
        frames: list[RawFrame] = []
        append = frames.append
        unpack = _unpack_header
        limit = self.payload_limit
        size = len(data)
        last_header = size - HEADER_SIZE
        start = 0
        while start <= last_header:
            fields = unpack(data, start)
            length = fields[1]
            if length > limit or fields[0] >= OPERATION_COUNT:
                self._fail(
                    fields[0], length, fields[3], wire_of(data[start : start + FIRST_BYTES])
                )
                return frames
            body = start + HEADER_SIZE
            end = body + length
            if end > size:
                self._fields = fields
                self._pieces.append(data[body:])
                self._missing = end - size
                return frames
            append((*fields, data[body:end]))
            start = end
        if start < size:
            self._head = data[start:]
        return frames

    def _fail(self, operation: int, length: int, source: bytes, protocol: str) -> None:
        """Set the error for a header that breaks a rule."""
        origin = f"from node {node_id_text(source)}"
        if protocol and protocol != OURS:
            kind = errors.SpeaksTls if protocol == "TLS" else errors.UnknownOperation
            self.error = kind(f"the peer speaks {protocol}, but this port speaks plain BASP")
        elif operation >= OPERATION_COUNT:
            self.error = errors.UnknownOperation(
                f"operation {operation} {origin} is not one of 0-{OPERATION_COUNT - 1}; "
                f"the peer speaks another protocol or a later release"
            )
        else:
            self.error = errors.PayloadTooLarge(
                f"payload {length:,} B of operation {operation} {origin} exceeds limit "
                f"{self.payload_limit:,} B; raise payload_limit on both nodes or send chunks"
            )


#: Operations that links send regularly, even if programs send nothing.
_QUIET: Final = frozenset({Operation.HEARTBEAT, Operation.DELIVERY_REPORT})


def frame_words(data: bytes) -> Iterator[tuple[str, bool]]:
    """Yield a word for people for each frame that starts in ``data``.

    The second item is whether links send such a frame regularly.
    """
    start = 0
    while start + HEADER_SIZE <= len(data):
        operation, size, flags, *_ = HEADER.unpack_from(data, start)
        if operation not in tuple(Operation):
            return
        operation = Operation(operation)
        word = operation.name.lower().removesuffix("_proxy_instance").replace("_", " ")
        if operation is Operation.DISPATCH_MESSAGE:
            word = "answer" if flags & RESPONSE else "message"
        yield word, operation in _QUIET
        start += HEADER_SIZE + size
