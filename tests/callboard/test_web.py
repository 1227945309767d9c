"""HTTP clients that trickle, flood, or come from pages of other sites."""

import contextlib
import http.client
import socket
import threading
import time

import pytest

from callboard import web
from callboard.gateway.modules.http import HttpModule
from callboard.pages import PageServer, text_page
from tests.polling import eventually

GATE = threading.Event()


def waits():
    GATE.wait(30)
    return text_page("waited")


@pytest.fixture
def server():
    GATE.clear()
    done = []
    pages = {"/livez": lambda: text_page("live"), "/waits": waits}
    server = PageServer(
        pages, actions={"/logs": lambda text: (done.append(text), text_page(text))[1]}
    )
    server.done = done
    yield server
    GATE.set()
    server.close()


def live(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request("GET", "/livez")
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def dial(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=5)


def ended(sock):
    """Return whether the server has ended a connection, without an answer."""
    sock.settimeout(0.0)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def request_threads():
    return [each for each in threading.enumerate() if "process_request" in each.name]


def test_a_request_that_trickles_ends_with_its_time(server, monkeypatch):
    monkeypatch.setattr(web, "REQUEST_LIMIT", 0.5)
    slow = dial(server)
    started = time.monotonic()

    def is_over():
        is_ended = ended(slow)
        with contextlib.suppress(OSError):
            slow.sendall(b"G")
        return is_ended

    eventually(is_over, interval=0.1)

    assert time.monotonic() - started > 0.3


def test_a_body_that_trickles_ends_with_its_time(server, monkeypatch):
    monkeypatch.setattr(web, "REQUEST_LIMIT", 0.5)
    slow = dial(server)
    slow.sendall(b"POST /logs HTTP/1.0\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n")

    eventually(lambda: ended(slow))

    assert server.done in ([], [""])


def test_many_clients_that_say_nothing_leave_room_for_one_that_does(server):
    held = [dial(server) for _ in range(3 * web.CONNECTIONS)]
    try:
        for _ in range(20):
            assert live(server) == (200, b"live\n")
        assert len(request_threads()) <= web.CONNECTIONS_PER_ADDRESS + 2
        assert sum(ended(each) for each in held) >= 2 * web.CONNECTIONS
    finally:
        for each in held:
            each.close()


@pytest.mark.slow
def test_an_answer_that_takes_long_is_not_cut_and_too_many_are_refused(server, monkeypatch):
    monkeypatch.setattr(web, "REQUEST_LIMIT", 2.0)
    waiting = [dial(server) for _ in range(web.CONNECTIONS_PER_ADDRESS)]
    for each in waiting:
        each.sendall(b"GET /waits HTTP/1.0\r\n\r\n")
    GATE.wait(3.0)
    with dial(server) as refused:
        assert refused.recv(1) == b""

    GATE.set()

    assert all(b"waited" in _all_of(each) for each in waiting)
    assert live(server) == (200, b"live\n")


def _all_of(sock):
    sock.setblocking(True)
    found = b""
    while part := sock.recv(4096):
        found += part
    sock.close()
    return found


def test_a_head_is_bounded(server):
    with dial(server) as sock:
        try:
            sock.sendall(b"GET /livez HTTP/1.0\r\n" + b"x: " + b"y" * 60_000 + b"\r\n")
            for _ in range(90):
                sock.sendall(b"x: " + b"y" * 60_000 + b"\r\n")
            sock.recv(100)
        except OSError:
            pass
    assert live(server) == (200, b"live\n")


@pytest.mark.parametrize("where", ["line", "header"])
def test_no_header_is_left_out_of_a_head_that_is_too_long(server, where):
    """A page may choose how long its address is, and so what would stand behind the limit."""
    rest = b"Host: localhost\r\nContent-Length: 5\r\nOrigin: http://evil.example\r\n\r\ndebug"
    begin, end = b"POST /logs?", b" HTTP/1.1\r\n"
    if where == "header":
        begin, end = b"POST /logs HTTP/1.1\r\nX: ", b"\r\n"
    statuses = set()
    for size in range(web.HEAD_LIMIT - 120, web.HEAD_LIMIT + 11, 5):
        with dial(server) as sock:
            sock.sendall(begin + b"a" * (size - len(begin) - len(end)) + end + rest)
            statuses.add(_all_of(sock).split()[1])
    assert statuses == {b"403", b"431", *([b"414"] if where == "line" else [])}
    assert server.done == []


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e3", "²", "", "5000"])
def test_an_odd_length_is_refused(server, length):
    with dial(server) as sock:
        head = f"POST /logs HTTP/1.0\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
        sock.sendall(head.encode("latin-1"))
        assert b" 400 " in _all_of(sock)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Host": "localhost:{port}", "Origin": "http://localhost:{port}"}, 200),
        ({"Host": "[::1]:{port}"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "evil.example:{port}", "Origin": "http://evil.example:{port}"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "[::1"}, 403),
        ({"Origin": "http://[x"}, 403),
    ],
)
def test_a_post_of_another_site_is_refused(server, headers, status):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    filled = {name: value.format(port=server.port) for name, value in headers.items()}

    connection.request("POST", "/logs", "debug", filled)

    assert connection.getresponse().status == status
    assert server.done == (["debug"] if status == 200 else [])
    connection.close()


def test_the_gateways_door_is_the_same_server():
    assert issubclass(HttpModule.start.__globals__["_Server"], web.WebServer)


def refused_in_the_middle(port, size=8 << 20):
    """Post more than is taken; returns the first line of the answer, as heard at the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        head = f"POST /logs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
        sock.sendall(head.encode() + bytes(size))
        heard = b""
        while data := sock.recv(65_536):
            heard += data
    return heard.partition(b"\r\n")[0]


def test_the_answer_arrives_where_the_request_is_not_read(server):
    for _ in range(30):
        assert b" 400 " in refused_in_the_middle(server.port)
    eventually(lambda: not request_threads())


def test_a_client_that_never_closes_behind_its_answer_keeps_no_place(server, monkeypatch):
    monkeypatch.setattr(web, "LINGER", 0.2)
    stays = dial(server)
    stays.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")

    eventually(lambda: b"live" in stays.recv(65_536, socket.MSG_PEEK))
    eventually(lambda: not request_threads())
    stays.close()
