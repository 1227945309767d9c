"""Endpoints on simulated nodes: partitions, ways over others, time."""

from callboard.broker import SC, BrokerOptions, Configuration, Endpoint, PeerStatus
from callboard.simulation.cluster import PORT


def endpoints(nodes, **options):
    return [Endpoint(node=node, **options) for node in nodes]


def host_of(node):
    return node.address.removeprefix("basp://").rpartition(":")[0]


def codes(subscriber):
    return [status.code() for status in subscriber.poll()]


def values(subscriber):
    return [value for _, value in subscriber.poll()]


def test_messages_find_their_way_over_others(cluster):
    first, _, _, last = endpoints(cluster(4, topology="line"))
    subscriber = last.make_subscriber("/a")
    assert first.await_peer(last.node_id())
    assert first.await_filter_entry("/a")

    first.publish("/a", {"k": 1})

    assert subscriber.get() == ("/a", {"k": 1})
    assert [peer.status for peer in first.peers()] == [PeerStatus.Peered]


def test_a_ttl_ends_the_way(cluster):
    options = BrokerOptions()
    options.ttl = 2
    nodes = cluster(4, topology="line")
    first = Endpoint(Configuration(options), node=nodes[0])
    others = endpoints(nodes[1:])
    subscribers = [endpoint.make_subscriber("/a") for endpoint in others]
    cluster.advance(2.0)

    first.publish("/a", 1)
    cluster.advance(1.0)

    assert [values(subscriber) for subscriber in subscribers] == [[1], [1], []]


def test_nothing_passes_a_leaf(cluster):
    options = BrokerOptions()
    options.forward = False
    nodes = cluster(3, topology="line")
    leaf = Endpoint(Configuration(options), node=nodes[1])
    first, last = endpoints([nodes[0], nodes[2]])
    subscribers = [endpoint.make_subscriber("/a") for endpoint in (leaf, last)]
    cluster.advance(2.0)

    first.publish("/a", 1)
    cluster.advance(1.0)

    assert [values(subscriber) for subscriber in subscribers] == [[1], []]


def test_after_a_partition_peers_and_subscriptions_are_restored(cluster):
    nodes = cluster(2, topology="none")
    here, there = endpoints(nodes)
    subscriber = here.make_subscriber("/a")
    statuses = there.make_status_subscriber(receive_statuses=True)
    assert there.peer(host_of(nodes[0]), PORT)
    assert statuses.get().code() == SC.PeerAdded

    cluster.partition(*nodes)
    cluster.advance(30.0)
    assert codes(statuses)[0] == SC.PeerLost
    there.publish("/a", "missed")
    here_again = here.make_subscriber("/b")
    cluster.heal()

    assert there.await_peer(here.node_id(), 60.0)
    assert there.await_filter_entry("/b")
    there.publish_batch(("/a", "back"), ("/b", "later"))
    assert subscriber.get() == ("/a", "back")
    assert here_again.get() == ("/b", "later")


def test_without_retry_a_lost_peer_stays_lost(cluster):
    nodes = cluster(2, topology="none")
    here, there = endpoints(nodes)
    assert there.peer(host_of(nodes[0]), PORT, retry=0)

    cluster.partition(*nodes)
    cluster.advance(30.0)
    cluster.heal()

    assert not there.await_peer(here.node_id(), 60.0)
    assert there.peers() == []


def test_attempts_come_less_and_less_often_up_to_the_retry(cluster):
    (node,) = cluster(1, topology="none")
    endpoint = Endpoint(node=node)
    errors = endpoint.make_status_subscriber()
    endpoint.peer_nosync("10.9.9.9", PORT, retry=8.0)

    cluster.advance(20.0)
    early = errors.available()
    cluster.advance(100.0)

    assert 5 <= early <= 10
    assert 100 / 12 - 2 <= errors.available() - early <= 100 / 8 + 1


def test_await_peer_takes_its_time_and_no_longer(cluster):
    here, there = endpoints(cluster(2, topology="none"))

    before = cluster.now
    assert not here.await_peer(there.node_id())
    assert cluster.now - before == 10.0
    assert not here.await_peer(there.node_id(), 2.5)
    assert cluster.now - before == 12.5


def test_await_peer_waits_for_the_subscriptions_and_not_only_for_the_path(cluster):
    nodes = cluster(2, topology="line")
    here = Endpoint(node=nodes[0])
    cluster.advance(5.0)
    there = Endpoint(node=nodes[1])
    subscriber = there.make_subscriber("/a")

    assert here.await_peer(there.node_id())
    here.publish("/a", 1)

    assert subscriber.get() == ("/a", 1)


def test_peering_with_a_node_without_endpoint_fails_after_a_while(cluster):
    nodes = cluster(2, topology="none")
    here = Endpoint(node=nodes[0])

    before = cluster.now
    assert not here.peer(host_of(nodes[1]), PORT, retry=0)
    assert cluster.now - before >= 10.0


def test_publishing_waits_for_a_slow_peer_and_loses_nothing(cluster):
    nodes = cluster(2, topology="line")
    here, there = endpoints(nodes)
    subscriber = there.make_subscriber("/a")
    publisher = here.make_publisher("/a")
    assert here.await_filter_entry("/a")
    cluster.bandwidth(*nodes, 4_000_000.0)
    value = "x" * 10_000

    for _ in range(3_000):
        publisher.publish(value)

    assert len(subscriber.get(3_000, 60.0)) == 3_000
    assert here.hub.counters.dropped == 0
