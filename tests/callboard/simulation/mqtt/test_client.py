"""MQTT clients on simulated machines: routers are judged by what clients were told."""

import pytest

from callboard.mqtt import (
    AclEntry,
    ListenerSettings,
    Message,
    Router,
    RouterConfig,
    Security,
)
from callboard.mqtt.wire.errors import ListenError, Refused
from callboard.simulation import (
    ExactlyOnce,
    MessageDoubled,
    MessageLost,
    MqttClient,
    NothingLost,
    NotLinearizable,
    Register,
    at_most_once,
    cluster_test,
    in_order,
    linearizable,
    swarm,
)


def started(node, directory="/mqtt", **options):
    """Start a router on a node, again at each start of the node."""
    ports = (ListenerSettings("127.0.0.1:1883"),)
    config = RouterConfig(ports, directory=directory, sys_interval=0, **options)
    return Router(config, node=node).start()


class Shop:
    """A router on one machine, clients on two others."""

    def __init__(self, cluster, **options):
        self.cluster, self.history = cluster, cluster.history()
        self.hub, self.left, self.right = self.nodes = cluster(3, topology="none")
        self.routers = [started(self.hub, **options)]

        def again(node):
            if node.name == self.hub.name:
                self.hub = node
                self.routers.append(started(node, **options))

        cluster.restarted = again

    def client(self, node, name, **options):
        return MqttClient(node, name, self.hub, self.history, **options)

    def pair(self, qos, **options):
        reader = self.client(self.right, "reader", **options)
        reader.subscribe("a/#", qos=qos).result(5)
        return self.client(self.left, "writer", **options), reader

    def rest(self, *clients):
        assert self.cluster.run_until(lambda: all(each.is_idle for each in clients), 120.0)
        self.cluster.advance(10.0)


@pytest.fixture
def shop(cluster):
    return Shop(cluster)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_come_in_their_order(shop, qos, version):
    writer, reader = shop.pair(qos, version=version)

    futures = [writer.publish("a/b", b"%d" % number, qos=qos) for number in range(50)]
    [future.result(5) for future in futures]
    shop.rest(writer, reader)

    assert [each.payload for each in reader.messages] == [b"%d" % each for each in range(50)]
    outcomes = {each.outcome for each in shop.history.operations if each.name == "send"}
    assert outcomes == {"answered" if qos else "unknown"}
    shop.history.check(ExactlyOnce(), NothingLost(["reader"], every=True), in_order)


def test_a_lost_answer_doubles_qos_1_and_not_qos_2(shop):
    writer, reader = shop.pair(2)
    shop.cluster.advance(1.0)
    shop.cluster.doubling(shop.left, shop.hub, 0.3)
    for number in range(60):
        writer.publish("a/once", b"%d" % number, qos=2)
        writer.publish("a/again", b"%d" % number, qos=1)
        shop.cluster.advance(0.1)
    shop.cluster.doubling(shop.left, shop.hub, 0.0)
    shop.rest(writer, reader)

    assert writer.connections > 3
    got = [each.payload for each in reader.messages if each.topic == "a/again"]
    assert len(got) > len(set(got)) == 60
    shop.history.check(NothingLost(["reader"]))
    with pytest.raises(MessageDoubled, match="a/again"):
        shop.history.check(at_most_once)


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_a_session_outlives_router_and_connection(shop, end):
    writer, reader = shop.pair(2)
    reader.disconnect()
    shop.cluster.advance(1.0)
    writer.publish("a/b", b"1", qos=2).result(5)
    getattr(shop.cluster, end)(shop.hub)
    shop.cluster.advance(3.0)
    writer.publish("a/b", b"2", qos=2)
    shop.cluster.restart(shop.hub)
    reader.connect()
    shop.rest(writer, reader)

    assert reader.has_session
    shop.history.check(ExactlyOnce(["reader"]), in_order)


def test_a_router_without_a_journal_loses_what_it_acknowledged(cluster):
    shop = Shop(cluster, directory=None)
    writer, reader = shop.pair(1)
    reader.disconnect()
    cluster.advance(1.0)
    writer.publish("a/b", b"1", qos=1).result(5)
    cluster.kill(shop.hub)
    cluster.restart(shop.hub)
    reader.connect()
    shop.rest(writer, reader)

    assert not reader.has_session
    with pytest.raises(MessageLost, match="sent by writer"):
        shop.history.check(NothingLost(["reader"]))


@pytest.mark.parametrize("end", ["lose", "kill", "crash", "disconnect"])
def test_a_will_is_owed_unless_its_client_says_goodbye(shop, end):
    _, reader = shop.pair(2)
    client = shop.client(shop.left, "w", will=lambda number: Message("a/w", b"%d" % number, 2))
    shop.cluster.run_until(lambda: client.is_connected, 5.0)
    if end in ("lose", "disconnect"):
        getattr(client, end)()
    else:
        getattr(shop.cluster, end)(shop.left)
    shop.cluster.advance(20.0)

    expected = [] if end == "disconnect" else [b"1"]
    assert [each.payload for each in reader.messages] == expected
    sent = [each.outcome for each in shop.history.operations if each.name == "send"]
    assert sent[0] == ("unknown" if end == "disconnect" else "answered")
    shop.history.check(ExactlyOnce(["reader"]))


def test_members_of_a_shared_subscription_read_as_one(shop):
    members = [
        shop.client(node, f"m{place}", reader="crew")
        for place, node in enumerate([shop.left, shop.right])
    ]
    for each in members:
        each.subscribe("$share/crew/a/#", qos=2).result(5)
    writer = shop.client(shop.left, "writer")
    for number in range(40):
        writer.publish("a/b", b"%d" % number, qos=2)
    shop.rest(writer, *members)

    assert all(each.messages for each in members)
    shop.history.check(ExactlyOnce(["crew"]))


def test_what_a_topic_retains_is_a_register(shop):
    one, other = shop.client(shop.left, "one"), shop.client(shop.right, "other")
    assert one.retained("a").result(5) is None
    one.retain("a", b"1").result(5)
    assert other.retained("a").result(5) == b"1"
    other.retain("a", b"2")
    asked = [one.retained("a"), other.retained("a")]
    shop.rest(one, other)
    assert {each.result(5) for each in asked} <= {b"1", b"2"}
    one.retain("a", b"").result(5)
    assert other.retained("a").result(5) is None

    shop.history.only("read", "write").check(linearizable(Register()))
    shop.history.begin("read", key="a", client="liar")
    shop.history.answered(shop.history.operations[-1], b"1")
    with pytest.raises(NotLinearizable):
        shop.history.only("read", "write").check(linearizable(Register()))


def test_retained_messages_before_a_subscription_count_as_no_receipt(shop):
    writer, reader = shop.pair(2)
    writer.publish("a/b", b"1", qos=2, retain=True).result(5)
    reader.subscribe("a/b", qos=2).result(5)
    shop.rest(writer, reader)

    assert [each.retain for each in reader.messages] == [False, True]
    shop.history.check(ExactlyOnce(["reader"]))


def test_a_disk_without_room_keeps_clients_waiting(shop):
    writer, reader = shop.pair(1)
    disk = shop.cluster.disk(shop.hub)
    disk.faults.capacity = disk.used
    shop.cluster.clock.plan(3.0, setattr, disk.faults, "capacity", None)
    before = shop.cluster.now

    writer.publish("a/b", b"1", qos=1).result(30)

    assert shop.cluster.now - before >= 3.0
    shop.rest(writer, reader)
    shop.history.check(NothingLost(["reader"]))


def test_a_slow_disk_makes_acknowledgements_late(shop):
    writer, _ = shop.pair(1)
    shop.cluster.disk(shop.hub).faults.latency = 0.5
    before = shop.cluster.now

    writer.publish("a/b", b"1", qos=1).result(30)

    assert shop.cluster.now - before >= 0.5


def test_a_refusal_is_told_and_recorded(cluster):
    rules = (AclEntry("*", allow=("publish open/#",)),)
    shop = Shop(cluster, security=Security(acl=rules))
    writer = shop.client(shop.left, "writer")

    with pytest.raises(Refused):
        writer.publish("secret/a", b"1", qos=1).result(5)

    assert [each.outcome for each in shop.history.operations] == ["failed"]


def test_a_simulated_router_has_plain_ports_only(cluster):
    (node,) = cluster(1)
    ports = (ListenerSettings("unix:/tmp/never"),)
    with pytest.raises(ListenError, match="plain TCP"):
        Router(RouterConfig(ports, sys_interval=0), node=node).start()


def test_a_client_that_does_not_read_holds_up_nobody_else(shop):
    writer, reader = shop.pair(1)
    other = shop.client(shop.left, "other")
    other.subscribe("a/#", qos=1).result(10)
    reader.stop_reading()

    for number in range(300):
        writer.publish("a/b", b"%d" % number, qos=1)
    shop.cluster.advance(60.0)

    assert len(other.messages) == 300
    assert not reader.messages
    assert reader.is_connected
    assert reader.connections == 1
    reader.read_on()
    shop.rest(writer, reader, other)
    assert [each.payload for each in reader.messages] == [b"%d" % n for n in range(300)]
    shop.history.check(in_order, NothingLost([reader.client_id, "other"]))


@cluster_test(seeds=3, twice=True)
def test_a_router_that_ends_tells_its_clients_in_the_same_order(cluster):
    shop = Shop(cluster)
    clients = [shop.client(node, f"c{i}") for i, node in enumerate(shop.nodes[1:] * 5)]
    shop.rest(*clients)
    shop.routers[0].close()
    cluster.advance(1.0)


@pytest.mark.slow
@cluster_test(seeds=12, faults=swarm(span=20.0))
def test_qos_2_is_exactly_once_whatever_happens(cluster):
    shop = Shop(cluster)
    writer, reader = shop.pair(2)
    numbers = iter(range(10_000))

    def publish():
        for client in (writer, reader):
            client.publish("a/b", b"%s %d" % (client.client_id.encode(), next(numbers)), qos=2)
        if cluster.now < 25.0:
            cluster.clock.plan(0.4, publish)

    publish()
    cluster.advance(60.0)
    shop.history.check(at_most_once, in_order)
