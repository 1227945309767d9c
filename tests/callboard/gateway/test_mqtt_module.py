"""The ready-made module `mqtt`, against the router."""

import pytest

from callboard.gateway import ModuleFailed, ModuleOptions
from callboard.mqtt import Limits, Router, RouterConfig
from tests.callboard.gateway.cast import LIMIT, Quiet, Recorder
from tests.polling import eventually

pytest.importorskip("paho.mqtt.client")


@pytest.fixture
def router():
    with Router() as made:
        yield made


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_are_published_to_a_server_and_received_from_it(gateway, router, qos):
    sink = Recorder()
    about = {"port": router.port, "qos": qos}
    gateway.add_module("source", Quiet)
    gateway.add_module("sink", sink)
    gateway.add_module("in", "mqtt", {**about, "subscribe": ["cpu/#"]}, start=False)
    gateway.add_module("out", "mqtt", {**about, "publish": "cpu/{host}"})
    gateway.link("source", "out")
    gateway.link("in", "sink")
    gateway.start_module("in")

    for number in range(20):
        gateway.publish("source", b"%d" % number, {"host": "a"})

    sink.until(20)
    assert sink.contents == [b"%d" % number for number in range(20)]
    assert sink.got[0].properties == {"topic": "cpu/a"}
    assert gateway.settle(LIMIT)
    out = next(status for status in gateway.modules() if status.name == "out")
    assert (out.counters.received, out.counters.failed) == (20, 0)


def test_a_missing_server_fails_the_start(gateway, router):
    port = router.port
    router.close()
    gateway.add_module("out", "mqtt", {"port": port, "publish": "x"}, start=False)

    with pytest.raises(ModuleFailed, match="'out' did not start"):
        gateway.start_module("out")


def test_without_a_topic_a_message_fails(gateway, router):
    gateway.add_module("source", Quiet)
    gateway.add_module("in", "mqtt", {"port": router.port})
    gateway.link("source", "in")

    gateway.publish("source", b"x")

    eventually(lambda: gateway.modules()[1].counters.failed == 1)
    assert gateway.settle(LIMIT)


@pytest.mark.slow
def test_a_message_that_the_server_never_accepts_becomes_a_dead_letter(gateway, tmp_path):
    small, lost = Limits(packet_size=500), []
    with Router(RouterConfig(limits=small)) as router, router.link() as link:
        link.subscribe("t", qos=1).result(5)
        gateway.add_module("source", Quiet)
        gateway.on("dead_letter", lost.append)
        about = {"port": router.port, "publish": "t", "qos": 1, "attempts": 2, "timeout": 4}
        gateway.add_module("out", "mqtt", about, options=ModuleOptions(store=tmp_path))
        gateway.link("source", "out")

        for content in (b"first", b"x" * 1_000, b"last"):
            gateway.publish("source", content)

        assert [link.recv(60).payload for _ in range(2)] == [b"first", b"last"]
        eventually(lambda: len(lost) == 1)
        assert "in place of accepting 't'" in lost[0].dead_letter.detail
        assert gateway.settle(LIMIT)
