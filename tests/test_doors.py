"""All doors of a program, each with the same checks.

`DOORS` is the register: whoever opens another door enters it here, and the checks run on it.
What a door lacks on purpose is said in `WITHOUT`. docs/security.md has it as a table.
"""

import contextlib
import re
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import callboard
from callboard import Endpoint, Limits, Node, web
from callboard.basp.handshake import LinkConfig
from callboard.basp.header import HEADER
from callboard.broker import Configuration
from callboard.dashboard import DashboardServer
from callboard.gateway.modules.http import HttpModule
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.packet import V4, Connect
from callboard.operation.health import HealthServer
from callboard.pages import PageServer, text_page
from callboard.proxies.link import connector, tls_socket
from callboard.zeek.doors import broker_peering
from callboard.zeek.doors.web_socket_server import WebSocketLimits
from tests.polling import eventually
from tests.proxies.papers import Papers

ROOT = Path(callboard.__file__).parent.parent
#: Connections in all, and strangers of one address, at the doors of these tests.
MOST, MOST_OF_ADDRESS = 5, 3
#: Seconds that a stranger has.
PATIENCE = 1.0
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)
ZEEK_UPGRADE = UPGRADE.replace(b"/mqtt ", b"/v1/messages/json ")
LONG_LINE = b"GET /" + b"a" * 128 * 1024
GET = b"GET / HTTP/1.0\r\n\r\n"
CONNECT = encode(Connect("honest"), V4)
HUGE_PACKET = b"\x10\xff\xff\xff\x7f"
HUGE_FRAME = HEADER.pack(0, 0xFFFF_FFFF, 0, bytes(18), bytes(18), 0, 0)
#: A client's handshake of CAF, with a payload of 4 GiB.
HUGE_CAF_FRAME = b"\x01\0\0\0" + b"\xff" * 4 + bytes(24)
HUGE_RECORD = b"\x16\x03\x01\xff\xff" + bytes(64)


@dataclass
class Place:
    """Where doors are opened, and what is closed afterwards."""

    folder: Path
    stack: contextlib.ExitStack
    patience: float
    papers: Papers = field(init=False)

    def __post_init__(self) -> None:
        self.papers = Papers(self.folder / "papers")

    def node(self, address: str = "127.0.0.1", *, tls: bool = False) -> object:
        limits = Limits(handshakes=MOST, handshakes_per_address=MOST_OF_ADDRESS)
        papers = self.papers.tls() if tls else None
        node = self.stack.enter_context(Node(tls=papers, limits=limits))
        return node.listen(address) or address.removeprefix("unix:")

    def router(self, address: str) -> object:
        tls = self.papers.tls(mutual=False) if "s://" in address else None
        network = NetworkLimits(
            strangers=MOST, strangers_per_address=MOST_OF_ADDRESS, connect_timeout=self.patience
        )
        settings = (ListenerSettings(address, tls),)
        config = RouterConfig(listeners=settings, network=network, sys_interval=0)
        router = self.stack.enter_context(Router(config))
        return router.port or address.removeprefix("unix:")

    def pages(self) -> object:
        server = PageServer({"/": lambda: text_page("here")})
        self.stack.callback(server.close)
        return server.port

    def health(self) -> object:
        node = self.stack.enter_context(Node())
        server = HealthServer(node, "127.0.0.1", 0)
        self.stack.callback(server.close)
        return server.port

    def dashboard(self, *, tls: bool = False) -> object:
        node = self.stack.enter_context(Node())
        folder = None
        if tls:
            folder = self.folder / "dashboard"
            folder.mkdir()
            paper = self.papers.issue("127.0.0.1")
            for name in ("certificate.pem", "key.pem"):
                shutil.copy(paper, folder / name)
        server = self.stack.enter_context(DashboardServer(node, tls=folder))
        return server.port

    def gateway(self) -> object:
        module = HttpModule()
        module._actor = SimpleNamespace(name="door")
        module.create({"listen": "127.0.0.1:0"})
        module.start()
        self.stack.callback(module.destroy)
        return int(module._server.port)

    def zeek(self, *, tls: bool = False) -> object:
        limits = WebSocketLimits(MOST, MOST_OF_ADDRESS, handshake=self.patience)
        papers = self.papers.tls(mutual=False) if tls else None
        endpoint = self.stack.enter_context(Endpoint())
        return endpoint.listen_web_socket(tls=papers, limits=limits)

    def broker(self, wire: str, *, tls: bool = False) -> object:
        limits = Limits(handshakes=MOST, handshakes_per_address=MOST_OF_ADDRESS)
        node = self.stack.enter_context(Node(limits=limits))
        given = Configuration()
        given.options.disable_ssl = not tls
        if tls:
            given.openssl_certificate = str(self.papers.issue("127.0.0.1"))
        endpoint = self.stack.enter_context(Endpoint(given, node=node))
        return endpoint.listen("127.0.0.1", 0, wire=wire)


@dataclass(frozen=True)
class Door:
    """One kind of port.

    Attributes:
        open: opens it; returns the port, or the path of a Unix socket.
        hello: what a stranger begins with, and does not end.
        huge: what announces more than a stranger may say, or is more.
        honest: what an honest client says first; the door answers.
        has_tls: whether honest clients speak TLS.
    """

    open: Callable[[Place], object]
    hello: bytes
    huge: bytes
    honest: bytes
    has_tls: bool = False


DOORS = {
    "basp": Door(Place.node, b"\x00", HUGE_FRAME, b""),
    "basp unix": Door(
        lambda place: place.node(f"unix:{place.folder}/node"), b"\x00", HUGE_FRAME, b""
    ),
    "basp tls": Door(partial(Place.node, tls=True), TLS_HELLO, HUGE_RECORD, b"", has_tls=True),
    "mqtt": Door(lambda place: place.router("127.0.0.1:0"), b"\x10", HUGE_PACKET, CONNECT),
    "mqtt unix": Door(
        lambda place: place.router(f"unix:{place.folder}/mqtt"), b"\x10", HUGE_PACKET, CONNECT
    ),
    "mqtt tls": Door(
        lambda place: place.router("tls://127.0.0.1:0"),
        TLS_HELLO,
        HUGE_RECORD,
        CONNECT,
        has_tls=True,
    ),
    "mqtt ws": Door(
        lambda place: place.router("ws://127.0.0.1:0"), b"GET /", LONG_LINE, UPGRADE
    ),
    "mqtt wss": Door(
        lambda place: place.router("wss://127.0.0.1:0"),
        TLS_HELLO,
        HUGE_RECORD,
        UPGRADE,
        has_tls=True,
    ),
    "zeek ws": Door(Place.zeek, b"GET /", LONG_LINE, ZEEK_UPGRADE),
    "zeek wss": Door(
        partial(Place.zeek, tls=True), TLS_HELLO, HUGE_RECORD, ZEEK_UPGRADE, has_tls=True
    ),
    "zeek-2": Door(
        lambda place: place.broker("zeek-2"),
        b"\x00\x10\x00\x00",  # a frame of a MiB, which comes byte by byte
        b"\x7f\xff\xff\xff",
        b"\x00",
    ),
    "zeek-2 tls": Door(
        lambda place: place.broker("zeek-2", tls=True),
        TLS_HELLO,
        HUGE_RECORD,
        b"\x00",
        has_tls=True,
    ),
    "zeek-1.4": Door(lambda place: place.broker("zeek-1.4"), b"\x01", HUGE_CAF_FRAME, b"\x01"),
    "zeek-1.4 tls": Door(
        lambda place: place.broker("zeek-1.4", tls=True),
        TLS_HELLO,
        HUGE_RECORD,
        b"\x01",
        has_tls=True,
    ),
    "pages": Door(Place.pages, b"GET /", LONG_LINE, GET),
    "health": Door(Place.health, b"GET /", LONG_LINE, GET),
    "dashboard": Door(Place.dashboard, b"GET /", LONG_LINE, GET),
    "dashboard tls": Door(
        partial(Place.dashboard, tls=True), TLS_HELLO, HUGE_RECORD, GET, has_tls=True
    ),
    "gateway http": Door(Place.gateway, b"GET /", LONG_LINE, GET),
}

#: What a door lacks, and why that is right.
WITHOUT = {
    ("mqtt unix", "address"): "all clients of a Unix socket are on this machine",
}

#: Every file that opens a socket, and the doors that it opens.
OPENERS = {
    "proxies/link/network.py": (
        "basp, basp unix, basp tls, zeek ws, zeek wss, zeek-2, zeek-1.4, their TLS"
    ),
    "proxies/link/discovery.py": "finds out whether an address is ours; it sends nothing",
    "proxies/workers/pool.py": "pairs with our own workers; strangers do not reach them",
    "proxies/worker_process.py": "the worker's ends of these",
    "callboard/mqtt/port/listener.py": "mqtt, mqtt unix, mqtt tls, mqtt ws, mqtt wss",
    "callboard/mqtt/port/stream.py": "keeps an accepted one",
    "callboard/mqtt/port/socket_stream.py": "keeps an accepted one",
    "callboard/mqtt/service/bridge.py": "dials",
    "callboard/web.py": "pages, health, gateway http",
    "callboard/support/after_fork.py": "takes copies of sockets over to close them",
    "callboard/entity/state/member_sockets.py": "tries whether a member's basp unix is in use",
    "callboard/dashboard/server.py": "dashboard, dashboard tls",
    "callboard/dashboard/port.py": "accepts at these",
    "callboard/demo/page.py": "hands its socket to a dashboard's process",
    "callboard/cli/work/log_server.py": "sees whether a port is free, and closes it",
    "callboard/commitlog/remote/guard.py": "cuts connections of Flight, which has own bounds",
    "callboard/zeek/doors/zeromq_socket.py": "ZeroMQ: its own bounds; a public one needs keys",
    "callboard/flow/zeromq.py": "ZeroMQ: its own bounds; a public one has to be wanted",
    "callboard/gateway/outprocess.py": "channels with processes of the gateway's own",
    "callboard/gateway/outprocess_host.py": "the other ends of these",
    "callboard/pipeline/process/fork_server.py": "a socket in a folder of the user's alone",
    "callboard/pipeline/process/worker_python.py": "dials it",
    "callboard/operation/notify.py": "tells systemd",
    "callboard/demo/line.py": "finds a free port, and closes it",
}
_OPENS = re.compile(
    r"\bsocket\.(socket|socketpair|create_server|create_connection|fromfd)\(|create_server\("
    r"|start_server\(|open_connection\(|HTTPServer\b|pynng\.\w+\(|zmq\.Context"
    r"|create_datagram_endpoint|connect_accepted_socket"
)

#: Every file that makes TLS.
ENCRYPTS = {
    "callboard/tls/contexts.py",
    "callboard/broker/tls.py",
    "callboard/gateway/modules/mqtt.py",  # paho's own, with the system's authorities
}
_ENCRYPTS = re.compile(r"ssl\.SSLContext\(\w|create_default_context|tls_set\(|wrap_socket\(")


def doors(check: str) -> Any:
    """Run a test on each door that is to have a check."""
    names = [name for name in DOORS if (name, check) not in WITHOUT]
    return pytest.mark.parametrize("name", names)


@pytest.fixture
def patience() -> float:
    return PATIENCE


@pytest.fixture
def opened(name: str, patience: float, tmp_path, monkeypatch) -> Iterator["Opened"]:
    monkeypatch.setattr(web, "CONNECTIONS", MOST)
    monkeypatch.setattr(web, "CONNECTIONS_PER_ADDRESS", MOST_OF_ADDRESS)
    monkeypatch.setattr(web, "REQUEST_LIMIT", patience)
    monkeypatch.setattr(tls_socket, "HANDSHAKE_LIMIT", patience)
    monkeypatch.setattr(broker_peering, "HANDSHAKE_LIMIT", patience)
    hurried = partial(LinkConfig, handshake_timeout=patience)
    monkeypatch.setattr(connector, "LinkConfig", hurried)
    with contextlib.ExitStack() as stack:
        place = Place(tmp_path, stack, patience)
        yield Opened(DOORS[name], DOORS[name].open(place), stack)


@dataclass
class Opened:
    """An open door, and those who come."""

    door: Door
    where: Any
    stack: contextlib.ExitStack

    def dial(self, source: str = "127.0.0.1") -> socket.socket:
        if isinstance(self.where, str):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(5)
            sock.connect(self.where)
        else:
            sock = socket.create_connection(("127.0.0.1", self.where), 5, (source, 0))
        return self.stack.enter_context(sock)

    def stranger(self, source: str = "127.0.0.1") -> socket.socket:
        sock = self.dial(source)
        with contextlib.suppress(OSError):
            sock.sendall(self.door.hello)
        return sock

    def serves(self, source: str = "127.0.0.1") -> bool:
        """Return whether an honest client is answered."""
        try:
            sock = self.dial(source)
            if self.door.has_tls:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                if not self.door.honest:  # a node wants to see a certificate
                    return bool(context.wrap_socket(sock).getpeercert(binary_form=True))
                sock = self.stack.enter_context(context.wrap_socket(sock))
            sock.sendall(self.door.honest)
            return bool(sock.recv(1))
        except OSError:
            return False


def is_open(sock: socket.socket) -> bool:
    """Return whether the other side has not closed a connection; what it said is read."""
    sock.settimeout(0.0)
    try:
        while sock.recv(65_536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def count(socks: list[socket.socket]) -> int:
    return sum(map(is_open, socks))


# --- the checks ---


@doors("size")
@pytest.mark.parametrize("patience", [60.0])
def test_what_is_too_large_is_refused_before_it_is_there(name: str, opened: Opened) -> None:
    sock = opened.dial()
    with contextlib.suppress(OSError):
        sock.sendall(opened.door.huge)
    eventually(lambda: not is_open(sock))
    assert eventually(opened.serves)


@pytest.mark.slow
@doors("number")
def test_strangers_of_many_addresses_are_bounded(name: str, opened: Opened) -> None:
    strangers = [opened.stranger(f"127.0.0.{number + 1}") for number in range(MOST + 3)]
    eventually(lambda: count(strangers) <= MOST)
    assert eventually(opened.serves)


@pytest.mark.slow
@doors("address")
def test_strangers_of_one_address_leave_places_to_others(name: str, opened: Opened) -> None:
    if isinstance(opened.where, str):
        pytest.skip("all who come have the path as their address, and its bound")
    strangers = [opened.stranger() for _ in range(MOST + 3)]
    eventually(lambda: count(strangers) <= MOST_OF_ADDRESS)
    assert opened.serves("127.0.0.2")


@pytest.mark.slow
@doors("deadline")
def test_a_stranger_that_trickles_is_ended_in_time(name: str, opened: Opened) -> None:
    strangers = [opened.stranger() for _ in range(MOST_OF_ADDRESS)]
    began = time.monotonic()

    def trickled() -> bool:
        for sock in strangers:
            with contextlib.suppress(OSError):
                sock.send(opened.door.hello[-1:])
        return not count(strangers)

    # So slowly that no door can call it malformed in this time: only a deadline ends it.
    eventually(trickled, 15 * PATIENCE, interval=0.9 * PATIENCE)
    assert time.monotonic() - began > PATIENCE / 4  # it was given time
    assert eventually(opened.serves)


def texts() -> Iterator[tuple[str, str]]:
    for room in ("actors", "basp", "proxies", "callboard"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_file_that_opens_a_socket_is_in_the_register() -> None:
    assert {name for name, text in texts() if _OPENS.search(text)} == set(OPENERS)


def test_every_file_that_makes_tls_is_in_the_register() -> None:
    assert {name for name, text in texts() if _ENCRYPTS.search(text)} == ENCRYPTS


def test_the_page_has_every_door_and_no_other() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = page.partition("## Doors")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert sorted(rows) == sorted(DOORS)
