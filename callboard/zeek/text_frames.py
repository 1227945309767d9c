"""Text frames of WebSocket (RFC 6455) in a stream of bytes, without input or output.

The protocol is the core of the package `websockets`. A whole text frame, nearly all there are,
is taken out of a read here; everything else goes through the core, frame by frame, so that it
never holds a part of one.
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
except ImportError:  # where the package was built without C
    from websockets.utils import apply_mask

#: What a port says to what is no request for WebSocket; nodes know HTTP when they see it.
_NO_WEB_SOCKET: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 28\r\n\r\nThis port speaks WebSocket.\n"
)

#: Bytes of an HTTP request or response.
HEAD_LIMIT: Final = 16 * 1024
_TEXT: Final = 0x81
_MASKED: Final = 0x80
_WORD, _LONG_WORD = 126, 127
_END_OF_HEAD: Final = b"\r\n\r\n"


class TextFrames:
    """The frames of one connection.

    Attributes:
        core: the protocol.
        failure: why the connection cannot go on; "" while it can.
    """

    def __init__(self, core: ClientProtocol | ServerProtocol, limit: int) -> None:
        """Take a connection that begins.

        Args:
            core: the protocol; its messages are as long as `limit`.
            limit: bytes of a message.
        """
        self.core = core
        self.failure = ""
        self._limit = limit
        #: What a frame of the other side has to be: masked or not.
        self._mask = _MASKED if isinstance(core, ServerProtocol) else 0
        self._own_mask = _MASKED - self._mask
        self._chunks: list[bytes] = []
        self._size = 0
        #: Bytes that the next frame needs, as far as is known.
        self._needed = 0
        self._parts = bytearray()
        self._has_head = False
        #: What is written where the core cannot answer.
        self._other = b""
        self._refusal = _NO_WEB_SOCKET if self._mask else b""

    @property
    def held(self) -> int:
        """Bytes that wait for more of them."""
        return self._size + len(self._parts)

    def take(self, data: bytes) -> Iterator[str | Request | Response]:
        """Yield what a read holds: the head of the handshake, then texts."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size < self._needed:
            return
        whole = data if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        at = 0
        if self.core.state is not OPEN and not self._has_head:
            if self._is_other_wire(whole):
                return
            at = whole.find(_END_OF_HEAD) + len(_END_OF_HEAD)
            if at < len(_END_OF_HEAD):
                if len(whole) > HEAD_LIMIT:
                    self.failure = f"{HEAD_LIMIT:,} B of a handshake, and no end"
                self._keep(whole, 0, 0)
                return
            self._has_head = True
            yield from self._heads(whole[:at])
        if self.failure:
            return
        if self.core.state is not OPEN:  # what follows is the body of a refusal, or nothing
            yield from self._heads(whole[at:])
            return
        yield from self._frames(whole, at)

    def _heads(self, data: bytes) -> Iterator[Request | Response]:
        """Yield the head of the handshake, or fail where it is none."""
        self.core.receive_data(data)
        found = cast("list[Any]", self.core.events_received())
        yield from found
        exc = self.core.handshake_exc
        if exc is not None and not found and not self.failure:
            self.failure = f"no WebSocket: {exc}"
            self._other = self._refusal if isinstance(exc, InvalidMessage) else b""

    def end(self) -> Iterator[Request | Response]:
        """Yield a head whose body goes to the end of the stream, which is here."""
        if self._has_head and self.core.state is not OPEN:
            self.core.receive_eof()
            yield from cast("list[Any]", self.core.events_received())

    def _is_other_wire(self, data: bytes) -> bool:
        """Fail where the first bytes are of no handshake, and name what they are of."""
        start = b"GET " if self._mask else b"HTTP"
        if data[: len(start)] == start[: len(data)]:
            return False
        wire = wire_of(data[:FIRST_BYTES]) or "something else"
        self.failure = f"it speaks {wire}, not WebSocket"
        self._other = self._refusal
        return True

    def _keep(self, whole: bytes, at: int, needed: int) -> None:
        """Keep what is no whole frame."""
        rest = whole[at:] if at else whole
        self._chunks = [rest] if rest else []
        self._size, self._needed = len(rest), needed

    def _frames(self, whole: bytes, at: int) -> Iterator[str]:
        """Yield the texts in a run of frames."""
        end, mask, core = len(whole), self._mask, self.core
        masked = 4 if mask else 0
        while not self.failure and core.state is OPEN:
            needed, length = 2, 0
            if end - at >= needed:
                if whole[at + 1] & _MASKED != mask:  # the core knows what to say to that
                    yield from self._unusual(whole[at:])
                    return
                length = whole[at + 1] & 0x7F
                if length >= _WORD:
                    needed += 2 if length == _WORD else 8
                    length = int.from_bytes(whole[at + 2 : at + needed])
                needed += masked
            if length > self._limit and end - at >= needed:
                yield from self._unusual(whole[at:])
                return
            start = at + needed
            if start + length > end:
                self._keep(whole, at, needed if start > end else needed + length)
                return
            stop = start + length
            if whole[at] == _TEXT and core.current_size is None:
                payload = whole[start:stop]
                if masked:
                    payload = apply_mask(payload, whole[start - 4 : start])
                yield from self._text(payload)
            else:
                yield from self._unusual(whole[at:stop])
            at = stop

    def _text(self, payload: bytes) -> Iterator[str]:
        """Yield a payload as text, or fail."""
        try:
            text = payload.decode()
        except UnicodeDecodeError as error:
            self.failure = f"a text that is no UTF-8: {error.reason}"
            self.fail(CloseCode.INVALID_DATA, "a text is UTF-8")
            return
        yield text

    def _unusual(self, frame: bytes) -> Iterator[str]:
        """Let the core take a frame: control frames, parts of messages, and what is wrong."""
        core = self.core
        core.receive_data(frame)
        for event in core.events_received():
            if not isinstance(event, Frame):
                continue
            if event.opcode is Opcode.BINARY:
                self.failure = "a binary frame; messages are texts"
                self.fail(CloseCode.UNSUPPORTED_DATA, "messages are texts")
                return
            if event.opcode is Opcode.TEXT or event.opcode is Opcode.CONT:
                self._parts += event.data
                if event.fin:
                    whole, self._parts = bytes(self._parts), bytearray()
                    yield from self._text(whole)
        if core.parser_exc is not None:
            self.failure = self.failure or str(core.parser_exc) or "a wrong frame"
        elif core.close_rcvd is not None:
            close = core.close_rcvd
            self.failure = self.failure or f"closed by the other side: {close}"

    # --- out ---

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
        """Say why the connection ends, if that can be said."""
        try:
            self.core.send_close(code, reason)
        except InvalidState:
            pass

    def to_write(self) -> bytes:
        """Return what is to be written since the last time."""
        other, self._other = self._other, b""
        return b"".join((*self.core.data_to_send(), other))
