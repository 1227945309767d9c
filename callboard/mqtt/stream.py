"""The driver of a connection over a byte stream: TCP, TLS or a Unix socket, on asyncio."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from callboard.mqtt.door import Door, Peer
from callboard.mqtt.remote_link import RemoteLink

WRITE_BUFFER: Final = 256 * 1024
"""Bytes that wait to be sent to a client before the router is told to wait."""


class Place(NamedTuple):
    """The listener that a connection came to."""

    address: str
    has_tenants: bool = False


class Stream(asyncio.Protocol):
    """Carries the bytes of a `RemoteLink`; it is the `Wire`."""

    __slots__ = ("_door", "_loop", "_place", "_transport", "is_full", "remote")

    _transport: asyncio.Transport
    remote: RemoteLink

    def __init__(self, door: Door, place: Place, loop: asyncio.AbstractEventLoop) -> None:
        self._door = door
        self._place = place
        self._loop = loop
        self.is_full = False

    # --- what asyncio calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER)
        if self._door.is_full():
            self._transport.abort()
        self.remote = RemoteLink(self._door, self, peer_of(self._transport, self._place))

    def data_received(self, data: bytes) -> None:
        """Hand a read on."""
        self.remote.receive(data)

    def pause_writing(self) -> None:
        """Take note that the client does not read."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Take note that it does again."""
        self.is_full = False
        self.remote.drained()

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell the link."""
        self.remote.lost()
        del self.remote  # it refers back, and both are to go at once

    # --- what the link calls ---

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._transport.write(data)

    def pause(self) -> None:
        """Stop reading."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close once everything has left."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something once, in a while."""
        self._loop.call_later(seconds, call)


def peer_of(transport: asyncio.BaseTransport, place: Place) -> Peer:
    """Return who is at the other end of a transport."""
    address = transport.get_extra_info("peername")
    certificate = transport.get_extra_info("peercert") or {}
    subject = {name: value for part in certificate.get("subject", ()) for name, value in part}
    tenant = subject.get("organizationName", "") if place.has_tenants else ""
    if isinstance(address, tuple):
        host, port = address[0], address[1]
        text = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return Peer(text, host, place.address, subject, tenant)
    return Peer("unix", "", place.address, subject, tenant)
