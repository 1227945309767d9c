"""Store and forward: messages wait on disk, in order and bounded, while a target is down."""

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from callboard.commitlog import CommitLog
from callboard.commitlog.columns import Cbor
from callboard.gateway import Gateway, Message, Module
from callboard.gateway.errors import ModuleFailed
from callboard.gateway.handle import ModuleOptions
from callboard.gateway.inbox import Mailbox
from callboard.gateway.spool import Spool
from tests.polling import eventually


class Target:
    """The target of a sink, up or down."""

    def __init__(self) -> None:
        self.is_up = False
        self.got: list[bytes] = []
        self.refuses: set[bytes] = set()


class Sink(Module):
    def create(self, args):
        self.target = args["target"]

    def receive(self, message):
        if not self.target.is_up:
            raise ConnectionRefusedError(111, "nobody listens")
        if message.content in self.target.refuses:
            raise ValueError(message.content)
        self.target.got.append(message.content)


class Later(Sink):
    """Its `start` needs the target, and it awaits."""

    def start(self):
        if not self.target.is_up:
            raise TimeoutError("no answer")

    async def receive(self, message):
        self.target.got.append(message.content)


class Silent(Module):
    pass


def make(folder, target, kind=Sink, **queue):
    gateway = Gateway()
    options = ModuleOptions(store=folder, queue=Mailbox(**queue))
    gateway.add_module("in", Silent)
    gateway.add_module("out", kind, {"target": target}, options=options)
    gateway.link("in", "out")
    return gateway


def numbers(first, end):
    return [b"%d" % number for number in range(first, end)]


def publish(gateway, first, end):
    for content in numbers(first, end):
        gateway.publish("in", content)


@pytest.mark.parametrize("kind", [Sink, Later])
def test_messages_wait_in_order_and_are_delivered_when_the_target_is_back(
    tmp_path, kind, caplog
):
    target, events = Target(), []
    with make(tmp_path / "store", target, kind) as gateway:
        for name in ("outage", "recovered"):
            gateway.on(name, lambda event: events.append((event.kind, event.module)))
        gateway.start()
        publish(gateway, 0, 500)
        eventually(lambda: gateway.modules()[1].outage)
        assert gateway.modules()[1].waiting == 500
        target.is_up = True
        publish(gateway, 500, 510)
        eventually(lambda: len(target.got) == 510)
        publish(gateway, 510, 520)
        eventually(lambda: len(target.got) == 520)
        eventually(lambda: len(events) == 2)
        eventually(lambda: gateway.modules()[1].counters.received == 520)
        status = gateway.modules()[1]
        assert (status.waiting, status.outage) == (0, "")
    assert target.got == numbers(0, 520)
    assert events == [("outage", "out"), ("recovered", "out")]
    lines = [each for each in caplog.records if each.name == "callboard.gateway"]
    assert len(lines) == 2


def test_waiting_messages_outlive_the_gateway(tmp_path):
    target = Target()
    for first in (0, 100):
        with make(tmp_path, target) as gateway:
            gateway.start()
            publish(gateway, first, first + 100)
    target.is_up = True
    with make(tmp_path, target) as gateway:
        assert gateway.modules()[1].waiting == 200
        gateway.start()
        eventually(lambda: len(target.got) == 200)
        assert gateway.settle()
    with make(tmp_path, target) as gateway:
        gateway.start()
        assert gateway.modules()[1].waiting == 0
    assert target.got == numbers(0, 200)


@pytest.mark.parametrize(
    ("on_full", "kept"), [("drop_oldest", (90, 100)), ("drop_newest", (0, 10))]
)
def test_frames_over_the_bound_are_reported_and_counted(tmp_path, on_full, kept):
    target, letters = Target(), []
    with make(tmp_path, target, limit=10, on_full=on_full) as gateway:
        gateway.on("dead_letter", letters.append)
        gateway.start()
        publish(gateway, 0, 100)
        assert gateway.modules()[1].counters.lost == {"overflow": 90}
        eventually(lambda: len(letters) == 90)
        assert {letter.dead_letter.source for letter in letters} == {"in"}
        target.is_up = True
        eventually(lambda: len(target.got) == 10)
    assert target.got == numbers(*kept)


def test_bytes_are_bounded_too_and_publishers_wait(tmp_path):
    target = Target()
    with make(tmp_path, target, bytes=1000, on_full="wait") as gateway:
        gateway.start()
        thread = threading.Thread(target=publish, args=(gateway, 0, 100), daemon=True)
        thread.start()
        eventually(lambda: gateway.modules()[1].outage)
        assert gateway.modules()[1].waiting < 100
        target.is_up = True
        eventually(lambda: len(target.got) == 100)
        thread.join()
    assert target.got == numbers(0, 100)


def test_a_message_that_the_module_refuses_does_not_block_later_ones(tmp_path):
    target = Target()
    target.refuses = {b"1"}
    with make(tmp_path, target) as gateway:
        gateway.start()
        publish(gateway, 0, 3)
        target.is_up = True
        eventually(lambda: len(target.got) == 2)
        assert gateway.modules()[1].counters.failed == 1
    assert target.got == [b"0", b"2"]


def test_received_frames_are_removed_from_the_disk(tmp_path):
    target = Target()
    target.is_up = True
    with make(tmp_path, target) as gateway:
        gateway.start()
        for _ in range(3000):
            gateway.publish("in", bytes(10_000))
        eventually(lambda: len(target.got) == 3000)
        files = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert files < 20 << 20  # of 30 MB


def test_a_spool_belongs_to_one_module(tmp_path):
    with make(tmp_path, Target()) as gateway:
        with pytest.raises(ModuleFailed, match="belongs to 'out'"):
            gateway.add_module(
                "other", Silent, options=ModuleOptions(store=tmp_path, hold=True)
            )
        with pytest.raises(ModuleFailed, match="use separate folders"):
            make(tmp_path, Target())


def test_a_module_with_a_changed_entry_continues_with_its_spool(tmp_path):
    def configuration(path, content):
        return {
            "modules": [
                {"name": "in", "module": "filter", "args": {}},
                {
                    "name": "out",
                    "module": "http",
                    "args": {"post": f"http://127.0.0.1:{path}/"},
                    "store": str(tmp_path / "store"),
                    "queue": {"limit": content},
                },
            ],
            "links": [{"source": "in", "sink": "out"}],
        }

    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    with server, Gateway() as gateway:
        gateway.reload(configuration(1, 5000))
        gateway.start()
        publish(gateway, 0, 20)
        eventually(lambda: gateway.modules()[1].outage)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        gateway.reload(configuration(server.server_port, 6000))
        publish(gateway, 20, 30)
        eventually(lambda: len(got) == 30)
        server.shutdown()
    assert got == numbers(0, 30)


PROGRAM = """
    import sys
    from callboard.gateway import Gateway
    with Gateway.from_file(sys.argv[1]) as gateway:
        for number in range(300):
            gateway.publish("in", b"%d" % number)
        print("published", flush=True)
        gateway.wait()
"""


@pytest.mark.slow
def test_sigkill_loses_no_message_and_keeps_the_order(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text(
        textwrap.dedent("""
        modules = [
            { name = "in", module = "filter" },
            { name = "out", module = "http", store = "s", args = { post = "http://[::1]:1" } },
        ]
        links = [{ source = "in", sink = "out" }]
        """)
    )
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(file)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"published\n"
    os.kill(child.pid, signal.SIGKILL)
    child.communicate()
    target = Target()
    target.is_up = True
    with make(tmp_path / "s", target) as gateway:
        gateway.start()
        eventually(lambda: len(target.got) == 300)
    assert target.got == numbers(0, 300)


class Answers(BaseHTTPRequestHandler):
    status = 500
    asked = 0

    def do_GET(self):
        type(self).asked += 1
        self.send_response(self.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass


def test_an_outage_of_a_source_is_logged_once_when_it_begins_and_once_when_it_ends(caplog):
    events: list[object] = []
    got: list[Message] = []

    class Results(Module):
        def receive(self, message):
            got.append(message)

    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server, caplog.at_level(logging.WARNING):
        with Gateway() as gateway:
            for name in ("outage", "recovered", "module_failed"):
                gateway.on(name, lambda event: events.append((event.kind, event.detail)))
            url = f"http://127.0.0.1:{server.server_port}/x"
            gateway.add_module("page", "http", {"get": url, "period": 0.01})
            gateway.add_module("results", Results)
            gateway.link("page", "results")
            gateway.start()
            eventually(lambda: Answers.asked > 5)
            Answers.status = 200
            eventually(lambda: got)
            eventually(lambda: len(events) == 2)
        server.shutdown()
    assert [kind for kind, _ in events] == ["outage", "recovered"]
    assert "answered with 500" in events[0][1]
    lines = [each.getMessage() for each in caplog.records if "page" in each.getMessage()]
    assert len(lines) == 2, lines


def drained(spool):
    """Take all frames out, without the eight bytes of their sources."""
    frames = []
    while True:
        try:
            frames.append(spool.popleft()[8:])
        except IndexError:
            return frames


def test_a_damaged_frame_is_skipped_and_later_frames_are_received(tmp_path, caplog):
    spool = Spool(tmp_path)
    for number in range(5):
        spool.append(b"12345678frame%d" % number)
    spool.close()
    (file,) = tmp_path.glob("*.log")
    data = bytearray(file.read_bytes())
    data[data.index(b"frame2")] ^= 1
    file.write_bytes(data)

    spool = Spool(tmp_path)
    spool.append(b"12345678later")
    assert drained(spool) == [b"frame0", b"frame1", b"frame3", b"frame4", b"later"]
    assert (len(spool), spool.size) == (0, 0)
    spool.close()
    assert "are skipped" in caplog.text


def test_a_record_that_is_not_a_frame_is_skipped_and_not_retried(tmp_path, caplog):
    with CommitLog(tmp_path) as log:
        log.append("", b"12345678first")
        for odd in ({"a": 1}, 5, Cbor(b"\xff"), Cbor(b""), None, "text"):
            log.append("", odd)
        log.append("", b"12345678last")
        log.append("", 5)

    spool = Spool(tmp_path)
    assert drained(spool) == [b"first", b"last"]
    assert (len(spool), spool.size) == (0, 0)
    spool.close()
    assert len(Spool(tmp_path)) == 0
    assert "is of type dict" in caplog.text


def test_the_size_of_a_spool_is_the_size_of_its_waiting_frames(tmp_path):
    spool = Spool(tmp_path / "spool")
    for size in (30, 50, 70):
        spool.append(bytes(size))

    spool.popleft()
    left = spool.size
    spool.close()

    assert (left, Spool(tmp_path / "spool").size) == (120, 120)
