"""Ports: TCP, TLS with and without client certificates, WebSocket, Unix sockets."""

import contextlib
import gc
import socket
import ssl
from dataclasses import replace

import pytest
import trustme
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as connect_websocket

from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.access.auth import Security
from callboard.mqtt.access.scrypt import hash_password
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.port.stream import WRITE_BUFFER
from callboard.mqtt.wire.codec import decode, encode
from callboard.mqtt.wire.errors import ListenError
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    ConnAck,
    Connect,
    Disconnect,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
)
from callboard.mqtt.wire.properties import Properties
from callboard.proxies.errors import TlsError
from callboard.tls.contexts import Tls
from tests.callboard.mqtt.caller import Caller
from tests.descriptors import open_files


class Authority:
    """Certificates for one test."""

    def __init__(self, folder):
        self.ca = trustme.CA()
        self.folder = folder
        self.path = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.path)

    def tls(self, name, *, mutual=False, **fields):
        issued = self.ca.issue_cert(name, **fields)
        path = self.folder / f"{name}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(path)
        return Tls(certificate=path, authority=self.path, mutual=mutual)


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def running(*listeners, **options):
    return Router(RouterConfig(listeners=listeners, sys_interval=0, **options))


def wrapped(port, tls):
    raw = socket.create_connection(("127.0.0.1", port), 10)
    return tls.for_dialing().wrap_socket(raw, server_hostname="localhost")


def exchange(caller):
    caller.subscribe("a")
    caller.say(Publish("a", bytes(100_000)))
    (got,) = caller.hear_packets(1)
    assert got.payload == bytes(100_000)


def test_tls_carries_mqtt(authority):
    listener = ListenerSettings("tls://127.0.0.1:0", authority.tls("localhost"))
    ours = Tls(authority=authority.path)
    with (
        running(listener) as router,
        Caller(0, connection=wrapped(router.port, ours)) as caller,
    ):
        exchange(caller)


def test_tls_can_require_client_certificates_with_tenants(authority):
    settings = ListenerSettings(
        "tls://127.0.0.1:0", authority.tls("localhost", mutual=True), tenants=True
    )
    ours = authority.tls("client", organization_name="acme", common_name="sensor")
    with running(settings) as router:
        with Caller(0, "c", connection=wrapped(router.port, ours)) as caller:
            assert router.call(lambda: list(router.machine.sessions.connections)) == ["acme.c"]
            caller.say(Subscribe(1, (Subscription("a"), Subscription("/tenants/acme/a"))))
            assert caller.hear_packets(1) == [SubAck(1, (0x80, 0))]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            Caller(0, "d", connection=wrapped(router.port, Tls(authority=authority.path)))


def test_a_unix_socket_carries_mqtt_and_is_removed(tmp_path):
    path = tmp_path / "mqtt.sock"
    leftover = socket.socket(socket.AF_UNIX)
    leftover.bind(str(path))
    leftover.close()
    with running(ListenerSettings(f"unix:{path}")) as router:
        assert router.addresses == [f"unix:{path}"]
        assert router.port == 0
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(path))
        with Caller(0, "c", connection=connection) as caller:
            exchange(caller)
    assert not path.exists()


@pytest.mark.parametrize("version", [V4, V5])
def test_ws_answers_sub_protocol_mqtt_for_both_versions(version):
    properties = Properties() if version == V5 else None
    with running(ListenerSettings("ws://127.0.0.1:0")) as router:
        url = f"ws://127.0.0.1:{router.port}/mqtt"
        with connect_websocket(url, subprotocols=["mqtt"]) as web:
            assert web.subprotocol == "mqtt"
            hello = encode(Connect("w", version=version, properties=properties), version)
            web.send(hello[:5])  # packets and frames need not agree
            ask = encode(Subscribe(1, (Subscription("a"),), properties), version)
            tell = encode(Publish("a", b"x", properties=properties), version)
            web.send(hello[5:] + ask + tell)

            data = b""
            while not data.endswith(b"x"):
                data += web.recv(5)
        assert isinstance(decode(data[0], data[2 : 2 + data[1]], version), ConnAck)


def test_ws_refuses_other_sub_protocols_other_sites_and_text():
    settings = ListenerSettings("ws://127.0.0.1:0", origins=("https://ours.example",))
    with running(settings) as router:
        url = f"ws://127.0.0.1:{router.port}"
        with pytest.raises(InvalidStatus):
            connect_websocket(url, subprotocols=["chat"], origin="https://ours.example")
        with pytest.raises(InvalidStatus):
            connect_websocket(url, subprotocols=["mqtt"], origin="https://theirs.example")
        with connect_websocket(
            url, subprotocols=["mqtt"], origin="https://ours.example"
        ) as web:
            web.send("text")
            with pytest.raises(Exception, match="1003"):
                web.recv(5)


@pytest.mark.parametrize(
    ("security", "origin", "is_let_in"),
    [
        (Security(), "http://evil.example", False),
        (Security(), "null", False),
        (Security(), "http://[x", False),
        (Security(), "http://127.0.0.1.evil.example", False),
        (Security(), "http://localhost:3000", True),
        (Security(), "http://[::1]", True),
        (Security(), None, True),
        (Security(anonymous=True), "http://evil.example", True),
        (Security(users={"ann": hash_password(b"x")}), "http://evil.example", True),
    ],
)
def test_pages_of_other_sites_are_refused_even_without_authentication(
    security, origin, is_let_in
):
    with running(ListenerSettings("ws://127.0.0.1:0"), security=security) as router:
        url = f"ws://127.0.0.1:{router.port}"
        expected = contextlib.nullcontext() if is_let_in else pytest.raises(InvalidStatus)
        with expected, connect_websocket(url, subprotocols=["mqtt"], origin=origin):
            pass


REQUEST = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


FRAMES = {
    "unmasked": b"\x82\x01a",
    "reserved bits": b"\xf2\x81\0\0\0\0a",
    "unknown": b"\x87\x80\0\0\0\0",
    "closing": b"\x88\x80\0\0\0\0",
    "nothing to continue": b"\x80\x80\0\0\0\0",
}


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", FRAMES)
def test_a_wrong_frame_ends_a_connection_also_with_the_request(kind, together):
    with (
        running(ListenerSettings("ws://127.0.0.1:0")) as router,
        socket.create_connection(("127.0.0.1", router.port), 10) as sock,
    ):
        sock.sendall(REQUEST + (FRAMES[kind] if together else b""))
        heard = sock.recv(4096)
        if not together:
            sock.sendall(FRAMES[kind])
        while data := sock.recv(4096):
            heard += data
        assert (b"\x88" in heard.partition(b"\r\n\r\n")[2]) or kind == "closing"


@pytest.mark.slow
def test_unread_pongs_do_not_accumulate():
    with (
        running(ListenerSettings("ws://127.0.0.1:0")) as router,
        socket.create_connection(("127.0.0.1", router.port), 10) as sock,
    ):
        sock.sendall(REQUEST)
        sock.recv(4096)
        ping = (b"\x89\xfd\0\0\0\0" + bytes(125)) * 1000
        for _ in range(100):
            sock.sendall(ping)

        (stream,) = router.call(lambda: [link._wire for link in router.edge.connections.links])
        waiting = router.call(lambda: stream._transport.get_write_buffer_size())
        assert waiting <= 2 * WRITE_BUFFER
        heard = sum(len(sock.recv(1 << 20)) for _ in range(3))
        assert heard


def test_wss_carries_mqtt(authority):
    with running(ListenerSettings("wss://127.0.0.1:0", authority.tls("localhost"))) as router:
        context = Tls(authority=authority.path).for_dialing()
        url = f"wss://localhost:{router.port}"
        sock = socket.create_connection(("127.0.0.1", router.port))
        with connect_websocket(url, sock=sock, ssl=context, subprotocols=["mqtt"]) as web:
            web.send(encode(Connect("w"), V4))
            assert web.recv(5) == encode(ConnAck(), V4)


def test_silent_connections_are_bounded():
    with running(ListenerSettings("127.0.0.1:0")) as router:
        limits = replace(router.edge.connections.limits, open_connections=2)
        router.call(router.edge.connections.set_limits, limits)
        with Caller(router.port, "a"), Caller(router.port, "b"):
            with pytest.raises(ConnectionError):
                Caller(router.port, "c")
            assert (
                router.call(lambda: router.edge.connections.figures.refusals["server busy"])
                == 1
            )


@pytest.mark.slow
def test_a_connection_that_never_sends_is_closed_although_the_system_defers_it():
    network = NetworkLimits(connect_timeout=0.1)
    with (
        Router(RouterConfig(network=network, sys_interval=0)) as router,
        socket.create_connection(("127.0.0.1", router.port), 10) as silent,
    ):
        assert silent.recv(1) == b""
        assert router.call(lambda: router.edge.connections.figures.timeouts) == 1


def is_of_mqtt(kind):
    return kind.__module__.startswith("callboard.mqtt")


@pytest.mark.slow
@pytest.mark.parametrize("version", [V4, V5])
def test_ended_connections_leave_no_garbage(version):
    count = 100

    def come_and_go(router):
        for number in range(count):
            with Caller(router.port, f"c{number}", version) as caller:
                caller.subscribe("a")
                if number % 2:
                    caller.say(Disconnect())
                    assert caller.hear_packets(1) == []
        while router.call(lambda: len(router.edge.connections.links)):
            pass

    with running(ListenerSettings("127.0.0.1:0")) as router:
        come_and_go(router)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)  # what else the process left is no connection's
        try:
            come_and_go(router)
            gc.collect()
            found = [each for each in gc.garbage if is_of_mqtt(type(each))]
            assert len(found) < count
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


def test_a_disconnected_client_is_closed_at_once():
    with running(ListenerSettings("127.0.0.1:0")) as router, Caller(router.port, "c") as caller:

        def cut():
            (remote,) = router.edge.connections.links
            before = set(open_files())
            remote.cut()
            return before - set(open_files())

        assert len(router.call(cut)) >= 1
        assert caller.socket.recv(1) == b""
        assert router.call(lambda: len(router.edge.connections.links)) == 0


def test_a_connect_in_several_reads_is_assembled():
    with (
        running(ListenerSettings("127.0.0.1:0")) as router,
        socket.create_connection(("127.0.0.1", router.port), 10) as slow,
    ):
        hello = encode(Connect("slow"), V4)
        slow.sendall(hello[:3])
        assert router.call(lambda: len(router.edge.connections.links)) <= 1
        slow.sendall(hello[3:])
        assert slow.recv(4) == encode(ConnAck(), V4)


@pytest.mark.parametrize(
    "fields",
    [{"security": Security(anonymous=True)}, {"authenticator": lambda _: True}],
)
def test_a_public_address_requires_authentication(fields):
    public = (ListenerSettings("0.0.0.0:0"),)
    with pytest.raises(ListenError, match="every client may do everything"):
        Router(RouterConfig(listeners=public)).start()

    with Router(RouterConfig(listeners=public, **fields)) as router:
        assert router.port


def test_several_listeners_are_open_together(tmp_path):
    with running(
        ListenerSettings("127.0.0.1:0"),
        ListenerSettings("ws://127.0.0.1:0"),
        ListenerSettings("[::1]:0") if socket.has_ipv6 else ListenerSettings("127.0.0.1:0"),
    ) as router:
        assert len({address.rpartition(":")[2] for address in router.addresses}) == 3
        assert router.addresses[1].startswith("ws://127.0.0.1:")


@pytest.mark.parametrize("address", ["1883", "http://a:1", "a:x", "a:70000", "tls://a:1"])
def test_an_address_that_is_none_is_refused_before_anything_is_open(address):
    with pytest.raises(ListenError):
        running(ListenerSettings("127.0.0.1:0"), ListenerSettings(address)).start()


def test_a_missing_certificate_is_reported(tmp_path):
    tls = Tls(certificate=tmp_path / "no.pem", mutual=False)
    with pytest.raises(TlsError, match="cannot be read"):
        running(ListenerSettings("tls://127.0.0.1:0", tls)).start()
