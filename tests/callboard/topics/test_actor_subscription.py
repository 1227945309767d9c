"""Actors take topics in one line, with back-pressure, and stay subscribed over restarts."""

import threading

import pytest

from callboard import Actor, Child, Endpoint, Mailbox, Node, TopicMessage, handler, topic
from callboard.actors.errors import ActorDown, InvalidHandler, WrongArgument
from callboard.broker import Count
from callboard.model.errors import InvalidTopic
from callboard.topics.events import SubscriptionOverflow
from tests.polling import eventually

seen: list[object] = []


@pytest.fixture(autouse=True)
def _forget():
    seen.clear()


class Kitchen(Actor):
    @topic("/home/kitchen/temperature")
    def temperature(self, value: float) -> None:
        seen.append(("temperature", value))

    @topic("/home/kitchen", "/home/hall")
    def anything(self, topic: str, value: object) -> None:
        seen.append((topic, value))

    @topic("/whole")
    async def whole(self, message: TopicMessage) -> None:
        seen.append(message.topic)

    def count(self) -> int:
        return len(seen)


class Plain(Actor):
    @handler
    def on_topic(self, message: TopicMessage) -> None:
        seen.append((message.topic, message.value))


class Slow(Actor):
    """Takes one message each time that it is allowed to."""

    mailbox = Mailbox(limit=4)

    def __init__(self, gate: threading.Event) -> None:
        self.gate = gate

    @topic("/fast")
    async def fast(self, value: int) -> None:
        while not self.gate.is_set():
            await self.sleep(0.001)
        if value == -1:
            raise ValueError(value)
        seen.append(value)


def test_a_handler_takes_topics_of_its_own_node_and_of_others():
    with Node() as a, Node() as b:
        a.listen()
        b.connect(a.address)
        a.spawn(Kitchen)
        here, there = Endpoint(node=a), Endpoint(node=b)
        assert there.await_filter_entry("/home/kitchen")
        there.publish("/home/kitchen/temperature", 21)
        eventually(lambda: len(seen) == 2)
        here.publish("/home/hall", [1, {"a": Count(2)}])
        eventually(lambda: len(seen) == 3)
    assert sorted(seen, key=str) == [
        ("/home/hall", (1, {"a": Count(2)})),
        ("/home/kitchen/temperature", 21),
        ("temperature", 21),
    ]


def test_a_value_of_another_type_is_counted_and_not_handled(caplog):
    with Node() as node:
        ref = node.spawn(Kitchen)
        Endpoint(node=node).publish("/home/kitchen/temperature", "warm")
        Endpoint(node=node).publish("/whole", 1)
        eventually(lambda: "/whole" in seen)
        assert ref.call(Kitchen.count).result(5) == 2
    assert seen[0] == ("/home/kitchen/temperature", "warm")
    assert "Kitchen.temperature does not take str" in caplog.text


def test_any_actor_can_be_subscribed_and_ends_its_subscription():
    with Node() as node, Endpoint(node=node) as endpoint:
        ref = node.spawn(Plain)
        subscription = endpoint.subscribe(ref, ["/a", "/b"])
        endpoint.publish("/a/1", {"x": 1})
        endpoint.publish("/c", 0)
        endpoint.publish("/b", None)
        eventually(lambda: len(seen) == 2)
        assert seen == [("/a/1", {"x": 1}), ("/b", None)]
        ref.stop()
        eventually(lambda: subscription.is_closed)
        eventually(lambda: not endpoint.hub.wants("/a"))
        with pytest.raises(ActorDown, match="subscribe a running actor"):
            endpoint.subscribe(ref, "/a")


def test_a_subscription_can_be_closed_and_ends_with_its_endpoint():
    with Node() as node:
        ref, endpoint = node.spawn(Plain), Endpoint(node=node)
        with endpoint.subscribe(ref, "/a"):
            endpoint.publish("/a", 1)
            eventually(lambda: seen)
        other = endpoint.subscribe(ref, "/a")
        endpoint.shutdown()
        assert other.is_closed
        eventually(lambda: not endpoint.hub.wants("/a"))


def test_messages_are_made_as_the_user_says(caplog):
    class Number(Actor):
        @handler
        def on_number(self, message: int) -> None:
            seen.append(message)

    def make(topic: str, value: object) -> int:
        return int(value)

    with Node() as node, Endpoint(node=node) as endpoint:
        subscription = endpoint.subscribe(node.spawn(Number), "/n", message=make)
        endpoint.publish("/n", "7")
        endpoint.publish("/n", "seven")
        endpoint.publish("/n", "8")
        eventually(lambda: len(seen) == 2)
        assert seen == [7, 8]
        assert subscription.dropped == 1
    assert "invalid literal" in caplog.text


def test_a_full_mailbox_holds_the_queue_up_and_nothing_is_lost():
    gate = threading.Event()
    with Node() as node, Endpoint(node=node) as endpoint:
        ref = node.spawn(Slow, gate)
        for number in range(1000):
            endpoint.publish("/fast", number)
        endpoint.hub.flushed(10)
        assert node.stats().actors
        assert ref.target.depth <= 4
        gate.set()
        eventually(lambda: len(seen) == 1000)
    assert seen == list(range(1000))


@pytest.mark.parametrize(
    ("on_full", "kept"),
    [("drop_oldest", [0, 1, 2, 3, *range(92, 100)]), ("drop_newest", [*range(12)])],
)
def test_what_is_over_the_bound_of_the_queue_is_dropped_and_told(on_full, kept, caplog):
    gate = threading.Event()

    class Stuck(Actor):
        mailbox = Mailbox(limit=4)

        @handler
        async def on_topic(self, message: TopicMessage) -> None:
            seen.append(message.value)

        @handler
        async def on_text(self, _: str) -> None:
            while not gate.is_set():
                await self.sleep(0.001)

    events: list[object] = []
    with Node() as node, Endpoint(node=node) as endpoint, node.subscribed(events.append):
        ref = node.spawn(Stuck)
        ref.tell("wait")
        eventually(lambda: ref.target.activity == "awaiting")
        subscription = endpoint.subscribe(ref, "/x", limit=8, on_full=on_full)
        for number in range(100):
            endpoint.publish("/x", number)
        endpoint.hub.flushed(10)
        eventually(lambda: subscription.dropped == 88)
        assert subscription.waiting == 8
        gate.set()
        eventually(lambda: len(seen) == 12)
        eventually(lambda: any(isinstance(event, SubscriptionOverflow) for event in events))
        told = [event for event in events if isinstance(event, SubscriptionOverflow)]
        assert told
        assert told[0].topics == ("/x",)
        assert 1 <= caplog.text.count("is slower than its topics") <= len(told) + 1
        assert endpoint.hub.counters.dropped == 88
    assert seen == kept


def test_publishers_wait_for_an_actor_where_they_are_to():
    gate = threading.Event()

    class Patient(Slow):
        @topic("/fast", limit=32, on_full="wait")
        async def fast(self, value: int) -> None:
            await super().fast(value)

    with Node() as node, Endpoint(node=node) as endpoint:
        node.spawn(Patient, gate)
        for number in range(20):
            endpoint.publish("/fast", number)
        eventually(lambda: endpoint.hub.inputs.is_congested)
        gate.set()
        eventually(lambda: not endpoint.hub.inputs.is_congested)
        eventually(lambda: len(seen) == 20)


def test_an_actor_that_is_started_again_stays_subscribed_and_misses_nothing():
    gate = threading.Event()
    with Node() as node, Endpoint(node=node) as endpoint:
        node.supervise([Child(Slow, gate, name="slow")])
        for number in [*range(10), -1, *range(10, 20)]:
            endpoint.publish("/fast", number)
        endpoint.hub.flushed(10)
        gate.set()
        # What was in the mailbox of the one that failed is lost; what waited behind it is not.
        eventually(lambda: 19 in seen)
        assert seen[:10] == list(range(10))
        assert seen[-6:] == list(range(14, 20))
        seen.clear()
        endpoint.publish("/fast", 100)
        endpoint.publish("/fast", 101)
        eventually(lambda: len(seen) == 2)
    assert seen == [100, 101]


def test_a_subscription_by_ref_follows_the_child_of_a_supervisor_and_ends_with_it():
    with Node() as node, Endpoint(node=node) as endpoint:
        supervisor = node.supervise([Child(Plain, name="plain")])
        first = node.find("plain").result(5)
        subscription = endpoint.subscribe(first, "/p")
        first.kill()
        eventually(lambda: subscription.ref != first)
        endpoint.publish("/p", 1)
        eventually(lambda: seen == [("/p", 1)])
        supervisor.stop()
        eventually(lambda: subscription.is_closed)
        assert not node.runtime.succession._followers
        assert not node.runtime.succession._supervised


def test_a_temporary_child_takes_its_subscription_with_it():
    with Node() as node, Endpoint(node=node) as endpoint:
        node.supervise([Child(Plain, name="plain", restart="temporary")])
        ref = node.find("plain").result(5)
        subscription = endpoint.subscribe(ref, "/p")
        ref.kill()
        eventually(lambda: subscription.is_closed)


def test_an_actor_on_another_node_is_subscribed_too():
    with Node() as a, Node() as b:
        a.listen()
        b.connect(a.address)
        far = b.ref(str(a.spawn(Plain)))
        with Endpoint(node=b) as endpoint:
            subscription = endpoint.subscribe(far, "/far")
            for number in range(500):
                endpoint.publish("/far", [number, {"a"}])
            eventually(lambda: len(seen) == 500)
            far.stop()
            eventually(lambda: subscription.is_closed)
            assert subscription.dropped == 0
    assert [value[0] for _, value in seen] == list(range(500))


def test_subclasses_override_and_methods_of_topics_cannot_be_called():
    class Cellar(Kitchen):
        def temperature(self, value: str) -> None:
            seen.append(value.upper())

    with Node() as node, Endpoint(node=node) as endpoint:
        ref = node.spawn(Cellar)
        endpoint.publish("/home/kitchen/temperature", "cold")
        eventually(lambda: "COLD" in seen)
        with pytest.raises(Exception, match="temperature"):
            ref.call(Kitchen.temperature, 1.0).result(5)


def test_mistakes_name_the_remedy():
    with pytest.raises(WrongArgument, match='write @topic\\("/home/kitchen"\\)'):
        topic(lambda self, value: None)  # type: ignore[arg-type]
    with pytest.raises(WrongArgument):
        topic()
    with pytest.raises(InvalidHandler, match=r"\(self, topic, value\)"):

        @topic("/a")
        def nothing(self):
            pass

    with pytest.raises(InvalidTopic):
        topic("x" * 70_000)
    with Node() as node, Endpoint(node=node) as endpoint:
        ref = node.spawn(Plain)
        with pytest.raises(WrongArgument, match="takes a ref"):
            endpoint.subscribe("plain", "/a")
        with pytest.raises(WrongArgument, match="drop_oldest, drop_newest, wait"):
            endpoint.subscribe(ref, "/a", on_full="block")
        with pytest.raises(WrongArgument, match="1 or more"):
            endpoint.subscribe(ref, "/a", limit=0)


def test_simulated_nodes_have_topics_too(cluster):
    a, b = cluster(2, topology="line")
    a.spawn(Kitchen)
    endpoint = Endpoint(node=b)
    cluster.advance(2.0)
    endpoint.publish("/home/kitchen/temperature", 20.5)
    cluster.advance(2.0)
    assert ("temperature", 20.5) in seen
