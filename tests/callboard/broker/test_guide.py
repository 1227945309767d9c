"""The paragraphs of the developer guide on endpoints, each with a test of its name.

The paragraphs on the core actor and on messages are in tests/callboard/topics/test_core.py.
"""

import threading

from callboard import broker
from callboard.broker import Endpoint
from tests.proxies.cast import eventually


def test_7_6_await_peer_is_true_when_the_path_and_the_subscriptions_are_there(pair):
    here, there, port = pair
    subscriber = there.make_subscriber("/a")
    there.peer_nosync("127.0.0.1", port)

    assert here.await_peer(there.node_id())
    assert here.peer_subscriptions() == [broker.Topic("/a")]
    here.publish("/a", 1)
    assert subscriber.get(5.0) == ("/a", 1)


def test_7_6_await_peer_is_false_when_the_time_is_over(pair):
    here, there, _ = pair

    assert here.await_peer(there.node_id(), 0.05) is False
    assert here.await_peer(there.node_id(), timeout=0) is False


def test_7_6_await_peer_calls_back_with_true_or_false(pair):
    here, there, port = pair
    told, has_sender = [], threading.Event()

    def call_back(is_there):
        told.append(is_there)
        has_sender.set()

    assert here.await_peer(there.node_id(), call_back, 0.02) is None
    assert has_sender.wait(5)
    has_sender.clear()
    here.await_peer(there.node_id(), call_back)
    there.peer("127.0.0.1", port)
    assert has_sender.wait(5)
    assert told == [False, True]


def test_7_6_await_peer_says_nothing_of_the_other_direction():
    with Endpoint() as ep0, Endpoint() as ep1:
        assert ep1.peer("127.0.0.1", ep0.listen("127.0.0.1", 0))

        assert ep0.await_peer(ep1.node_id())
        assert ep1.await_peer(ep0.node_id())


def test_7_6_node_ids_are_random_and_differ_in_one_process():
    with Endpoint() as ep0, Endpoint() as ep1:
        assert ep0.node_id() != ep1.node_id()
        assert len(ep0.node_id()) == len("00000000-0000-0000-0000-000000000000")


def test_7_6_three_endpoints_are_connected_by_the_recipe():
    with Endpoint() as ep0, Endpoint() as ep1, Endpoint() as ep2:
        port = ep0.listen("127.0.0.1", 0)
        assert ep1.peer("127.0.0.1", port)
        assert ep2.peer("127.0.0.1", port)

        assert ep0.await_peer(ep1.node_id())
        assert ep0.await_peer(ep2.node_id())
        assert ep1.await_peer(ep0.node_id())
        assert ep2.await_peer(ep0.node_id())


def test_7_6_a_subscription_after_peering_misses_what_came_before_it(pair):
    here, there, port = pair
    there.peer("127.0.0.1", port)
    there.publish("/a", "early")
    there.hub.flushed(5.0)

    subscriber = here.make_subscriber("/a")
    assert there.await_filter_entry("/a")
    there.publish("/a", "late")

    assert subscriber.get(5.0) == ("/a", "late")


def test_7_1_an_endpoint_has_exactly_one_core_and_any_number_of_the_others(pair):
    here, there, port = pair
    there.peer("127.0.0.1", port)
    subscribers = [here.make_subscriber("/a") for _ in range(5)]
    publishers = [there.make_publisher(f"/a/{number}") for number in range(5)]
    assert there.await_filter_entry("/a")

    for publisher in publishers:
        publisher.publish(1)

    for subscriber in subscribers:
        assert len(subscriber.get(5, 5.0)) == 5
    assert here.hub.core is broker.Endpoint(node=here.node).hub.core


def test_7_2_1_a_message_goes_where_its_topic_is_wanted_and_nowhere_else(make_endpoint):
    middle, wants, wants_not = make_endpoint(), make_endpoint(), make_endpoint()
    port = middle.listen("127.0.0.1", 0)
    subscriber = wants.make_subscriber("/a")
    for endpoint in (wants, wants_not):
        assert endpoint.peer("127.0.0.1", port)
    before = wants_not.hub.counters.received

    middle.publish("/a", 1)

    assert subscriber.get(5.0) == ("/a", 1)
    assert wants_not.hub.counters.received == before


def test_7_2_1_messages_pass_an_endpoint_undecoded(make_endpoint):
    middle, left, right = make_endpoint(), make_endpoint(), make_endpoint()
    port = middle.listen("127.0.0.1", 0)
    subscriber = right.make_subscriber("/a")
    for endpoint in (left, right):
        assert endpoint.peer("127.0.0.1", port)
    assert left.await_peer(right.node_id())

    left.publish("/a", {"k": 1})

    assert subscriber.get(5.0) == ("/a", {"k": 1})
    assert middle.hub.counters.deserialized == 0


def test_7_2_1_1_two_endpoints_that_dial_each_other_have_one_connection(make_endpoint):
    here, there = make_endpoint(), make_endpoint()
    here_port, there_port = here.listen("127.0.0.1", 0), there.listen("127.0.0.1", 0)

    here.peer_nosync("127.0.0.1", there_port)
    there.peer_nosync("127.0.0.1", here_port)

    assert here.await_peer(there.node_id())
    assert there.await_peer(here.node_id())
    eventually(lambda: len(here.node.links()) == len(there.node.links()) == 1)
    # The dial that came second is a peer of its own until it has found the link.
    eventually(lambda: len(here.peers()) == len(there.peers()) == 1)
