"""The last words on a connection arrive, although its peer sends what nobody reads."""

import random
import socket
import threading

import pytest

from callboard.actors.runner.runner import Runner
from callboard.basp.errors import AuthenticationFailed, RemoteProtocolError
from callboard.basp.handshake import NONCE_SIZE, LinkConfig
from callboard.basp.link import Closed, Established, Link, LinkPairs, Seal, Transmit
from callboard.basp.node_id import NodeId
from callboard.proxies.link.stream import DISCARD_LIMIT, Parting
from callboard.proxies.link.tls_socket import TlsSocket

TIMES = 30
FLOOD = bytes(1 << 20)


@pytest.fixture
def runner():
    runner = Runner("parting")
    runner.start()
    yield runner
    runner.post(runner.stop)
    assert runner.stopped.wait(5)


def pair():
    """Return both ends of a TCP connection; the first does not block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname(), 10)
        ours, _ = listener.accept()
    ours.setblocking(False)
    return ours, theirs


def part(runner, sock, rest=b"", left=DISCARD_LIMIT):
    """Part on the runner; returns the parting and what tells of its end."""
    over = threading.Event()
    parting = Parting(runner, sock, lambda _: over.set(), rest, left)
    runner.post(parting.begin)
    return parting, over


def heard(sock):
    """Return what a peer reads to the end."""
    said = b""
    while data := sock.recv(65_536):
        said += data
    return said


def test_a_peer_that_sends_what_nobody_reads_hears_the_reason(runner):
    for _ in range(TIMES):
        ours, theirs = pair()
        theirs.sendall(bytes(200_000))
        ours.send(b"why")
        _, over = part(runner, ours)
        for _ in range(8):
            theirs.sendall(FLOOD)  # after the end as well: no send of the peer fails

        assert heard(theirs) == b"why"
        theirs.close()
        assert over.wait(5)


def test_what_waits_is_written_before_the_end(runner):
    ours, theirs = pair()
    rest = bytes(16 << 20)
    _, over = part(runner, ours, rest)
    theirs.sendall(FLOOD)

    assert heard(theirs) == rest
    theirs.close()
    assert over.wait(5)


def test_a_peer_that_has_said_all_reads_the_rest(runner):
    ours, theirs = pair()
    rest = bytes(16 << 20)
    theirs.sendall(FLOOD)
    theirs.shutdown(socket.SHUT_WR)
    _, over = part(runner, ours, rest)

    assert heard(theirs) == rest
    assert over.wait(5)


def test_a_peer_that_sends_without_end_is_read_no_more_and_keeps_the_reason(runner):
    ours, theirs = pair()
    ours.send(b"why")
    parting, over = part(runner, ours, left=1 << 20)
    theirs.settimeout(0.2)
    with pytest.raises(TimeoutError):
        theirs.sendall(bytes(64 << 20))

    assert theirs.recv(100) == b"why"
    assert not over.is_set()
    runner.post(parting.abort)
    assert over.wait(5)
    theirs.close()


def test_a_peer_behind_tls_hears_the_reason_and_the_end(runner, papers):
    for _ in range(TIMES):
        ours, theirs = pair()
        server = TlsSocket(ours, papers.tls().for_listening(), None)
        context = papers.tls().for_dialing()
        shaking = threading.Thread(target=shake, args=(server,))
        shaking.start()
        client = context.wrap_socket(theirs, server_hostname="localhost")
        shaking.join()
        client.sendall(bytes(200_000))
        server.send(b"why")
        _, over = part(runner, server)
        for _ in range(4):
            client.sendall(FLOOD)

        assert heard(client) == b"why"
        client.close()
        assert over.wait(5)


def shake(server):
    while server.shake_hands():
        pass


class Peer:
    """A node's end of a link on a socket that blocks; it floods when it is told to."""

    def __init__(self, sock, **config):
        self.socket = sock
        config = LinkConfig(NodeId(b"p" * 18), **config)
        nonce = random.randbytes(NONCE_SIZE)
        self.link = Link(config, dialer=True, nonce=nonce, now=0.0, pairs=LinkPairs())
        self.sealer = None

    def hear(self, until, flood=b""):
        """Take part until an effect comes; each thing said is followed by the flood."""
        while data := self.socket.recv(65_536):
            _, effects = self.link.take(data, 0.0)
            for effect in effects:
                if isinstance(effect, until):
                    return effect
                if isinstance(effect, Seal):
                    self.sealer = effect.sealer
                if isinstance(effect, Transmit):
                    data = effect.data
                    self.socket.sendall(self.sealer.seal(data) if self.sealer else data)
                    self.socket.sendall(flood)
        return None


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize(
    ("config", "reason"),
    [({"secret": b"another one"}, AuthenticationFailed), ({}, RemoteProtocolError)],
)
def test_a_node_tells_a_peer_that_floods_it_why_the_link_ends(
    make_node, papers, config, reason, is_encrypted
):
    node = make_node(secret=b"ours", tls=papers.tls() if is_encrypted else None)
    port = node.listen()
    for _ in range(TIMES):
        sock = socket.create_connection(("127.0.0.1", port), 10)
        if is_encrypted:
            sock = papers.tls().for_dialing().wrap_socket(sock, server_hostname="localhost")
        with sock:
            peer = Peer(sock, **{"secret": b"ours"} | config)
            if config:
                closed = peer.hear(Closed, bytes(4 << 20))
            else:
                peer.hear(Established)
                sock.sendall(bytes(8 << 20))
                closed = peer.hear(Closed)
            assert closed is not None
            assert isinstance(closed.error, reason)
