"""Subscriptions on a node hear what others publish there, and nothing comes back."""

import pytest

import callboard.broker as broker
from callboard import Endpoint, Node
from callboard.commitlog import LogReader
from callboard.gateway import Gateway
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.service.rules import Rule
from callboard.mqtt.service.topic_bridge import MqttDoor, TopicMap
from callboard.pipeline.bridge import Bridge
from tests.callboard.gateway.cast import LIMIT
from tests.polling import eventually

WAIT = 10.0


@pytest.fixture
def node():
    with Node("host") as node:
        yield node


def test_endpoints_of_one_node_hear_each_other_and_not_themselves(node):
    with (
        Endpoint(node=node) as one,
        Endpoint(node=node) as two,
        one.make_subscriber("/x") as of_one,
        two.make_subscriber("/x") as of_two,
    ):
        one.publish("/x", "from one")
        two.publish("/x", "from two")
        two.make_publisher("/x").publish("through a publisher")
        one.publish_batch(("/x", 1), ("/x", 2))

        assert [of_one.get(WAIT) for _ in range(2)] == [
            ("/x", "from two"),
            ("/x", "through a publisher"),
        ]
        assert [of_two.get(WAIT)[1] for _ in range(3)] == ["from one", 1, 2]
        assert (of_one.available(), of_two.available()) == (0, 0)


def test_an_endpoint_that_is_alone_on_its_node_does_not_hear_itself_as_in_zeek():
    with (
        broker.Endpoint() as endpoint,
        endpoint.make_subscriber("/x") as subscriber,
        endpoint.make_subscriber("") as everything,
    ):
        endpoint.publish("/x", 1)
        endpoint.hub.publishing.publish_as(frozenset(), ("/x", "of nobody"))

        assert everything.get(WAIT) == subscriber.get(WAIT) == ("/x", "of nobody")


def test_messages_of_a_subscriber_that_is_closed_cost_nothing(node):
    with Endpoint(node=node) as one, Endpoint(node=node) as two:
        listeners = one.hub.publishing.listeners
        with two.make_subscriber("/x"):
            assert len(listeners.publishers) == 1
        assert listeners.publishers == frozenset()


def test_results_of_a_bridge_reach_subscribers_of_its_endpoint(tmp_path, node):
    with Endpoint(node=node) as endpoint, endpoint.record("/in", tmp_path / "log") as recording:
        endpoint.publish("/in/1", 1)
        recording.flush()
        with (
            endpoint.make_subscriber("/in") as subscriber,
            Bridge(tmp_path / "log", endpoint=endpoint, wait=WAIT) as bridge,
        ):
            assert subscriber.get(WAIT) == ("/in/1", 1)
            eventually(lambda: bridge.position == 1)


def test_a_log_that_is_recorded_from_its_own_bridge_does_not_grow(tmp_path, node):
    with Endpoint(node=node) as endpoint, Endpoint(node=node) as other:
        with (
            endpoint.record("/x", tmp_path / "log") as recording,
            other.make_subscriber("/x") as subscriber,
            Bridge(tmp_path / "log", endpoint=endpoint, wait=WAIT),
        ):
            endpoint.publish("/x", "first")
            assert [subscriber.get(WAIT)[1] for _ in range(2)] == ["first", "first"]
            endpoint.publish("/x", "second")
            assert [subscriber.get(WAIT)[1] for _ in range(2)] == ["second", "second"]
            recording.flush()

        assert [each.payload for each in LogReader(tmp_path / "log")] == ["first", "second"]


def test_a_bridge_in_both_directions_and_a_rule_on_everything_do_not_loop(node):
    rule = Rule("#", lambda message: b"!" + message.payload, topic="rule/out")
    config = RouterConfig(sys_interval=0, rules=(rule,))
    with (
        Endpoint(node=node) as one,
        Endpoint(node=node) as two,
        Router(config, node=node) as router,
        MqttDoor(router, node, [TopicMap()]),
        one.make_subscriber("/mqtt") as heard,
        two.make_subscriber("/mqtt") as also_heard,
        router.link() as client,
    ):
        client.subscribe("#", qos=1).result(WAIT)
        client.publish("a", b"1", qos=1).result(WAIT)
        one.publish("/mqtt/b", "2")

        def topics(subscriber, count):
            return sorted(subscriber.get(WAIT) for _ in range(count))

        of_mqtt = [("/mqtt/a", "1"), ("/mqtt/rule/out", "!1"), ("/mqtt/rule/out", "!2")]
        assert topics(heard, 3) == sorted(of_mqtt)
        assert topics(also_heard, 4) == sorted([*of_mqtt, ("/mqtt/b", "2")])
        got = sorted(client.recv(WAIT).topic for _ in range(4))
        assert got == ["a", "b", "rule/out", "rule/out"]
        one.publish("/mqtt/end", "3")
        assert sorted(client.recv(WAIT).topic for _ in range(2)) == ["end", "rule/out"]
        assert client.try_recv() is None
        assert heard.get(WAIT) == ("/mqtt/rule/out", "!3")
        assert heard.available() == 0


def test_gateway_modules_that_are_source_and_sink_do_not_loop(node):
    with Gateway(node=node) as gateway, Endpoint(node=node) as endpoint:
        for name in ("east", "west"):
            args = {"subscribe": ["/x"], "publish": "/x"}
            gateway.add_module(name, "topic", args, start=False)
        gateway.link("*", "east")
        gateway.link("*", "west")
        gateway.start()
        with endpoint.make_subscriber("/x") as heard:
            endpoint.publish("/x", 1)

            # East's message goes to west, and west's to east: each publishes it once.
            assert [heard.get(WAIT), heard.get(WAIT)] == [("/x", 1), ("/x", 1)]
            assert gateway.settle(LIMIT)
            assert heard.available() == 0
