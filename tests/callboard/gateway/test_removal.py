"""Modules that are removed while others publish; G12… are rules of the specification."""

import threading

from callboard.actors.mailbox import Mailbox
from callboard.gateway.handle import ModuleOptions
from callboard.gateway.wire.message import Message
from tests.callboard.gateway.cast import LIMIT, Gate, Quiet, Relay
from tests.polling import eventually


def flood(broker, sink, count):
    """Queue messages at a module that is processing the first one; return its handle."""
    source = broker.add(Quiet)
    handle = broker.add(sink)
    broker.link(source, handle)
    for number in range(count):
        broker.publish(source, Message(b"%d" % number))
    assert sink.entered.wait(LIMIT)
    return handle


def test_g12_a_module_receives_waiting_messages_before_it_is_removed(broker):
    sink = Gate()
    handle = flood(broker, sink, 100)

    remover = threading.Thread(target=broker.remove, args=(handle, LIMIT))
    remover.start()
    eventually(lambda: not handle.is_open)
    sink.open.set()
    remover.join(LIMIT)

    assert sink.contents == [b"%d" % number for number in range(100)]
    assert sink.calls == ["create", "destroy"]
    assert handle not in broker.modules()
    assert not broker.remove(handle)


def test_g12_a_module_that_is_stuck_is_removed_in_bounded_time(broker):
    sink = Gate()
    handle = flood(broker, sink, 10)

    assert broker.remove(handle, timeout=0.1)

    assert handle.counters.lost == {"ended": 9}
    assert sink.calls == ["create"]
    sink.open.set()
    sink.until_called("destroy")


def test_g12b_a_module_that_publishes_while_it_is_removed_is_removed_in_bounded_time(broker):
    echo, source = Relay(), broker.add(Quiet)
    handle = broker.add(echo)
    broker.link(source, handle)
    broker.link(handle, handle)
    broker.publish(source, Message(b"round and round"))
    echo.until(50)

    assert broker.remove(handle, timeout=LIMIT)

    assert echo.calls == ["create", "destroy"]
    assert handle.waiting == 0


def test_g12b_a_waiting_publisher_continues_when_the_sink_is_removed(broker):
    sink, source = Gate(), broker.add(Quiet)
    handle = broker.add(sink, options=ModuleOptions(queue=Mailbox(limit=1)))
    broker.link(source, handle)

    def flood():
        for number in range(5):
            broker.publish(source, Message(b"%d" % number))

    publisher = threading.Thread(target=flood)
    publisher.start()
    assert sink.entered.wait(LIMIT)
    eventually(lambda: handle.waiting == 1 and handle.inbox.pressure.waiters)
    broker.remove(handle, timeout=0.1)
    publisher.join(LIMIT)

    assert not publisher.is_alive()
    sink.open.set()
    sink.until_called("destroy")
    assert handle.counters.lost["ended"] >= 2
