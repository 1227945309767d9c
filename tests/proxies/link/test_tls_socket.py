"""Two TLS sockets alone, on a socket pair."""

import random
import selectors
import socket

import pytest

from callboard import Tls
from callboard.proxies.link.tls_socket import TlsSocket
from tests.proxies.papers import Papers


class Pair:
    """Two TLS sockets on a socket pair whose buffers are small."""

    def __init__(self, papers: Papers) -> None:
        self.raw = socket.socketpair()
        for sock in self.raw:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.server = TlsSocket(self.raw[0], papers.tls().for_listening(), None)
        self.client = TlsSocket(self.raw[1], papers.tls().for_dialing(), "localhost")
        while self.client.shake_hands() | self.server.shake_hands():
            pass

    def close(self) -> None:
        self.server.close()
        self.client.close()


@pytest.fixture
def pair(papers):
    made = Pair(papers)
    yield made
    made.close()


def received(sock: TlsSocket, size: int = 65536) -> bytes:
    try:
        return sock.recv(size)
    except BlockingIOError:
        return b""


class Narrow:
    """A socket that takes 100 bytes at a time, and none every second time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._is_full = False

    def send(self, data) -> int:
        self._is_full = not self._is_full
        if self._is_full:
            raise BlockingIOError
        return self._sock.send(data[:100])

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


def test_a_handshake_waits_for_room_where_the_socket_is_full(papers):
    near, far = socket.socketpair()
    server = TlsSocket(Narrow(near), papers.tls().for_listening(), None)
    client = TlsSocket(far, papers.tls().for_dialing(), "localhost")
    awaited = [(1, 1)]

    while awaited[-1] != (0, 0):
        awaited.append((client.shake_hands(), server.shake_hands()))

    assert any(mask & selectors.EVENT_WRITE for _, mask in awaited)
    assert not any(mask & selectors.EVENT_WRITE for mask, _ in awaited)
    server.close()
    client.close()


def test_a_handshake_ends_when_the_other_side_does(papers):
    near, far = socket.socketpair()
    client = TlsSocket(far, papers.tls().for_dialing(), "localhost")
    assert client.shake_hands() == selectors.EVENT_READ

    near.close()

    with pytest.raises(ConnectionAbortedError, match="during the TLS handshake"):
        client.shake_hands()
    client.close()


@pytest.mark.parametrize("read_size", [1, 1000, 65536])
def test_what_a_full_socket_did_not_take_is_sent_later_exactly_once(pair, read_size):
    data = random.Random(1).randbytes(300_000 if read_size > 1 else 30_000)
    rest, got, blocked = memoryview(data), bytearray(), 0

    while len(got) < len(data):
        if rest:
            try:
                rest = rest[pair.client.send(rest) :]
            except BlockingIOError:
                blocked += 1
        got += received(pair.server, read_size)

    assert bytes(got) == data
    assert blocked


def test_all_bytes_of_one_read_come_out_at_once(pair):
    for number in range(5):
        pair.client.send(memoryview(bytes([number]) * 10))

    assert pair.server.recv(65536) == b"".join(bytes([number]) * 10 for number in range(5))
    with pytest.raises(BlockingIOError):
        pair.server.recv(65536)


def test_the_end_of_the_stream_follows_the_last_bytes(pair):
    pair.client.send(memoryview(b"last words"))
    pair.client.close()

    assert pair.server.recv(65536) == b"last words"
    assert pair.server.recv(65536) == b""


def test_a_changed_byte_breaks_the_connection_after_what_came_before(pair):
    pair.client.send(memoryview(b"good"))
    pair.raw[1].send(b"\x17\x03\x03\x00\x20" + bytes(32))

    assert pair.server.recv(65536) == b"good"
    with pytest.raises(ConnectionAbortedError, match="TLS failed"):
        pair.server.recv(65536)


# --- whose certificate it is ---


def shaken(papers: Papers, server: Tls, client: Tls) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names that a server and a client see of each other."""
    near, far = socket.socketpair()
    ends = TlsSocket(near, server.for_listening(), None)
    other = TlsSocket(far, client.for_dialing(), "localhost")
    while other.shake_hands() | ends.shake_hands():
        pass
    seen = ends.names(), other.names()
    ends.close()
    other.close()
    return seen


def test_the_names_of_a_verified_certificate_are_its_common_and_alternative_ones(papers):
    client = papers.issue("10.1.2.3", "shop.example", common_name="shop")
    authority = papers.folder / "authority.pem"

    seen = shaken(papers, papers.tls(), Tls(client, authority=authority))

    assert seen == (("shop", "10.1.2.3", "shop.example"), ("127.0.0.1", "localhost"))


def test_a_certificate_that_was_not_asked_for_has_no_names(papers):
    assert shaken(papers, papers.tls(mutual=False), papers.tls("x.example"))[0] == ()
    assert shaken(papers, papers.tls(mutual=False), papers.trust)[0] == ()


def test_names_that_are_not_printable_are_left_out(papers):
    client = papers.issue("shop.example", common_name="\x1b[2Jroot")
    authority = papers.folder / "authority.pem"

    assert shaken(papers, papers.tls(), Tls(client, authority=authority))[0] == (
        "shop.example",
    )
