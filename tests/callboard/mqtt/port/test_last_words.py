"""The router's last packet arrives, even if the client keeps sending."""

import socket
import threading

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.uri import parse_uri

from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.access.auth import Security
from callboard.mqtt.access.ban import BanList
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.codec import decode_all, encode
from callboard.mqtt.wire.framing import Deframer
from callboard.mqtt.wire.packet import V5, ConnAck, Connect, Disconnect, Publish, PubRec
from callboard.mqtt.wire.properties import NO_PROPERTIES
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.polling import eventually
from tests.proxies.papers import Papers

pytestmark = pytest.mark.slow

TIMES = 30
#: What follows the packet that ends a connection.
FLOOD = encode(Publish("flood", bytes(60_000), properties=NO_PROPERTIES), V5) * 100
KINDS = ("tcp", "unix", "tls", "ws", "wss")


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("tls") / "ours")


class Place:
    """A router with one listener, and clients of it that send and read by hand."""

    def __init__(self, kind, papers, folder, **config):
        self.kind = kind
        self.papers = papers
        self.path = str(folder / "mqtt.sock")
        address = f"unix:{self.path}" if kind == "unix" else f"{kind}://127.0.0.1:0"
        tls = papers.tls() if kind in {"tls", "wss"} else None
        listener = ListenerSettings(address, tls)
        self.router = Router(RouterConfig(listeners=(listener,), sys_interval=0, **config))

    def dial(self):
        if self.kind == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(self.path)
        else:
            sock = socket.create_connection(("127.0.0.1", self.router.port))
        sock.settimeout(20)
        if self.kind in {"tls", "wss"}:
            context = self.papers.tls().for_dialing()
            sock = context.wrap_socket(sock, server_hostname="localhost")
        return Web(sock) if self.kind in {"ws", "wss"} else sock

    def connections(self):
        edge = self.router.edge
        return self.router.call(lambda: len(edge.connections.links))

    def clients(self):
        """Count the connections that have a session."""
        connections = self.router.edge.connections
        return self.router.call(lambda: sum(bool(each.client_id) for each in connections.links))


class Web:
    """Bytes in frames over a socket that blocks."""

    def __init__(self, sock):
        self.socket = sock
        self.core = ClientProtocol(parse_uri("ws://localhost/mqtt"), subprotocols=["mqtt"])
        self.core.send_request(self.core.connect())
        self.send_all()
        self.take()

    def send_all(self):
        self.socket.sendall(b"".join(self.core.data_to_send()))

    def take(self):
        data = self.socket.recv(65_536)
        self.core.receive_data(data) if data else self.core.receive_eof()
        frames = [each for each in self.core.events_received() if isinstance(each, Frame)]
        return bool(data), b"".join(each.data for each in frames if each.opcode == 2)

    def sendall(self, data):
        for at in range(0, len(data), 50_000):
            self.core.send_binary(data[at : at + 50_000])
            self.send_all()

    def recv(self, _):
        there, data = self.take()
        while there and not data:
            there, data = self.take()
        if not there:
            assert self.core.close_rcvd is not None, "no closing frame came"
        return data

    def close(self):
        self.socket.close()


def hello(client_id="", **fields):
    return encode(Connect(client_id, version=V5, properties=NO_PROPERTIES, **fields), V5)


def packets_of(sock):
    """Return all packets that come until the end."""
    network, found = Deframer(), []
    while data := sock.recv(65_536):
        found += decode_all(network.receive(data), V5)
    return found


@pytest.fixture(params=KINDS)
def place(request, papers, tmp_path):
    limits = Limits(receive_maximum=20)
    place = Place(request.param, papers, tmp_path, limits=limits)
    with place.router:
        yield place


def times(place):
    return TIMES if place.kind == "tcp" else 5


def test_a_client_is_told_why_its_packet_is_invalid(place):
    for _ in range(times(place)):
        sock = place.dial()
        sock.sendall(hello() + b"\xf7\x00" + FLOOD)
        greeting, last = packets_of(sock)
        sock.close()
        assert isinstance(greeting, ConnAck)
        assert isinstance(last, Disconnect)
        assert last.reason_code == ReasonCode.MALFORMED_PACKET
    eventually(lambda: not place.connections())


def test_a_client_is_told_that_another_connection_took_its_session(place):
    for _ in range(times(place)):
        first, second = place.dial(), place.dial()
        first.sendall(hello("c"))
        assert first.recv(65_536)  # it is in
        flooding = threading.Thread(target=first.sendall, args=(FLOOD * 3,))
        flooding.start()
        second.sendall(hello("c"))
        flooding.join()
        last = packets_of(first)[-1]
        assert isinstance(last, Disconnect)
        assert last.reason_code == ReasonCode.SESSION_TAKEN_OVER
        first.close()
        second.close()


def test_a_client_that_exceeds_its_quota_is_told_while_it_keeps_sending(place):
    """One thread publishes with QoS 2 and releases nothing; another reads."""
    publishes = [
        encode(Publish("a", bytes(5_000), 2, packet_id=at, properties=NO_PROPERTIES), V5)
        for at in range(1, 1_001)
    ]
    for _ in range(times(place)):
        sock = place.dial()
        sock.sendall(hello())
        found = []
        reader = threading.Thread(target=lambda: found.extend(packets_of(sock)))  # noqa: B023
        if place.kind in {"tcp", "unix"}:
            reader.start()
        for each in publishes:
            sock.sendall(each)
        if place.kind not in {"tcp", "unix"}:  # these objects are for one thread
            reader.start()
        reader.join()
        *acknowledged, last = found[1:]
        assert [each.packet_id for each in acknowledged] == list(range(1, 21))[: len(found) - 2]
        assert all(isinstance(each, PubRec) for each in acknowledged)
        assert isinstance(last, Disconnect)
        assert last.reason_code == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
        sock.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_client_is_told_the_reason(kind, papers, tmp_path):
    security = Security(bans=BanList(["client:c"]))
    place = Place(kind, papers, tmp_path, security=security)
    with place.router:
        for _ in range(times(place)):
            sock = place.dial()
            sock.sendall(hello("c") + FLOOD)
            (greeting,) = packets_of(sock)
            sock.close()
            assert greeting.reason_code == ReasonCode.BANNED


@pytest.mark.parametrize("kind", KINDS)
def test_clients_are_told_that_the_router_ends(kind, papers, tmp_path):
    place = Place(kind, papers, tmp_path)
    with place.router:
        clients = [place.dial() for _ in range(5)]
        floods = []
        for each in clients:
            each.sendall(hello())
            floods.append(threading.Thread(target=each.sendall, args=(FLOOD,)))
            floods[-1].start()
        eventually(lambda: place.clients() == len(clients))
        place.router.close()
        for flooding, sock in zip(floods, clients, strict=True):
            flooding.join()
            last = packets_of(sock)[-1]
            sock.close()
            assert isinstance(last, Disconnect)
            assert last.reason_code == ReasonCode.SERVER_SHUTTING_DOWN


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_does_not_close_is_counted_and_loses_its_place(kind, papers, tmp_path):
    place = Place(kind, papers, tmp_path, network=NetworkLimits(linger=1.5))
    with place.router:
        sock = place.dial()
        sock.sendall(hello() + b"\xf7\x00")
        said = b""
        while b"\xe0" not in said:
            said += sock.recv(65_536)
        assert place.connections() == 1
        eventually(lambda: not place.connections())
        sock.close()
