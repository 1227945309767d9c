"""Recording stand-ins for a connection and a router's mailbox."""

from callboard.mqtt.access.admission import Peer
from callboard.mqtt.access.auth import AuthGate
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.remote_link import ClientConnections, RemoteLink
from callboard.mqtt.router.link import ConnectRequested as ConnectEvent
from callboard.mqtt.router.link import DeviceData, Disconnected, DisconnectRequested, Ready
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.packet import V4, V5, ConnAck, Connect
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.stage import deliver


def incoming(link):
    """Return what lies in a link's incoming buffer, and empty it, as the router does."""
    taken = link.incoming[:]
    link.incoming.clear()
    return taken


class FakeWire:
    """A `Wire` that records all calls."""

    def __init__(self):
        self.is_full = False
        self.written = b""
        self.is_paused = False
        self.is_closed = False
        self.is_aborted = False
        self.waiting = []

    def write(self, data):
        self.written += data

    def pause(self):
        self.is_paused = True

    def resume(self):
        self.is_paused = False

    def close(self):
        self.is_closed = True

    def abort(self):
        self.is_aborted = True

    def later(self, seconds, call):
        self.waiting.append((seconds, call))

    def run_waiting(self):
        """Run the waiting calls."""
        waiting, self.waiting = self.waiting, []
        for _, call in waiting:
            call()


class FakeRouter:
    """A mailbox that keeps events."""

    def __init__(self):
        self.events = []

    def post(self, event):
        self.events.append(event)

    def kinds(self):
        return [type(event) for event in self.events]


class Edge:
    """A door with a clock that tests move, and one connection."""

    def __init__(self, gate=None, make_screen=None, **limits):
        self.now = 0.0
        self.router = FakeRouter()
        network = NetworkLimits(**limits)
        self.connections = ClientConnections(
            self.router, lambda: self.now, network, gate or AuthGate()
        )
        self.connections.make_screen = make_screen
        self.wire = FakeWire()
        self.remote = RemoteLink(self.connections, self.wire, Peer("192.0.2.1:7", "192.0.2.1"))

    def connect(self, version=V4, **fields):
        """Send a CONNECT."""
        if version == V5:
            fields.setdefault("properties", Properties())
        packet = Connect(fields.pop("client_id", "c"), version=version, **fields)
        self.remote.receive(encode(packet, version))
        return self

    def opened(self, version=V4, **fields):
        """Send a CONNECT and let the router answer."""
        self.connect(version, **fields)
        self.deliver(encode(ConnAck(), version))
        self.wire.written = b""
        self.router.events.clear()
        return self

    def deliver(self, *notifications):
        """Send packets from the router."""
        deliver(self.remote.link, list(notifications))
        self.connections.write_all()

    def end(self, reason=ReasonCode.NORMAL_DISCONNECTION):
        """End the connection from the router's side."""
        self.deliver(Disconnected(reason))

    def pass_time(self, seconds):
        """Run the one timer once a second."""
        for _ in range(seconds):
            self.now += 1
            self.connections.check()


__all__ = [
    "ConnectEvent",
    "DeviceData",
    "DisconnectRequested",
    "Edge",
    "FakeRouter",
    "FakeWire",
    "Ready",
]
