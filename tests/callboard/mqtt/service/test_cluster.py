"""Routers of one cluster: a session lives on one of them."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from callboard import Node
from callboard.mqtt import Router, RouterConfig, SessionPolicy
from callboard.mqtt.service import claims, cluster
from callboard.mqtt.service.cluster import ROUTERS
from callboard.mqtt.wire.packet import V4, V5, Disconnect, PubAck, Publish, PubRel, Will
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.caller import Caller

Pair = tuple[Router, Router]


@contextmanager
def apart(policy: SessionPolicy) -> Iterator[tuple[Router, Router, Node, Node]]:
    """Run two routers on nodes that do not know each other."""
    config = RouterConfig(sessions=policy)
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(name)) for name in "ab"]
        routers = [stack.enter_context(Router(config, node=node)) for node in nodes]
        yield routers[0], routers[1], nodes[0], nodes[1]


def link(a: Node, b: Node) -> None:
    a.listen("127.0.0.1", 0)
    b.connect(a.address)
    for node in (a, b):
        node.group(ROUTERS).ready(2).result(10)


@pytest.fixture
def routers() -> Iterator[Pair]:
    with apart(SessionPolicy.TAKE_OVER) as (one, two, a, b):
        link(a, b)
        yield one, two


@pytest.fixture
def referring() -> Iterator[Pair]:
    with apart(SessionPolicy.REFER) as (one, two, a, b):
        link(a, b)
        yield one, two


def ann(
    router: Router,
    *,
    clean: bool = False,
    expiry: int = 100,
    will: Will | None = None,
    **said: Any,
) -> Caller:
    """Connect ann."""
    properties = Properties(session_expiry_interval=expiry, **said)
    return Caller(router.port, "ann", V5, clean_start=clean, properties=properties, will=will)


def away(router: Router) -> list[str]:
    """Return the sessions whose clients are away."""
    return router.call(lambda: list(router.machine.sessions.graveyard))


def publish(router: Router, *payloads: bytes, topic: str = "t", qos: int = 1) -> None:
    with router.link() as local:
        for payload in payloads:
            local.publish(topic, payload, qos=qos).result(5)


# --- taken over ---


@pytest.mark.parametrize(("expiry", "is_present"), [(None, True), (0, False)])
@pytest.mark.parametrize("is_referring", [False, True])
def test_a_disconnect_holds_before_a_connect_to_another_router(
    request, expiry, is_present, is_referring
) -> None:
    one, two = request.getfixturevalue("referring" if is_referring else "routers")
    will = Will("will", b"gone", properties=Properties())
    with ann(one, will=will) as first:
        order = claims.ClaimSession("ann", is_clean=False, stamp=1 << 62)
        last = Publish("last", b"x", retain=True)
        said = Properties(session_expiry_interval=expiry)

        def asked() -> object:  # before the router reads on
            first.say(last, Disconnect(0, said))
            return one._actor._cluster.claims.asked(order)

        answer = one.call(asked)

        assert isinstance(answer, claims.NoSession) is not is_present
        assert one.call(lambda: one.machine.meters.wills) == 0
        assert one.call(lambda: one.machine.logs.retained.get("last")) is not None


def test_a_lasting_session_moves_to_the_router_that_its_client_connects_to(routers) -> None:
    one, two = routers
    with ann(one, receive_maximum=2) as first:
        first.subscribe("t", 2)
        publish(one, b"0", b"1", b"2", qos=2)
        sent = first.hear_packets(2)
    publish(one, b"3")

    with ann(two) as second:
        again = second.hear_packets(4)

    assert second.greeting.session_present is True
    assert [each.payload for each in again] == [b"0", b"1", b"2", b"3"]
    assert [each.dup for each in again] == [True, True, False, False]
    assert [each.packet_id for each in again[:2]] == [each.packet_id for each in sent]
    assert away(one) == []


def test_a_session_that_moved_reads_on_at_its_new_router_alone(routers) -> None:
    one, two = routers
    with ann(one) as first:
        first.subscribe("t", 1)
    with ann(two) as second:
        assert one.call(lambda: one.machine.meters.handed_over) == 1
        assert two.call(lambda: two.machine.meters.adopted) == 1
        publish(one, b"at one")
        publish(two, b"at two")
        (message,) = second.hear_packets(1)

    assert message.payload == b"at two"


def test_the_old_connection_on_another_router_is_told_of_the_takeover(
    routers,
) -> None:
    one, two = routers
    with ann(one) as first, ann(two) as second:
        (end,) = first.hear_packets(1)
        assert isinstance(end, Disconnect)
        assert end.reason_code == ReasonCode.SESSION_TAKEN_OVER
        assert second.greeting.session_present is True
        with ann(one) as third:  # and back again
            assert third.greeting.session_present is True
            assert second.hear_packets(1) == [end]


def test_qos_2_continues_in_both_directions_at_the_new_router(routers) -> None:
    one, two = routers
    with ann(one) as first:
        first.subscribe("t", 2)
        first.say(Publish("t", b"mine", 2, packet_id=7))
        first.hear_packets(2)  # the PUBREC, and the message, which is not answered

    with ann(two) as second:
        (again,) = second.hear_packets(1)
        second.say(Publish("t", b"mine", 2, dup=True, packet_id=7), PubRel(7))
        recorded, released = second.hear_packets(2)
        publish(two, b"next")
        (following,) = second.hear_packets(1)

    assert (again.payload, again.dup) == (b"mine", True)
    assert {recorded.packet_id, released.packet_id} == {7}
    assert following.payload == b"next"  # and not its own once more


def test_a_session_of_3_1_1_moves_as_well(routers) -> None:
    one, two = routers
    with Caller(one.port, "ann", V4, clean_start=False) as first:
        first.subscribe("t", 1)
    publish(one, b"x")

    with Caller(two.port, "ann", V4, clean_start=False) as second:
        (message,) = second.hear_packets(1)

    assert (second.greeting.session_present, message.payload) == (True, b"x")


def test_messages_of_a_shared_subscription_move_with_its_last_member(routers) -> None:
    one, two = routers
    with ann(one) as first:
        first.subscribe("$share/g/t", 1)
    publish(one, b"0", b"1")

    with ann(two) as second:
        got = []
        for _ in range(2):
            (message,) = second.hear_packets(1)
            second.say(PubAck(message.packet_id))
            got.append(message.payload)

    assert got == [b"0", b"1"]


def test_a_delayed_will_is_not_published_when_its_client_connects_to_another_router(
    routers,
) -> None:
    one, two = routers
    said = Properties(session_expiry_interval=100)
    will = Will("gone", b"x", 1, properties=Properties(will_delay_interval=50))
    with Caller(one.port, "ann", V5, clean_start=False, properties=said, will=will):
        pass
    while away(one) != ["ann"]:
        pass
    with ann(two):
        assert one.call(
            lambda: (one.machine.sessions.wills.waiting, one.machine.meters.wills)
        ) == (
            {},
            0,
        )


def test_a_session_with_too_much_to_carry_stays(routers, monkeypatch) -> None:
    one, two = routers
    monkeypatch.setattr(claims, "HEAVIEST", 10_000)
    with ann(one) as first:
        first.subscribe("t", 1)
    publish(one, bytes(20_000))

    with ann(two) as second:
        assert second.greeting.reason_code == ReasonCode.USE_ANOTHER_SERVER


# --- referred ---


def test_a_persistent_session_is_on_one_router_and_others_refer_to_it(referring) -> None:
    one, two = referring
    with ann(one) as first:
        first.subscribe("t", 1)

    with ann(two) as elsewhere:
        refusal = elsewhere.greeting
    with Caller(two.port, "ann", V4, clean_start=False) as old:
        assert old.greeting.reason_code == 3
    with ann(one) as again:
        welcome = again.greeting

    assert refusal.reason_code == ReasonCode.USE_ANOTHER_SERVER
    assert refusal.properties.server_reference == one.addresses[0]
    assert (welcome.reason_code, welcome.session_present) == (0, True)


# --- with either ---


@pytest.mark.parametrize("pair", ["routers", "referring"])
def test_a_client_that_starts_clean_is_free_to_move(pair, request) -> None:
    one, two = request.getfixturevalue(pair)
    with ann(one) as first, ann(two, clean=True) as moved:
        assert (moved.greeting.reason_code, moved.greeting.session_present) == (0, False)
        assert first.hear_packets(1)[0].reason_code == ReasonCode.SESSION_TAKEN_OVER
        assert away(one) == []


def test_the_clean_session_of_a_client_that_connects_to_another_router_ends(routers) -> None:
    one, two = routers
    with ann(one, expiry=0) as first, ann(two, expiry=0) as second:
        (end,) = first.hear_packets(1)
        assert second.greeting.session_present is False
        assert end.reason_code == ReasonCode.SESSION_TAKEN_OVER


def test_a_router_that_has_left_has_no_vote(routers) -> None:
    one, two = routers
    with ann(one):
        pass
    one.close()

    with ann(two) as client:
        assert (client.greeting.reason_code, client.greeting.session_present) == (0, False)


def test_while_a_router_does_not_answer_its_clients_get_server_busy(
    routers, monkeypatch
) -> None:
    one, two = routers
    with ann(one):
        pass
    stands, stuck = threading.Event(), threading.Event()

    def stand_still():
        stands.set()
        stuck.wait(60)

    blocked = threading.Thread(target=one.call, args=(stand_still,))
    blocked.start()
    assert stands.wait(10)
    monkeypatch.setattr(cluster, "CLAIM_LIMIT", 0.1)
    with ann(two) as refused, ann(two, clean=True) as fresh:
        assert refused.greeting.reason_code == ReasonCode.SERVER_BUSY
        assert fresh.greeting.reason_code == 0
    monkeypatch.undo()
    stuck.set()
    blocked.join()

    with ann(two) as again:  # what began last is what counts
        assert again.greeting.session_present is True
    assert away(one) == []


@pytest.mark.parametrize("policy", list(SessionPolicy))
@pytest.mark.parametrize("at", [0, 1])
def test_of_two_sessions_of_one_client_the_last_used_one_stays(policy, at) -> None:
    with apart(policy) as (one, two, a, b):
        for router in (one, two):
            with ann(router) as client:
                client.subscribe(router.addresses[0], 1)
        link(a, b)
        asked = (one, two)[at]
        with ann(asked) as client:
            referred = policy is SessionPolicy.REFER and asked is one
            expected = ReasonCode.USE_ANOTHER_SERVER if referred else ReasonCode.SUCCESS
            assert client.greeting.reason_code == expected
        with ann(two) as client:
            assert client.greeting.session_present is True
            mine = two.call(
                lambda: list(two.machine.sessions.connections["ann"].session.subscriptions)
            )
            assert mine == [two.addresses[0]]
        assert away(one) == []
