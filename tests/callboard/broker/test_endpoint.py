"""Endpoints over real sockets: peering, statuses, publishing, the end."""

import asyncio
import datetime
import inspect
import threading

import pytest

import callboard
from callboard import Node, broker
from callboard.actors.errors import NodeClosed, WouldBlock
from callboard.broker import (
    EC,
    SC,
    BrokerOptions,
    Configuration,
    Endpoint,
    PeerFlags,
    PeerStatus,
)
from callboard.model.errors import InvalidTopic, UnsupportedData
from tests.proxies.cast import eventually

TWINNED = [
    (broker.Endpoint, ["peer", "unpeer", "await_filter_entry", "publish", "publish_batch"]),
    (broker.Publisher, ["publish", "publish_batch"]),
    (broker.Subscriber, ["get", "add_topic", "remove_topic"]),
]


def codes(subscriber):
    return [notice.code() for notice in subscriber.poll()]


def test_the_facades_endpoint_is_the_packages():
    assert callboard.Endpoint is broker.Endpoint


def test_a_message_published_right_after_peering_arrives(pair):
    here, there, port = pair
    with here.make_subscriber("/test") as subscriber:
        assert there.peer("127.0.0.1", port)
        there.publish("/test/metrics", ["cpu", 0.5])

        assert subscriber.get(5.0) == ("/test/metrics", ("cpu", 0.5))


def test_the_side_that_was_dialed_reaches_the_other_one_right_after_peering(pair):
    here, there, port = pair
    subscriber = there.make_subscriber("/test")
    assert there.peer("127.0.0.1", port)

    here.publish("/test", 1)

    assert subscriber.get(5.0) == ("/test", 1)


@pytest.mark.parametrize("between", ["subscribed", "forwarding", "neither"])
def test_a_message_published_right_after_peering_arrives_three_hops_away(
    make_endpoint, between
):
    chain = [make_endpoint() for _ in range(4)]
    first, last = (endpoint.make_subscriber("/test/") for endpoint in (chain[0], chain[-1]))
    kept = [
        endpoint.make_subscriber("/test/")
        for endpoint in chain[1:3] * (between == "subscribed")
    ]
    for endpoint in chain[1:3] * (between == "forwarding"):
        endpoint.forward(["/test/"])
    ports = [endpoint.listen("127.0.0.1", 0) for endpoint in chain[1:]]
    for endpoint, port in zip(chain, ports, strict=False):
        assert endpoint.peer("127.0.0.1", port, 1.0)

    chain[0].publish_batch(*(("/test/foo", number) for number in range(50)))
    chain[3].publish("/test/bar", "Bar!")

    assert last.get(50, 10.0) == [("/test/foo", number) for number in range(50)]
    assert first.get(10.0) == ("/test/bar", "Bar!")
    for subscriber in kept:
        assert len(subscriber.get(51, 10.0)) == 51
    for subscriber in (first, last, *kept):
        assert subscriber.get(0.3) is None


def test_peering_again_changes_nothing(pair):
    here, there, port = pair
    assert there.peer("127.0.0.1", port)
    statuses = there.make_status_subscriber(receive_statuses=True)

    assert there.peer("127.0.0.1", port, 0)
    assert statuses.poll() == []
    assert len(there.peers()) == len(here.peers()) == 1


def test_one_attempt_fails_at_once_where_nobody_listens(make_endpoint):
    endpoint = make_endpoint()
    errors = endpoint.make_status_subscriber()

    assert not endpoint.peer("127.0.0.1", 1, retry=0)
    error = errors.get(5.0)
    assert error.code() == EC.PeerUnavailable
    assert error.context().network.get().port == 1
    assert endpoint.peers() == []


def test_peering_waits_until_somebody_listens(make_endpoint):
    here, there = make_endpoint(), make_endpoint()
    port = here.listen("127.0.0.1", 0)
    here.shutdown()
    errors = there.make_status_subscriber()
    outcome = []
    waiting = threading.Thread(target=lambda: outcome.append(there.peer("127.0.0.1", port)))
    waiting.start()
    assert errors.get(5.0).code() == EC.PeerUnavailable
    assert [peer.status for peer in there.peers()] == [PeerStatus.Connecting]

    later = make_endpoint()
    assert later.listen("127.0.0.1", port) == port
    waiting.join(10)

    assert outcome == [True]
    assert there.peers()[0].peer.node_id() == later.node_id()


def test_unpeering_ends_the_wait_for_a_peer(make_endpoint):
    endpoint = make_endpoint()
    errors = endpoint.make_status_subscriber()
    outcome = []
    waiting = threading.Thread(target=lambda: outcome.append(endpoint.peer("127.0.0.1", 1)))
    waiting.start()
    assert errors.get(5.0).code() == EC.PeerUnavailable

    assert endpoint.unpeer("127.0.0.1", 1)
    waiting.join(10)
    assert outcome == [False]
    assert endpoint.peers() == []


def test_statuses_of_both_sides_come_in_order(pair):
    here, there, port = pair
    here_statuses = here.make_status_subscriber(receive_statuses=True)
    there_statuses = there.make_status_subscriber(receive_statuses=True)
    there.peer("127.0.0.1", port)
    assert here_statuses.get(5.0).code() == SC.PeerAdded
    assert codes(there_statuses) == [SC.PeerAdded]

    there.unpeer("127.0.0.1", port)

    assert there_statuses.get(1, 5.0)[0].code() == SC.PeerRemoved
    assert here_statuses.get(5.0).code() == SC.PeerLost
    assert here_statuses.get(0.05) is None
    assert here.peers() == there.peers() == []


def test_statuses_may_come_in_the_order_of_broker_2(make_endpoint):
    options = BrokerOptions()
    options.discovered_first = True
    here, there = make_endpoint(Configuration(options)), make_endpoint()
    statuses = here.make_status_subscriber(receive_statuses=True)
    here.peer("127.0.0.1", there.listen("127.0.0.1", 0))
    here.unpeer("127.0.0.1", here.peers()[0].peer.network.get().port)

    assert [one.code() for one in statuses.get(4, 5.0)] == [
        SC.EndpointDiscovered,
        SC.PeerAdded,
        SC.PeerRemoved,
        SC.EndpointUnreachable,
    ]


def test_only_endpoints_behind_others_are_discovered(make_endpoint):
    first, middle, last = make_endpoint(), make_endpoint(), make_endpoint()
    statuses = first.make_status_subscriber(receive_statuses=True)
    first.peer("127.0.0.1", middle.listen("127.0.0.1", 0))
    last.peer("127.0.0.1", middle.listen("127.0.0.1", 0))
    told = statuses.get(2, 5.0)
    last.shutdown()

    assert [(one.code(), repr(one.context())) for one in [*told, statuses.get(5.0)]] == [
        (SC.PeerAdded, middle.node_id()),
        (SC.EndpointDiscovered, last.node_id()),
        (SC.EndpointUnreachable, last.node_id()),
    ]


def test_a_removed_peer_is_not_dialed_again(pair):
    here, there, port = pair
    there.peer("127.0.0.1", port)
    there.unpeer("127.0.0.1", port)

    assert not there.await_peer(here.node_id(), 0.3)
    assert there.node.links() == here.node.links() == []


def test_removing_a_peer_that_there_is_not_is_an_error_value(make_endpoint):
    endpoint = make_endpoint()
    errors = endpoint.make_status_subscriber()

    assert endpoint.unpeer("127.0.0.1", 9)
    error = errors.get(5.0)
    assert error.code() == EC.PeerInvalid
    assert str(error.context().network.get()) == "127.0.0.1:9"


def test_a_lost_peer_is_reached_again_and_gets_its_messages(make_endpoint):
    here, there = make_endpoint(), make_endpoint()
    port = here.listen("127.0.0.1", 0)
    subscriber = there.make_subscriber("/a")
    statuses = there.make_status_subscriber(receive_statuses=True)
    there.peer("127.0.0.1", port)
    here.shutdown()
    assert SC.PeerLost in [status.code() for status in statuses.get(3, 5.0)]
    eventually(lambda: [p.status for p in there.peers()] == [PeerStatus.Reconnecting])

    again = make_endpoint()
    assert again.listen("127.0.0.1", port) == port
    assert again.await_peer(there.node_id())
    again.publish("/a/b", "back")

    assert subscriber.get(5.0) == ("/a/b", "back")


def test_peers_tell_who_and_where(pair):
    here, there, port = pair
    there.peer("127.0.0.1", port)

    (of_there,), (of_here,) = there.peers(), here.peers()
    assert of_there.peer.node_id() == here.node_id()
    assert of_there.peer.network.get().port == port
    assert of_there.flags == PeerFlags.Remote | PeerFlags.Outbound
    assert of_here.flags == PeerFlags.Remote | PeerFlags.Inbound
    assert of_here.status == of_there.status == PeerStatus.Peered


def test_own_messages_are_not_seen(make_endpoint):
    endpoint = make_endpoint()
    subscriber = endpoint.make_subscriber("/a")

    endpoint.publish("/a", 1)

    assert subscriber.get(0.05) is None


def test_a_directed_message_goes_to_one_endpoint_only(make_endpoint):
    hub, one, other = make_endpoint(), make_endpoint(), make_endpoint()
    port = hub.listen("127.0.0.1", 0)
    subscribers = [endpoint.make_subscriber("/a") for endpoint in (one, other)]
    for endpoint in (one, other):
        endpoint.peer("127.0.0.1", port)
    (to_one,) = [peer.peer for peer in hub.peers() if peer.peer.node_id() == one.node_id()]

    hub.publish(to_one, "/a", "for one")
    hub.publish("/a", "for all")

    assert subscribers[0].get(2, 5.0) == [("/a", "for one"), ("/a", "for all")]
    assert subscribers[1].get(5.0) == ("/a", "for all")


def test_a_batch_keeps_its_order_in_each_form(pair):
    here, there, port = pair
    subscriber = here.make_subscriber(["/a", "/b"])
    there.peer("127.0.0.1", port)

    there.publish_batch(("/a", 1), ("/c", 2), ("/b", 3))
    there.publish([("/b", 4), ("/a", 5)])

    assert [value for _, value in subscriber.get(4, 5.0)] == [1, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((5, 1), UnsupportedData),
        (("/a", object()), UnsupportedData),
        (("/a",), TypeError),
        (("/" + "x" * 70_000, 1), InvalidTopic),
    ],
)
def test_what_cannot_be_published_is_refused(make_endpoint, arguments, error):
    with pytest.raises(error):
        make_endpoint().publish(*arguments)


def test_a_batch_with_a_value_that_cannot_travel_is_refused_as_a_whole(pair):
    here, there, port = pair
    subscriber = here.make_subscriber("/a")
    there.peer("127.0.0.1", port)

    with pytest.raises(UnsupportedData):
        there.publish_batch(("/a", 1), ("/a", object()))
    there.publish("/a", 2)

    assert subscriber.get(5.0) == ("/a", 2)


def test_peer_subscriptions_are_sorted_and_told_once(make_endpoint):
    here, there = make_endpoint(), make_endpoint()
    subscribers = [here.make_subscriber(["/z", "/a"]), here.make_subscriber("/a")]
    here.forward(["/forwarded", "/a"])
    there.peer("127.0.0.1", here.listen("127.0.0.1", 0))

    assert [topic.string() for topic in there.peer_subscriptions()] == [
        "/a",
        "/forwarded",
        "/z",
    ]
    assert here.peer_subscriptions() == []
    assert len(subscribers) == 2


def test_a_topic_that_is_added_later_can_be_awaited(pair):
    here, there, port = pair
    there.peer("127.0.0.1", port)
    assert not there.await_filter_entry("/late", 0.0)
    subscriber = here.make_subscriber([])

    subscriber.add_topic("/late", block=True)

    assert there.await_filter_entry("/late")
    subscriber.remove_topic("/late", block=True)
    eventually(lambda: there.peer_subscriptions() == [])


def test_a_public_address_needs_a_guard(make_endpoint, caplog):
    endpoint = make_endpoint()

    assert endpoint.listen("0.0.0.0") == 0
    assert "can be reached from other machines" in caplog.text
    assert endpoint.listen("0.0.0.0", insecure=True) > 0
    assert make_endpoint(secret="known to both").listen("0.0.0.0") > 0


def test_the_empty_address_is_this_machine_only(make_endpoint):
    endpoint = make_endpoint()
    port = endpoint.listen()

    assert endpoint.node.address == f"basp://127.0.0.1:{port}"


def test_a_port_that_is_taken_gives_0_and_says_so(pair, caplog):
    _, there, port = pair

    assert there.listen("127.0.0.1", port) == 0
    assert "in use" in caplog.text
    assert there.listen("127.0.0.1", 70_000) == 0


def test_endpoints_of_one_node_are_one_core():
    with Node() as node:
        first, second = Endpoint(node=node), Endpoint(node=node)
        assert first.node_id() == second.node_id()
        subscriber = second.make_subscriber("/a")

        first.shutdown()
        with Endpoint() as other:
            assert other.configuration.options.disable_ssl is False
        second.shutdown()

        assert subscriber.poll() == []
        assert node.nodes() == []


def test_an_endpoint_on_a_node_uses_its_links():
    with Node() as a, Node() as b:
        a.listen()
        b.connect(a.address)
        on_a, on_b = Endpoint(node=a), Endpoint(node=b)
        subscriber = on_a.make_subscriber("/t")
        assert on_b.await_filter_entry("/t")

        on_b.publish("/t", 1)

        assert subscriber.get(5.0) == ("/t", 1)
        assert len(a.links()) == 1
        assert on_b.peers()[0].peer.node_id() == on_a.node_id()


def test_what_was_published_before_the_end_is_sent(pair):
    here, there, port = pair
    subscriber = here.make_subscriber("/a")
    there.peer("127.0.0.1", port)

    for number in range(20_000):
        there.publish("/a", number)
    there.shutdown()

    assert [value for _, value in subscriber.get(20_000, 10.0)] == list(range(20_000))


def test_after_the_end_nothing_can_be_made(make_endpoint):
    endpoint = make_endpoint()
    endpoint.shutdown()
    endpoint.shutdown()

    with pytest.raises(NodeClosed, match="was shut down"):
        endpoint.make_subscriber("/a")
    with pytest.raises(NodeClosed, match="was shut down"):
        endpoint.peer("127.0.0.1", 1)


def test_blocking_calls_name_their_twin_on_an_event_loop(make_endpoint):
    endpoint = make_endpoint()
    subscriber = endpoint.make_subscriber("/a")

    async def check():
        for call, twin in [
            (lambda: endpoint.peer("127.0.0.1", 1, 0), "apeer"),
            (lambda: endpoint.unpeer("127.0.0.1", 1), "aunpeer"),
            (lambda: endpoint.await_peer(endpoint.node_id()), "aawait_peer"),
            (lambda: endpoint.await_filter_entry("/a"), "aawait_filter_entry"),
            (endpoint.shutdown, "ashutdown"),
            (subscriber.get, "aget"),
            (lambda: subscriber.add_topic("/b", block=True), "aadd_topic"),
        ]:
            with pytest.raises(WouldBlock, match=f"await .*{twin}"):
                call()

    asyncio.run(check())


def test_twins_do_the_same():
    async def live():
        async with Endpoint() as here, Endpoint() as there:
            port = here.listen("127.0.0.1", 0)
            subscriber = here.make_subscriber("/a")
            assert await there.apeer("127.0.0.1", port, datetime.timedelta(seconds=20))
            assert await here.aawait_peer(there.node_id())
            await there.apublish("/a", 1)
            await there.apublish_batch(("/a", 2), ("/a", 3))
            assert await subscriber.aget(2) == [("/a", 1), ("/a", 2)]
            assert await there.aunpeer("127.0.0.1", port)
            assert not await there.aawait_peer(here.node_id(), 0.0)

    asyncio.run(live())


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in TWINNED for name in names]
)
def test_twins_have_the_same_parameters(owner, name):
    twins = getattr(owner, name), getattr(owner, f"a{name}")

    assert [list(inspect.signature(one).parameters) for one in twins][0] == list(
        inspect.signature(twins[1]).parameters
    )


@pytest.mark.parametrize("retry", [-1, float("nan"), "x"])
def test_a_retry_that_is_no_time_is_refused(make_endpoint, retry):
    with pytest.raises(ValueError, match=r"negative|convert"):
        make_endpoint().peer("127.0.0.1", 1, retry)
