"""Clients within the process, rules and hooks on a running router."""

import asyncio
import threading

import pytest

from callboard.kernel.errors import WrongArgument
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.port.local_link import QUEUE_LIMIT
from callboard.mqtt.service.rules import Rule
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.errors import InvalidPacket, LinkClosed, Refused


@pytest.fixture
def router():
    with Router(RouterConfig(sys_interval=0)) as running:
        yield running


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_broker_gives_a_local_link_in_process_that_publishes_and_subscribes(router, qos):
    with router.link("reader") as reader, router.link("writer") as writer:
        assert reader.connected.result(5) is False
        assert reader.subscribe("a/#", qos=qos).result(5) == (qos,)

        for future in writer.publish_all(Message("a/b", b"%d" % n, qos) for n in range(300)):
            future.result(5)

        got = [reader.recv(5) for _ in range(300)]
        assert [message.payload for message in got] == [b"%d" % n for n in range(300)]
        assert {message.qos for message in got} == {qos}
        assert reader.try_recv() is None


@pytest.mark.slow
def test_more_messages_than_a_queue_holds_wait_in_the_router_without_loss(router):
    count = 3 * QUEUE_LIMIT
    with router.link() as reader, router.link() as writer:
        reader.subscribe("a").result(5)
        writer.publish_all(Message("a", b"%d" % n) for n in range(count))

        assert [int(reader.recv(5).payload) for _ in range(count)] == list(range(count))


def test_local_link_unsubscribes_and_shadow_is_the_last_message_of_a_filters_log(router):
    with router.link() as link:
        link.subscribe("a").result(5)
        link.publish("a", b"1", qos=1).result(5)
        assert link.recv(5).payload == b"1"
        assert router.shadow("a").payload == b"1"
        link.unsubscribe("a").result(5)
        link.publish("a", b"2", qos=1).result(5)
        assert link.try_recv() is None
        assert router.shadow("b") is None


def test_a_session_of_a_local_link_waits_for_it(router):
    with router.link("keeper", session_expiry=100) as link:
        link.subscribe("a", qos=1).result(5)
    with router.link() as writer:
        writer.publish("a", b"x", qos=1).result(5)

    with router.link("keeper", clean_start=False) as again:
        assert again.connected.result(5) is True
        assert again.recv(5).payload == b"x"


LASTING = {"clean_start": False, "session_expiry": 1000}


@pytest.mark.parametrize("qos", [1, 2])
def test_unread_messages_of_a_lasting_session_arrive_again(router, qos):
    with router.link("reader", **LASTING) as link, router.link() as publisher:
        link.subscribe("a", qos=2).result(5)
        for number in range(5):
            publisher.publish("a", b"%d" % number, qos=qos).result(5)
        assert [link.recv(5).payload for _ in range(2)] == [b"0", b"1"]

    with router.link("reader", **LASTING) as link:
        assert [link.recv(5).payload for _ in range(3)] == [b"2", b"3", b"4"]
        assert link.try_recv() is None


@pytest.mark.parametrize("qos", [1, 2])
def test_a_manual_link_gets_again_what_it_has_not_acknowledged(router, qos):
    with router.link("billing", acknowledge="manual", **LASTING) as link:
        link.subscribe("a", qos=2).result(5)
        for number in range(3):
            link.publish("a", b"%d" % number, qos=qos).result(5)
        first, second, third = (link.recv(5) for _ in range(3))
        for _ in range(2):  # idempotent
            link.acknowledge(second)

    with router.link("billing", acknowledge="manual", **LASTING) as link:
        again = [link.recv(5) for _ in range(2)]
        assert [each.payload for each in again] == [first.payload, third.payload]
        link.acknowledge(second)  # of the former link
        for message in again:
            link.acknowledge(message)
        link.publish("a", b"last", qos=qos).result(5)
        assert link.recv(5).payload == b"last"


def test_an_unknown_way_to_acknowledge_is_refused(router):
    with pytest.raises(WrongArgument, match='"arrival", "read" or "manual"'):
        router.link(acknowledge="never")


def test_a_local_link_is_awaited(router):
    async def play():
        with router.link() as link:
            await asyncio.wrap_future(link.subscribe("a"))
            link.publish("a", b"1")
            assert (await link.arecv(5)).payload == b"1"
            with pytest.raises(TimeoutError):
                await link.arecv(0.01)

    asyncio.run(play())


def test_a_refusal_of_the_router_raises_at_the_caller(router):
    with router.link() as link:
        with pytest.raises(Refused, match="topic filter invalid"):
            link.subscribe("a/#/b").result(5)
        with pytest.raises(InvalidPacket):
            link.publish("a/#")
        with pytest.raises(TimeoutError):
            link.recv(0.01)


def test_a_closed_link_raises(router):
    first = router.link("same")
    first.connected.result(5)
    second = router.link("same")
    second.connected.result(5)

    with pytest.raises(LinkClosed, match="taken over"):
        first.recv(5)
    with pytest.raises(LinkClosed):
        first.publish("a")
    second.close()
    assert second.is_closed


def test_rules_republish_messages_and_never_trigger_each_other():
    seen = []
    rules = (
        Rule("temp/+", lambda message: str(float(message.payload) * 9 / 5 + 32), "fahrenheit"),
        Rule("fahrenheit", lambda message: seen.append(message) or b"again", "fahrenheit"),
        Rule("bad", lambda _: 1 / 0),
        Rule("raw/#", lambda m: [Message("x", m.payload)]),
    )
    with Router(RouterConfig(rules=rules, sys_interval=0)) as router, router.link() as link:
        link.subscribe("fahrenheit", qos=1).result(5)
        link.subscribe("x").result(5)
        link.publish("bad", b"", qos=1).result(5)
        link.publish("temp/1", b"100", qos=1).result(5)

        assert link.recv(5) == Message("fahrenheit", b"212.0", 1, properties=link_properties())
        link.publish("raw/1", b"r", qos=1).result(5)
        assert link.recv(5).payload == b"r"
        assert seen == []


def link_properties():
    from callboard.mqtt.wire.properties import Properties

    return Properties()


def test_a_failing_rule_is_counted_and_the_others_continue():
    done = threading.Event()
    rules = (Rule("a", lambda _: 5, "b"), Rule("a", lambda _: done.set()))
    with Router(RouterConfig(rules=rules)) as router, router.link() as link:
        link.publish("a", b"x")

        assert done.wait(5)
        assert router.rules.failures == 1


def test_local_link_has_try_forms_and_recv_with_a_deadline(router):
    with router.link() as link:
        link.subscribe("a").result(5)

        assert link.try_recv() is None
        with pytest.raises(TimeoutError):
            link.recv(0.01)
        done = link.publish("a", b"1", qos=1)  # returns at once
        assert link.recv(5).payload == b"1"
        assert done.result(5) == (0,)


def test_a_link_that_is_closed_before_the_router_answers_does_not_end_the_router(router):
    for _ in range(20):
        router.link().close()
    with router.link() as link:
        assert link.publish("a", b"", qos=1).result(5) == (0,)


def test_a_future_of_a_publish_that_its_owner_cancels_does_not_end_the_router(router):
    with router.link() as link:
        for _ in range(20):
            link.publish("a", b"", qos=1).cancel()
        assert link.publish("a", b"", qos=1).result(5) == (0,)
