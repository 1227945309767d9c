"""The module broker: calls, modules and links; G01… are rules of the specification."""

import threading

import pytest

from callboard import Node
from callboard.gateway.broker import ModuleBroker
from callboard.gateway.errors import BrokerClosed, UnknownModule
from callboard.gateway.handle import TOPIC_SIZE
from callboard.gateway.wire.message import Message
from tests.callboard.gateway.cast import LIMIT, Quiet, Recorder
from tests.callboard.gateway.hammer import hammer


@pytest.mark.slow
def test_g01_every_call_may_be_made_from_any_thread_at_any_time(node):
    report = hammer(node, seconds=1.5, threads=8, seed=1)

    assert report.stuck == []
    assert report.lost == 0
    assert report.overlaps == 0


def test_g01_every_call_may_be_made_inside_receive(broker):
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


def test_g05_a_module_has_a_worker_and_a_queue_and_ends_for_itself(broker):
    first, second = broker.add(Recorder()), broker.add(Recorder())

    assert first.ref is not None
    assert first.ref != second.ref
    assert first.inbox.context is first.ref.target
    assert first.inbox is not second.inbox
    assert broker.remove(first)
    assert not first.is_open
    assert second.is_open


def test_g06_adding_a_module_starts_its_worker(broker):
    sink, source = Recorder(), broker.add(Quiet)

    broker.link(source, broker.add(sink, {"k": 1}))
    broker.publish(source, Message(b"at once"))

    sink.until(1)
    assert sink.calls == ["create"]
    assert sink.args == {"k": 1}


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


def test_g13_links_can_be_added_and_removed_under_load(broker):
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


def test_g13_a_star_links_all_other_modules_including_later_ones(broker):
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


def test_a_broker_without_a_node_creates_one():
    with ModuleBroker() as broker:
        assert isinstance(broker.node, Node)
        node = broker.node
    assert node.runtime.is_closed
