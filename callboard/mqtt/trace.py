"""What one client sends and gets, packet by packet, for whoever looks.

A trace begins when somebody asks for it, keeps the last packets, and ends when nobody has asked
for half a minute: a router that nobody looks into decodes nothing.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from callboard.mqtt.codec import decode
from callboard.mqtt.errors import RemoteMqttError
from callboard.mqtt.framing import body_start, packet_end
from callboard.mqtt.packet import Publish

if TYPE_CHECKING:
    from callboard.mqtt.remote_link import RemoteLink

KEPT: Final = 1_000
"""Packets of one client that wait for the next look."""
PATIENCE: Final = 30.0
"""Seconds without a look after which a trace ends."""
MOST: Final = 16
"""Clients that are traced at a time."""
SHOWN: Final = 64
"""Bytes of a payload that are shown."""


class Trace:
    """The packets of one client."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.looked_at = clock()
        self.packets: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.count = 0
        self.version = 4
        self._clock = clock
        self.remote: RemoteLink | None = None

    def note(self, direction: str, data: bytes) -> None:
        """Take a chunk of whole packets."""
        position = 0
        while position < len(data):
            end = packet_end(data, position)
            self._add(direction, data[position:end])
            position = end

    def _add(self, direction: str, packet: bytes) -> None:
        try:
            shown = show_packet(packet, self.version)
        except RemoteMqttError as error:
            shown = {"packet": "?", "error": str(error)}
        self.count += 1
        self.packets.append(
            {"number": self.count, "time": self._clock(), "direction": direction, **shown}
        )


def show_packet(data: bytes, version: int) -> dict[str, Any]:
    """Return a packet as values that JSON has."""
    packet = decode(data[0], data[body_start(data) :], version)
    shown: dict[str, Any] = {"packet": type(packet).__name__, "bytes": len(data)}
    for name in type(packet).__slots__:
        value = getattr(packet, name)
        if name == "properties":
            if value is not None:
                shown |= {
                    key: _plain(each)
                    for key in type(value).__slots__
                    if (each := getattr(value, key)) not in (None, ())
                }
        elif name == "payload" and isinstance(packet, Publish):
            shown["size"] = len(value)
            shown["payload"] = value[:SHOWN].decode(errors="replace")
        else:
            shown[name] = _plain(value)
    return shown


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, int | str | bool | None) else str(value)


class Tracer:
    """The traces of a router; used on its thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._traces: dict[str, Trace] = {}

    def look(
        self, client_id: str, remote: "RemoteLink | None", since: int
    ) -> dict[str, Any] | None:
        """Return a client's packets after number `since`; None when too many are traced.

        The first look begins the trace; a client that connects again is found by the next one.
        """
        self._end_forgotten()
        trace = self._traces.get(client_id)
        if trace is None:
            if len(self._traces) >= MOST:
                return None
            trace = self._traces[client_id] = Trace(self._clock)
        trace.looked_at = self._clock()
        if remote is not trace.remote:
            trace.remote = remote
            if remote is not None and remote.link is not None:
                trace.version = remote.link.connect.version
                remote.tracer = trace.note
        packets = [each for each in trace.packets if each["number"] > since]
        return {"connected": remote is not None, "count": trace.count, "packets": packets}

    def _end_forgotten(self) -> None:
        now = self._clock()
        for client_id, trace in list(self._traces.items()):
            if now - trace.looked_at > PATIENCE:
                if trace.remote is not None:
                    trace.remote.tracer = None
                del self._traces[client_id]
