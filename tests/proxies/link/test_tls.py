"""Nodes over TLS, with certificates that are made for the test."""

import contextlib
import datetime
import os
import random
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest

from callboard import Limits, Node, Tls
from callboard.actors.errors import CallboardError, NodeUnreachable
from callboard.proxies.errors import PublicAddress, TlsError
from tests.proxies.cast import (
    ROOT,
    Big,
    Echo,
    Sink,
    Size,
    connect,
    eventually,
    everybody_knows,
    settled,
)
from tests.proxies.papers import Papers


def reason_of(node: Node, address: str) -> str:
    """Return why a node cannot link with another, which it has to learn quickly."""
    began = time.monotonic()
    with pytest.raises(NodeUnreachable) as caught:
        node.connect(address, 60.0)
    assert time.monotonic() - began < 30
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- two nodes ---


@pytest.mark.parametrize("mutual", [True, False])
def test_two_nodes_talk_over_tls(make_node, papers, mutual):
    a = make_node("a", tls=papers.tls(mutual=mutual))
    b = make_node("b", tls=papers.tls() if mutual else papers.trust)
    a.listen()
    a.register("echo", a.spawn(Echo))

    echo = b.remote_actor(a.address + "/echo")

    assert echo.ask("hi").result(5) == "hi"


def test_the_bytes_on_the_wire_are_tls_and_do_not_show_the_message(make_node, papers):
    a, b = make_node("a", tls=papers.tls()), make_node("b", tls=papers.tls())
    port = a.listen()
    a.register("echo", a.spawn(Echo))
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as relay:
        threading.Thread(target=spy, args=(relay, port, seen), daemon=True).start()

        echo = b.remote_actor(f"basp://127.0.0.1:{relay.getsockname()[1]}/echo")

        assert echo.ask("a very secret text").result(5) == "a very secret text"

    assert seen.startswith(b"\x16\x03")
    assert b"secret" not in seen


def spy(relay: socket.socket, port: int, seen: bytearray) -> None:
    """Pass bytes on in both directions; keep those of the dialer."""
    near, _ = relay.accept()
    far = socket.create_connection(("127.0.0.1", port))

    def back() -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                near.sendall(data)

    threading.Thread(target=back, daemon=True).start()
    with contextlib.suppress(OSError):
        while data := near.recv(65536):
            seen += data
            far.sendall(data)


@pytest.mark.slow
def test_many_messages_arrive_in_order(make_node, papers):
    a, b = make_node("a", tls=papers.tls()), make_node("b", tls=papers.tls())
    connect(b, a)
    a.register("sink", a.spawn(Sink))
    sink = b.remote_actor(a.address + "/sink")

    for number in range(20_000):
        sink.tell(number)

    assert sink.ask(Size()).result(20) == 20_000
    assert sink.call(Sink.everything).result(20) == list(range(20_000))
    settled(a, b)


def test_large_messages_go_both_ways_at_once(make_node, papers):
    a, b = make_node("a", tls=papers.tls()), make_node("b", tls=papers.tls())
    connect(b, a)
    a.register("echo", a.spawn(Echo))
    echo = b.remote_actor(a.address + "/echo")
    size = 5 * 1024 * 1024

    there = [echo.ask(bytes(size)) for _ in range(4)]
    back = [echo.ask(Big(size)) for _ in range(4)]

    assert [future.result(20) for future in there] == [size] * 4
    assert [len(future.result(20)) for future in back] == [size] * 4


@pytest.mark.slow
def test_many_threads_write_to_one_tls_link(make_node, papers):
    a, b = make_node("a", tls=papers.tls()), make_node("b", tls=papers.tls())
    connect(b, a)
    a.register("echo", a.spawn(Echo))
    echo = b.remote_actor(a.address + "/echo")
    wrong: list[str] = []

    def work(name: str) -> None:
        for number in range(200):
            text = f"{name} {number} " + "x" * (number * 50)
            if echo.ask(text).result(20) != text:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_four_hops_of_which_the_last_is_plain(make_node, papers):
    a, b = make_node("a", tls=papers.tls()), make_node("b")
    c, d = make_node("c", tls=papers.tls()), make_node("d")
    b.listen(tls=papers.tls())
    d.listen(tls=papers.tls())
    e = make_node("e")
    e.listen()
    a.connect(b.address)  # TLS
    c.connect(b.address)  # TLS
    c.connect(d.address)  # TLS
    d.connect(e.address)  # plain
    everybody_knows(a, b, c, d, e)
    e.register("echo", e.spawn(Echo))

    echo = a.find("echo").result(5)

    assert [node.hops for node in a.nodes() if node.node_id == e.node_id] == [4]
    assert echo.ask("far").result(5) == "far"
    assert len(echo.ask(Big(1_000_000)).result(10)) == 1_000_000


def test_tls_and_a_secret_together(make_node, papers):
    a = make_node("a", tls=papers.tls(), secret="right")
    b = make_node("b", tls=papers.tls(), secret="right")
    c = make_node("c", tls=papers.tls(), secret="wrong")
    a.listen()

    assert b.connect(a.address) == a.node_id
    assert "the shared secrets differ" in reason_of(c, a.address)


def test_a_lost_tls_link_comes_back(make_node, papers):
    a, b = make_node("a", tls=papers.tls()), make_node("b", tls=papers.tls())
    connect(b, a)
    a.register("echo", a.spawn(Echo))
    echo = b.remote_actor(a.address + "/echo")

    b.disconnect(a.node_id, 0.1)

    eventually(lambda: not b.links())
    eventually(lambda: b.links())
    assert echo.ask("again").result(5) == "again"


@pytest.mark.slow
def test_a_killed_process_behind_tls_is_down_at_once(make_node, papers):
    certificate = papers.issue("127.0.0.1")
    authority = papers.folder / "authority.pem"
    program = (
        "import sys; from callboard import Node, Tls; from tests.proxies.cast import Echo\n"
        "node = Node('child', tls=Tls(sys.argv[1], authority=sys.argv[2]))\n"
        "node.listen(); node.register('echo', node.spawn(Echo))\n"
        "print(node.address, flush=True); sys.stdin.read()\n"
    )
    b = make_node("b", tls=papers.tls())
    with subprocess.Popen(
        [sys.executable, "-c", program, certificate, authority],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as child:
        address = child.stdout.readline().strip()
        echo = b.remote_actor(address + "/echo")
        down = b.monitor(echo)
        assert echo.ask("hi").result(5) == "hi"

        child.kill()

        assert down.result(2).reason == "unreachable"


def test_an_ssl_context_may_be_passed_instead(make_node, papers):
    server = papers.tls().for_listening()
    client = papers.tls().for_dialing()
    a, b = make_node("a"), make_node("b", tls=client)
    a.listen(tls=server)

    assert b.connect(a.address) == a.node_id
    with pytest.raises(TlsError, match="only dial"):
        b.listen()
    with pytest.raises(TlsError, match="only listen"):
        Node(tls=server)


def test_a_host_name_is_checked_against_the_certificate(make_node, papers):
    a = make_node("a", tls=papers.tls("localhost"))
    b = make_node("b", tls=papers.tls())
    port = a.listen()

    assert b.connect(f"basp://localhost:{port}") == a.node_id
    reason = reason_of(make_node("c", tls=papers.tls()), f"basp://127.0.0.1:{port}")
    assert "is for another host" in reason
    assert "dial it by a name" in reason


# --- who is not let in ---


def test_an_untrusted_server_is_refused_with_the_next_step(make_node, papers, strangers):
    a, b = make_node("a", tls=strangers.tls()), make_node("b", tls=papers.tls())
    a.listen()

    reason = reason_of(b, a.address)

    assert "its certificate is not trusted" in reason
    assert "Tls(authority=…)" in reason


def test_an_untrusted_client_is_refused_with_the_next_step(make_node, papers, strangers):
    a = make_node("a", tls=papers.tls())
    foreign = Tls(strangers.issue("x"), authority=papers.folder / "authority.pem")
    a.listen()

    reason = reason_of(make_node("b", tls=foreign), a.address)

    assert "does not accept this node's certificate" in reason


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_a_certificate_is_refused(make_node, papers, version):
    a = make_node("a", tls=papers.tls())
    context = papers.trust.for_dialing()
    context.maximum_version = version
    a.listen()

    reason = reason_of(make_node("b", tls=context), a.address)

    assert "it demands a certificate" in reason
    assert "Tls(certificate=…, key=…)" in reason


def test_a_certificate_out_of_date_is_refused(make_node, papers):
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    old = papers.issue("127.0.0.1", "old", not_after=yesterday)
    authority = papers.folder / "authority.pem"
    a, b = make_node("a", tls=Tls(old, authority=authority)), make_node("b", tls=papers.tls())
    a.listen()
    b.listen()

    assert "out of date" in reason_of(b, a.address)
    assert "out of date" in reason_of(a, b.address)


@pytest.mark.slow
def test_a_node_without_tls_learns_that_a_port_may_want_it(make_node, papers):
    a, b = make_node("a", tls=papers.tls()), make_node("b")
    a.listen()

    assert "it may want TLS" in reason_of(b, a.address)


def test_a_node_with_tls_learns_that_a_port_has_none(make_node, papers):
    a, b = make_node("a"), make_node("b", tls=papers.tls())
    a.listen()

    assert "does not speak TLS" in reason_of(b, a.address)


def test_old_versions_of_tls_are_refused(make_node, papers):
    a = make_node("a", tls=papers.tls())
    a.listen()
    context = papers.tls().for_dialing()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1 is deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1

    assert "no TLS version in common" in reason_of(make_node("b", tls=context), a.address)


@pytest.mark.slow
def test_strangers_disturb_neither_the_node_nor_its_links(make_node, papers):
    a, b = make_node("a", tls=papers.tls()), make_node("b", tls=papers.tls())
    port = a.listen()
    b.connect(a.address)
    a.register("echo", a.spawn(Echo))
    chance = random.Random(7)
    hello = client_hello(papers)
    open_ones = []
    for number in range(60):
        stranger = socket.create_connection(("127.0.0.1", port), 5)
        kind = number % 4
        if kind == 1:
            stranger.sendall(chance.randbytes(300))
        elif kind == 2:
            stranger.sendall(hello[: chance.randrange(1, len(hello))])
        elif kind == 3:
            stranger.sendall(hello[:20] + chance.randbytes(200))
            stranger.close()
        open_ones.append(stranger)

    cpu = time.process_time()
    began = time.monotonic()
    assert b.remote_actor(a.address + "/echo").ask("still there").result(5) == "still there"
    for silent in open_ones[::4]:
        silent.settimeout(5)
        assert silent.recv(100) == b""  # given up on soon

    assert time.monotonic() - began < 20
    assert time.process_time() - cpu < 1.0  # and waited for without turning around
    assert b.remote_actor(a.address + "/echo").ask("still there").result(5) == "still there"
    for stranger in open_ones:
        stranger.close()


@pytest.mark.slow
def test_a_tls_handshake_counts_as_one_under_way_until_it_is_given_up(make_node, papers):
    a = make_node("a", tls=papers.tls(), limits=Limits(handshakes=1))
    b = make_node("b", tls=papers.tls())
    with socket.create_connection(("127.0.0.1", a.listen()), 5) as silent:
        assert "it may be full" in reason_of(b, a.address)
        assert a.stats().refused_connections == 1

        silent.settimeout(5)
        assert silent.recv(1) == b""

    def is_linked() -> bool:
        with contextlib.suppress(NodeUnreachable):
            return b.connect(a.address) == a.node_id
        return False

    eventually(is_linked)  # once the end of the silent one is seen


def client_hello(papers: Papers) -> bytes:
    out = ssl.MemoryBIO()
    tls = papers.trust.for_dialing().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


def test_a_node_closes_while_handshakes_are_under_way(make_node, papers):
    a, b = make_node("a", tls=papers.tls()), make_node("b", tls=papers.tls())
    port = a.listen()
    stranger = socket.create_connection(("127.0.0.1", port), 5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        waiting = threading.Thread(
            target=lambda: pytest.raises(
                CallboardError, b.connect, f"basp://127.0.0.1:{silent.getsockname()[1]}"
            )
        )
        waiting.start()
        silent.accept()

        a.close()
        b.close()

        waiting.join(5)
        assert not waiting.is_alive()
    stranger.settimeout(5)
    assert stranger.recv(10) == b""


# --- files and addresses ---


def test_files_that_are_missing_or_wrong_are_named_at_the_call(make_node, papers, tmp_path):
    good = papers.issue("127.0.0.1")
    authority = papers.folder / "authority.pem"
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    node = make_node()

    with pytest.raises(TlsError, match=r"the certificate cannot be read.*gone\.pem"):
        Node(tls=Tls(tmp_path / "gone.pem", authority=authority))
    with pytest.raises(TlsError, match="the authority cannot be read"):
        Node(tls=Tls(good, authority=tmp_path / "gone.pem"))
    with pytest.raises(TlsError, match="the key cannot be read"):
        Node(tls=Tls(good, tmp_path / "gone.pem"))
    with pytest.raises(TlsError, match="belong together"):
        Node(tls=Tls(junk))
    with pytest.raises(TlsError, match="belong together"):
        Node(tls=Tls(good, papers.issue("other")))
    with pytest.raises(TlsError, match="no certificates in PEM format"):
        Node(tls=Tls(authority=junk))
    with pytest.raises(TlsError, match="no certificate; pass both"):
        Node(tls=Tls(key=good))
    with pytest.raises(TlsError, match="needs a certificate"):
        node.listen(tls=papers.trust)
    with pytest.raises(TlsError, match="mutual TLS needs the authority"):
        node.listen(tls=Tls(good))


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(papers, tmp_path):
    from cryptography.hazmat.primitives import serialization

    issued = papers.authority.issue_cert("locked")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    certificate = tmp_path / "certificate.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)

    with pytest.raises(TlsError, match="has a password"):
        Tls(certificate, locked).for_dialing()


@pytest.mark.parametrize("mutual", [True, False])
def test_a_public_address_is_guarded_by_tls(make_node, papers, mutual):
    node = make_node()

    with pytest.raises(PublicAddress, match="tls"):
        node.listen("0.0.0.0")

    assert node.listen("0.0.0.0", tls=papers.tls(mutual=mutual)) > 0
