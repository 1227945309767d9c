"""The port for Zeek's WebSocket JSON with real sockets: messages, rights, limits, goodbyes."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from websockets.client import ClientProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.protocol import State
from websockets.sync.client import connect
from websockets.uri import parse_uri

from callboard import Endpoint, Rights
from callboard.broker import zeek
from callboard.model.errors import InvalidOption
from callboard.model.scalar import Count
from callboard.proxies.errors import PublicAddress
from callboard.zeek.doors import web_socket_server
from callboard.zeek.doors.web_socket_server import WebSocketLimits
from callboard.zeek.json_message import message_to_json
from tests.callboard.zeek.conversation import frames
from tests.polling import eventually
from tests.proxies.papers import Papers

WAIT = 10.0
BROKEN = (WebSocketException, EOFError, OSError)


@contextmanager
def client(port, topics=(), query="", scheme="ws", **kwargs):
    url = f"{scheme}://127.0.0.1:{port}/v1/messages/json{query}"
    with connect(url, compression=None, **kwargs) as socket:
        socket.send(json.dumps(topics))
        assert json.loads(socket.recv(WAIT))["type"] == "ack"
        yield socket


@pytest.fixture
def endpoint():
    with Endpoint() as made:
        yield made


def test_clients_and_endpoints_hear_each_other_and_nobody_itself(endpoint):
    port = endpoint.listen_web_socket()
    with (
        endpoint.make_subscriber("/all") as here,
        client(port, ["/all"]) as one,
        client(port, ["/all/b", "/other"]) as two,
    ):
        one.send(message_to_json("/all/b", Count(1)))
        assert here.get(WAIT) == ("/all/b", Count(1))
        endpoint.publish("/all/b", zeek.Event("ping", "ü", 2))
        two.send(message_to_json("/all/b", 3))

        got = [json.loads(one.recv(WAIT)) for _ in range(2)]
        assert [each["topic"] for each in got] == ["/all/b"] * 2
        assert got[1]["data"] == 3
        assert json.loads(two.recv(WAIT))["data"] == 1
        assert json.loads(two.recv(WAIT))["data"][2]["data"][0]["data"] == "ping"
        assert here.get(WAIT) == ("/all/b", 3)


def test_a_message_is_written_once_for_all_its_clients(endpoint, monkeypatch):
    written = []

    def write(topic, value):
        written.append(topic)
        return message_to_json(topic, value)

    monkeypatch.setattr(web_socket_server, "message_to_json", write)
    monkeypatch.setattr(web_socket_server, "KEPT_SIZE", 1_000)
    port = endpoint.listen_web_socket()
    with client(port, ["/a"]) as one, client(port, ["/a", "/b"]) as two:
        endpoint.publish_batch(("/b", 0), ("/a", 1), ("/a", 2))
        assert [json.loads(one.recv(WAIT))["data"] for _ in range(2)] == [1, 2]
        assert [json.loads(two.recv(WAIT))["data"] for _ in range(3)] == [0, 1, 2]
        endpoint.publish("/a", "x" * 1_000)
        assert len(one.recv(WAIT)) == len(two.recv(WAIT))
    assert sorted(written) == ["/a"] * 4 + ["/b"]  # a large one is not kept


def test_the_recorded_conversation_goes_the_same_with_this_server(endpoint):
    port = endpoint.listen_web_socket()
    sent = frames("each type", is_sent=True)[1:] + frames("an event", is_sent=True)[1:]
    expected = frames("each type", is_sent=False)[1:] + frames("an event", is_sent=False)[1:]
    with endpoint.make_subscriber("/test") as test, client(port, ["/pong"]) as socket:
        answers = []
        for text in sent:
            socket.send(text)
            _, value = test.get(WAIT)
            endpoint.publish("/pong", value)
            answers.append(json.loads(socket.recv(WAIT)))

    for answer, text in zip(answers, expected, strict=True):
        # The real one loses a millisecond in its own arithmetic.
        assert answer == json.loads(text.replace("57.122", "57.123"))


def test_clients_of_several_nodes_hear_each_other():
    with Endpoint() as a, Endpoint() as b:
        assert b.peer("127.0.0.1", a.listen("127.0.0.1", 0))
        with client(a.listen_web_socket(), ["/x"]) as one, client(b.listen_web_socket()) as two:
            assert b.await_filter_entry("/x")
            two.send(message_to_json("/x", "over there"))
            assert json.loads(one.recv(WAIT))["data"] == "over there"


def test_tokens_have_names_and_names_have_rights(endpoint):
    rights = {"reader": Rights(subscribe=["/open"]), "writer": Rights(publish=["/open"])}
    tokens = {"reader": "r" * 20, "writer": "w" * 20, "other": "o" * 20}
    port = endpoint.listen_web_socket(tokens=tokens, permissions=rights)
    headers = {"Authorization": f"Bearer {'w' * 20}"}
    with (
        endpoint.make_subscriber("/") as everything,
        client(port, ["/open/a", "/secret"], query=f"?token={'r' * 20}") as reader,
        client(port, additional_headers=headers) as writer,
    ):
        assert "/secret" in json.loads(reader.recv(WAIT))["context"]
        reader.send(message_to_json("/open/a", 1))
        assert json.loads(reader.recv(WAIT))["code"] == "not_permitted"
        writer.send(message_to_json("/secret", 2))
        assert json.loads(writer.recv(WAIT))["code"] == "not_permitted"
        endpoint.publish("/secret", 3)
        writer.send(message_to_json("/open/a", 4))
        assert json.loads(reader.recv(WAIT))["data"] == 4
        assert everything.get(WAIT) == ("/open/a", 4)
    with pytest.raises(InvalidStatus, match="401"), client(port):
        pass


def test_a_page_of_another_site_may_not_connect_and_a_public_address_needs_a_guard(endpoint):
    port = endpoint.listen_web_socket()
    with pytest.raises(InvalidStatus, match="403"), client(port, origin="https://evil.example"):
        pass
    with client(port, origin="http://localhost:8080"):
        pass
    with pytest.raises(PublicAddress):
        endpoint.listen_web_socket("0.0.0.0")
    for tokens in ({"a": ""}, {"a": "x", "b": "x"}):
        with pytest.raises(InvalidOption):
            endpoint.listen_web_socket(tokens=tokens)


def test_over_tls_a_certificate_names_the_client(endpoint, tmp_path):
    papers = Papers(tmp_path / "papers")
    with pytest.raises(PublicAddress):
        endpoint.listen_web_socket("0.0.0.0", tls=papers.tls(mutual=False))
    port = endpoint.listen_web_socket(
        tls=papers.tls(), permissions={"127.0.0.1": Rights(publish=["/x"])}
    )
    context = papers.tls().for_dialing()
    with (
        endpoint.make_subscriber("/x") as x,
        client(port, scheme="wss", ssl=context) as socket,
    ):
        socket.send(message_to_json("/x", 5))
        assert x.get(WAIT) == ("/x", 5)


def test_one_who_does_not_read_is_ended_and_the_others_go_on(endpoint):
    limits = WebSocketLimits(waiting=100_000)
    port = endpoint.listen_web_socket(limits=limits)
    with ExitStack() as stack:
        slow = stack.enter_context(client(port, ["/big"], max_queue=1))
        fast = stack.enter_context(client(port, ["/big"]))
        got = []
        reading = threading.Thread(
            target=lambda: got.extend(fast.recv(WAIT) for _ in range(200))
        )
        reading.start()
        for number in range(200):
            endpoint.publish("/big", "x" * 100_000)
            eventually(lambda number=number: len(got) >= number - 3)
        reading.join(WAIT)

        assert len(got) == 200
        eventually(lambda: not _reads(slow))


def test_one_who_only_asks_for_answers_and_reads_none_is_ended(endpoint, caplog):
    port = endpoint.listen_web_socket(limits=WebSocketLimits(waiting=100_000))
    caplog.set_level("INFO", "callboard.zeek")
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.settimeout(WAIT)
        raw.connect(("127.0.0.1", port))
        core = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}/v1/messages/json"))
        core.send_request(core.connect())
        core.state = State.OPEN
        core.send_text(b"[]")
        raw.sendall(b"".join(core.data_to_send()))
        eventually(lambda: [each.status.name for each in endpoint.peers()] == ["Peered"])
        ping = b"\x89\xfd" + bytes(129)
        for _ in range(150):  # 10 MB, more than two sockets hold
            raw.sendall(ping * 500)
        eventually(lambda: "does not read" in caplog.text)


def _reads(socket):
    try:
        return socket.recv(WAIT)
    except ConnectionClosed:
        return False


def test_limits_refuse_messages_that_are_too_long_and_clients_that_are_too_many(endpoint):
    port = endpoint.listen_web_socket(limits=WebSocketLimits(clients=1, message=1_000))
    with client(port) as socket:
        with pytest.raises(BROKEN), client(port):
            pass
        socket.send("x" * 1_001)
        with pytest.raises(ConnectionClosed):
            socket.recv(WAIT)


def test_one_who_sends_no_filter_has_little_time(endpoint):
    port = endpoint.listen_web_socket(limits=WebSocketLimits(handshake=0.3))
    with connect(f"ws://127.0.0.1:{port}/v1/messages/json") as silent:
        pytest.raises(ConnectionClosed, silent.recv, WAIT)


def test_the_end_of_the_endpoint_says_goodbye():
    endpoint = Endpoint()
    port = endpoint.listen_web_socket()
    with client(port, ["/x"]) as socket:
        endpoint.shutdown()
        with pytest.raises(ConnectionClosed) as told:
            socket.recv(WAIT)
    assert told.value.rcvd.code == 1001


def test_a_client_is_seen_as_a_peer_with_its_wire_and_filter(endpoint):
    port = endpoint.listen_web_socket()
    with ThreadPoolExecutor() as threads:
        known = threads.submit(endpoint.await_filter_entry, "/of/another", WAIT)
        with client(port, ["/of/another"]):
            assert known.result(WAIT)
    eventually(lambda: not endpoint.peers())
    with client(port, ["/of/the/client"]):
        eventually(lambda: [str(each) for each in endpoint.peer_subscriptions()])
        assert [str(each) for each in endpoint.peer_subscriptions()] == ["/of/the/client"]
        (peer,) = endpoint.peers()
        assert (peer.peer.type, peer.status.name) == ("websocket", "Peered")
    eventually(lambda: not endpoint.peers())
