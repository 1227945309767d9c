"""Limits that change while a router runs apply to clients that connect later."""

import socket

import pytest

from callboard.commitlog import LogReader
from callboard.mqtt import (
    Limits,
    ListenerSettings,
    NetworkLimits,
    Router,
    RouterConfig,
    Rule,
    Security,
)
from callboard.mqtt.service.destination import Destination
from callboard.mqtt.wire.errors import JournalFailed
from callboard.mqtt.wire.packet import (
    V5,
    Disconnect,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    Subscription,
)
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.caller import Caller
from tests.polling import eventually


@pytest.fixture
def router():
    limits = Limits(connections=2, topic_alias_maximum=5, receive_maximum=10, keep_alive=100)
    with Router(RouterConfig(limits=limits, sys_interval=0)) as running:
        yield running


def told(caller):
    said = caller.greeting.properties
    return (
        said.receive_maximum,
        said.topic_alias_maximum,
        said.maximum_packet_size,
        said.server_keep_alive,
    )


def aliased(alias, topic="a"):
    return Publish(topic, b"x", 1, packet_id=1, properties=Properties(topic_alias=alias))


def test_new_limits_apply_to_clients_that_connect_later(router):
    with Caller(router.port, "early", V5) as early:
        router.reload(
            limits=Limits(topic_alias_maximum=1, receive_maximum=3, packet_size=2_000)
        )

        with Caller(router.port, "late", V5) as late:
            assert told(early) == (10, 5, 1 << 20, 100)
            assert told(late) == (3, 1, 2_000, None)
            for caller, alias, size in ((early, 5, 10_000), (late, 1, 10)):
                caller.say(aliased(alias), Publish("a", bytes(size), 1, packet_id=2))
                assert len(caller.hear_packets(2)) == 2
            late.say(aliased(2))
            assert late.hear_packets(1)[0].reason_code == ReasonCode.TOPIC_ALIAS_INVALID
        with Caller(router.port, "late", V5) as late:
            late.say(Publish("a", bytes(3_000)))
            (end,) = late.hear_packets(1)
            assert (type(end), end.reason_code) == (Disconnect, ReasonCode.PACKET_TOO_LARGE)


def test_the_limit_of_connections_can_be_raised_and_lowered(router):
    def is_let_in(client_id):
        with Caller(router.port, client_id, V5) as caller:
            is_in = caller.greeting.reason_code == 0
            if is_in:
                caller.say(Disconnect())
                assert caller.hear_packets(1) == []  # it is gone, and does not count any more
            return is_in

    with Caller(router.port, "a", V5), Caller(router.port, "b", V5):
        assert not is_let_in("c")
        router.reload(limits=Limits(connections=3))
        assert is_let_in("c")
        router.reload(limits=Limits(connections=1))
        assert not is_let_in("c")
        assert sorted(router.call(lambda: list(router.machine.sessions.connections))) == [
            "a",
            "b",
        ]


def test_limits_of_connections_and_logs_change_as_well(router):
    limits = Limits(segment_bytes=2048, retained=1, subscriptions=1)
    router.reload(limits=limits, network=NetworkLimits(connection_rate=1, reader_patience=0.25))

    with Caller(router.port, "a", V5) as caller:
        caller.say(Subscribe(1, (Subscription("a"), Subscription("b"))))
        codes = (0, ReasonCode.QUOTA_EXCEEDED)
        assert caller.hear_packets(1) == [SubAck(1, codes, Properties())]
        assert router.call(lambda: router.machine.logs.get("a").segment_bytes) == 2048
        caller.say(*(Publish(each, b"x", retain=True) for each in ("x", "y")))
        with Caller(router.port, "b", V5) as second:
            assert second.greeting.reason_code == ReasonCode.CONNECTION_RATE_EXCEEDED
        assert router.call(lambda: len(router.machine.logs.retained)) == 1
        assert router.edge.connections.backpressure.patience == 0.25

    router.reload(network=NetworkLimits())
    for _ in range(3):
        with Caller(router.port, "b", V5) as second:
            assert second.greeting.reason_code == 0


def test_keys_that_are_not_named_keep_their_values(router):
    security = Security(users={})
    router.reload(security)

    assert router.config.security is security
    assert router.config.limits.connections == 2
    assert router.edge.connections.limits.keep_alive == 100


def test_packets_too_large_for_the_journal_are_refused_without_effect(tmp_path):
    with Router(RouterConfig(directory=tmp_path, sys_interval=0)) as router:
        with pytest.raises(JournalFailed, match="omit the directory"):
            router.reload(limits=Limits(packet_size=1 << 28))

        assert router.call(lambda: router.machine.effects.limits) == Limits()


def doubled(message):
    return message.payload * 2


def copy_of(topic_filter, topic):
    return Rule(topic_filter, to=Destination(topic=topic))


def test_rules_are_replaced_and_those_that_stay_miss_no_message(router):
    router.reload(rules=(Rule("in", doubled, "out"), copy_of("old", "copies/old")))
    with router.link() as link:
        link.subscribe("out", qos=1).result(5)
        link.subscribe("copies/#", qos=1).result(5)
        for number in range(50):
            link.publish("in", b"%d" % number, qos=1)
            if number == 25:
                router.reload(rules=(Rule("in", doubled, "out"), copy_of("new", "copies/new")))
        assert [link.recv(5).payload for _ in range(50)] == [
            b"%d%d" % (n, n) for n in range(50)
        ]

        link.publish("old", b"x", qos=1).result(5)
        link.publish("new", b"y", qos=1).result(5)
        assert link.recv(5).topic == "copies/new"
        assert link.try_recv() is None


def test_rules_with_destinations_start_and_end_at_a_reload(router, tmp_path):
    def log(name):
        return Rule(f"{name}/#", to=Destination(log=str(tmp_path / name)))

    def values(name):
        return [record.payload for record in LogReader(tmp_path / name)]

    router.reload(rules=(log("a"),))
    router.reload(rules=(log("a"), log("b")))
    with router.link() as link:
        for name in ("a", "b"):
            link.publish(f"{name}/1", b"1", qos=1).result(5)
            assert eventually(lambda name=name: values(name) == [1])
        router.reload(rules=(log("b"),))
        for name in ("a", "b"):
            link.publish(f"{name}/2", b"2", qos=1).result(5)
        assert eventually(lambda: values("b") == [1, 2])
        assert values("a") == [1]
        sessions = router.call(lambda: [each.client_id for each in router.machine.sessions])
        assert sum(name.startswith("$rule-") for name in sessions) == 1


def test_rules_stay_if_a_new_one_cannot_start(router, tmp_path):
    (tmp_path / "file").write_text("no folder")
    router.reload(rules=(copy_of("a", "b"),))
    bad = Rule("c", to=Destination(log=str(tmp_path / "file" / "log")))
    with pytest.raises(Exception, match="file"):
        router.reload(rules=(copy_of("a", "other"), bad))

    assert router.config.rules == (copy_of("a", "b"),)
    with router.link() as link:
        link.subscribe("#", qos=1).result(5)
        link.publish("a", b"x", qos=1).result(5)
        assert [link.recv(5).topic for _ in range(2)] == ["a", "b"]


def test_each_listener_can_have_its_own_maximum_qos():
    listeners = (
        ListenerSettings("127.0.0.1:0"),
        ListenerSettings("127.0.0.2:0", maximum_qos=1),
    )
    with Router(RouterConfig(listeners=listeners, sys_interval=0)) as router:
        ports = [int(address.rpartition(":")[2]) for address in router.addresses]
        for index, most, end in ((0, None, None), (1, 1, Disconnect)):
            host, port = f"127.0.0.{index + 1}", ports[index]
            connection = socket.create_connection((host, port), 10)
            with Caller(port, "c", V5, connection=connection) as caller:
                assert caller.greeting.properties.maximum_qos == most
                caller.say(Subscribe(1, (Subscription("a", 2),)))
                assert caller.hear_packets(1)[0].reason_codes == (2 if most is None else 1,)
                caller.say(Publish("b", b"x", 2, packet_id=1))
                (answer,) = caller.hear_packets(1)
                assert isinstance(answer, end or PubRec)
                if end:
                    assert answer.reason_code == ReasonCode.QOS_NOT_SUPPORTED
