"""Retained messages are the same at all routers of a cluster."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from callboard import Endpoint, Node
from callboard.mqtt import Limits, Message, MqttDoor, Router, RouterConfig
from callboard.mqtt.port.local_link import LocalLink
from callboard.mqtt.router.record import key_of
from callboard.mqtt.router.retained import GRAVE, Head
from callboard.mqtt.service import cluster
from callboard.mqtt.service.cluster import (
    ROUTERS,
    RetainedDigests,
    RetainedPiece,
    RetainedQuestion,
    RetainedWrite,
)
from callboard.mqtt.service.topic_bridge import TopicMap
from callboard.mqtt.wire.packet import V5, Publish, Subscribe, Subscription
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.caller import Caller
from tests.callboard.mqtt.service.test_cluster import link
from tests.polling import eventually
from tests.proxies.cast import cut, heal


@contextmanager
def apart(*configs: RouterConfig) -> Iterator[tuple[Router, Router, Node, Node]]:
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(name)) for name in "ab"]
        one, two = configs or (RouterConfig(sys_interval=0),) * 2
        routers = [
            stack.enter_context(Router(config, node=node))
            for config, node in zip((one, two), nodes, strict=True)
        ]
        yield routers[0], routers[1], nodes[0], nodes[1]


@pytest.fixture
def routers() -> Iterator[tuple[Router, Router]]:
    with apart() as (one, two, a, b):
        link(a, b)
        yield one, two


def retain(router: Router, topic: str, payload: bytes, **properties) -> None:
    with router.link() as local:
        said = Properties(**properties) if properties else None
        message = Message(topic, payload, 1, retain=True, properties=said)
        (done,) = local.publish_all([message])
        done.result(5)


def kept(router: Router) -> dict[bytes, bytes]:
    """Return what a router retains."""
    return router.call(
        lambda: {run.topic: run.payloads[0] for run in router.machine.logs.retained}
    )


def both_keep(one: Router, two: Router, wanted: dict[bytes, bytes]) -> None:
    eventually(lambda: kept(one) == kept(two) == wanted, 20, interval=0.02)


def test_a_message_retained_at_one_router_is_retained_at_the_other(routers) -> None:
    one, two = routers
    retain(one, "a/b", b"1", content_type="x")
    retain(two, "c", b"2")
    both_keep(one, two, {b"a/b": b"1", b"c": b"2"})

    retain(two, "a/b", b"3")
    both_keep(one, two, {b"a/b": b"3", b"c": b"2"})
    retain(one, "c", b"")
    both_keep(one, two, {b"a/b": b"3"})


def test_a_removal_counts_where_the_message_is_not_known_yet(routers) -> None:
    one, two = routers
    for number in range(20):
        retain(one, f"t/{number}", b"x")
        retain(two, f"t/{number}", b"")
    retain(one, "last", b"x")
    both_keep(one, two, {b"last": b"x"})


@pytest.mark.parametrize(("handling", "times"), [(0, 2), (1, 1), (2, 0)])
def test_a_subscriber_at_another_router_gets_the_message_as_the_standard_requires(
    routers, handling, times
) -> None:
    one, two = routers
    retain(one, "t", b"1", content_type="text")
    both_keep(one, two, {b"t": b"1"})
    with Caller(two.port, "c", V5) as caller:
        found = []
        for number in (1, 2):
            wanted = Subscription("t", 1, retain_handling=handling)
            caller.say(Subscribe(number, (wanted,)))
            caller.say(Publish("t", b"end", 0))
            while not found or found[-1].payload != b"end":
                (packet,) = caller.hear_packets(1)
                if isinstance(packet, Publish):
                    found.append(packet)
            found.pop()
    assert [(each.payload, each.retain, each.qos) for each in found] == [
        (b"1", True, 1)
    ] * times
    assert all(each.properties.content_type == "text" for each in found)


@pytest.mark.slow
def test_routers_that_meet_agree_and_restore_no_removed_message() -> None:
    with apart() as (one, two, a, b):
        retain(one, "both", b"older")
        retain(one, "only/one", b"1")
        retain(two, "both", b"newer")
        retain(two, "only/two", b"2")
        link(a, b)
        wanted = {b"both": b"newer", b"only/one": b"1", b"only/two": b"2"}
        both_keep(one, two, wanted)

        cut(a, b)
        eventually(lambda: len(list(a.group(ROUTERS))) == 1)
        retain(one, "both", b"")
        retain(one, "only/two", b"3")
        retain(two, "only/two", b"4")
        retain(two, "only/one", b"")
        heal(a, b)
        both_keep(one, two, {b"only/two": b"4"})


def test_a_returning_router_receives_the_removals_that_it_missed(tmp_path) -> None:
    config = RouterConfig(sys_interval=0, directory=str(tmp_path / "two"))
    with Node("a") as a, Router(RouterConfig(sys_interval=0), node=a) as one:
        a.listen("127.0.0.1", 0)
        for life in range(2):
            with Node("b") as b, Router(config, node=b) as two:
                b.connect(a.address)
                if not life:
                    retain(one, "stays", b"1")
                    retain(one, "goes", b"2")
                    retain(two, "changes", b"3")
                    both_keep(one, two, {b"stays": b"1", b"goes": b"2", b"changes": b"3"})
                else:
                    both_keep(one, two, {b"stays": b"1", b"changes": b"4"})
            if not life:
                retain(one, "goes", b"")
                retain(one, "changes", b"4")


@pytest.mark.slow
def test_a_joining_router_gets_all_retained_messages_in_pieces(monkeypatch) -> None:
    monkeypatch.setattr(cluster, "PIECE", 3)
    monkeypatch.setattr(cluster, "PIECE_BYTES", 10_000)
    with apart() as (one, two, a, b):
        wanted = {f"t/{n}".encode(): bytes(n % 7 + 1) * 1_000 for n in range(1_500)}
        with one.link() as local:
            messages = [Message(t.decode(), p, 1, retain=True) for t, p in wanted.items()]
            for done in local.publish_all(messages):
                done.result(20)
        link(a, b)
        both_keep(one, two, wanted)


def test_a_router_without_room_reports_it_and_others_keep_their_messages(caplog) -> None:
    small = RouterConfig(sys_interval=0, limits=Limits(retained=2))
    with apart(RouterConfig(sys_interval=0), small) as (one, two, a, b):
        link(a, b)
        for number in range(5):
            retain(one, f"t/{number}", b"x")
        eventually(lambda: "exceed the limits" in caplog.text)
        digests = [
            r.call(lambda r=r: r.machine.logs.retained.heads.digests) for r in (one, two)
        ]
        eventually(lambda: digests[0] == digests[1])
        assert len(kept(one)) == 5
        assert len(kept(two)) == 2


def known(here: LocalLink, there: LocalLink) -> None:
    """Publish until it comes: doors hear of a subscription elsewhere a moment later."""

    def comes() -> bool:
        here.publish("known", qos=1).result(5)
        with suppress(TimeoutError):
            return bool(there.recv(0.05).topic)
        return False

    eventually(comes)


def received(link: LocalLink) -> Message:
    """Return the next message that is none of `known`."""
    while (message := link.recv(10)).topic == "known":
        pass
    return message


def test_a_message_between_routers_is_retained_only_with_its_publishers_flag() -> None:
    with apart() as (one, two, a, b), MqttDoor(one, a), MqttDoor(two, b):
        link(a, b)
        with two.link() as there:
            there.subscribe("#", qos=1).result(5)
            with one.link() as here:
                known(here, there)
                here.publish("plain", b"1", qos=1).result(5)
            retain(one, "kept", b"2")
            assert {received(there).topic, received(there).topic} == {"plain", "kept"}
        both_keep(one, two, {b"kept": b"2"})


def test_a_retaining_bridge_serves_actors_and_not_clients_of_other_routers() -> None:
    maps = [TopicMap(retain=True)]
    with (
        apart() as (one, two, a, b),
        MqttDoor(one, a, maps),
        MqttDoor(two, b, maps),
        Node("plain") as plain,
        Endpoint(node=a) as near,
        Endpoint(node=plain) as far,
        two.link() as there,
    ):
        link(a, b)
        there.subscribe("of a client", qos=1).result(5)
        there.subscribe("known", qos=1).result(5)
        far.peer(*near_address(near))
        near.publish("/mqtt/of a node with a router", b"1")
        far.publish("/mqtt/of a node without", b"2")
        with one.link() as here:
            known(here, there)
            here.publish("of a client", b"3", qos=1).result(5)
        assert received(there).payload == b"3"
        both_keep(one, two, {b"of a node with a router": b"1", b"of a node without": b"2"})


def near_address(endpoint: Endpoint) -> tuple[str, int]:
    return "127.0.0.1", endpoint.listen("127.0.0.1", 0)


def test_the_remaining_expiry_travels_with_a_message(routers) -> None:
    one, two = routers
    retain(one, "t", b"x", message_expiry_interval=100)
    both_keep(one, two, {b"t": b"x"})
    run = two.call(lambda: two.machine.logs.retained.get("t"))
    left = run.expires_at - two.call(lambda: two.machine.effects.now)
    assert 50 < left <= 101


def test_system_topics_stay_at_their_router(routers) -> None:
    one, two = routers
    retain(one, "$SYS/x", b"1")
    retain(one, "t", b"1")
    eventually(lambda: kept(two) == {b"t": b"1"})


def test_a_write_with_a_false_stamp_topic_or_key_is_ignored(routers) -> None:
    one, _ = routers
    now = time.time_ns()
    wrong = (
        RetainedWrite(key_of(b"t"), now + 2 * cluster.AHEAD, b"o", b"t", b"x"),
        RetainedWrite(key_of(b"t"), 1 << 200, b"o", b"t", b"x"),
        RetainedWrite(key_of(b"u"), now, b"o", b"t", b"x"),
        RetainedWrite(key_of(b"a/#"), now, b"o", b"a/#", b"x"),
        RetainedWrite(key_of(b"$SYS/x"), now, b"o", b"$SYS/x", b"x"),
        RetainedWrite(key_of(b"\xff"), now, b"o", b"\xff", b"x"),
        RetainedWrite(key_of(b"t"), now, b"o", b"t", b"x", 3),
        RetainedWrite(key_of(b"t"), "now", b"o", b"t", b"x"),
        RetainedWrite(key_of(b"t"), now, b"o" * 100, b"t", b"x"),
        RetainedWrite(b"short", now, b"o"),
        RetainedWrite(key_of(b"t"), now, b"o", b"t", b"x", expiry=float("nan")),
        RetainedWrite(key_of(b"t"), now, b"o", b"t", b"x", properties=b"\x23\x00\x01"),
        RetainedWrite(key_of(b"t"), now, b"o", b"t", b"x", properties=b"\xff"),
        "nothing",
    )
    for piece in (*map(RetainedPiece, zip(wrong)), RetainedPiece(7)):
        one._actor.me.tell(piece)
    for said in (RetainedDigests(one._actor.me, 7), RetainedDigests(None, (1,))):
        one._actor.me.tell(said)
    for heads in (7, (7,), ((b"", 7),), ((b"", [], 7),)):
        asked = one._actor.me.ask(RetainedQuestion(-1, heads))
        assert asked.result(5) == RetainedPiece(())
    assert kept(one) == {}
    retain(one, "t", b"y")
    assert kept(one) == {b"t": b"y"}


def test_removals_are_forgotten_after_a_time_and_above_a_number(routers, monkeypatch) -> None:
    one, _ = routers
    heads = one.call(lambda: one.machine.logs.retained.heads)
    old, young = time.time_ns() - 2 * GRAVE, time.time_ns()

    def bury() -> list[bytes]:
        for number, stamp in enumerate((old, young, old, young, young)):
            heads.set(b"%016d" % number, Head(stamp, b"o", b""))
        heads.forget(time.time_ns() - GRAVE, retries=False)
        return [key for key, _ in heads.graves()]

    assert len(one.call(bury)) == 3
    monkeypatch.setattr("callboard.mqtt.router.retained.GRAVES", 1)
    assert one.call(bury) == [b"%016d" % 4]
    one.call(lambda: heads.forget(1 << 80, retries=True))
    assert one.call(lambda: heads.digests) == [0] * 256


def test_a_retained_message_that_returns_after_long_is_reported(routers, caplog) -> None:
    one, _ = routers
    old = time.time_ns() - 2 * GRAVE

    def come(topic: bytes) -> None:
        one._actor.me.tell(
            RetainedPiece((RetainedWrite(key_of(topic), old, b"o", topic, b"x"),))
        )
        eventually(lambda: topic in kept(one))

    come(b"of a router that was here before this one")
    assert "removed meanwhile" not in caplog.text

    one.call(lambda: setattr(one._actor._cluster.exchange, "_since", old))
    come(b"a\x1bb")
    assert "1 retained messages of another router are older" in caplog.text
    assert any(r"'a\x1bb'" in told for told in caplog.messages)
