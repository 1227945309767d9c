"""A cluster of Zeek over ZeroMQ: both directions, members, cuts, slow readers, garbage."""

import json

import pytest
import zmq

import callboard.zeek
from callboard import Endpoint, Node
from callboard.actors.errors import NodeClosed, WrongArgument
from callboard.broker import SC, Count
from callboard.model.data import Data
from callboard.model.errors import DoorTaken, InvalidOption, UnsupportedData
from callboard.topics.door_claim import DoorState
from callboard.topics.monitoring import metrics_page, status_of
from callboard.zeek import Curve
from callboard.zeek.doors import zeromq_peer
from callboard.zeek.doors.zeromq_peer import ZeroMq, peer_key
from callboard.zeek.value import value_to_bytes
from callboard.zeek.zeromq import BackendHello, ClusterHello
from tests.callboard.zeek.doors.clusters import Manager, Zeek
from tests.polling import eventually

WAIT = 10.0
EVENT = Data([Count(1), Count(1), ["ping", ["a", Count(7)]]])


@pytest.fixture
def manager():
    with Manager() as made:
        yield made


@pytest.fixture
def zeek(manager):
    with Zeek(manager) as made:
        yield made


@pytest.fixture
def endpoint():
    with Endpoint() as made:
        yield made


def opened(endpoint, manager, **options):
    door = ZeroMq(endpoint, manager.xpub, manager.xsub, **options)
    assert door.await_subscribed(WAIT), door.reason
    return door


@pytest.mark.parametrize("form", [b"broker-bin-v1", b"broker-json-v1"])
def test_what_is_subscribed_to_here_comes_from_the_cluster(manager, zeek, endpoint, form):
    with endpoint.make_subscriber(["zeek.cluster.worker", "/ours"]) as subscriber:
        door = opened(endpoint, manager)
        zeek.await_subscription("zeek.cluster.worker")
        is_json = b"json" in form
        text = {"@data-type": "vector", "data": [{"@data-type": "count", "data": 7}]}
        zeek.publish("zeek.cluster.worker", json.dumps(text).encode() if is_json else [7], form)
        zeek.publish("/ours/x", "x")

        assert subscriber.get(WAIT)[0] == "zeek.cluster.worker"
        assert subscriber.get(WAIT) == ("/ours/x", "x")
        assert (door.brought, door.subscriptions()) == (2, ("/ours", "zeek.cluster.worker"))
    zeek.await_subscription("zeek.cluster.worker", b"\0")


@pytest.mark.parametrize("form", ["broker-bin-v1", "broker-json-v1"])
def test_what_is_published_here_goes_to_those_who_subscribe(manager, zeek, endpoint, form):
    zeek.subscribe("zeek.cluster.")
    door = opened(endpoint, manager, form=form, publish=["zeek.", "/no"])
    assert endpoint.await_filter_entry("zeek.cluster.", WAIT)
    assert [str(topic) for topic in endpoint.peer_subscriptions()] == ["zeek.cluster."]
    endpoint.publish("/else", 1)
    endpoint.publish("zeek.cluster.worker", EVENT)

    topic, sender, sent, value = zeek.receive()
    assert (topic, sender, sent) == ("zeek.cluster.worker", door.id, form)
    assert value == EVENT or json.loads(value)["@data-type"] == "vector"
    door._grace = 0.0
    endpoint.publish("/no", 1)
    eventually(lambda: door.unheard == 1)
    assert door.taken == 1


def test_what_is_published_before_the_link_is_there_waits_for_its_subscribers(
    manager, endpoint
):
    door = ZeroMq(endpoint, manager.xpub, manager.xsub)
    endpoint.publish("zeek.early", 1)
    endpoint.publish("zeek.early", 2)
    with Zeek(manager) as zeek:
        zeek.subscribe("zeek.early")
        assert [zeek.receive()[3] for _ in range(2)] == [Data(1), Data(2)]
    assert door.unheard == 0


def test_own_messages_do_not_come_back_and_nothing_circles(manager, zeek, endpoint):
    zeek.subscribe("t")
    with endpoint.make_subscriber("t") as subscriber:
        door = opened(endpoint, manager)
        endpoint.publish("t", 1)
        assert zeek.receive()[3] == Data(1)
        eventually(lambda: door.own == 1)
        zeek.publish("t", 2)
        assert subscriber.get(WAIT) == ("t", 2)
        assert (subscriber.available(), door.taken) == (0, 1)


def test_two_nodes_at_one_manager_bring_nothing_twice_and_take_turns(manager, zeek):
    with Endpoint() as a, Endpoint() as b:
        assert b.peer("127.0.0.1", a.listen("127.0.0.1", 0))
        first, second = a.make_subscriber("t"), b.make_subscriber("t")
        doors = [opened(each, manager) for each in (a, b)]
        states = [door._claim.state for door in doors]
        assert sorted(states, key=str) == [DoorState.HELD, DoorState.STANDBY]
        zeek.await_subscription("t")
        assert all(each.await_filter_entry("t", WAIT) for each in (a, b))
        zeek.publish("t", "in")
        for each in (first, second):
            assert each.get(WAIT) == ("t", "in")
        zeek.subscribe("t")
        for number, each in enumerate((a, b)):
            each.publish("t", number)
        assert {int(zeek.receive()[3].value) for _ in range(2)} == {0, 1}
        assert (first.get(WAIT), second.get(WAIT)) == (("t", 1), ("t", 0))
        holder, other = doors if states[0] is DoorState.HELD else doors[::-1]
        eventually(lambda: holder.own == 2)
        assert [each.available() for each in (first, second)] == [0, 0]

        holder.close()
        eventually(lambda: other.subscriptions() == ("t",) and other._node.settled)
        zeek.publish("t", "again")
        for each in (first, second):
            assert each.get(WAIT) == ("t", "again")


def test_a_second_door_of_one_node_is_refused(manager, endpoint):
    opened(endpoint, manager)
    with pytest.raises(DoorTaken):
        ZeroMq(endpoint, manager.xpub, manager.xsub)


def test_a_manager_that_is_away_for_a_while_is_seen_and_found_again(manager, endpoint):
    with (
        endpoint.make_subscriber("t") as subscriber,
        endpoint.make_status_subscriber(receive_statuses=True) as statuses,
    ):
        door = opened(endpoint, manager)
        assert statuses.get(WAIT).code() == SC.PeerAdded
        manager.stop()
        assert statuses.get(WAIT).code() == SC.PeerLost
        assert (door.is_connected, "ended" in door.reason) == (False, True)
        (peer,) = endpoint.peers()
        assert (peer.peer.type, peer.status.name) == ("zeromq", "Connecting")
        for number in range(3):
            endpoint.publish("later", number)
        manager.start()
        with Zeek(manager) as zeek:
            zeek.subscribe("later")
            assert [int(zeek.receive()[3].value) for _ in range(3)] == [0, 1, 2]
            assert door.await_subscribed(WAIT)
            zeek.publish("t", "back")
            assert subscriber.get(WAIT) == ("t", "back")
            assert subscriber.available() == 0


def test_it_is_seen_among_the_peers_and_figures(manager, endpoint):
    opened(endpoint, manager)
    host, port = "127.0.0.1", int(manager.xpub.rpartition(":")[2])

    (peer,) = endpoint.peers()
    assert (peer.peer.type, peer.status.name) == ("zeromq", "Peered")
    info = peer.peer.network.get()
    assert (info.address, info.port) == (host, port)
    (shown,) = status_of(endpoint.hub)["peerings"]
    assert (shown["wire"], shown["status"]) == ("zeromq", "peered")
    text = metrics_page(endpoint.node).text
    assert "callboard_zeromq_connected{" in text
    assert 'type="zeromq"' in text


def test_a_member_greets_and_is_greeted_and_says_who_comes_and_goes(manager, zeek, endpoint):
    with endpoint.make_status_subscriber(receive_statuses=True) as statuses:
        door = opened(endpoint, manager, member="detector")
        assert statuses.get(WAIT).code() == SC.PeerAdded
        zeek.await_subscription(f"zeek.cluster.nodeid.{door.id}.")
        zeek.subscribe(f"zeek.cluster.nodeid.{zeek.id}.")
        mine = f"zeek.cluster.nodeid.{door.id}."

        def greeting(hello):
            return hello("detector", door.id).as_data()

        assert zeek.receive()[3] == greeting(BackendHello)
        zeek.publish(mine, value_to_bytes(BackendHello(zeek.name, zeek.id).as_data()))
        assert zeek.receive()[3] == greeting(ClusterHello)
        zeek.publish(mine, value_to_bytes(ClusterHello(zeek.name, zeek.id).as_data()))
        assert statuses.get(WAIT).code() == SC.PeerAdded
        assert door.nodes() == {zeek.id: "worker-1"}
        assert len(endpoint.peers()) == 2
        zeek.unsubscribe(f"zeek.cluster.nodeid.{zeek.id}.")
        assert statuses.get(WAIT).code() == SC.PeerLost
        assert door.nodes() == {}


def test_two_members_of_ours_see_each_other(manager):
    with Endpoint() as a, Endpoint() as b:
        doors = [
            opened(each, manager, member=name)
            for each, name in ((a, "one"), (b, "two"))
        ]  # fmt: skip
        eventually(
            lambda: [list(door.nodes().values()) for door in doors] == [["two"], ["one"]]
        )


def test_garbage_is_counted_and_the_door_goes_on(manager, zeek, endpoint):
    with endpoint.make_subscriber("t") as subscriber:
        door = opened(endpoint, manager)
        zeek.await_subscription("t")
        for parts in ([b"t"], [b"t"] * 3, [b"t"] * 5000, [b"t", b"s", b"?", b""]):
            zeek.xpub.send_multipart(parts)
        zeek.publish("t", b"\x0e\xff\xff\xff\xff\x0f")
        zeek.publish("t/<$>/x", 1)
        zeek.xsub.send(b"\7 no subscription")
        zeek.publish("t", "end")
        assert subscriber.get(WAIT) == ("t", "end")
        eventually(lambda: door.unreadable >= 6)
        assert door.last_error


def test_a_node_without_room_lets_messages_wait_and_drops_the_newer_ones(
    manager, zeek, endpoint
):
    with endpoint.make_subscriber("t") as subscriber:
        door = opened(endpoint, manager, queue=10)
        zeek.await_subscription("t")
        hub = endpoint.hub
        hub.call_soon(hub.inputs.set_congested, True, door)
        eventually(lambda: hub.inputs.is_congested)
        for number in range(30):
            zeek.publish("t", number)
        eventually(lambda: door.dropped_in == 20)
        hub.relax(door)
        assert subscriber.get(10, WAIT) == [("t", number) for number in range(10)]


def test_a_manager_that_does_not_read_costs_counted_messages_and_not_memory(endpoint):
    with zmq.Context() as context:
        xpub, xsub = context.socket(zmq.XPUB), context.socket(zmq.XSUB)
        for each in (xpub, xsub):
            each.linger, each.rcvtimeo, each.rcvhwm = 0, 10_000, 1
            each.bind("tcp://127.0.0.1:0")
        door = ZeroMq(
            endpoint, xpub.last_endpoint.decode(), xsub.last_endpoint.decode(),
            queue=10, high_water=1,
        )  # fmt: skip
        mark = xpub.recv()
        xsub.send(mark)
        xsub.send(b"\1")
        eventually(lambda: door.is_connected and door.peer_topics() == ("",))
        size = 1 << 20
        for _ in range(60):
            endpoint.publish("t", bytes(size).decode())
        eventually(lambda: door.dropped_out > 0)
        assert door._outgoing.bytes <= 11 * size

        def all_are_told_of():
            if xsub.poll(1):
                xsub.recv_multipart()
            return door.taken + door.dropped_out == 60

        eventually(all_are_told_of)
        door.close()
        for each in (xpub, xsub):
            each.close(0)


def test_sockets_that_do_not_belong_together_are_told_of(manager, endpoint, monkeypatch):
    monkeypatch.setattr(zeromq_peer, "PATIENCE", 0.05)
    with Manager() as other:
        door = ZeroMq(endpoint, manager.xpub, other.xsub)
        eventually(lambda: "do not come back" in door.reason)
        assert not door.await_subscribed(0.01)


def test_nobody_at_an_address_is_told(endpoint):
    with endpoint.make_status_subscriber() as errors:
        door = ZeroMq(endpoint, "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")
        assert errors.get(WAIT).code().name == "PeerUnavailable"
        assert "no answer" in door.reason


def test_keys_of_the_cluster_are_used(endpoint):
    public, secret = zmq.curve_keypair()
    with zmq.Context() as context:
        sockets = [context.socket(kind) for kind in (zmq.XPUB, zmq.XSUB)]
        for each in sockets:
            each.curve_server, each.curve_secretkey, each.linger = True, secret, 0
            each.rcvtimeo = 10_000
            each.bind("tcp://127.0.0.1:0")
        addresses = [each.last_endpoint.decode() for each in sockets]
        with ZeroMq(endpoint, *addresses, curve=Curve(public.decode())):
            assert sockets[0].recv().startswith(b"\1callboard.door.")
        for each in sockets:
            each.close(0)


def test_the_door_closes_with_its_endpoint_or_node(manager, zeek):
    zeek.subscribe("t")
    with Endpoint() as endpoint:
        door = opened(endpoint, manager)
        endpoint.publish("t", "last")
    assert zeek.receive()[3] == Data("last")
    assert not door.is_connected
    with Node() as node:
        other = opened(Endpoint(node=node), manager)
    eventually(lambda: not other.is_connected)
    assert not other.await_subscribed(0.1) if not node.runtime.is_closed else True


@pytest.mark.parametrize(
    "wrong",
    [
        {"subscribe_at": "here"},
        {"publish_at": "tcp://here"},
        {"form": "x"},
        {"member": " "},
        {"queue": 0},
        {"high_water": "many"},
        {"subscribe": 7},
    ],
)
def test_wrong_arguments_are_told_and_leave_nothing(manager, endpoint, wrong):
    with pytest.raises((InvalidOption, UnsupportedData)):
        ZeroMq(endpoint, **{"subscribe_at": manager.xpub, "publish_at": manager.xsub} | wrong)
    opened(endpoint, manager)


def test_something_else_for_an_endpoint_or_keys_and_an_endpoint_that_ended_are_told(manager):
    with Endpoint() as endpoint:
        for place, wrong in ((7, {}), (endpoint, {"curve": "key"}), (endpoint, {"member": 7})):
            with pytest.raises(WrongArgument):
                ZeroMq(place, manager.xpub, manager.xsub, **wrong)
    with pytest.raises(NodeClosed):
        ZeroMq(endpoint, manager.xpub, manager.xsub)
    with Node() as node:
        endpoint = Endpoint(node=node)
        endpoint.shutdown()
        with pytest.raises(NodeClosed):
            ZeroMq(endpoint, manager.xpub, manager.xsub)


def test_a_loopback_address_is_another_manager_on_each_machine():
    assert peer_key("tcp://manager:5555") == "tcp://manager:5555"
    assert peer_key("tcp://127.0.0.1:5555") != "tcp://127.0.0.1:5555"


def test_it_has_its_name_in_the_room_of_zeek():
    assert callboard.zeek.ZeroMq is ZeroMq
