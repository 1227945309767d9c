"""The rules of the module broker's seed, each with its number."""

import threading
import uuid

import pytest

from actors.errors import MailboxFull
from actors.mailbox import Mailbox
from callboard import Node
from callboard.gateway.broker import ModuleBroker
from callboard.gateway.errors import BrokerClosed, UnknownModule
from callboard.gateway.handle import TOPIC_SIZE, ModuleOptions
from callboard.gateway.message import Message
from tests.callboard.gateway.cast import (
    LIMIT,
    Failing,
    Gate,
    Quiet,
    Recorder,
    Relay,
    eventually,
)
from tests.callboard.gateway.hammer import hammer


def test_g01_every_call_may_come_from_any_thread_at_any_time(node):
    report = hammer(node, seconds=1.5, threads=8, seed=1)

    assert report.stuck == []
    assert report.lost == 0
    assert report.overlaps == 0


def test_g01_every_call_may_come_from_inside_receive(broker):
    class Builder(Recorder):
        def handle(self, message):
            made = broker.add(target)
            broker.link(handle, made)
            self.publish(b"from inside")
            broker.unlink(handle, made)
            broker.start(made)
            broker.remove(made)

    target, builder, source = Recorder(), Builder(), broker.add(Quiet)
    handle = broker.add(builder)
    broker.link(source, handle)

    broker.publish(source, Message(b"go"))

    assert target.until(1)[0].content == b"from inside"
    target.until_called("destroy")
    assert target.calls == ["create", "start", "destroy"]


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


def test_g03_references_are_counted(node):
    broker, sink = ModuleBroker(node), Recorder()
    broker.add(sink)

    assert broker.acquire() is broker
    assert broker.references == 2
    assert broker.release() == 1
    assert sink.calls == ["create"]
    assert broker.release() == 0
    assert sink.calls == ["create", "destroy"]
    assert broker.release() == 0
    for call in (broker.acquire, lambda: broker.add(Quiet)):
        with pytest.raises(BrokerClosed):
            call()


def test_g04_two_brokers_share_nothing(node, broker):
    with ModuleBroker(node) as other:
        here, there = Recorder(), Recorder()
        source, foreign = broker.add(Quiet), other.add(Quiet)
        broker.link("*", broker.add(here))
        other.link("*", other.add(there))

        broker.publish(source, Message(b"here"))
        here.until(1)

        assert broker.url != other.url
        assert there.got == []
        for call in (
            lambda: broker.publish(foreign, Message()),
            lambda: broker.link(foreign, broker.modules()[1]),
            lambda: broker.link(source, foreign),
            lambda: broker.start(foreign),
        ):
            with pytest.raises(UnknownModule):
                call()
        assert not broker.remove(foreign)


def test_g05_a_module_has_a_worker_a_queue_and_a_quit_message(broker):
    first, second = broker.add(Recorder()), broker.add(Recorder())

    assert first.ref is not None
    assert first.ref != second.ref
    assert first.inbox.cell is first.ref.target
    assert first.inbox.quit_message != second.inbox.quit_message


def test_g06_adding_a_module_starts_its_worker(broker):
    sink, source = Recorder(), broker.add(Quiet)

    broker.link(source, broker.add(sink, {"k": 1}))
    broker.publish(source, Message(b"at once"))

    sink.until(1)
    assert sink.calls == ["create"]
    assert sink.args == {"k": 1}


def test_g07_no_message_of_a_user_can_imitate_the_quit_message(broker):
    sink, source = Recorder(), broker.add(Quiet)
    handle = broker.add(sink)
    broker.link(source, handle)
    guid = handle.inbox.quit_message
    contents = [guid, guid + b"more", str(uuid.UUID(bytes=guid)).encode(), bytes(guid)]

    for content in contents:
        broker.publish(source, Message(content))

    sink.until(len(contents))
    assert sink.contents == contents
    assert len(guid) < TOPIC_SIZE + len(Message().data)
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


def test_g09_a_sink_receives_only_from_sources_that_are_linked_to_it(broker):
    sink, other = Recorder(), Recorder()
    source, stranger = broker.add(Quiet), broker.add(Quiet)
    broker.link(source, broker.add(sink))
    broker.link(stranger, broker.add(other))

    broker.publish(stranger, Message(b"not for the sink"))
    broker.publish(source, Message(b"for the sink"))

    sink.until(1)
    other.until(1)
    assert sink.contents == [b"for the sink"]
    assert other.contents == [b"not for the sink"]
    assert source.topic != stranger.topic
    assert {len(handle.topic) for handle in broker.modules()} == {TOPIC_SIZE}


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
def test_g10_what_is_no_message_is_refused_at_the_caller(broker, wrong):
    source, sink = broker.add(Quiet), Recorder()
    broker.link(source, broker.add(sink))

    with pytest.raises(TypeError):
        broker.publish(source, wrong)
    with pytest.raises(UnknownModule):
        broker.publish(None, Message())

    broker.publish(source, Message(b"fine"))
    assert sink.until(1)[0].content == b"fine"


def test_g11_a_corrupt_message_is_counted_and_the_loop_goes_on(broker):
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


def test_g11_a_receive_that_raises_is_counted_and_the_loop_goes_on(broker, caplog):
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


def test_g12_a_module_receives_what_waits_before_it_is_removed(broker):
    sink, source = Gate(), broker.add(Quiet)
    handle = broker.add(sink)
    broker.link(source, handle)
    for number in range(100):
        broker.publish(source, Message(b"%d" % number))
    assert sink.entered.wait(LIMIT)

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
    sink, source = Gate(), broker.add(Quiet)
    handle = broker.add(sink)
    broker.link(source, handle)
    for number in range(10):
        broker.publish(source, Message(b"%d" % number))
    assert sink.entered.wait(LIMIT)

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


def test_g12b_a_publisher_that_waits_goes_on_when_the_sink_is_removed(broker):
    sink, source = Gate(), broker.add(Quiet)
    handle = broker.add(sink, options=ModuleOptions(queue=Mailbox(limit=1)))
    broker.link(source, handle)

    def flood():
        for number in range(5):
            broker.publish(source, Message(b"%d" % number))

    publisher = threading.Thread(target=flood)
    publisher.start()
    assert sink.entered.wait(LIMIT)
    eventually(lambda: handle.waiting == 1 and handle.inbox.waiters)
    broker.remove(handle, timeout=0.1)
    publisher.join(LIMIT)

    assert not publisher.is_alive()
    sink.open.set()
    sink.until_called("destroy")
    assert handle.counters.lost["ended"] >= 2


def test_g13_links_come_and_go_under_load(broker):
    stable, changing, source = Recorder(), Recorder(), broker.add(Quiet)
    broker.link(source, broker.add(stable))
    handle = broker.add(changing)
    over = threading.Event()

    def rewire():
        while not over.is_set():
            broker.link(source, handle)
            broker.unlink(source, handle)

    wiring = threading.Thread(target=rewire)
    wiring.start()
    for number in range(3000):
        broker.publish(source, Message(b"%d" % number))
    over.set()
    wiring.join(LIMIT)

    stable.until(3000)
    assert stable.contents == [b"%d" % number for number in range(3000)]
    numbers = [int(content) for content in changing.contents]
    assert numbers == sorted(set(numbers))


def test_g13_links_are_counted(broker):
    sink, source = Recorder(), broker.add(Quiet)
    handle = broker.add(sink)
    broker.link(source, handle)
    broker.link(source, handle)

    broker.publish(source, Message(b"once"))
    assert broker.unlink(source, handle)
    broker.publish(source, Message(b"still"))
    assert broker.unlink(source, handle)
    broker.publish(source, Message(b"no more"))
    assert not broker.unlink(source, handle)

    sink.until(2)
    broker.remove(handle)
    assert sink.contents == [b"once", b"still"]
    assert source.counters.unlinked == 1


def test_g13_a_star_links_all_others_also_those_that_come_later(broker):
    sink, before = Recorder(), broker.add(Quiet)
    handle = broker.add(sink)
    broker.link("*", handle)
    broker.link(before, handle)
    after = broker.add(Quiet)

    for source in (before, handle, after):
        broker.publish(source, Message(source.topic))

    sink.until(2)
    broker.unlink("*", handle)
    broker.publish(after, Message(b"no more"))
    broker.publish(before, Message(b"named"))
    sink.until(3)
    assert sink.contents == [before.topic, after.topic, b"named"]
    assert broker.sources_of(handle) == (before,)


def test_g14_names_may_have_any_length(broker):
    sink, source = Recorder(), broker.add(Quiet, name="n" * 100_000)
    broker.link(source, broker.add(sink, name="é\n"))

    broker.publish(source, Message(b"x"))

    sink.until(1)
    assert len(source.topic) == TOPIC_SIZE


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "fail"])
def test_what_does_not_fit_follows_the_policy_and_is_counted(broker, policy):
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


def test_a_sink_that_refuses_takes_nothing_from_the_others(broker):
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
    eventually(lambda: handle.inbox.held == 0)


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
def test_cycles_go_on_however_full_they_are(broker, length):
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


def test_a_wait_for_room_ends_in_time_if_it_is_told_so(broker):
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


def test_a_broker_without_a_node_has_one_of_its_own():
    with ModuleBroker() as broker:
        assert isinstance(broker.node, Node)
        node = broker.node
    assert node.runtime.closed
