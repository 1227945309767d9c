"""The driver of a connection over an asyncio transport: TLS, and the base of WebSocket."""

import asyncio
import logging
import os
import re
import select
import socket
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from callboard.kernel.wire import Parting, Runner
from callboard.mqtt.access.admission import Peer
from callboard.mqtt.port.remote_link import ClientConnections, RemoteLink
from callboard.mqtt.wire.reason_code import ReasonCode

#: Unsent bytes to a client above which the router must wait.
WRITE_BUFFER: Final = 256 * 1024

#: An upper bound for the bytes that the system buffers for one connection.
MOST_ARRIVED: Final = 8 << 20


#: Short names of attributes in a subject (RFC 4514, section 3).
_SHORT_NAMES: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "street",
    "domainComponent": "DC",
    "userId": "UID",
}

_log = logging.getLogger("callboard.mqtt")


class Entrance(NamedTuple):
    """The listener that accepted a connection.

    Attributes:
        address: the address of the listener.
        has_tenants: whether certificates name tenants.
        names_subjects: whether users are whole subjects of certificates.
    """

    address: str
    has_tenants: bool = False
    names_subjects: bool = False


class TransportStream(asyncio.Protocol):
    """The `ClientWire` of a `RemoteLink` over a transport."""

    _transport: asyncio.Transport

    def __init__(
        self, connections: ClientConnections, entrance: Entrance, runner: Runner
    ) -> None:
        self._connections = connections
        self._entrance = entrance
        self._runner = runner
        self._kept: socket.socket | None = None
        self._parting: Parting | None = None
        self.is_full = False
        #: None until the connection is made, and after it has ended.
        self.remote: RemoteLink | None = None

    # --- calls of asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start waiting for a CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        problem = self._problem_of_certificate()
        if problem:
            _log.warning("a certificate at %s %s", self._entrance.address, problem)
            self._connections.figures.count_refusal(ReasonCode.NOT_AUTHORIZED)
            self._transport.abort()
        self.remote = RemoteLink(self._connections, self, self._peer())

    def _problem_of_certificate(self) -> str:
        """Return why the client's certificate does not tell who it is; empty if it does."""
        certificate = self._transport.get_extra_info("peercert") or {}
        names = [name for part in certificate.get("subject", ()) for name, _ in part]
        if names.count("commonName") > 1 and not self._entrance.names_subjects:
            return "has several common names"
        if not self._entrance.has_tenants:
            return ""
        if names.count("organizationName") > 1:
            return "has several organizations"
        return "" if _is_tenant(self._peer().tenant) else "does not name a tenant"

    def _peer(self) -> Peer:
        """Return the peer at the other end."""
        return peer_of(self._transport, self._entrance)

    def data_received(self, data: bytes) -> None:
        """Pass on the bytes of a read."""
        if self.remote is not None:
            self.remote.receive(data)

    def pause_writing(self) -> None:
        """Record that the client does not read."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Report that the client reads again."""
        self.is_full = False
        if self.remote is not None:
            self.remote.drained()

    def connection_lost(self, _error: Exception | None) -> None:
        """Notify the link; after our own close, wait first until the client closes, too."""
        sock, self._kept = self._kept, None
        if sock is None:
            self._ended()
        else:
            self._parting = Parting(self._runner, sock, self._ended)
            self._parting.begin()

    def _ended(self, _: object = None) -> None:
        """Notify the link that the socket is closed."""
        self._parting = None
        remote, self.remote = self.remote, None  # breaks the reference cycle
        if remote is not None:
            remote.lost()

    # --- calls of the link ---

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._transport.write(data)

    def pause(self) -> None:
        """Stop reading."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def read_arrived(self) -> None:
        """Read and pass on all that has arrived, as the loop does after a poll."""
        transport: Any = self._transport
        # asyncio lacks a public function for a read, nor for the transport below TLS.
        below = getattr(transport, "_ssl_protocol", None)
        socket_transport: Any = transport
        if below is not None:
            socket_transport = below._transport  # noqa: SLF001
            below._do_read()  # noqa: SLF001  (data decrypted while reading was paused)
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        for _ in range(MOST_ARRIVED // WRITE_BUFFER):
            if transport.is_closing() or not poll.poll(0):
                return
            socket_transport._read_ready()  # noqa: SLF001

    def close(self) -> None:
        """Close after everything was sent and the client has closed."""
        if not self._transport.is_closing():
            # The transport closes its descriptor even with unread bytes in it, so the
            # socket is duplicated.
            ours = self._transport.get_extra_info("socket")
            descriptor = os.dup(ours.fileno())
            self._kept = socket.socket(ours.family, ours.type, ours.proto, descriptor)
            self._transport.close()

    def end(self, reason: str) -> None:
        """Close because the client's certificate was revoked."""
        _log.warning("a client from %s ends: %s", self._entrance.address, reason)
        if self.remote is None:
            self.abort()
        else:
            self.remote.end(ReasonCode.NOT_AUTHORIZED)

    def abort(self) -> None:
        """Close at once."""
        if self._parting is not None:
            self._parting.abort()
        elif self._kept is not None:
            self._kept.close()
            self._kept = None
        self._transport.abort()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function once, after some seconds."""
        self._runner.loop.call_later(seconds, call)


def _is_tenant(name: str) -> bool:
    """Return whether an organisation can be one level of a topic, so that tenants are apart."""
    return name.isprintable() and bool(name) and not set("/+#") & set(name)


def peer_of(transport: asyncio.BaseTransport, entrance: Entrance) -> Peer:
    """Return the peer at the other end of a transport."""
    certificate = transport.get_extra_info("peercert") or {}
    subject = {name: value for part in certificate.get("subject", ()) for name, value in part}
    tenant = subject.get("organizationName", "") if entrance.has_tenants else ""
    source = host_of(transport.get_extra_info("peername"))
    whole = subject_text(certificate.get("subject", ())) if entrance.names_subjects else ""
    return Peer(*source, entrance.address, subject, tenant, subject=whole)


def subject_text(subject: tuple[tuple[tuple[str, str], ...], ...]) -> str:
    """Return a subject as text (RFC 4514), as mosquitto does: the last part first."""

    def escaped(text: str) -> str:
        text = re.sub(r'([,+"\\<>;])', r"\\\1", text)
        text = re.sub(r"^([ #])", r"\\\1", text)
        return re.sub(r" $", r"\\ ", text)

    return ",".join(
        "+".join(f"{_SHORT_NAMES.get(name, name)}={escaped(value)}" for name, value in part)
        for part in reversed(subject)
    )


def host_of(address: object) -> tuple[str, str]:
    """Return a socket address as text, and its host; the host of a Unix socket is empty."""
    if not isinstance(address, tuple):
        return "unix", ""
    host, port = address[0], address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}", host
