"""Certificates that are replaced and revoked while a router runs, and strangers at ports."""

import contextlib
import socket
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect as connect_websocket

from callboard import Node, Tls
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.service.bridge import BridgeSettings
from callboard.mqtt.service.bridge_relay import BridgeTopics
from callboard.mqtt.service.figures import RouterState, router_metrics
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.packet import V4, Connect
from callboard.proxies.events import CertificatesRefused, CertificatesReplaced
from tests.callboard.mqtt.caller import Caller
from tests.polling import eventually
from tests.proxies.papers import Papers
from tests.proxies.papers import replace as put

DOORS = ["tls://127.0.0.1:0", "wss://127.0.0.1:0"]


@pytest.fixture
def papers(tmp_path) -> Papers:
    return Papers(tmp_path / "papers")


def running(*listeners, **options):
    return Router(RouterConfig(listeners=listeners, sys_interval=0, **options))


def ours(papers, **options) -> Tls:
    return replace(papers.tls(**options), revoked=papers.revoke())


def come(scheme: str, port: int, tls: Tls, name: str, hello=None):
    """Return a client's connection that was let in; `recv` gives bytes, b"" at the end."""
    raw = socket.create_connection(("127.0.0.1", port), 10)
    context = tls.for_dialing()
    hello = hello or encode(Connect(name), V4)
    if scheme == "tls":
        secured = context.wrap_socket(raw, server_hostname="localhost")
        secured.sendall(hello)
        assert secured.recv(4)[:1] == b"\x20"
        return secured.recv
    connecting = connect_websocket(
        f"wss://localhost:{port}", sock=raw, ssl=context, subprotocols=["mqtt"]
    )
    web = connecting.__enter__()  # the only form that all releases of the library like
    web.send(hello)
    assert web.recv(10)[:1] == b"\x20"

    def recv(_: int) -> bytes:
        try:
            return web.recv(10)
        except (ConnectionError, WebSocketException):
            return b""

    return recv


@pytest.mark.slow
@pytest.mark.parametrize("address", DOORS)
def test_a_replaced_certificate_is_shown_to_the_next_client(papers, address):
    tls = ours(papers)
    with running(ListenerSettings(address, tls)) as router:
        scheme = address.partition(":")[0]
        stays = come(scheme, router.port, papers.tls(), "stays")

        fresh = papers.authority.issue_cert("localhost")
        put(tls.certificate, fresh.private_key_and_cert_chain_pem.bytes())

        def serial() -> int:
            shown = ssl.get_server_certificate(("127.0.0.1", router.port), timeout=5)
            return x509.load_pem_x509_certificate(shown.encode()).serial_number

        mine = x509.load_pem_x509_certificate(fresh.cert_chain_pems[0].bytes()).serial_number
        eventually(lambda: serial() == mine)
        assert len(router.call(lambda: list(router.machine.sessions.connections))) == 1
        assert stays


@pytest.mark.slow
@pytest.mark.parametrize("address", DOORS)
def test_a_revoked_client_is_disconnected_and_refused(papers, address):
    stolen, good = papers.issue("stolen"), papers.issue("good")
    authority = papers.folder / "authority.pem"
    scheme = address.partition(":")[0]
    with running(ListenerSettings(address, ours(papers))) as router:
        thief = come(scheme, router.port, Tls(stolen, authority=authority), "thief")
        friend = come(scheme, router.port, Tls(good, authority=authority), "friend")

        papers.revoke(stolen)

        def connections() -> list:
            return router.call(lambda: list(router.machine.sessions.connections))

        eventually(lambda: connections() == ["friend"])
        while thief(100):
            pass
        assert friend
        with pytest.raises((OSError, AssertionError, WebSocketException)):
            come(scheme, router.port, Tls(stolen, authority=authority), "again")


@pytest.mark.slow
def test_a_bridge_disconnects_from_a_broker_whose_certificate_is_revoked(papers, caplog):
    theirs = papers.tls(mutual=False)
    with running(ListenerSettings("tls://127.0.0.1:0", theirs)) as far:
        settings = BridgeSettings(
            f"tls://127.0.0.1:{far.port}",
            (BridgeTopics("a"),),
            tls=Tls(authority=papers.folder / "authority.pem", revoked=papers.revoke()),
        )
        with running(ListenerSettings("127.0.0.1:0"), bridges=(settings,)) as near:
            eventually(lambda: near.bridges[0].is_connected)

            papers.revoke(theirs.certificate)

            eventually(lambda: "certificate was revoked" in caplog.text)
            eventually(lambda: "certificate revoked" in caplog.text)
            assert not near.bridges[0].is_connected


@pytest.mark.slow
def test_changes_of_certificates_are_events_and_counted(papers):
    tls = ours(papers)
    with Node() as node:
        events = []
        with (
            node.subscribed(events.append),
            Router(
                RouterConfig(listeners=(ListenerSettings(DOORS[0], tls),), sys_interval=0),
                node=node,
            ) as router,
        ):
            put(tls.certificate, b"no certificate")
            eventually(lambda: figures(router)["refused"] == 1)
            fresh = papers.authority.issue_cert("localhost")
            put(tls.certificate, fresh.private_key_and_cert_chain_pem.bytes())
            eventually(lambda: figures(router)["replaced"] == 1)
            shown = router.call(
                router_metrics, RouterState(router.machine, router.edge.connections)
            )
            eventually(lambda: sum(type(each) in TOLD for each in events) == len(TOLD))
        kinds = [each for each in map(type, events) if each in TOLD]
        assert kinds == list(TOLD)
        names = {each.name for each in shown}
        assert {f"callboard_mqtt_certificates_{kind}_total" for kind in KINDS} <= names


def test_a_bridge_reports_changes_of_its_certificates(papers):
    theirs = papers.tls(mutual=False)
    lists = papers.revoke()
    with running(ListenerSettings("tls://127.0.0.1:0", theirs)) as far:
        settings = BridgeSettings(
            f"tls://127.0.0.1:{far.port}",
            (BridgeTopics("a"),),
            tls=Tls(authority=papers.folder / "authority.pem", revoked=lists),
        )
        with running(ListenerSettings("127.0.0.1:0"), bridges=(settings,)) as near:
            eventually(lambda: near.bridges[0].is_connected)

            put(lists, b"no list")

            eventually(lambda: figures(near)["refused"] == 1)
            assert near.bridges[0].is_connected


KINDS = ("replaced", "refused")
TOLD = (CertificatesRefused, CertificatesReplaced)


def figures(router) -> dict[str, int]:
    counted = router.edge.connections.figures
    return {kind: getattr(counted, f"certificates_{kind}") for kind in KINDS}


def test_a_certificate_with_an_organisation_that_is_not_a_valid_tenant_is_refused(
    papers,
):
    settings = ListenerSettings("tls://127.0.0.1:0", papers.tls(), tenants=True)
    authority = papers.folder / "authority.pem"
    with running(settings) as router:
        for name in ("acme/#", "a\x1b[2J"):
            odd = papers.issue("odd", organization_name=name)
            with pytest.raises((OSError, AssertionError)):
                come("tls", router.port, Tls(odd, authority=authority), "c")
        assert (
            router.call(lambda: router.edge.connections.figures.refusals["not authorized"]) >= 1
        )


def issued(papers: Papers, *subject: tuple[x509.ObjectIdentifier, str]) -> Path:
    """Return a client certificate with any subject, signed by the authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = serialization.load_pem_private_key(
        papers.authority.private_key_pem.bytes(), password=None
    )
    issuer = x509.load_pem_x509_certificate(papers.authority.cert_pem.bytes())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(*part) for part in subject]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()),
            critical=False,
        )
        .sign(signer, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = papers.folder / "odd.pem"
    path.write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(pem)
    )
    return path


def users(router: Router) -> list[str | None]:
    return router.call(lambda: [s.user for s in router.machine.sessions])


TWO_NAMES = (
    (NameOID.ORGANIZATION_NAME, "acme, inc."),
    (NameOID.COMMON_NAME, "ann"),
    (NameOID.COMMON_NAME, "root"),
)


def test_a_certificate_with_two_common_names_is_refused(papers, caplog):
    odd = Tls(issued(papers, *TWO_NAMES), authority=papers.folder / "authority.pem")
    with running(ListenerSettings("tls://127.0.0.1:0", papers.tls())) as router:
        with pytest.raises((OSError, AssertionError)):
            come("tls", router.port, odd, "c")

        assert users(router) == []
        assert "has several common names" in caplog.text


@pytest.mark.parametrize("scheme", ["tls", "wss"])
def test_the_user_can_be_the_whole_subject(papers, scheme):
    odd = Tls(issued(papers, *TWO_NAMES), authority=papers.folder / "authority.pem")
    settings = ListenerSettings(
        f"{scheme}://127.0.0.1:0", papers.tls(), certificate_user="subject"
    )
    with running(settings) as router:
        recv = come(scheme, router.port, odd, "c")

        assert users(router) == ["CN=root,CN=ann,O=acme\\, inc."]
        assert recv


# --- strangers ---


def silent(port: int, hello: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 10)
    sock.sendall(hello or b"\x10")
    return sock


def is_closed(sock: socket.socket) -> bool:
    sock.settimeout(1.5)  # sooner than all that are not admitted are closed
    with contextlib.suppress(TimeoutError):
        try:
            return sock.recv(1) == b""
        except ConnectionError:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("address", ["127.0.0.1:0", "ws://127.0.0.1:0", *DOORS])
def test_unadmitted_connections_of_an_address_are_bounded_and_expire(papers, address):
    network = NetworkLimits(strangers_per_address=3, connect_timeout=2.0)
    tls = papers.tls() if address in DOORS else None
    hello = b"\x16\x03\x01" if address in DOORS else b"GET /" if "ws" in address else b"\x10"
    with running(ListenerSettings(address, tls), network=network) as router:
        held = [silent(router.port, hello) for _ in range(3)]
        connections = router.edge.connections
        eventually(lambda: router.call(lambda: connections.is_full("127.0.0.1")))

        assert is_closed(silent(router.port, hello))
        assert not router.call(lambda: connections.is_full("192.0.2.1"))

        eventually(lambda: not router.call(lambda: connections.is_full("127.0.0.1")))
        for sock in held:
            sock.settimeout(10)
            with contextlib.suppress(ConnectionError):
                while sock.recv(1000):
                    pass
        eventually(lambda: not router.call(lambda: connections.links))


def test_admitted_clients_count_by_address_and_not_as_strangers():
    network = NetworkLimits(strangers_per_address=1, connections_per_address=3)
    with running(ListenerSettings("127.0.0.1:0"), network=network) as router:
        callers = [Caller(router.port, f"c{number}") for number in range(3)]
        with pytest.raises((ConnectionError, AssertionError)):
            Caller(router.port, "more")
        for caller in callers:
            caller.socket.close()
        eventually(lambda: not router.call(lambda: router.edge.connections.links))
        with Caller(router.port, "later"):
            pass


HTTP = b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"


@pytest.mark.parametrize(
    "hello", [HTTP, b"\x16\x03\x01\x02\0\x01\0", b"\n", b"\x10\x20\0\4HTTP", b"\x30\x7f\0\1a"]
)
def test_a_connection_that_does_not_begin_with_a_connect_is_closed_at_once(hello):
    with running(ListenerSettings("127.0.0.1:0")) as router:
        assert is_closed(silent(router.port, hello))
        refusals = router.call(lambda: dict(router.edge.connections.figures.refusals))
        assert sum(refusals.values()) == 1


def test_junk_within_a_websocket_or_tls_connection_is_closed_at_once(papers):
    listeners = ListenerSettings("ws://127.0.0.1:0"), ListenerSettings(DOORS[0], papers.tls())
    with running(*listeners) as router:
        ports = [int(address.rpartition(":")[2]) for address in router.addresses]
        url = f"ws://127.0.0.1:{ports[0]}"
        with connect_websocket(url, subprotocols=["mqttv3.1"]) as web:
            assert web.subprotocol == "mqttv3.1"
            web.send(HTTP)
            with pytest.raises(WebSocketException):
                web.recv(1.5)
        raw = socket.create_connection(("127.0.0.1", ports[1]), 10)
        secured = papers.tls().for_dialing().wrap_socket(raw, server_hostname="localhost")
        secured.sendall(HTTP)
        assert is_closed(secured)
