"""Text frames of WebSocket (RFC 6455) in a byte stream, without I/O.

The package `websockets` implements the protocol. Nearly all frames are complete text frames,
and these are parsed here. All others pass through its core one by one, so that the core never
holds a partial frame.
"""

from collections.abc import Iterator
from secrets import token_bytes
from typing import Any, Final, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidMessage, InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from callboard.kernel.wire import FIRST_BYTES, wire_of

try:
    from websockets.speedups import apply_mask
except ImportError:  # the package was built without its C extension
    from websockets.utils import apply_mask

#: Reply to bytes that are not a WebSocket request. It is HTTP, which nodes recognize.
_NO_WEB_SOCKET: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 28\r\n\r\nThis port speaks WebSocket.\n"
)

#: Longest head of an HTTP request or response, in bytes.
HEAD_LIMIT: Final = 16 * 1024
_TEXT: Final = 0x81
_MASKED: Final = 0x80
_WORD, _LONG_WORD = 126, 127
_END_OF_HEAD: Final = b"\r\n\r\n"


class TextFrames:
    """Reads and writes the frames of one connection.

    Complete text frames do not pass through the core of `websockets`, which takes 10.5 µs to
    receive one and 1.1 µs to write one. This takes 1.8 and 0.3 µs; the JSON of a small event
    takes 5.5 µs.

    Attributes:
        core: the protocol implementation.
        failure: why the connection cannot continue; empty while it can.
    """

    def __init__(self, core: ClientProtocol | ServerProtocol, limit: int) -> None:
        """Start a connection.

        Args:
            core: the protocol implementation, with the same `limit`.
            limit: largest message in bytes.
        """
        self.core = core
        self.failure = ""
        self._limit = limit
        #: Mask bit that the peer's frames must have.
        self._mask = _MASKED if isinstance(core, ServerProtocol) else 0
        self._own_mask = _MASKED - self._mask
        self._chunks: list[bytes] = []
        self._size = 0
        #: Bytes known to be needed for the next frame.
        self._needed = 0
        self._parts = bytearray()
        self._has_head = False
        #: Bytes to write in place of the core's reply.
        self._reply = b""
        self._refusal = _NO_WEB_SOCKET if self._mask else b""

    @property
    def held(self) -> int:
        """Buffered bytes of incomplete frames and messages."""
        return self._size + len(self._parts)

    def take(self, data: bytes) -> Iterator[str | Request | Response]:
        """Yield the head of the handshake and the texts in received bytes."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return
        buffer = data if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        offset = 0
        if self.core.state is not OPEN and not self._has_head:
            if self._is_other_wire(buffer):
                return
            offset = buffer.find(_END_OF_HEAD) + len(_END_OF_HEAD)
            if offset < len(_END_OF_HEAD):
                if len(buffer) > HEAD_LIMIT:
                    self.failure = f"the handshake is longer than {HEAD_LIMIT:,} B"
                self._keep(buffer, 0, 0)
                return
            self._has_head = True
            yield from self._heads(buffer[:offset])
        if self.failure:
            return
        if self.core.state is not OPEN:  # the rest can only be the body of a refusal
            yield from self._heads(buffer[offset:])
            return
        yield from self._frames(buffer, offset)

    def _heads(self, data: bytes) -> Iterator[Request | Response]:
        """Yield the head of the handshake; set `failure` if it is invalid."""
        self.core.receive_data(data)
        heads = cast("list[Any]", self.core.events_received())
        yield from heads
        exc = self.core.handshake_exc
        if exc is not None and not heads and not self.failure:
            self.failure = f"not a WebSocket handshake: {exc}"
            self._reply = self._refusal if isinstance(exc, InvalidMessage) else b""

    def end(self) -> Iterator[Request | Response]:
        """Yield a head whose body ended with the stream."""
        if self._has_head and self.core.state is not OPEN:
            self.core.receive_eof()
            yield from cast("list[Any]", self.core.events_received())

    def _is_other_wire(self, data: bytes) -> bool:
        """Return whether the first bytes are another protocol; `failure` names it."""
        start = b"GET " if self._mask else b"HTTP"
        if data[: len(start)] == start[: len(data)]:
            return False
        wire = wire_of(data[:FIRST_BYTES]) or "something else"
        self.failure = f"the peer speaks {wire}, not WebSocket"
        self._reply = self._refusal
        return True

    def _keep(self, buffer: bytes, offset: int, needed: int) -> None:
        """Buffer an incomplete frame."""
        rest = buffer[offset:] if offset else buffer
        self._chunks = [rest] if rest else []
        self._size, self._needed = len(rest), needed

    def _frames(self, buffer: bytes, offset: int) -> Iterator[str]:
        """Yield the texts in a run of frames."""
        end, mask, core = len(buffer), self._mask, self.core
        mask_size = 4 if mask else 0
        while not self.failure and core.state is OPEN:
            needed, length = 2, 0
            if end - offset >= needed:
                if buffer[offset + 1] & _MASKED != mask:  # the core answers with an error
                    yield from self._unusual(buffer[offset:])
                    return
                length = buffer[offset + 1] & 0x7F
                if length >= _WORD:
                    needed += 2 if length == _WORD else 8
                    length = int.from_bytes(buffer[offset + 2 : offset + needed])
                needed += mask_size
            if length > self._limit and end - offset >= needed:
                yield from self._unusual(buffer[offset:])
                return
            start = offset + needed
            if start + length > end:
                self._keep(buffer, offset, needed if start > end else needed + length)
                return
            stop = start + length
            if buffer[offset] == _TEXT and core.current_size is None:
                payload = buffer[start:stop]
                if mask_size:
                    payload = apply_mask(payload, buffer[start - 4 : start])
                yield from self._text(payload)
            else:
                yield from self._unusual(buffer[offset:stop])
            offset = stop

    def _text(self, payload: bytes) -> Iterator[str]:
        """Yield a payload as text; set `failure` if it is not UTF-8."""
        try:
            text = payload.decode()
        except UnicodeDecodeError as error:
            self.failure = f"a text is not UTF-8: {error.reason}"
            self.fail(CloseCode.INVALID_DATA, "a text must be UTF-8")
            return
        yield text

    def _unusual(self, frame: bytes) -> Iterator[str]:
        """Pass a frame to the core: a control frame, a fragment, or an invalid one."""
        core = self.core
        core.receive_data(frame)
        for event in core.events_received():
            if not isinstance(event, Frame):
                continue
            if event.opcode is Opcode.BINARY:
                self.failure = "a binary frame; messages must be texts"
                self.fail(CloseCode.UNSUPPORTED_DATA, "messages must be texts")
                return
            if event.opcode is Opcode.TEXT or event.opcode is Opcode.CONT:
                self._parts += event.data
                if event.fin:
                    message, self._parts = bytes(self._parts), bytearray()
                    yield from self._text(message)
        if core.parser_exc is not None:
            self.failure = self.failure or str(core.parser_exc) or "an invalid frame"
        elif core.close_rcvd is not None:
            close = core.close_rcvd
            self.failure = self.failure or f"closed by the peer: {close}"

    # --- sending ---

    def framed(self, message: str) -> bytes:
        """Return a message as a frame."""
        payload = message.encode()
        size = len(payload)
        if size < _WORD:
            head = bytes((_TEXT, size | self._own_mask))
        elif size < 1 << 16:
            head = bytes((_TEXT, _WORD | self._own_mask)) + size.to_bytes(2)
        else:
            head = bytes((_TEXT, _LONG_WORD | self._own_mask)) + size.to_bytes(8)
        if not self._own_mask:
            return head + payload
        key = token_bytes(4)
        return head + key + apply_mask(payload, key)

    def fail(self, code: CloseCode, reason: str) -> None:
        """Queue a close frame with the reason, if the connection still permits one."""
        try:
            self.core.send_close(code, reason)
        except InvalidState:
            pass

    def to_write(self) -> bytes:
        """Return the bytes to write since the last call."""
        reply, self._reply = self._reply, b""
        return b"".join((*self.core.data_to_send(), reply))
