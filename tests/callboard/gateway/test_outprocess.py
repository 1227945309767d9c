"""Modules in separate processes."""

import contextlib
import os
import sys
import threading
from pathlib import Path

import pytest

from callboard.gateway import Message, Module, ModuleFailed, ModuleOptions
from callboard.gateway.errors import InvalidEntrypoint
from callboard.gateway.outprocess import ProcessEntrypoint, channel_url
from callboard.gateway.wire.control import (
    DETACH,
    FAILED,
    OK,
    ControlCreate,
    ControlDestroy,
    ControlReply,
    ControlStart,
    decode_control,
    encode_control,
)
from tests.callboard.gateway.cast import LIMIT, Quiet, Recorder
from tests.polling import eventually

pynng = pytest.importorskip("pynng")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


class Echo(Module):
    """Publishes its arguments, its process id, and the messages that it receives."""

    def create(self, args):
        if args.get("broken"):
            error = "it is broken"
            raise ValueError(error)
        self.label = args.get("label", "")

    def start(self):
        self.publish(b"started", {"label": self.label, "pid": str(os.getpid())})
        self.after(0.01, lambda: self.publish(b"tick"))

    def receive(self, message):
        if message.content == b"die":
            os._exit(3)
        if message.content == b"fail":
            self.fail(OSError("gone"))
            return
        self.publish(message)


@pytest.fixture
def control(tmp_path):
    return f"ipc://{tmp_path}/control"


@pytest.fixture
def run(gateway, control, monkeypatch):
    """Add Echo in a separate process, linked to a sink."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", paths)
    for module in ("broker", "outprocess"):  # a processor may be shared by many
        monkeypatch.setattr(f"callboard.gateway.{module}.CREATE_TIMEOUT", 100.0)

    def start(args=None, grace=30_000):
        command = ["-m", "callboard.gateway.outprocess_host", f"{__name__}:Echo", control]
        entrypoint = {
            "activation.type": "launch",
            "control.id": control,
            "launch": {"path": sys.executable, "args": command, "grace.period.ms": grace},
        }
        sink = Recorder()
        gateway.add_module("source", Quiet)
        gateway.add_module("sink", sink)
        loader = {"name": "outprocess", "entrypoint": entrypoint}
        gateway.add_module("far", loader, args or {"label": "ä"}, start=False)
        gateway.link("source", "far")
        gateway.link("far", "sink")
        gateway.start_module("far")
        return sink

    return start


@pytest.mark.quick
def test_a_module_runs_in_a_process_of_its_own(run, gateway):
    sink = run()

    sink.until(1)
    for number in range(300):
        gateway.publish("source", b"%d" % number, {"p": "v"})

    messages = sink.until(302)
    assert messages[0].properties["label"] == "ä"
    assert int(messages[0].properties["pid"]) != os.getpid()
    numbers = [m.content for m in messages[1:] if m.content != b"tick"]
    assert numbers == [b"%d" % number for number in range(300)]
    process = gateway._handles["far"].module._process
    gateway.remove_module("far")
    assert process.returncode == 0


@pytest.mark.parametrize("end", [b"die", b"fail"])
def test_a_process_that_ends_is_started_again(run, gateway, end):
    sink = run()
    first = sink.until(1)[0].properties["pid"]

    gateway.publish("source", end)

    eventually(lambda: [m for m in sink.got if m.properties.get("pid", first) != first])
    gateway.publish("source", b"there?")
    eventually(lambda: b"there?" in sink.contents)


def test_a_create_that_fails_remotely_is_reported_locally(run, gateway):
    with pytest.raises(ModuleFailed, match="did not create the module"):
        run({"broken": True})
    assert [status.name for status in gateway.modules()] == ["source", "sink"]


class ByHand:
    """A process that speaks the control messages by hand, on a thread, until it is closed."""

    def __init__(self, control):
        self.seen = []
        self.control = pynng.Pair0(listen=control)
        self.messages = None
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        with contextlib.suppress(pynng.Closed):
            while True:
                message = decode_control(self.control.recv())
                if isinstance(message, ControlCreate):
                    if self.messages is not None:
                        self.messages.close()
                    self.messages = pynng.Pair0(
                        listen=message.uri, recv_timeout=int(LIMIT * 1000)
                    )
                    self.say(ControlReply(OK))
                self.seen.append(message)

    def say(self, message):
        self.control.send(encode_control(message))

    def close(self):
        self.control.close()
        self.thread.join(LIMIT)
        if self.messages is not None:
            self.messages.close()


@pytest.fixture
def by_hand(control):
    made = ByHand(control)
    yield made
    made.close()


def add(gateway, control, **more):
    entrypoint = {"activation.type": "none", "control.id": control}
    loader = {"name": "outprocess", "entrypoint": entrypoint}
    gateway.add_module("far", loader, {"k": 1}, **more)


def test_the_control_messages_equal_those_of_the_original(gateway, control, by_hand):
    sink = Recorder()
    add(gateway, control, start=False)
    gateway.add_module("sink", sink)
    gateway.link("far", "sink")
    gateway.add_module("source", Quiet)
    gateway.link("source", "far")
    gateway.start_module("far")
    gateway.publish("source", b"to it", {"p": "v"})

    assert by_hand.messages.recv() == Message(b"to it", {"p": "v"}).data
    by_hand.messages.send(b"this is no message")
    by_hand.control.send(b"this is no control message")
    by_hand.messages.send(Message(b"from it").data)
    assert sink.until(1)[0].content == b"from it"
    gateway.remove_module("far")
    eventually(lambda: len(by_hand.seen) == 3)

    create, start, destroy = by_hand.seen
    assert (create.args, create.uri_type, create.message_version) == ('{"k": 1}', 16, 1)
    assert (start, destroy) == (ControlStart(), ControlDestroy())


@pytest.mark.parametrize("status", [FAILED, DETACH])
def test_a_late_failure_reply_recreates_the_module(gateway, control, by_hand, status):
    add(gateway, control)
    eventually(lambda: ControlStart() in by_hand.seen)

    by_hand.say(ControlReply(status))

    eventually(lambda: by_hand.seen.count(ControlStart()) == 2)
    kinds = [type(message) for message in by_hand.seen]
    assert kinds[:3] == [ControlCreate, ControlStart, ControlDestroy]
    # A try in between fails where this end still has the old channel: it takes one at a time.
    assert kinds[-2:] == [ControlCreate, ControlStart]


def test_a_missing_process_is_reported_in_time(gateway, control, monkeypatch):
    monkeypatch.setattr("callboard.gateway.outprocess.CREATE_TIMEOUT", 0.2)

    with pytest.raises(ModuleFailed, match="did not answer"):
        add(gateway, control, options=ModuleOptions(detached=True))


@pytest.mark.parametrize(
    ("entrypoint", "key"),
    [
        ({}, "control.id"),
        ({"control.id": ""}, "control.id"),
        ({"control.id": "x", "activation.type": "fork"}, "activation.type"),
        ({"control.id": "x", "activation.type": "launch"}, "launch"),
        ({"control.id": "x", "launch": {"path": "p"}}, "launch"),
        ({"control.id": "x", "more": 1}, "more"),
        ({"control.id": "x", "activation.type": "launch", "launch": {}}, "launch.path"),
    ],
)
def test_an_entrypoint_with_a_mistake_is_refused(entrypoint, key):
    with pytest.raises(InvalidEntrypoint) as caught:
        ProcessEntrypoint.read(entrypoint)
    assert caught.value.key == key


def test_a_plain_name_is_a_socket_file():
    assert channel_url("name").startswith("ipc:///")
    assert channel_url("tcp://127.0.0.1:1") == "tcp://127.0.0.1:1"
