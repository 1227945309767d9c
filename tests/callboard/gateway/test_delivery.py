"""Delivery to modules: in order, once, unchanged; G02… are rules of the specification."""

import threading
import uuid

import pytest

from callboard.gateway.errors import UnknownModule
from callboard.gateway.handle import TOPIC_SIZE
from callboard.gateway.wire.message import Message
from tests.callboard.gateway.cast import LIMIT, Failing, Gate, Quiet, Recorder
from tests.polling import eventually


def test_g02_delivery_is_serial_for_each_module(broker):
    sink = Recorder()
    handle, sources = broker.add(sink), [broker.add(Quiet) for _ in range(4)]
    for source in sources:
        broker.link(source, handle)

    def flood(source):
        for number in range(500):
            broker.publish(source, Message(b"%d" % number, {"from": source.name}))

    threads = [threading.Thread(target=flood, args=(source,)) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)

    sink.until(2000)
    assert sink.overlaps == 0


def test_g02_the_order_of_each_publisher_holds(broker):
    sink, source = Recorder(), broker.add(Quiet)
    broker.link(source, broker.add(sink))

    for number in range(3000):
        broker.publish(source, Message(b"%d" % number))

    sink.until(3000)
    assert sink.contents == [b"%d" % number for number in range(3000)]


def test_g07_no_message_of_a_user_ends_a_module(broker):
    sink, source = Recorder(), broker.add(Quiet)
    handle = broker.add(sink)
    broker.link(source, handle)
    contents = [b"", uuid.uuid4().bytes, handle.topic, bytes(TOPIC_SIZE), b"quit"]

    for content in contents:
        broker.publish(source, Message(content))

    sink.until(len(contents))
    assert sink.contents == contents
    assert sink.calls == ["create"]
    broker.remove(handle)
    assert sink.calls == ["create", "destroy"]


def test_g08_each_sink_gets_an_equal_and_independent_message(broker):
    sinks = [Recorder(), Recorder()]
    source, sent = broker.add(Quiet), Message(b"one", {"k": "v"})
    for sink in sinks:
        broker.link(source, broker.add(sink))

    broker.publish(source, sent)

    first, second = (sink.until(1)[0] for sink in sinks)
    assert first == second == sent
    assert first is not second
    assert first is not sent


def test_g10_a_message_is_serialized_once_however_many_receive_it(broker):
    sinks = [Gate() for _ in range(3)]
    source, handles = broker.add(Quiet), [broker.add(sink) for sink in sinks]
    for handle in handles:
        broker.link(source, handle)
    broker.publish(source, Message(b"first"))
    for sink in sinks:
        assert sink.entered.wait(LIMIT)

    broker.publish(source, Message(b"second"))

    frames = [handle.inbox.items[0] for handle in handles]
    for sink in sinks:
        sink.open.set()
    assert frames[0] == source.topic + Message(b"second").data
    assert frames[0] is frames[1] is frames[2]


@pytest.mark.parametrize(
    "wrong", [None, b"bytes", "text", Message(b"x").data], ids=["none", "bytes", "text", "data"]
)
def test_g10_a_value_that_is_not_a_message_is_refused_at_the_caller(broker, wrong):
    source, sink = broker.add(Quiet), Recorder()
    broker.link(source, broker.add(sink))

    with pytest.raises(TypeError):
        broker.publish(source, wrong)
    with pytest.raises(UnknownModule):
        broker.publish(None, Message())

    broker.publish(source, Message(b"fine"))
    assert sink.until(1)[0].content == b"fine"


def test_g11_a_corrupt_message_is_counted_and_the_loop_continues(broker):
    sink, source = Recorder(), broker.add(Quiet)
    handle = broker.add(sink)
    broker.link(source, handle)
    lost = []
    broker.on_dead_letter = lost.append

    for wrong in (b"", b"x", source.topic, source.topic + b"\xa1\x60" + bytes(12)):
        handle.inbox.put(wrong)
    broker.publish(source, Message(b"fine"))

    assert sink.until(1)[0].content == b"fine"
    assert handle.counters.lost == {"corrupt": 4}
    assert [letter.reason for letter in lost] == ["corrupt"] * 4
    assert [letter.message for letter in lost] == [None] * 4


def test_g11_a_receive_that_raises_is_counted_and_the_loop_continues(broker, caplog):
    sink, source = Failing(), broker.add(Quiet)
    handle = broker.add(sink, name="picky")
    broker.link(source, handle)
    lost = []
    broker.on_dead_letter = lost.append

    for content in (b"bad 1", b"good", b"bad 2", b"last"):
        broker.publish(source, Message(content))

    sink.until(2)
    assert sink.contents == [b"good", b"last"]
    eventually(lambda: handle.counters.received == 2)
    assert handle.counters.failed == 2
    assert handle.counters.restarts == 0
    assert [(each.module, each.source, each.reason) for each in lost] == [
        ("picky", "Quiet", "failed")
    ] * 2
    assert "'picky'" in caplog.text
