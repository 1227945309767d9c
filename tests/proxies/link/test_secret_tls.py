"""Links that are encrypted with the secret as the key of TLS, without certificates."""

import contextlib
import socket
import ssl

import pytest

from callboard import Endpoint, Rights, errors
from callboard.proxies.errors import PublicAddress, TlsError
from callboard.proxies.link import secret_tls
from callboard.proxies.link.secret_tls import HAS_PSK, SecretTls
from tests.polling import eventually
from tests.proxies.link.test_sealing import Relay, Safe, connect

SECRET = "long random secret"
needs_psk = pytest.mark.skipif(not HAS_PSK, reason="needs Python 3.13")


@pytest.fixture
def make_relay():
    made = []

    def make(target):
        made.append(Relay(target))
        return made[-1]

    yield make
    for relay in made:
        relay.close()


@pytest.fixture
def bank(make_node):
    node = make_node("bank", secret=SECRET, encrypt=True)
    node.listen()
    node.register("safe", node.spawn(Safe))
    return node


def guards(*nodes):
    return [link.guard for node in nodes for link in node.links()]


@needs_psk
def test_a_relay_reads_nothing_and_both_sides_say_tls(make_node, make_relay, bank):
    relay = make_relay(bank.address)
    member = make_node("member", secret=SECRET, encrypt=True)
    member.connect(relay.address, 20)
    safe = member.remote_actor(relay.address + "/safe")

    assert safe.ask("please open").result(20) == "the combination is 4711"
    assert guards(member, bank) == ["tls", "tls"]
    everything = relay.heard[True] + relay.heard[False]
    for text in (
        b"please open",
        b"the combination",
        b"safe",
        b"member",
        SECRET.encode(),
        bank.node_id,
    ):
        assert text not in everything
    assert len(everything) > 1_000


@needs_psk
@pytest.mark.parametrize("at", [0, 5, 40, -1])
def test_a_relay_that_changes_a_byte_is_not_heard(make_node, make_relay, bank, at):
    relay = make_relay(bank.address)
    member = make_node("member", secret=SECRET, encrypt=True)
    member.connect(relay.address, 20)
    safe = member.remote_actor(relay.address + "/safe")
    assert safe.ask("first").result(20)

    def change(is_to_target, data):
        if not is_to_target:
            return data
        return data[:at] + bytes([data[at] ^ 1]) + (data[at + 1 :] if at != -1 else b"")

    relay.change = change
    with pytest.raises(errors.CallboardError):
        safe.ask("second").result(10)
    relay.change = lambda _, data: data
    eventually(lambda: guards(member) == ["tls"])
    assert safe.proxy().read_opened().result(20) == ["first"]


@needs_psk
def test_a_recorded_session_is_of_no_use_later(make_node, make_relay, bank):
    relay = make_relay(bank.address)
    member = make_node("member", secret=SECRET, encrypt=True)
    assert member.remote_actor(relay.address + "/safe").ask("once").result(20)
    recorded = relay.heard[True]
    member.close()
    eventually(lambda: not bank.links())

    with connect(bank.address) as sock:
        sock.settimeout(20)
        with contextlib.suppress(OSError):
            sock.sendall(recorded)
            while sock.recv(65_536):
                pass
    assert bank.links() == []
    safe = bank.find("safe").result(10)
    assert safe.proxy().read_opened().result(10) == ["once"]


@needs_psk
def test_without_the_secret_nobody_gets_through_either_side_of_tls(make_node, bank):
    stranger = make_node("stranger", secret="guessed", encrypt=True)
    with pytest.raises(errors.LinkError, match="the shared secrets differ"):
        stranger.connect(bank.address, 20)

    plain = make_node("plain", secret=SECRET)
    with pytest.raises(errors.NodeUnreachable, match="encrypt=True"):
        plain.connect(bank.address, 20)
    port = plain.listen()
    with pytest.raises(errors.NodeUnreachable, match="does not speak TLS|without TLS|basp"):
        bank.connect(f"basp://127.0.0.1:{port}", 20)
    assert bank.links() == []


@needs_psk
def test_who_shows_a_certificate_instead_of_the_secret_is_refused(make_node, papers, bank):
    """The dialer trusts no authority, and the acceptor has no certificate to go on with."""
    server = make_node("server", secret=SECRET)
    port = server.listen(tls=papers.tls(mutual=False))
    with pytest.raises(errors.LinkError, match="encrypts with certificates"):
        bank.connect(f"basp://localhost:{port}", 20)

    client = make_node("client", secret=SECRET, tls=papers.tls())
    with pytest.raises(errors.NodeUnreachable):
        client.connect(bank.address, 20)
    assert guards(bank, server, client) == []


@needs_psk
def test_a_secret_is_replaced_while_links_are_encrypted(make_node, bank):
    member = make_node("member", secret=SECRET, encrypt=True)
    member.connect(bank.address, 20)
    safe = member.remote_actor(bank.address + "/safe")
    assert bank.change_secrets([SECRET, "new"]) == 0
    assert member.change_secrets(["new", SECRET]) == 0
    assert safe.ask("on the old one").result(20)
    assert bank.change_secrets("new") == 1
    eventually(lambda: guards(bank, member) == ["tls", "tls"])
    assert safe.ask("on the new one").result(20)
    left = make_node("left", secret=SECRET, encrypt=True)
    with pytest.raises(errors.LinkError, match="the shared secrets differ"):
        left.connect(bank.address, 20)


@needs_psk
def test_each_of_several_secrets_is_tried_and_gives_its_own_rights(make_node):
    permissions = {"member": Rights.member(), "leaf": Rights(names=["safe"])}
    office = make_node(
        "office",
        secrets={"member": "strong", "leaf": "weak"},
        permissions=permissions,
        encrypt=True,
    )
    office.listen()
    office.register("vault", office.spawn(Safe))
    for name, secrets, is_leaf in (
        ("one", ["unknown", "weak"], True),
        ("two", ["unknown", "other", "strong"], False),
    ):
        node = make_node(name, secret=secrets, encrypt=True)
        node.connect(office.address, 30)
        assert guards(node) == ["tls"]
        refusal = pytest.raises(errors.NotPermitted) if is_leaf else contextlib.nullcontext()
        with refusal:
            node.remote_actor(office.address + "/vault")


@needs_psk
def test_a_port_may_encrypt_alone_and_with_a_secret_of_its_own(make_node):
    server = make_node("server", secret=SECRET)
    server.listen()
    port = server.listen(encrypt=True, secret="of the port")
    client = make_node("client", secret="of the port", encrypt=True)
    client.connect(f"basp://127.0.0.1:{port}", 20)
    plain = make_node("plain", secret=SECRET)
    plain.connect(server.address, 20)
    eventually(lambda: sorted(guards(server)) == ["seal", "tls"])
    assert guards(client) == ["tls"]
    assert guards(plain) == ["seal"]


@needs_psk
def test_ports_of_encrypting_nodes_can_still_be_others(make_node, papers):
    server = make_node("server", secret=SECRET, encrypt=True)
    plain = server.listen(encrypt=False)
    certified = server.listen(tls=papers.tls())
    one = make_node("one", secret=SECRET)
    one.connect(f"basp://127.0.0.1:{plain}", 20)
    two = make_node("two", secret=SECRET, tls=papers.tls())
    two.connect(f"basp://localhost:{certified}", 20)
    assert guards(one, two) == ["seal", "tls"]


@needs_psk
def test_endpoints_encrypt_with_a_secret():
    with (
        Endpoint(secret=SECRET, encrypt=True) as one,
        Endpoint(secret=SECRET, encrypt=True) as two,
    ):
        two.peer("127.0.0.1", one.listen("127.0.0.1", 0))
        assert guards(one.node, two.node) == ["tls", "tls"]


@needs_psk
def test_a_link_has_a_fresh_exchange_so_a_later_leak_opens_no_record():
    """TLS 1.3 with a shared key alone would be opened by whoever learns the key later."""
    tls = SecretTls(lambda: (("", SECRET.encode()),))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = tls.dialing().wrap_bio(to_client, to_server, server_hostname="any")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello = to_server.read()
    modes = b"\x00\x2d\x00\x02\x01\x01"  # psk_key_exchange_modes: psk_dhe_ke and no other
    assert modes in hello
    to_server.write(hello)
    server = tls.listening().wrap_bio(to_server, to_client, server_side=True)
    with contextlib.suppress(ssl.SSLWantReadError):
        server.do_handshake()
    client.do_handshake()
    assert client.version() == "TLSv1.3"
    assert client.session_reused  # what `TlsSocket.channel` relies on


@needs_psk
def test_a_stranger_without_a_key_gets_a_refusal_and_no_link(bank):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = bank.address.removeprefix("basp://").split(":")
    with socket.create_connection((host, int(port)), 20) as sock, pytest.raises(ssl.SSLError):
        context.wrap_socket(sock)
    assert bank.links() == []


def test_other_pythons_say_what_is_missing(make_node, monkeypatch):
    monkeypatch.setattr(secret_tls, "HAS_PSK", False)
    refusal = pytest.raises(TlsError, match="needs Python 3.13 .* this is Python 3")
    with refusal:
        make_node("a", secret=SECRET, encrypt=True)
    with refusal:
        make_node("b", secret=SECRET).listen(encrypt=True)
    with refusal:
        Endpoint(secret=SECRET, encrypt=True)


def test_it_needs_a_secret_and_no_certificates(make_node, monkeypatch, papers):
    monkeypatch.setattr(secret_tls, "HAS_PSK", True)
    with pytest.raises(ValueError, match="needs a secret"):
        make_node("a", encrypt=True)
    with pytest.raises(ValueError, match="needs a secret"):
        make_node("b").listen(encrypt=True)
    with pytest.raises(ValueError, match="choose one"):
        make_node("c", secret=SECRET, tls=papers.tls(), encrypt=True)
    with pytest.raises(ValueError, match="choose one"):
        make_node("d", secret=SECRET).listen(tls=papers.tls(), encrypt=True)
    with pytest.raises(PublicAddress):
        make_node("e").listen("0.0.0.0")
