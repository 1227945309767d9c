"""The driver of a connection over WebSocket: binary frames with the bytes of MQTT.

The sub-protocol is `mqtt` for 3.1.1 and 5 (MQTT 5, section 6), or `mqttv3.1`. A packet may span
frames, and a frame may hold several packets: the bytes of all frames are one stream. The core
of the package `websockets` implements the WebSocket protocol.
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
from callboard.mqtt.port.remote_link import ClientConnections, ClientState
from callboard.mqtt.port.stream import Entrance, TransportStream
from callboard.support.host_guard import Asking, HostGuard, Refusal, is_loopback

#: `mqttv3.1` is the name in use before MQTT 3.1.1; some clients offer nothing else.
SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
#: The first byte of a pong.
PONG: Final = 0x8A
#: The guard of a listener without a setting of hosts.
ANY: Final = HostGuard(hosts=("*",))
#: Bytes that a frame may be larger than a packet; the core limits the handshake itself.
HANDSHAKE_BYTES: Final = 64 * 1024


class WebSocketStream(TransportStream):
    """The `ClientWire` of a `RemoteLink` over WebSocket frames."""

    def __init__(
        self,
        connections: ClientConnections,
        entrance: Entrance,
        runner: Runner,
        origins: Sequence[str] = (),
        guard: HostGuard = ANY,
    ) -> None:
        """Start with the WebSocket handshake.

        Args:
            connections: the router's client connections.
            entrance: the listener that accepted the connection.
            runner: serves the connection.
            origins: web sites whose pages may connect. If it is empty, all may; but on a router
                without authentication, only pages of this machine.
            guard: the names under which the listener can be reached.
        """
        super().__init__(connections, entrance, runner)
        self._takes_all = bool(origins) or not connections.is_unguarded(entrance.address)
        self._guard = guard
        self._core = ServerProtocol(
            origins=[Origin(origin) for origin in origins] or None,
            subprotocols=SUBPROTOCOLS,
            max_size=2 * connections.limits.packet_size + HANDSHAKE_BYTES,
        )

    # --- calls of asyncio ---

    def data_received(self, data: bytes) -> None:
        """Pass on the payloads of the frames in a read."""
        self._core.receive_data(data)
        self._take_events()

    def eof_received(self) -> None:
        """Handle the client's end of the stream; the transport closes then."""
        self._core.receive_eof()
        self._take_events()

    # --- calls of the link ---

    def write(self, data: bytes) -> None:
        """Send bytes in one frame."""
        if self._core.state is OPEN:
            self._core.send_binary(data)
            self._send()

    def close(self) -> None:
        """Send a closing frame, and close after everything was sent."""
        self._fail(CloseCode.NORMAL_CLOSURE)

    # --- frames ---

    def _take_events(self) -> None:
        """Process the frames of a read."""
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
        """Return whether a malformed or closing frame arrived in the same read as the request.

        The core ignores the data after such a frame, because the connection was not open yet.
        """
        core = self._core
        is_wrong = core.parser_exc is not None and not isinstance(core.parser_exc, EOFError)
        return core.state is OPEN and (is_wrong or core.close_rcvd is not None)

    def _shake_hands(self, request: Request) -> None:
        """Answer the request, and start the link if it is accepted."""
        refusal = self._refusal(request)
        if refusal is None:
            response = self._core.accept(request)
        else:
            response = self._core.reject(refusal.status, f"{refusal.text}\n")
        self._core.send_response(response)

    def _refusal(self, request: Request) -> Refusal | None:
        """Return the reason to refuse a request; None to accept it."""
        values = request.headers.get_all
        sites = request.headers.get_all("Sec-Fetch-Site")
        asking = Asking(values("Host"), values("Origin"), "".join(sites), request.path)
        if (refusal := self._guard.host_refusal(asking, programs=True)) is not None:
            return refusal
        if asking.origins and self._is_foreign(asking.origins[0]):
            text = "pages of other sites may not connect; see origins"
            return Refusal(HTTPStatus.FORBIDDEN, text)
        return None

    def _is_foreign(self, origin: str) -> bool:
        """Return whether a page of another site could use a router without a guard."""
        if self._takes_all:
            return False
        try:
            name = urlsplit(origin).hostname or ""
        except ValueError:
            return True
        return not is_loopback(name)

    def _fail(self, code: CloseCode) -> None:
        """Send a closing frame, and close."""
        with suppress(InvalidState):
            self._core.send_close(code)
        self._send()
        self._hang_up()

    def _hang_up(self) -> None:
        """Close the connection after everything was sent."""
        super().close()
        if self.remote is not None and self.remote.state is not ClientState.CLOSING:
            self.remote.hang_up()

    def _send(self) -> None:
        """Write the output of the core."""
        for data in cast("list[Any]", self._core.data_to_send()):
            # Pongs are dropped for a client that sends pings but does not read.
            if data and not (self.is_full and data[0] == PONG):
                self._transport.write(data)
