"""Peerings on Broker 1.4's wire, both ends ours: topics, filters, loops, room, the end."""

import pytest

from callboard import Endpoint
from callboard.broker import SC, BrokerOptions, Configuration, Count, PeerStatus
from callboard.model.errors import InvalidOption
from callboard.zeek.doors import broker_1_4
from tests.polling import eventually

WAIT = 10.0
WIRE = "zeek-1.4"


def plain(**options):
    given = BrokerOptions()
    for name, value in {"disable_ssl": True, **options}.items():
        setattr(given, name, value)
    return Endpoint(Configuration(given))


@pytest.fixture
def made():
    endpoints = []

    def make(**options):
        endpoints.append(plain(**options))
        return endpoints[-1]

    yield make
    for endpoint in endpoints:
        endpoint.shutdown()


def peer(dialing, listening):
    port = listening.listen("127.0.0.1", 0, wire=WIRE)
    assert dialing.peer("127.0.0.1", port, 0.2, wire=WIRE)
    return port


def link(a, b):
    """Make two endpoints nodes of one overlay."""
    assert a.peer("127.0.0.1", b.listen("127.0.0.1", 0))


def neighbors(endpoint):
    return endpoint._adapters.peering(WIRE).neighbors()


def carries(endpoint):
    """Return whether messages go by a peering of this endpoint."""
    return any(each._is_active for each in neighbors(endpoint))


def test_both_ends_publish_and_subscribe(made):
    a, b = made(), made()
    with a.make_subscriber("/a") as to_a, b.make_subscriber("/b") as to_b:
        peer(a, b)
        a.publish("/b/x", [1, "grün", Count(7)])
        b.publish("/a/x", {"k": None})

        assert to_b.get(WAIT) == ("/b/x", (1, "grün", Count(7)))
        assert to_a.get(WAIT) == ("/a/x", {"k": None})
        a.publish("/elsewhere", 1)
        a.publish("/b/last", 2)
        assert to_b.get(WAIT) == ("/b/last", 2)


def test_what_is_subscribed_to_later_is_asked_for_and_what_is_not_any_more_is_not(made):
    a, b = made(), made()
    peer(a, b)
    with b.make_subscriber("/later") as later:
        assert a.await_filter_entry("/later", WAIT)
        a.publish("/later", 1)
        assert later.get(WAIT) == ("/later", 1)
    eventually(lambda: "/later" not in map(str, a.peer_subscriptions()))


def test_a_peer_is_seen_with_its_kind_and_in_statuses(made):
    a, b = made(), made()
    with a.make_status_subscriber(receive_statuses=True) as statuses:
        port = peer(a, b)
        added = statuses.get()
        (seen,) = a.peers()
        assert (added.code(), seen.status, seen.peer.type) == (
            SC.PeerAdded, PeerStatus.Peered, WIRE,
        )  # fmt: skip
        assert a.unpeer("127.0.0.1", port)
        assert statuses.get().code() is SC.PeerRemoved
    eventually(lambda: not a.peers() and not b.peers())


def test_a_dialed_peer_is_found_again(made):
    a, b = made(), made()
    with b.make_subscriber("/b") as to_b:
        peer(a, b)
        (cut,) = neighbors(b)
        b.node.runtime.post(cut.link.end, "cut")
        eventually(lambda: neighbors(b) and cut not in neighbors(b))
        eventually(lambda: "/b" in map(str, a.peer_subscriptions()))
        a.publish("/b", "again")

        assert to_b.get(WAIT) == ("/b", "again")


def test_one_attempt_fails_where_nobody_listens(made):
    a = made()
    port = a.listen("127.0.0.1", 0)  # what listens there speaks another wire

    assert not made().peer("127.0.0.1", port, 0, wire=WIRE)


def test_a_second_peering_with_the_same_peer_is_redundant(made):
    a, b = made(), made()
    with b.make_subscriber("/b") as to_b:
        peer(a, b)
        peer(b, a)
        a.publish("/b", 1)
        a.publish("/b", 2)

        assert [to_b.get(WAIT)[1] for _ in range(2)] == [1, 2]
    assert len(neighbors(a)) == 1


def test_a_directed_message_goes_to_one_peer_whatever_its_filter(made):
    a, b, c = made(), made(), made()
    with b.make_subscriber("/only") as to_b, c.make_subscriber("/only") as to_c:
        port = peer(a, b)
        peer(a, c)
        (to,) = [each.peer for each in a.peers() if each.peer.network.get().port == port]
        a.publish(to, "/only/you", 1)
        a.publish("/only", 2)

        assert [to_b.get(WAIT)[1] for _ in range(2)] == [1, 2]
        assert to_c.get(WAIT) == ("/only", 2)


def test_messages_pass_between_peers_and_nodes(made):
    """Filters are not transitive with Broker: ours has what is wanted behind this node."""
    far, door, inner, other = made(), made(), made(), made()
    link(door, inner)
    with inner.make_subscriber("/t") as to_inner, other.make_subscriber("/t") as to_other:
        assert door.await_filter_entry("/t", WAIT)
        peer(far, door)
        peer(other, door)
        assert far.await_filter_entry("/t", WAIT)
        eventually(lambda: "/t" in map(str, door.peer_subscriptions()))
        far.publish("/t", 1)

        assert (to_inner.get(WAIT), to_other.get(WAIT)) == (("/t", 1), ("/t", 1))
        inner.publish("/t", 2)
        assert to_other.get(WAIT) == ("/t", 2)


def test_messages_die_in_a_circle_when_their_ttl_is_over(made):
    ring = [made(ttl=4) for _ in range(3)]
    subscribers = [each.make_subscriber("/t") for each in ring]
    for number, each in enumerate(ring):
        peer(each, ring[number - 1])
    for each in ring:
        eventually(lambda each=each: len(neighbors(each)) == 2)
    ring[0].publish("/t", "round")
    for subscriber in subscribers:
        assert subscriber.get(WAIT) == ("/t", "round")

    def counts():
        return [sum(one.brought for one in neighbors(each)) for each in ring]

    last = []

    def is_calm():
        last.append(counts())
        return len(last) > 5 and last[-1] == last[-5]

    eventually(is_calm)
    assert sum(last[-1]) <= 2 * 4


def test_one_node_of_a_cluster_carries_a_peer_and_another_takes_over(made):
    far, a, b = made(), made(), made()
    link(a, b)
    port = far.listen("127.0.0.1", 0, wire=WIRE)
    with b.make_subscriber("/t") as subscriber:
        assert a.peer("127.0.0.1", port, 0.2, wire=WIRE)
        assert b.peer("127.0.0.1", port, 0.2, wire=WIRE)
        assert far.await_filter_entry("/t", WAIT)
        eventually(lambda: len(neighbors(far)) == 2)
        assert (carries(a), carries(b)) == (True, False)
        far.publish("/t", 1)
        assert subscriber.get(WAIT) == ("/t", 1)

        a.unpeer("127.0.0.1", port)
        eventually(lambda: carries(b))
        eventually(lambda: "/t" in map(str, far.peer_subscriptions()))
        far.publish("/t", 2)
        assert subscriber.get(WAIT) == ("/t", 2)


def test_a_peer_that_is_a_node_in_reach_gets_nothing_twice(made):
    a, b = made(), made()
    link(a, b)
    with b.make_subscriber("/b") as to_b:
        assert a.await_filter_entry("/b", WAIT)
        peer(a, b)
        for number in range(3):
            a.publish("/b", number)

        assert [to_b.get(WAIT)[1] for _ in range(3)] == [0, 1, 2]
        assert (carries(a), carries(b), to_b.poll()) == (False, False, [])


@pytest.mark.slow
def test_a_flood_arrives_whole_and_in_order(made):
    a, b = made(), made()
    count = 3 * broker_1_4.QUEUE_HIGH
    with b.make_subscriber("/b", qsize=count) as to_b:
        peer(a, b)
        for number in range(count):
            a.publish("/b", number)

        assert [to_b.get(WAIT)[1] for _ in range(count)] == list(range(count))


@pytest.mark.slow
def test_what_waits_at_the_end_is_sent(made):
    a, b = made(), made()
    count = 20_000
    with b.make_subscriber("/b", qsize=count) as to_b:
        peer(a, b)
        for number in range(count):
            a.publish("/b", number)
        a.shutdown()

        assert [to_b.get(WAIT)[1] for _ in range(count)] == list(range(count))


def test_tls_without_certificates_is_that_of_broker():
    with Endpoint() as a, Endpoint() as b, b.make_subscriber("/b") as to_b:
        peer(a, b)
        a.publish("/b", 1)

        assert to_b.get(WAIT) == ("/b", 1)


def test_an_address_that_others_reach_needs_insecure(made, caplog):
    endpoint = made()

    assert endpoint.listen("0.0.0.0", 0, wire=WIRE) == 0
    assert "0.0.0.0" in caplog.text
    assert endpoint.listen("0.0.0.0", 0, wire=WIRE, insecure=True)


def test_a_wire_that_is_none_is_refused(made):
    with pytest.raises(InvalidOption, match="zeek-1.4"):
        made().peer("127.0.0.1", 1, wire="zeek-1.3")


def test_topics_of_endpoints_are_not_told_by_peers(made):
    a, b = made(), made()
    with b.make_subscriber("<$>/local/data") as local, b.make_subscriber("/b") as to_b:
        peer(a, b)
        (neighbor,) = neighbors(a)
        value = b"\x05\x01x"
        a.node.runtime.post(
            neighbor._emit,
            [
                broker_1_4.data_message_bytes(topic, value, 9)
                for topic in ("<$>/local/data/x", "/b")
            ],
        )
        neighbor._posted += 2

        assert to_b.get(WAIT) == ("/b", "x")
        assert local.poll() == []


class Idle:
    """Takes nothing, as a process that was stopped: what a listener reads is not taken."""

    def __init__(self, endpoint):
        (neighbor,) = neighbors(endpoint)
        self.link = neighbor.link
        endpoint.node.runtime.post(self.link.hold)


@pytest.mark.parametrize("policy", ["disconnect", "drop_newest"])
def test_publishers_wait_for_a_peer_that_takes_nothing_no_longer_than_its_room(
    made, monkeypatch, policy
):
    monkeypatch.setattr(broker_1_4, "STALL_LIMIT", 0.2)
    a, b = made(peer_overflow_policy=policy), made()
    with b.make_subscriber("/b"):
        peer(a, b)
        Idle(b)
        (neighbor,) = neighbors(a)

        def is_over():
            for number in range(broker_1_4.QUEUE_HIGH):
                a.publish("/b", number)
            return neighbor.dropped

        eventually(is_over)
        if policy == "disconnect":
            eventually(lambda: not neighbor.link.is_open)
        else:
            assert neighbor.link.is_open
        a.shutdown()
