"""The driver of a connection over WebSocket: binary frames with the bytes of MQTT.

Sub-protocol `mqtt` for 3.1.1 and 5 (MQTT 5, section 6). Packets and frames need not agree: the
bytes of all frames are one stream. The protocol itself is the core of the package `websockets`.
"""

from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import urlsplit

from websockets.exceptions import InvalidState
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from callboard.kernel.wire import Runner
from callboard.mqtt.port.remote_link import ClientState, Door
from callboard.mqtt.port.stream import Entrance, TransportStream
from callboard.support.host_guard import Asking, HostGuard, Refusal, is_loopback

SUBPROTOCOL: Final = Subprotocol("mqtt")
#: The first byte of a pong.
PONG: Final = 0x8A
#: The guard of a listener that says nothing of its hosts.
ANY: Final = HostGuard(hosts=("*",))
#: A frame may be this much larger than a packet; the core limits the handshake itself.
HANDSHAKE_BYTES: Final = 64 * 1024


class WebSocketStream(TransportStream):
    """Carries the bytes of a `RemoteLink` in frames; it is the `Wire`."""

    def __init__(
        self,
        door: Door,
        entrance: Entrance,
        runner: Runner,
        origins: Sequence[str] = (),
        guard: HostGuard = ANY,
    ) -> None:
        """Begin with the handshake.

        Args:
            door: what all connections share.
            entrance: the listener that it came to.
            runner: that serves it.
            origins: web sites whose pages may connect; empty for all, but where everybody may
                do everything for those of this machine.
            guard: hosts by which the listener is reached.
        """
        super().__init__(door, entrance, runner)
        self._takes_all = bool(origins) or not door.is_unguarded()
        self._guard = guard
        self._core = ServerProtocol(
            origins=[Origin(origin) for origin in origins] or None,
            subprotocols=[SUBPROTOCOL],
            max_size=2 * door.limits.packet_size + HANDSHAKE_BYTES,
        )

    # --- what asyncio calls ---

    def data_received(self, data: bytes) -> None:
        """Hand on what the frames of a read hold."""
        self._core.receive_data(data)
        self._take_events()

    def eof_received(self) -> None:
        """Let the transport close."""
        self._core.receive_eof()
        self._take_events()

    # --- what the link calls ---

    def write(self, data: bytes) -> None:
        """Send bytes in one frame."""
        if self._core.state is OPEN:
            self._core.send_binary(data)
            self._send()

    def close(self) -> None:
        """Close with a closing frame, once everything has left."""
        self._fail(CloseCode.NORMAL_CLOSURE)

    # --- frames ---

    def _take_events(self) -> None:
        """Take what the core found in the frames of a read."""
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
        if self._has_ended_early():
            self._fail(CloseCode.PROTOCOL_ERROR)
        elif self._core.close_expected():
            self._hang_up()

    def _has_ended_early(self) -> bool:
        """Return whether a wrong frame, or a closing one, came in one read with the request.

        The core reads nothing behind it, and says nothing, as the connection was not open yet.
        """
        core = self._core
        is_wrong = core.parser_exc is not None and not isinstance(core.parser_exc, EOFError)
        return core.state is OPEN and (is_wrong or core.close_rcvd is not None)

    def _shake_hands(self, request: Request) -> None:
        """Answer the request, and begin the link if it is accepted."""
        refusal = self._refusal(request)
        if refusal is None:
            response = self._core.accept(request)
        else:
            response = self._core.reject(refusal.status, f"{refusal.text}\n")
        self._core.send_response(response)

    def _refusal(self, request: Request) -> Refusal | None:
        """Return why a request is refused before the handshake; None if it is not."""
        found = request.headers.get_all
        fetched = request.headers.get_all("Sec-Fetch-Site")
        asking = Asking(found("Host"), found("Origin"), "".join(fetched), request.path)
        if (refusal := self._guard.host_refusal(asking, programs=True)) is not None:
            return refusal
        if asking.origins and self._is_foreign(asking.origins[0]):
            text = "pages of other sites may not connect; see origins"
            return Refusal(HTTPStatus.FORBIDDEN, text)
        return None

    def _is_foreign(self, origin: str) -> bool:
        """Return whether a page of another site would do here what it likes."""
        if self._takes_all:
            return False
        try:
            name = urlsplit(origin).hostname or ""
        except ValueError:
            return True
        return not is_loopback(name)

    def _fail(self, code: CloseCode) -> None:
        """Close with a closing frame."""
        with suppress(InvalidState):
            self._core.send_close(code)
        self._send()
        self._hang_up()

    def _hang_up(self) -> None:
        """Let the connection end behind what was written."""
        super().close()
        if self.remote is not None and self.remote.state is not ClientState.CLOSING:
            self.remote.hang_up()

    def _send(self) -> None:
        """Write what the core wants to send."""
        for data in cast("list[Any]", self._core.data_to_send()):
            # A client that sends pings and reads no pongs would have us keep them.
            if data and not (self.is_full and data[0] == PONG):
                self._transport.write(data)
