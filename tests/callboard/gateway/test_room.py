"""Messages that do not fit into the queue of a module, and publishers that wait for room."""

import pytest

from callboard.actors.errors import MailboxFull
from callboard.actors.mailbox import Mailbox
from callboard.gateway.handle import ModuleOptions
from callboard.gateway.wire.message import Message
from tests.callboard.gateway.cast import LIMIT, Gate, Quiet, Recorder
from tests.polling import eventually


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "fail"])
def test_a_frame_that_does_not_fit_follows_the_policy_and_is_counted(broker, policy):
    sink, source = Gate(), broker.add(Quiet)
    queue = Mailbox(limit=3, on_full=policy)
    handle = broker.add(sink, options=ModuleOptions(queue=queue))
    broker.link(source, handle)
    broker.publish(source, Message(b"first"))
    assert sink.entered.wait(LIMIT)

    refused = 0
    for number in range(5):
        try:
            broker.publish(source, Message(b"%d" % number))
        except MailboxFull:
            refused += 1
    sink.open.set()

    sink.until(4)
    kept = [b"2", b"3", b"4"] if policy == "drop_oldest" else [b"0", b"1", b"2"]
    assert sink.contents == [b"first", *kept]
    assert handle.counters.lost == {"overflow": 2}
    assert refused == (2 if policy == "fail" else 0)


def test_a_sink_that_refuses_a_message_does_not_affect_the_others(broker):
    full, free, source = Gate(), Recorder(), broker.add(Quiet)
    queue = Mailbox(limit=1, on_full="fail")
    broker.link(source, broker.add(full, options=ModuleOptions(queue=queue)))
    broker.link(source, broker.add(free))
    broker.publish(source, Message(b"0"))
    assert full.entered.wait(LIMIT)
    broker.publish(source, Message(b"1"))

    with pytest.raises(MailboxFull):
        broker.publish(source, Message(b"2"))

    free.until(3)
    full.open.set()


def test_bytes_are_bounded_too(broker):
    sink, source = Gate(), broker.add(Quiet)
    queue = Mailbox(bytes=1000, on_full="drop_newest")
    handle = broker.add(sink, options=ModuleOptions(queue=queue))
    broker.link(source, handle)
    broker.publish(source, Message(b"first"))
    assert sink.entered.wait(LIMIT)

    for _ in range(5):
        broker.publish(source, Message(bytes(400)))
    sink.open.set()

    sink.until(3)
    assert handle.counters.lost == {"overflow": 3}
    for _ in range(3):
        broker.publish(source, Message(bytes(300)))
        sink.until(len(sink.got))
    eventually(lambda: handle.inbox.pressure.held == 0)


def test_a_publish_from_inside_receive_never_blocks(broker):
    class Multiplier(Recorder):
        refused = 0

        def handle(self, message):
            for number in range(100):
                try:
                    self.publish(b"%d" % number)
                except MailboxFull:
                    self.refused += 1

    many, slow, source = Multiplier(), Gate(), broker.add(Quiet)
    options = ModuleOptions(queue=Mailbox(limit=10))
    handle, sink = broker.add(many), broker.add(slow, options=options)
    broker.link(source, handle)
    broker.link(handle, sink)

    broker.publish(source, Message(b"go"))
    broker.publish(source, Message(b"go again"))
    many.until(1)

    assert slow.entered.wait(LIMIT)
    assert many.refused in (79, 80)  # one may be in `receive` already
    assert len(many.got) == 1  # no turn until there is room
    slow.open.set()
    many.until(2)
    assert slow.overlaps == 0


@pytest.mark.parametrize("length", [1, 2, 3])
def test_cycles_of_full_modules_make_progress(broker, length):
    class Twice(Recorder):
        refused = 0

        def handle(self, message):
            for _ in range(2):
                try:
                    self.publish(message)
                except MailboxFull:
                    self.refused += 1

    ring = [Twice() for _ in range(length)]
    options = ModuleOptions(queue=Mailbox(limit=8))
    handles = [broker.add(each, options=options) for each in ring]
    for index, handle in enumerate(handles):
        broker.link(handle, handles[(index + 1) % length])
    source = broker.add(Quiet)
    broker.link(source, handles[0])

    broker.publish(source, Message(b"x"))

    for each in ring:
        each.until(200)
    assert all(len(handle.inbox.items) <= 17 for handle in handles)
    assert sum(each.refused for each in ring) > 0
    for handle in handles:
        assert broker.remove(handle)


def test_a_thread_outside_waits_for_room(broker):
    sink, source = Recorder(), broker.add(Quiet)
    handle = broker.add(sink, options=ModuleOptions(queue=Mailbox(limit=2)))
    broker.link(source, handle)

    for number in range(500):
        broker.publish(source, Message(b"%d" % number))

    sink.until(500)
    assert sink.contents == [b"%d" % number for number in range(500)]
    assert handle.counters.lost == {}


def test_a_wait_for_room_ends_after_its_timeout(broker):
    sink, source = Gate(), broker.add(Quiet)
    handle = broker.add(sink, options=ModuleOptions(queue=Mailbox(limit=1)))
    broker.link(source, handle)
    broker.publish(source, Message(b"0"))
    assert sink.entered.wait(LIMIT)
    broker.publish(source, Message(b"1"))

    with pytest.raises(TimeoutError, match="no room for 0.05 s"):
        broker.publish(source, Message(b"2"), timeout=0.05)

    sink.open.set()
    assert handle.counters.lost == {"overflow": 1}
