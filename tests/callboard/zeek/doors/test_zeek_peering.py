"""Peerings on Broker 2.x's wire: both roles, filters, statuses, TTL, clusters, strangers."""

import json
import socket
from urllib.request import urlopen

import pytest

import callboard.broker as broker
from callboard import Endpoint
from callboard.model.encoding import python_to_cbor
from callboard.model.errors import InvalidOption
from callboard.zeek.doors import zeek_peering
from callboard.zeek.peering import NOBODY, PeeringFrame, message_frame
from callboard.zeek.transcoder import broker_from_cbor
from tests.callboard.zeek.doors.zeek_peers import ZeekPeer
from tests.callboard.zeek.peering_ends import frames_of, recording
from tests.polling import eventually
from tests.proxies.papers import Papers

WAIT = 20.0
WIRE = "zeek-2"
HERE = "127.0.0.1"


def plain(**options):
    """Return an endpoint without TLS."""
    given = broker.BrokerOptions()
    given.disable_ssl = True
    for name, value in options.items():
        setattr(given, name, value)
    return Endpoint(broker.Configuration(given))


def neighbors(endpoint):
    return endpoint._adapters.peerings[WIRE].neighbors()


@pytest.fixture
def endpoint():
    with plain() as made:
        yield made


@pytest.fixture
def port(endpoint):
    return endpoint.listen(HERE, 0, wire=WIRE)


@pytest.mark.parametrize("kind", [plain, Endpoint])
def test_two_endpoints_exchange_messages_whoever_dialed(kind):
    """Without options TLS has no certificates, as Broker's own by default."""
    with kind() as one, kind() as other:
        first, second = one.make_subscriber("/one"), other.make_subscriber("/other")
        assert one.peer(HERE, other.listen(HERE, 0, wire=WIRE), wire=WIRE)
        one.publish("/other/a", ["hi", broker.Count(7), {"x": {1.5}}])
        one.publish_batch(("/other/b", 1), ("/else", 2), ("/other/c", 3))

        assert second.get(WAIT) == ("/other/a", ("hi", broker.Count(7), {"x": {1.5}}))
        assert [second.get(WAIT) for _ in range(2)] == [("/other/b", 1), ("/other/c", 3)]
        other.publish("/one/back", None)
        assert first.get(WAIT) == ("/one/back", None)
        assert one.peer_subscriptions() == [broker.Topic("/other")]
        (peer,) = one.peers()
        assert (peer.peer.id, peer.peer.type, peer.status) == (
            other.node_id(), WIRE, broker.PeerStatus.Peered,
        )  # fmt: skip
        eventually(lambda: [each.peer.id for each in other.peers()] == [one.node_id()])


@pytest.mark.parametrize("number", range(8))
def test_who_has_peered_is_heard_by_the_other_side_at_once(number):
    """The side with the smaller id is a peer before the other one knows it."""
    with plain() as one, plain() as other:
        subscriber = one.make_subscriber("/t")
        assert one.peer(HERE, other.listen(HERE, 0, wire=WIRE), wire=WIRE)
        other.publish("/t", number)

        assert subscriber.get(WAIT) == ("/t", number)


def test_a_later_subscription_is_heard_of_and_one_that_ended_is_forgotten(endpoint, port):
    with ZeekPeer(("/zeek",), port=port).peered() as zeek:
        assert zeek.session.topics == ()
        with endpoint.make_subscriber(["/b", "/a/deeper", "/a"]) as subscriber:
            zeek.until(lambda zeek: ("/a", "/b") in zeek.filters())
            zeek.say("/a/x", broker_from_cbor(python_to_cbor([1, "é"])))
            assert subscriber.get(WAIT) == ("/a/x", (1, "é"))
        zeek.until(lambda zeek: zeek.filters()[-1] == ())
        # The peer's own filter changes as well.
        endpoint.publish("/new", 0)
        zeek.out += zeek.session.send_filter(("/new",))
        zeek.pump()
        assert endpoint.await_filter_entry("/new", WAIT)
        endpoint.publish("/zeek", 1)
        endpoint.publish("/new", 2)
        zeek.until(lambda zeek: zeek.heard())
        assert [(each.topic, each.payload[-1]) for each in zeek.heard()] == [(b"/new", 2)]


def test_statuses_come_in_the_order_of_2_x_where_it_is_asked_for(endpoint, port):
    with plain(discovered_first=True) as dialer:
        here = endpoint.make_status_subscriber(receive_statuses=True)
        there = dialer.make_status_subscriber(receive_statuses=True)
        assert dialer.peer(HERE, port, wire=WIRE)
        assert endpoint.await_peer(dialer.node_id(), WAIT)
        assert dialer.unpeer(HERE, port)

        assert [each.code() for each in there.poll()] == [
            broker.SC.EndpointDiscovered, broker.SC.PeerAdded,
            broker.SC.PeerRemoved, broker.SC.EndpointUnreachable,
        ]  # fmt: skip
        statuses = [here.get(WAIT) for _ in range(2)]
        assert [each.code() for each in statuses] == [broker.SC.PeerAdded, broker.SC.PeerLost]
        assert {each.context().node_id() for each in statuses} == {dialer.node_id()}
        assert (dialer.peers(), endpoint.peers()) == ([], [])


def test_the_leaving_side_says_bye_and_hears_what_was_on_its_way(endpoint):
    with socket.create_server((HERE, 0)) as listener:
        endpoint.peer_nosync(HERE, listener.getsockname()[1], wire=WIRE)
        with ZeekPeer(("",), listener=listener).peered() as zeek:
            subscriber = endpoint.make_subscriber("/last")
            zeek.until(lambda zeek: ("/last",) in zeek.filters())
            endpoint.unpeer_nosync(HERE, listener.getsockname()[1])
            zeek.out += zeek.session.send(b"/last", b"\x01\x01", 16)
            zeek.until(lambda zeek: zeek.closed)
            assert subscriber.get(WAIT) == ("/last", True)


@pytest.mark.parametrize("leave", ["unpeer", "shutdown"])
def test_what_was_published_before_the_end_arrives(endpoint, port, leave):
    with endpoint.make_subscriber("/t") as subscriber, plain() as other:
        assert other.peer(HERE, port, wire=WIRE)
        for number in range(3_000):
            other.publish("/t", number)
        assert other.unpeer(HERE, port) if leave == "unpeer" else other.shutdown() is None

        assert [value for _, value in subscriber.get(3_000, WAIT)] == [*range(3_000)]


def test_shutdown_does_not_wait_for_peers_that_have_left(endpoint, port, caplog):
    caplog.set_level("INFO")
    other = plain()
    assert other.peer(HERE, port, wire=WIRE)

    other.shutdown()

    assert "did not acknowledge" not in caplog.text


def test_a_message_for_one_endpoint_goes_to_it_alone_and_comes_from_it(endpoint, port):
    with ZeekPeer((), port=port).peered() as zeek, ZeekPeer((), port=port).peered() as other:
        name = zeek.session._own.hex()
        assert endpoint.await_peer(name, WAIT)
        to = broker.EndpointInfo(str(broker.EndpointInfo(name)))
        endpoint.publish(to, "/only", 1)
        zeek.until(lambda zeek: zeek.heard())
        assert (zeek.heard()[0].receiver, zeek.heard()[0].topic) == (
            zeek.session._own,
            b"/only",
        )

        subscriber = endpoint.make_subscriber("/x")
        zeek.say("/x/others", receiver=other.session._own)
        zeek.say("/x/ours", receiver=endpoint.hub.endpoint_id)
        assert subscriber.get(WAIT) == ("/x/ours", True)
        other.pump()
        assert other.heard() == []


def test_a_dialed_peer_is_dialed_again_and_subscribed_to_again(endpoint):
    other = plain()
    port = other.listen(HERE, 0, wire=WIRE)
    subscriber = endpoint.make_subscriber("/t")
    assert endpoint.peer(HERE, port, 0.2, wire=WIRE)
    other.shutdown()
    eventually(lambda: endpoint.peers()[0].status is broker.PeerStatus.Connecting)
    with plain() as again:
        eventually(lambda: again.listen(HERE, port, wire=WIRE))
        assert again.await_peer(endpoint.node_id(), WAIT)
        again.publish("/t", 1)

        assert subscriber.get(WAIT) == ("/t", 1)


def test_two_that_dial_each_other_have_one_connection(endpoint, port):
    with plain() as other:
        theirs = other.listen(HERE, 0, wire=WIRE)
        endpoint.peer_nosync(HERE, theirs, 0.1, wire=WIRE)
        assert other.peer(HERE, port, 0.1, wire=WIRE)
        assert endpoint.peer(HERE, theirs, 0.1, wire=WIRE)
        eventually(lambda: len(neighbors(endpoint)) == len(neighbors(other)) == 1)
        assert endpoint.await_peer(other.node_id(), WAIT)
        # By whichever connection: who unpeers has no peer any more.
        other.close()
        assert endpoint.unpeer(HERE, theirs)
        eventually(lambda: endpoint.peers() == [])


def test_who_unpeers_ends_the_connection_that_the_other_side_made(endpoint, port):
    with plain() as other:
        theirs = other.listen(HERE, 0, wire=WIRE)
        assert other.peer(HERE, port, 0.0, wire=WIRE)
        assert endpoint.await_peer(other.node_id(), WAIT)
        assert endpoint.peer(HERE, theirs, wire=WIRE)
        assert endpoint.unpeer(HERE, theirs)
        assert (neighbors(endpoint), endpoint.peers()) == ([], [])


def test_a_node_that_is_taken_for_a_zeek_is_named(endpoint, caplog):
    with plain() as other:
        caplog.set_level("INFO", "callboard")
        assert not endpoint.peer(HERE, other.listen(HERE, 0), 0.0, wire=WIRE)

    assert "the peer speaks BASP" in caplog.text


def test_the_status_has_a_peer_by_the_id_of_its_endpoint():
    with plain(metrics_port=0) as watched, plain() as other:
        assert other.peer(HERE, watched.listen(HERE, 0, wire=WIRE), wire=WIRE)
        with urlopen(f"{watched.metrics_url}/v1/status/json", timeout=WAIT) as page:
            (peering,) = json.load(page)["peerings"]

    assert (peering["id"], peering["wire"]) == (other.node_id(), WIRE)


def test_options_say_which_wire_is_spoken_where_nothing_else_does(port, monkeypatch):
    monkeypatch.setenv("BROKER_WIRE", WIRE)
    with plain() as other, plain() as third:
        assert other.peer(HERE, port, 0.0)
        assert third.peer(HERE, other.listen(HERE, 0), 0.0)
        assert {each.peer.type for each in (*other.peers(), *third.peers())} == {WIRE}
    monkeypatch.setenv("BROKER_WIRE", "zeek-9")
    with plain() as other, pytest.raises(InvalidOption, match="zeek-9.*native"):
        other.peer(HERE, port, 0.0)


def test_who_forgets_the_wire_is_told_what_is_spoken_there(endpoint, port, caplog):
    with plain() as other:
        assert not other.peer(HERE, port, 0.0)

    assert "the peer speaks Zeek Broker 2.x, not BASP" in caplog.text


def test_an_address_that_nobody_answers_at_is_no_peer(endpoint):
    with socket.create_server((HERE, 0)) as listener:
        port = listener.getsockname()[1]
    errors = endpoint.make_status_subscriber()

    assert endpoint.peer(HERE, port, 0.0, wire=WIRE) is False
    assert errors.get(WAIT).code() == broker.EC.PeerUnavailable
    assert endpoint.peers() == []


def test_tls_on_one_side_alone_says_what_to_look_at(endpoint, caplog):
    with Endpoint() as other:
        caplog.set_level("DEBUG", "callboard")
        assert not endpoint.peer(HERE, other.listen(HERE, 0, wire=WIRE), 0.0, wire=WIRE)

    assert "disable_ssl" in caplog.text


def test_a_wire_that_is_none_is_named_with_those_that_there_are(endpoint):
    for call in (endpoint.peer, endpoint.listen):
        with pytest.raises(InvalidOption, match="zeek-3.*native, .*zeek-2"):
            call(HERE, 1, wire="zeek-3")


def test_a_port_that_others_reach_is_refused_without_certificates(caplog):
    with Endpoint() as endpoint:
        assert endpoint.listen("0.0.0.0", 0, wire=WIRE) == 0
        assert "can be reached from other machines" in caplog.text
        assert endpoint.listen("0.0.0.0", 0, wire=WIRE, insecure=True)


def certified(papers, *, shows=True):
    """Return a configuration whose peers show certificates."""
    given = broker.Configuration()
    if shows:
        given.openssl_certificate = str(papers.issue(HERE))
        given.openssl_cafile = str(papers.folder / "authority.pem")
    return given


def test_certificates_keep_others_out(tmp_path):
    papers = Papers(tmp_path / "papers")
    with Endpoint(certified(papers)) as guarded, Endpoint(certified(papers)) as known:
        port = guarded.listen("0.0.0.0", 0, wire=WIRE)
        with Endpoint(certified(papers, shows=False)) as stranger:
            assert not stranger.peer(HERE, port, 0.0, wire=WIRE)
        subscriber = guarded.make_subscriber("/t")
        assert known.peer(HERE, port, wire=WIRE)
        known.publish("/t", 1)

        assert subscriber.get(WAIT) == ("/t", 1)


# --- links that a message may cross


def test_the_smaller_of_their_ttl_less_one_and_ours_travels_on(endpoint, port):
    with plain(ttl=4) as behind:
        assert behind.peer(HERE, endpoint.listen(HERE, 0))
        far = behind.listen(HERE, 0, wire=WIRE)
        here, there = endpoint.make_subscriber("/t"), behind.make_subscriber("/t")
        assert endpoint.await_filter_entry("/t", WAIT)
        with (
            ZeekPeer((), port=port).peered() as zeek,
            ZeekPeer(("/t",), port=port).peered() as near,
            ZeekPeer(("/t",), port=far).peered() as remote,
        ):
            eventually(lambda: len(neighbors(endpoint)) == 2 and neighbors(behind))
            for ttl in (1, 2, 3, 16):
                zeek.say(f"/t/{ttl}", ttl=ttl)
            behind.publish("/t/own", True)
            for peer in (near, remote):
                peer.until(lambda peer: any(m.topic == b"/t/own" for m in peer.heard()))
                peer.until(lambda peer: any(m.topic == b"/t/16" for m in peer.heard()))

            def ttls(peer):
                return {each.topic.decode()[3:]: each.ttl for each in peer.heard()}

            assert ttls(near) == {"2": 1, "3": 2, "16": 15, "own": 3}
            assert ttls(remote) == {"3": 1, "16": 3, "own": 4}
            assert [here.get(WAIT)[0] for _ in range(4)] == ["/t/1", "/t/2", "/t/3", "/t/16"]
            assert [there.get(WAIT)[0] for _ in range(3)] == ["/t/2", "/t/3", "/t/16"]


def test_messages_in_a_ring_of_peers_end_by_their_ttl():
    ends = [plain(ttl=6) for _ in range(3)]
    ports = [each.listen(HERE, 0, wire=WIRE) for each in ends]
    subscribers = [each.make_subscriber("/ring") for each in ends]
    for number, each in enumerate(ends):
        assert each.peer(HERE, ports[number - 1], wire=WIRE)
    for each in ends:
        eventually(lambda each=each: len(neighbors(each)) == 2)
    ends[0].publish("/ring", "once")

    def brought():
        return sum(n.brought for each in ends for n in neighbors(each))

    assert all(each.get(WAIT) == ("/ring", "once") for each in subscribers[1:])
    eventually(lambda: brought() >= 2 * 6)  # six links in each direction
    for each in ends:
        each.publish("/ring", "end")
    eventually(lambda: brought() >= 4 * 2 * 6)
    assert brought() == 4 * 2 * 6
    for each in ends:
        each.shutdown()


def test_what_does_not_forward_sends_its_own_alone():
    with plain(forward=False) as leaf:
        port = leaf.listen(HERE, 0, wire=WIRE)
        with (
            ZeekPeer((), port=port).peered() as one,
            ZeekPeer(("",), port=port).peered() as two,
        ):
            subscriber = leaf.make_subscriber("/t")
            eventually(lambda: len(neighbors(leaf)) == 2)
            one.say("/t")
            assert subscriber.get(WAIT) == ("/t", True)
            leaf.publish("/own", 1)
            two.until(lambda two: two.heard())
            assert [each.topic for each in two.heard()] == [b"/own"]


# --- clusters


def test_one_node_of_a_cluster_carries_a_peers_messages_and_another_takes_over():
    with plain() as zeek, plain() as one, plain() as two:
        port = zeek.listen(HERE, 0, wire=WIRE)
        assert two.peer(HERE, one.listen(HERE, 0))
        subscribers = [each.make_subscriber("/zeek") for each in (one, two)]
        asked = zeek.make_subscriber("/to")
        ends = {one: neighbors, two: neighbors}
        for each in ends:
            assert each.peer(HERE, port, 0.2, wire=WIRE)

        def actives():
            return [each for each in ends if any(n.is_active for n in neighbors(each))]

        eventually(lambda: len(actives()) == 1)
        eventually(lambda: [*map(len, (n.topics for n in neighbors(zeek)))].count(0) == 1)
        zeek.publish("/zeek/1", 1)
        for subscriber in subscribers:
            assert subscriber.get(WAIT) == ("/zeek/1", 1)
        one.publish("/to/1", 1)
        two.publish("/to/2", 2)
        assert sorted(asked.get(WAIT) for _ in range(2)) == [("/to/1", 1), ("/to/2", 2)]

        (holder,) = actives()
        assert holder.unpeer(HERE, port)
        eventually(lambda: actives() and actives() != [holder])
        eventually(lambda: [n.topics for n in neighbors(zeek)] == [("/zeek",)])
        zeek.publish("/zeek/2", 2)
        for subscriber in subscribers:
            assert subscriber.get(WAIT) == ("/zeek/2", 2)
            assert subscriber.available() == 0
        assert asked.available() == 0


def test_a_neighbor_node_is_not_a_second_time_a_peer():
    with plain() as one, plain() as two:
        assert two.peer(HERE, one.listen(HERE, 0))
        subscriber = one.make_subscriber("/t")
        assert two.await_filter_entry("/t", WAIT)
        assert two.peer(HERE, one.listen(HERE, 0, wire=WIRE), wire=WIRE)
        two.publish("/t", 1)
        two.publish("/t", 2)

        assert [subscriber.get(WAIT)[1] for _ in range(2)] == [1, 2]


# --- strangers, and peers that do harm


def test_the_recorded_commands_of_a_real_store_do_no_harm(endpoint, port):
    store = endpoint.attach_master("st", broker.Backend.Memory)
    store.put("a", 1)
    frames = [each for each in frames_of(recording("store-c2s")) if len(each) > 41]
    with ZeekPeer(("",), port=port).peered() as zeek:
        zeek.sock.sendall(b"".join(frames))
        (neighbor,) = eventually(lambda: neighbors(endpoint))
        eventually(lambda: neighbor.commands == sum(each[36] == 2 for each in frames))

        assert (store.get("a"), store.keys()) == (1, {"a"})


@pytest.mark.parametrize(
    ("topic", "payload"),
    [
        (b"/t", b""),
        (b"/t", b"\x63"),
        (b"/t", b"\x05\xff"),
        (b"/t", b"\x0e\x01" * 200 + b"\x00"),
        (b"\xff\xfe", b"\x00"),
        (b"", b"\x00"),
        (b"<$>/local/data/statuses", b"\x00"),
    ],
)
def test_what_is_no_message_is_counted_and_the_next_one_comes(endpoint, port, topic, payload):
    subscriber = endpoint.make_subscriber("")
    with ZeekPeer((), port=port).peered() as zeek:
        zeek.out += message_frame(zeek.session._own, NOBODY, PeeringFrame.DATA, topic, payload)
        zeek.say("/t/next")

        assert subscriber.get(WAIT) == ("/t/next", True)
        assert neighbors(endpoint)[0].unreadable == 1


@pytest.mark.slow
def test_a_peer_that_does_not_read_is_ended_or_missed_out(monkeypatch):
    monkeypatch.setattr(zeek_peering, "WAITING_LIMIT", 1 << 20)
    monkeypatch.setattr(zeek_peering, "ROOM", 1 << 30)
    for policy in ("disconnect", "drop_newest"):
        with plain(peer_overflow_policy=policy) as endpoint:
            port = endpoint.listen(HERE, 0, wire=WIRE)
            with ZeekPeer(("/t",), port=port).peered():
                (neighbor,) = eventually(lambda endpoint=endpoint: neighbors(endpoint))
                big = "x" * 60_000
                while not neighbor.dropped:
                    endpoint.publish("/t", big)
                    endpoint.hub.flushed(WAIT)
                if policy == "disconnect":
                    eventually(lambda endpoint=endpoint: not neighbors(endpoint))
                else:
                    assert neighbors(endpoint) == [neighbor]


def test_publishers_wait_for_a_peer_that_reads_slowly(monkeypatch, endpoint, port):
    monkeypatch.setattr(zeek_peering, "ROOM", 100_000)
    with ZeekPeer(("/t",), port=port).peered() as zeek:
        (neighbor,) = eventually(lambda: neighbors(endpoint))
        big = "x" * 60_000
        while not endpoint.hub.inputs.is_congested:
            endpoint.publish("/t", big)
            endpoint.hub.flushed(WAIT)
        zeek.until(lambda _: not endpoint.hub.inputs.is_congested)
        assert neighbor.dropped == 0
