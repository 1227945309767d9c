"""The driver of a connection over WebSocket: binary frames with the bytes of MQTT.

Sub-protocol `mqtt` for 3.1.1 and 5 (MQTT 5, section 6). Packets and frames need not agree: the
bytes of all frames are one stream. The protocol itself is the core of the package `websockets`.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from callboard.mqtt.door import Door
from callboard.mqtt.remote_link import RemoteLink
from callboard.mqtt.stream import WRITE_BUFFER, Place, peer_of

SUBPROTOCOL: Final = Subprotocol("mqtt")
HANDSHAKE_BYTES: Final = 64 * 1024
"""A frame may be this much larger than a packet; the core limits the handshake itself."""


class WebSocketStream(asyncio.Protocol):
    """Carries the bytes of a `RemoteLink` in frames; it is the `Wire`."""

    _transport: asyncio.Transport

    def __init__(
        self,
        door: Door,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        origins: Sequence[str] = (),
    ) -> None:
        """Begin with the handshake.

        Args:
            door: what all connections share.
            place: the listener that it came to.
            loop: that runs it.
            origins: web sites whose pages may connect; empty for all.
        """
        self._door = door
        self._place = place
        self._loop = loop
        self._core = ServerProtocol(
            origins=[Origin(origin) for origin in origins] or None,
            subprotocols=[SUBPROTOCOL],
            max_size=2 * door.limits.packet_size + HANDSHAKE_BYTES,
        )
        self.is_full = False
        self.remote: RemoteLink | None = None
        self._deadline: asyncio.TimerHandle | None = None

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the handshake, not for ever."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        if self._door.is_full():
            self._transport.abort()
        patience = self._door.limits.connect_timeout
        if patience:
            self._deadline = self._loop.call_later(patience, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        """Hand on what the frames of a read hold."""
        self._core.receive_data(data)
        self._take_events()

    def eof_received(self) -> None:
        """Let the transport close."""
        self._core.receive_eof()
        self._take_events()

    def pause_writing(self) -> None:
        """Take note that the client does not read."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Take note that it does again."""
        self.is_full = False
        if self.remote is not None:
            self.remote.drained()

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell the link."""
        self._stop_deadline()
        if self.remote is not None:
            self.remote.lost()
            self.remote = None  # it refers back, and both are to go at once

    # --- what the link calls ---

    def write(self, data: bytes) -> None:
        """Send bytes in one frame."""
        if self._core.state is OPEN:
            self._core.send_binary(data)
            self._send()

    def pause(self) -> None:
        """Stop reading."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close with a closing frame, once everything has left."""
        self._fail(CloseCode.NORMAL_CLOSURE)

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something once, in a while."""
        self._loop.call_later(seconds, call)

    # --- frames ---

    def _take_events(self) -> None:
        payloads: list[bytes] = []
        for event in self._core.events_received():
            if isinstance(event, Request):
                self._shake_hands(event)
            elif isinstance(event, Frame):
                if event.opcode is Opcode.TEXT:
                    self._fail(CloseCode.UNSUPPORTED_DATA)
                elif event.opcode in {Opcode.BINARY, Opcode.CONT}:
                    payloads.append(bytes(event.data))
        self._send()
        if payloads and self.remote is not None:
            self.remote.receive(b"".join(payloads))
        if self._core.close_expected():
            self._transport.close()

    def _shake_hands(self, request: Request) -> None:
        response = self._core.accept(request)
        self._core.send_response(response)
        if response.status_code == 101:
            self._stop_deadline()
            self.remote = RemoteLink(self._door, self, peer_of(self._transport, self._place))

    def _fail(self, code: CloseCode) -> None:
        try:
            self._core.send_close(code)
        except InvalidState:
            pass
        self._send()
        self._transport.close()

    def _send(self) -> None:
        for data in cast("list[Any]", self._core.data_to_send()):
            if data:
                self._transport.write(data)
            elif self._transport.can_write_eof():
                self._transport.write_eof()

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
