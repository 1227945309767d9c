"""Modules on other nodes."""

import pytest

from callboard import Node
from callboard.gateway import Gateway, ModuleFailed, ModuleOptions, offer_module
from callboard.gateway.errors import InvalidEntrypoint
from callboard.gateway.remote import read_place
from callboard.gateway.wire.message import Message
from tests.callboard.gateway.cast import LIMIT, Failing, Quiet, Recorder, Relay
from tests.polling import eventually


@pytest.fixture
def there():
    with Node("there") as made:
        made.listen("127.0.0.1", 0)
        yield made


class Kept:
    """Modules that were made, for each class."""

    made: list


def kept(*kinds):
    made = []

    def create(self, args):
        made.append(self)
        Recorder.create(self, args)

    return type("Kept", kinds, {"create": create, "made": made})


def place(node, name):
    entrypoint = {"address": node.address, "module.name": name}
    return {"name": "remote", "entrypoint": entrypoint}


def test_a_module_on_another_node_receives_and_publishes_in_order(gateway, there):
    kind, sink = kept(Relay), Recorder()
    offer_module(there, kind, "relay")
    gateway.add_module("source", Quiet)
    gateway.add_module("far", place(there, "relay"), {"k": [1, "x"]})
    gateway.add_module("sink", sink)
    gateway.link("source", "far")
    gateway.link("far", "sink")

    for number in range(3000):
        gateway.publish("source", b"%d" % number, {"p": "v"})

    sink.until(3000)
    assert sink.contents == [b"%d" % number for number in range(3000)]
    assert sink.got[0].properties == {"p": "v"}
    (far,) = kind.made
    assert far.args == {"k": [1, "x"]}
    assert far.overlaps == 0
    assert far.node is there
    assert gateway.settle(LIMIT)
    assert gateway.modules()[1].counters.received == 3000
    gateway.remove_module("far")
    assert far.calls == ["create", "start", "destroy"]


def test_a_message_that_fails_at_a_remote_module_is_a_dead_letter_at_the_gateway(
    gateway, there
):
    offer_module(there, kept(Failing), "picky")
    told = []
    gateway.on("dead_letter", lambda event: told.append(event.dead_letter))
    gateway.add_module("source", Quiet)
    gateway.add_module("far", place(there, "picky"))
    gateway.link("source", "far")

    for content in (b"good", b"bad", b"good"):
        gateway.publish("source", content)

    eventually(lambda: told)
    assert (told[0].message.content, told[0].reason) == (b"bad", "failed")
    assert "cannot take" in told[0].detail
    eventually(lambda: gateway.modules()[1].counters.received == 2)


def test_only_offered_modules_can_be_created(gateway, there):
    class Broken(Recorder):
        def create(self, args):
            error = "no such port"
            raise OSError(error)

    class Patient(Recorder):
        async def receive(self, message):
            pass

    assert offer_module(there, Broken) == "Broken"
    offer_module(there, Patient)
    for name, words in (
        ("unknown", "not offered"),
        ("Broken", "no such port"),
        ("Patient", "coroutine"),
    ):
        with pytest.raises(ModuleFailed, match=words):
            gateway.add_module("far", place(there, name))
    assert gateway.modules() == ()
    with pytest.raises(TypeError):
        offer_module(there, Recorder())


def test_a_module_whose_agent_is_killed_is_recreated(gateway, there):
    kind = kept(Recorder)
    offer_module(there, kind, "recorder")
    gateway.add_module("source", Quiet)
    gateway.add_module("far", place(there, "recorder"))
    gateway.link("source", "far")
    gateway.publish("source", b"1")
    eventually(lambda: kind.made and kind.made[0].contents == [b"1"])

    kind.made[0].fail(OSError("lost the line"))

    eventually(lambda: len(kind.made) == 2)
    gateway.publish("source", b"2")
    kind.made[1].until(1)
    assert kind.made[1].contents == [b"2"]
    assert kind.made[1].calls == ["create", "start"]


def test_a_module_of_a_lost_node_has_ended_and_its_messages_are_accounted_for(gateway):
    kind, failed = kept(Recorder), []
    gateway.on("module_failed", failed.append)
    with Node("short") as there:
        there.listen("127.0.0.1", 0)
        offer_module(there, kind, "recorder")
        gateway.add_module("source", Quiet)
        options = ModuleOptions(intensity=(1, 60.0), hold=True)
        gateway.add_module("far", place(there, "recorder"), options=options)
        gateway.link("source", "far")
        for number in range(100):
            gateway.publish("source", b"%d" % number)
        handle = gateway._handles["far"]
        down = gateway.node.monitor(gateway.ref("far"))
    assert down.result(LIMIT).reason == "error"
    eventually(lambda: failed)
    counters = handle.counters
    assert counters.received + sum(counters.lost.values()) == 100


def test_messages_wait_here_for_the_start_of_a_remote_module_if_configured(node, there):
    kind = kept(Recorder)
    offer_module(there, kind, "recorder")
    with Gateway(node) as gateway:
        gateway.add_module("source", Quiet)
        gateway.add_module("far", place(there, "recorder"), options=ModuleOptions(hold=True))
        gateway.link("source", "far")
        gateway.publish("source", b"early")

        assert (gateway._handles["far"].waiting, kind.made[0].calls) == (1, ["create"])
        gateway.start()

        assert kind.made[0].until(1)[0].content == b"early"


def test_messages_reach_a_remote_module_before_its_start_unless_they_are_held(broker, there):
    kind = kept(Recorder)
    offer_module(there, kind, "recorder")
    source = broker.add(Quiet)
    far = broker.add(Quiet, where=read_place(place(there, "recorder")["entrypoint"]))
    broker.link(source, far)

    broker.publish(source, Message(b"early"))

    assert kind.made[0].until(1)[0].content == b"early"
    assert kind.made[0].calls == ["create"]


@pytest.mark.parametrize(
    "entrypoint",
    [
        {},
        {"address": "basp://127.0.0.1:1"},
        {"address": "http://x", "module.name": "y"},
        {"address": "basp://127.0.0.1:1", "module.name": 5},
        {"address": "basp://127.0.0.1:1", "module.name": "y", "more": 1},
    ],
)
def test_an_entrypoint_that_does_not_exist_is_refused(entrypoint):
    with pytest.raises(InvalidEntrypoint):
        read_place(entrypoint)
