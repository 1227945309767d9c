"""The ready-made modules."""

import json
import os
import threading
import urllib.error
import urllib.request
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from callboard.commitlog import LogReader
from callboard.gateway import ModuleFailed
from callboard.gateway.modules import READY_MADE
from callboard.topics.hub import Hub
from tests.callboard.gateway.cast import LIMIT, Quiet, Recorder
from tests.polling import eventually


@pytest.fixture
def line(gateway):
    """Link source -> module -> sink, and return the sink."""

    def make(module, args=None):
        sink = Recorder()
        gateway.add_module("source", Quiet)
        gateway.add_module("sink", sink)
        gateway.add_module("it", module, args or {}, start=False)
        gateway.link("source", "it")
        gateway.link("it", "sink")
        gateway.start_module("it")
        return sink

    return make


def counters(gateway, name="it"):
    return next(status.counters for status in gateway.modules() if status.name == name)


def module_of(gateway, name="it"):
    return gateway._handles[name].module


@pytest.mark.parametrize("name", READY_MADE)
def test_unknown_arguments_of_a_module_are_refused(gateway, name):
    with pytest.raises(ModuleFailed, match="no_such_argument"):
        gateway.add_module("it", name, {"no_such_argument": 1})


def test_timer_publishes_at_regular_times(line):
    sink = line("timer", {"period": 0.01, "properties": {"k": "v"}, "count": 3})

    sink.until(3)

    assert sink.contents == [b"1", b"2", b"3"]
    assert sink.got[0].properties == {"k": "v"}


@pytest.mark.parametrize(
    ("args", "passing"),
    [
        ({}, "abcd"),
        ({"properties": {"kind": "x"}}, "ab"),
        ({"properties": {"kind": "x"}, "invert": True}, "cd"),
        ({"where": {"load": {">": 0.5}}}, "bd"),
        ({"where": {"load": {">=": 0.5, "<": 0.9}}}, "a"),
        ({"where": {"load": 0.5}}, "a"),
        ({"where": {"load": {"!=": 0.5}}}, "bd"),
        ({"where": {"in.ner": {"in": [1, 2]}}}, "c"),
        ({"where": {"load": {"<=": "text"}}}, ""),
        ({"properties": {"kind": "y"}, "where": {"load": {"=": 0.9}}}, "d"),
    ],
)
def test_filter_passes_matching_messages(gateway, line, args, passing):
    sink = line("filter", args)
    for name, kind, fields in (
        ("a", "x", {"load": 0.5}),
        ("b", "x", {"load": 0.9}),
        ("c", "y", {"in": {"ner": 2}}),
        ("d", "y", {"load": 0.9}),
    ):
        gateway.publish("source", json.dumps(fields).encode(), {"kind": kind, "name": name})

    assert gateway.settle(LIMIT)
    assert "".join(message.properties["name"] for message in sink.got) == passing


@pytest.mark.parametrize("where", [{"load": {"~": 1}}, {"load": {"in": 5}}])
def test_filter_refuses_unknown_comparisons(gateway, where):
    with pytest.raises(ModuleFailed, match="load"):
        gateway.add_module("it", "filter", {"where": where})


def test_filter_fails_for_a_content_that_is_not_json(gateway, line):
    sink = line("filter", {"where": {"load": 1}})

    gateway.publish("source", b"not JSON")

    eventually(lambda: counters(gateway).failed == 1)
    assert sink.got == []


def test_map_changes_properties_and_fields(gateway, line):
    args = {
        "set": {"unit": "C"},
        "remove": ["secret"],
        "pick": ["temp", "host"],
        "rename": {"temp": "t"},
        "add": {"site": 7},
    }
    sink = line("map", args)

    content = json.dumps({"temp": 21, "host": "ä", "more": 1}).encode()
    gateway.publish("source", content, {"secret": "x", "unit": "F", "kept": "y"})
    gateway.publish("source", b"[1]")

    message = sink.until(1)[0]
    assert json.loads(message.content) == {"t": 21, "host": "ä", "site": 7}
    assert message.properties == {"unit": "C", "kept": "y"}
    eventually(lambda: counters(gateway).failed == 1)


def test_map_without_fields_keeps_the_content(gateway, line):
    sink = line("map", {"set": {"a": "b"}})

    gateway.publish("source", b"\xff not JSON")

    assert sink.until(1)[0].content == b"\xff not JSON"


def test_file_writes_messages_that_another_file_module_reads(gateway, line, tmp_path):
    path = tmp_path / "kept.jsonl"
    line("file", {"path": str(path)})
    gateway.publish("source", "grün".encode(), {"k": "v"})
    gateway.publish("source", b"\xff\x00")
    assert gateway.settle(LIMIT)
    reader, back = "reader", Recorder()
    gateway.add_module("back", back)
    gateway.add_module(reader, "file", {"path": str(path), "mode": "follow"}, start=False)
    gateway.link(reader, "back")
    gateway.start_module(reader)

    back.until(2)
    gateway.publish("source", b"later")
    back.until(3)

    assert back.contents == ["grün".encode(), b"\xff\x00", b"later"]
    assert back.got[0].properties == {"k": "v"}


def test_file_reads_lines_of_text(gateway, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"one\r\ntwo\nlast")
    sink = Recorder()
    gateway.add_module("sink", sink)
    args = {"path": str(path), "mode": "read", "format": "text"}
    gateway.add_module("it", "file", args, start=False)
    gateway.link("it", "sink")

    gateway.start_module("it")

    sink.until(3)
    assert sink.contents == [b"one", b"two", b"last"]


def test_file_skips_and_logs_a_line_that_is_not_a_message(gateway, tmp_path, caplog):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"content": "fine"}\nthis is not\n{"content": "last"}\n')
    sink = Recorder()
    gateway.add_module("sink", sink)
    args = {"path": str(path), "mode": "read"}
    gateway.add_module("it", "file", args, start=False)
    gateway.link("it", "sink")

    gateway.start_module("it")

    sink.until(2)
    assert sink.contents == [b"fine", b"last"]
    assert f"'it' skips a line of {path}: a line is not JSON" in caplog.text


def test_a_file_that_cannot_be_opened_is_reported(gateway, tmp_path):
    with pytest.raises(ModuleFailed, match="FileNotFoundError"):
        gateway.add_module("it", "file", {"path": str(tmp_path / "none"), "mode": "read"})


def test_record_appends_to_a_log(gateway, line, tmp_path):
    line("record", {"path": str(tmp_path / "log"), "topic": "/cpu/{host}/{nothing}"})

    gateway.publish("source", b'{"load": 0.5}', {"host": "a"})
    gateway.publish("source", b"no JSON")
    assert gateway.settle(LIMIT)
    gateway.remove_module("it")

    with LogReader(tmp_path / "log") as log:
        (record,) = log.read(0)
    assert (record.topic, record.payload) == ("/cpu/a/{nothing}", {"load": 0.5})
    assert dict(record.headers) == {"host": "a"}


def test_topic_publishes_and_subscribes(gateway, line, node):
    sink = line("topic", {"publish": "/out/{kind}", "subscribe": ["/in"]})
    got = []

    class Receiver:
        def take(self, items):
            got.extend(items)

    hub = Hub.of(node)
    hub.add_receiver(Receiver(), ["/out"], sees_own=True).result(LIMIT)
    gateway.publish("source", b'{"load": [1, 2.5, null]}', {"kind": "cpu"})
    hub.publishing.deliver_here("/in/x", {"a": (1, b"b")})

    eventually(lambda: got)
    topic, value = got[0]
    assert topic == "/out/cpu"
    assert dict(value) == {"load": (1, 2.5, None)}
    (message,) = sink.until(1)
    assert json.loads(message.content) == {"a": [1, "b"]}
    assert message.properties["topic"] == "/in/x"
    assert message.properties["origin"].startswith("it:")


def test_topic_without_a_topic_fails(gateway, line):
    line("topic", {"subscribe": ["/in"]})

    gateway.publish("source", b"1")

    eventually(lambda: counters(gateway).failed == 1)


def post(port, body, headers=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/path", data=body, headers=headers or {}
    )
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_http_publishes_posted_messages(gateway, line):
    sink = line("http", {"listen": "127.0.0.1:0"})
    port = module_of(gateway).port

    assert post(port, b"hello", {"Content-Type": "text/plain"}) == HTTPStatus.ACCEPTED

    (message,) = sink.until(1)
    assert message.content == b"hello"
    assert message.properties == {"path": "/path", "content-type": "text/plain"}
    too_much = {"Content-Length": str(1 << 40)}
    assert post(port, b"x", too_much) == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    gateway.remove_module("it")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=LIMIT)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "gateway.example"}, HTTPStatus.ACCEPTED),  # a program, by a name of its own
        ({"Origin": "http://evil.example"}, HTTPStatus.FORBIDDEN),
        ({"Origin": "null"}, HTTPStatus.FORBIDDEN),
        ({"Sec-Fetch-Site": "cross-site"}, HTTPStatus.FORBIDDEN),
        ({"Origin": "http://evil.example", "Host": "evil.example"}, HTTPStatus.FORBIDDEN),
        ({"Origin": "http://127.0.0.1", "Host": "127.0.0.1"}, HTTPStatus.ACCEPTED),
    ],
)
def test_http_refuses_posts_of_a_browser_for_another_site(gateway, line, headers, status):
    sink = line("http", {"listen": "127.0.0.1:0"})

    assert post(module_of(gateway).port, b"hello", headers) == status

    if status == HTTPStatus.ACCEPTED:
        sink.until(1)
    assert len(sink.got) == (status == HTTPStatus.ACCEPTED)


@pytest.fixture
def website():
    """A server that stores posted bodies, and refuses one of them."""
    kept = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.append((self.headers.get("X-Key"), self.headers.get_content_type(), body))
            self.send_response(500 if body == b"bad" else 204)
            self.end_headers()

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"page")

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.kept = kept
    server.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def test_http_posts_received_messages(gateway, line, website):
    line("http", {"post": website.url, "headers": {"X-Key": "k"}})

    gateway.publish("source", b"good", {"content-type": "text/csv"})
    gateway.publish("source", b"bad")

    eventually(lambda: counters(gateway).failed == 1)
    assert website.kept == [
        ("k", "text/csv", b"good"),
        ("k", "application/octet-stream", b"bad"),
    ]
    assert counters(gateway).received == 1


def test_http_fetches_at_regular_times(line, website):
    sink = line("http", {"get": website.url, "period": 0.01})

    sink.until(2)

    assert sink.got[0].content == b"page"
    assert sink.got[0].properties == {"url": website.url, "content-type": "text/plain"}


@pytest.mark.parametrize(
    "args", [{}, {"listen": "here"}, {"listen": "h:99999"}, {"post": "file:///etc/passwd"}]
)
def test_http_refuses_contradicting_arguments(gateway, args):
    with pytest.raises(ModuleFailed, match=r"HOST:PORT|not an HTTP URL|set listen"):
        gateway.add_module("it", "http", args)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("mode", ["read", "follow", "write"])
@pytest.mark.parametrize("kind", ["link", "fifo", "device", "folder"])
def test_the_file_module_opens_only_regular_files(gateway, tmp_path, kind, mode):
    target, path = tmp_path / "target", tmp_path / "it"
    target.write_bytes(b"precious")
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(target if kind == "link" else "/dev/full")
    if kind == "device":
        path = "/dev/full"

    with pytest.raises(ModuleFailed, match="not a file; remove it"):
        gateway.add_module("it", "file", {"path": str(path), "mode": mode})
    assert target.read_bytes() == b"precious"
