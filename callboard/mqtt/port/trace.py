"""Traces: the packets of one client, in both directions.

A trace starts with the first request for it, keeps the last packets, and ends half a minute
after the last request, so without requests no packet is decoded.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from callboard.mqtt.port.remote_link import RemoteLink
from callboard.mqtt.wire.codec import decode_packet
from callboard.mqtt.wire.errors import RemoteMqttError
from callboard.mqtt.wire.framing import split_packets
from callboard.mqtt.wire.packet import Publish
from callboard.support.redaction import HIDDEN

#: Packets of one client that are kept for the next request.
KEPT: Final = 1_000
#: Seconds after the last request at which a trace ends.
PATIENCE: Final = 30.0
#: Clients that can be traced at a time.
MOST: Final = 16
#: Bytes of a payload that are shown.
SHOWN: Final = 64


class Trace:
    """The packets of one client."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.looked_at = clock()
        self.packets: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.count = 0
        self.version = 4
        self._clock = clock
        self.remote: RemoteLink | None = None

    def record(self, direction: str, data: bytes) -> None:
        """Add a chunk of whole packets, each as a dictionary."""
        for packet in split_packets(data):
            try:
                view = show_packet(packet, self.version)
            except RemoteMqttError as error:
                view = {"packet": "?", "error": str(error)}
            self.count += 1
            head = {"number": self.count, "time": self._clock(), "direction": direction}
            self.packets.append(head | view)


def show_packet(data: bytes, version: int) -> dict[str, Any]:
    """Return a packet as a dictionary of JSON values."""
    packet = decode_packet(data, version)
    view: dict[str, Any] = {"packet": type(packet).__name__, "bytes": len(data)}
    for name in type(packet).__slots__:
        value = getattr(packet, name)
        if name == "properties":
            if value is not None:
                view |= {
                    key: HIDDEN if key == "authentication_data" else _plain(item)
                    for key in type(value).__slots__
                    if (item := getattr(value, key)) not in (None, ())
                }
        elif name == "password":
            view[name] = None if value is None else HIDDEN
        elif name == "payload" and isinstance(packet, Publish):
            view["size"] = len(value)
            view["payload"] = value[:SHOWN].decode(errors="replace")
        else:
            view[name] = _plain(value)
    return view


def _plain(value: Any) -> Any:
    """Convert a value to a JSON value."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | str | bool | None) else str(value)


class Tracer:
    """The traces of a router; used on its thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._traces: dict[str, Trace] = {}

    def packets_since(
        self, client_id: str, remote: RemoteLink | None, since: int
    ) -> dict[str, Any] | None:
        """Return a client's packets after number `since`; None if too many clients are traced.

        The first request starts the trace. After a reconnect the next request continues it.
        """
        self._end_forgotten()
        if (trace := self._traces.get(client_id)) is None:
            if len(self._traces) >= MOST:
                return None
            trace = self._traces[client_id] = Trace(self._clock)
        trace.looked_at = self._clock()
        if remote is not trace.remote:
            trace.remote = remote
            if remote is not None and remote.link is not None:
                trace.version = remote.link.connect.version
                remote.tracer = trace.record
        packets = [packet for packet in trace.packets if packet["number"] > since]
        return {"connected": remote is not None, "count": trace.count, "packets": packets}

    def _end_forgotten(self) -> None:
        """End the traces without a recent request."""
        now = self._clock()
        for client_id, trace in list(self._traces.items()):
            if now - trace.looked_at > PATIENCE:
                if trace.remote is not None:
                    trace.remote.tracer = None
                del self._traces[client_id]
