"""Everything that clients can make a router store is bounded, in number and in bytes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.mqtt.router import logs, session, sessions
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.router.message import passed_on
from callboard.mqtt.router.retained import HEAD_BYTES, RetainedMessages
from callboard.mqtt.wire.packet import V4, V5, Disconnect, PubAck, Publish, PubRec, Will
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.mqtt.wire.topic import LEVEL_BYTES, TopicTree, weight_of_way
from tests.callboard.mqtt.durable_stage import DurableStage
from tests.callboard.mqtt.stage import Client, Stage, connack

KIB = 1024
QUOTA = ReasonCode.QUOTA_EXCEEDED


def retained(stage: Stage) -> RetainedMessages:
    return stage.machine.logs.retained


def topics(stage: Stage) -> set[str]:
    return {run.topic.decode() for run in retained(stage)}


def counted(stage: Stage) -> int:
    """Return what the retained messages of a router weigh, counted from the beginning."""
    tree: TopicTree[object] = TopicTree()
    for run in retained(stage):
        tree.set(run.topic.decode(), run)
    return tree.weight + sum(HEAD_BYTES + run.weight for run in retained(stage))


# --- retained messages ---


@pytest.mark.parametrize("qos", [1, 2])
def test_an_mqtt_5_client_is_told_that_its_message_is_not_retained(qos) -> None:
    stage = Stage(Limits(retained_bytes=110 * KIB))
    reader, publisher = stage.client("r"), stage.client("p")
    reader.subscribe("#")

    answers = []
    for at in range(12):
        answers += publisher.send(
            publisher.message(f"t/{at}", bytes(10 * KIB), qos, retain=True)
        )
    kinds = (PubAck, PubRec)
    codes = [each.reason_code for each in answers if isinstance(each, kinds)]

    assert codes == [0] * 9 + [QUOTA] * 3
    assert len(reader.messages()) == len(retained(stage)) == 9
    assert stage.machine.meters.not_retained == 3
    assert 95 * KIB < retained(stage).weight <= 110 * KIB


@pytest.mark.parametrize(("version", "qos"), [(V4, 0), (V4, 1), (V4, 2), (V5, 0)])
def test_a_client_that_cannot_be_told_of_the_refusal_loses_the_older_retained_message(
    version, qos
) -> None:
    stage = Stage(Limits(retained_bytes=40 * KIB))
    reader, publisher = stage.client("r"), stage.client("p", version=version)
    reader.subscribe("#", qos=2)
    for topic, size in (("a", 10), ("b", 20), ("a", 30), ("c", 10)):
        publisher.publish(topic, bytes(size * KIB), qos, retain=True)

    assert [len(each.payload) // KIB for each in reader.messages()] == [10, 20, 30, 10]
    assert topics(stage) == {"b", "c"}
    assert publisher.end is None
    assert stage.machine.meters.not_retained == 1


@pytest.mark.parametrize("qos", [1, 2])
def test_a_refused_retained_message_keeps_the_previous_one(qos) -> None:
    stage = Stage(Limits(retained_bytes=20 * KIB))
    publisher = stage.client("p")
    publisher.publish("t", b"before", qos, retain=True)
    publisher.publish("t", bytes(30 * KIB), qos, retain=True)

    run = retained(stage).get("t")
    assert run is not None
    assert run.payloads == [b"before"]


def test_the_memory_limit_counts_replaced_removed_and_expired_messages_no_longer() -> None:
    stage = Stage(Limits(retained_bytes=110 * KIB))
    publisher = stage.client("p")
    for _ in range(3):
        for at in range(9):
            publisher.publish(f"t/{at}", bytes(10 * KIB), 1, retain=True)
        for at in range(9):
            publisher.publish(f"t/{at}", b"x", 1, retain=True)
        for at in range(9):
            publisher.publish(f"t/{at}", b"", retain=True)
        assert retained(stage).weight == 0
    for at in range(9):
        publisher.publish(f"e/{at}", bytes(10 * KIB), retain=True, message_expiry_interval=5)
    stage.advance(6)
    for at in range(9):
        publisher.publish(f"t/{at}", bytes(10 * KIB), 1, retain=True)

    assert (len(retained(stage)), stage.machine.meters.not_retained) == (9, 0)


def test_the_number_of_retained_messages_is_bounded_exactly() -> None:
    stage = Stage(Limits(retained=10))
    publisher = stage.client("p")
    codes = [
        publisher.send(publisher.message(f"t/{at}", b"x", 1, retain=True))[0].reason_code
        for at in range(11)
    ]
    assert codes == [0] * 10 + [QUOTA]


def test_wills_and_the_routers_own_messages(stage) -> None:
    stage.machine.effects.limits = Limits(retained_bytes=12 * KIB)
    local = stage.client("$sys", is_local=True)
    publisher = stage.client("p", will=Will("w", bytes(20 * KIB), retain=True))
    publisher.publish("t", bytes(9 * KIB), retain=True)
    local.publish("$SYS/broker/version", bytes(5 * KIB), retain=True)
    publisher.lose()

    assert topics(stage) == {"t", "$SYS/broker/version"}
    assert stage.machine.meters.not_retained == 1


def test_a_restart_keeps_the_bound() -> None:
    durable = DurableStage(Limits(retained_bytes=110 * KIB))
    publisher = durable.client("p")
    for at in range(12):
        publisher.publish(f"t/{at}", bytes(10 * KIB), 0, retain=True)
    durable.crash()
    assert len(retained(durable)) == 9
    assert retained(durable).weight == counted(durable)

    durable._limits = Limits(retained_bytes=50 * KIB)
    durable.crash()
    assert len(retained(durable)) == 4
    assert retained(durable).weight <= 50 * KIB


def test_encoded_forms_of_retained_messages_are_not_cached(stage) -> None:
    stage.client("p").publish("t", bytes(KIB), 2, retain=True)
    for version, qos, identifier in [
        (V4, 0, 0),
        (V4, 2, 0),
        (V5, 0, 3),
        (V5, 1, 4),
        (V5, 2, 5),
    ]:
        client = stage.client(f"{version}{qos}", version=version)
        client.subscribe("t", qos=qos, identifier=identifier)
        assert len(client.payloads()[0]) == KIB
    run = retained(stage).get("t")
    assert run is not None
    assert run.memory == run.weight


_NAMES = st.sampled_from(["a", "a/b", "a/b/c", "b", "/", "x" * 300, "/".join("d" * 100), "é€"])


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            _NAMES,
            st.sampled_from([0, 0, 1, 100, 3_000, 20_000]),
            st.sampled_from([0, 1, 2]),
            st.sampled_from([None, 1, 50]),
            st.sampled_from([V4, V5]),
        ),
        max_size=40,
    ),
    st.sampled_from([0, 1_000, 30_000, 80_000]),
)
def test_the_counted_size_of_retained_messages_is_exact_and_bounded(steps, limit) -> None:
    stage = Stage(Limits(retained_bytes=limit, retained=6))
    clients = {version: stage.client(str(version), version=version) for version in (V4, V5)}
    for topic, size, qos, expiry, version in steps:
        said = {"message_expiry_interval": expiry} if version == V5 else {}
        clients[version].publish(topic, bytes(size), qos, retain=True, **said)
        stage.advance(0.5)
        weight = retained(stage).weight
        assert weight == counted(stage)
        assert weight <= limit
        assert len(retained(stage)) <= 6


# --- sessions, subscriptions and wills ---


def held(stage: Stage) -> int:
    """Return what the sessions of a router take beside messages, and check the sum of it."""
    total = sum(each.weight for each in stage.machine.sessions)
    assert stage.machine.effects.held == total
    return total


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize(
    "make",
    [
        lambda at: f"f/{at}/" + "x" * 1_000,
        lambda at: f"$share/{'g' * 500}{at}/{'x' * 500}",
        lambda at: "/".join([str(at)] * 100),
    ],
)
def test_filters_of_one_client_are_bounded_in_bytes(version, make) -> None:
    stage = Stage(Limits(subscription_bytes=200 * KIB))
    client = stage.client("c", version=version)
    codes = [client.subscribe(make(at)).reason_codes[0] for at in range(250)]

    refused = QUOTA if version == V5 else 0x80
    assert set(codes) == {0, refused}
    assert codes == sorted(codes)
    assert held(stage) <= 200 * KIB
    assert client.unsubscribe(make(0)).packet_id
    assert client.subscribe(make(0)).reason_codes == (0,)  # there is room again
    assert stage.machine.meters.over_quota == codes.count(refused)


def test_the_number_of_subscriptions_is_bounded_exactly() -> None:
    stage = Stage(Limits(subscriptions=10))
    client = stage.client("c")
    codes = [client.subscribe(str(at)).reason_codes[0] for at in range(11)]
    assert codes == [0] * 10 + [QUOTA]
    assert client.subscribe("3").reason_codes == (0,)


def test_filters_that_were_unsubscribed_with_unread_messages_count_too() -> None:
    stage = Stage(Limits(subscriptions=10))
    publisher = stage.client("p")
    client = stage.client("c", answers=False, receive_maximum=1)
    granted = 0
    for at in range(50):
        client.subscribe(f"{at}/+", "+/x", qos=1)
        publisher.publish(f"{at}/x", b"x", 1)
        client.unsubscribe(f"{at}/+")
        found = stage.machine.sessions.connections["c"].session
        granted = max(granted, len(found.leaving) + len(found.subscriptions))
    assert granted <= 10
    client.lose()
    assert held(stage) == publisher_weight(stage)


def publisher_weight(stage: Stage) -> int:
    return stage.machine.sessions.connections["p"].session.weight


@pytest.mark.parametrize(("version", "code"), [(V4, 3), (V5, QUOTA)])
def test_sessions_of_clients_that_never_return_are_bounded(version, code) -> None:
    stage = Stage(Limits(sessions=10))
    lasting = {"version": version, "clean": False}
    if version == V5:
        lasting["expiry"] = 1_000
    codes = []
    for at in range(12):
        client = stage.client(f"c{at}", **lasting)
        codes.append(connack(client).reason_code)
        if not codes[-1]:
            client.lose()

    assert codes == [0] * 10 + [code] * 2
    assert connack(stage.client("c3", **lasting)).session_present
    assert connack(stage.client("clean", version=version)).reason_code == 0
    stage.advance(Limits().session_expiry + 1)
    assert connack(stage.client("c11", **lasting)).reason_code == 0


def test_deadlines_of_short_lived_clients_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(sessions, "SPARE", 100)
    stage = Stage()
    will = Will("w", b"gone", properties=Properties(will_delay_interval=50))
    stage.client("away", clean=False, expiry=100, will=will).lose()
    for _ in range(300):
        stage.client("c", clean=False, expiry=1_000).lose()
        assert len(stage.machine.sessions.deadlines) <= 100 + 4 * 3 + 1
    stage.advance(51)
    assert stage.machine.meters.wills == 1
    stage.advance(50)
    assert list(stage.machine.sessions.graveyard) == ["c"]
    stage.advance(1_000)
    assert not stage.machine.sessions.graveyard


@pytest.mark.parametrize("what", ["will", "filters"])
def test_sessions_are_bounded_in_bytes(what) -> None:
    stage = Stage(Limits(sessions_bytes=500 * KIB))
    refusals = 0
    for at in range(40):
        will = Will("w", bytes(30 * KIB), properties=Properties()) if what == "will" else None
        client = stage.client(f"c{at}", clean=False, expiry=100, will=will)
        if connack(client).reason_code:
            refusals += 1
            continue
        if what == "filters":
            codes = client.subscribe(*(f"{at}/{n}/{'x' * 300}" for n in range(10))).reason_codes
            refusals += codes.count(QUOTA)
        client.lose()
        assert held(stage) <= 500 * KIB
    assert refusals > 5
    assert stage.machine.meters.over_quota == refusals
    stage.advance(101)
    assert held(stage) == 0


def test_a_returning_client_is_admitted_when_all_places_are_taken() -> None:
    stage = Stage(Limits(sessions_bytes=20 * KIB, sessions=3))
    lasting = {"clean": False, "expiry": 100}
    for name in "abc":
        stage.client(name, **lasting).lose()
    stage.machine.effects.limits = Limits(sessions_bytes=1, sessions=1)

    assert connack(stage.client("a", **lasting)).session_present
    assert connack(stage.client("d", **lasting)).reason_code == QUOTA


# --- messages ---


def messages(stage: Stage) -> int:
    return stage.machine.sessions._count_messages()


BOUND = 2 * KIB * KIB
BOUNDED = Limits(message_bytes=BOUND, segment_bytes=64 * KIB, acknowledge_patience=0)


@pytest.fixture
def small(monkeypatch) -> Stage:
    monkeypatch.setattr(sessions, "SLACK", 100 * KIB)
    stage = Stage(BOUNDED)
    stage.machine.sessions.look_at = 100 * KIB
    return stage


def flood(
    stage: Stage, publisher: Client, topic: str, size: int = 10 * KIB, qos: int = 1
) -> None:
    publisher.publish(topic, bytes(size), qos)
    assert messages(stage) <= BOUND + 200 * KIB


def test_messages_of_sessions_that_are_away_are_bounded_over_all_filters(small) -> None:
    client = small.client("away", clean=False, expiry=100)
    client.subscribe(*(f"t/{at}" for at in range(50)), qos=1)
    client.lose()
    publisher = small.client("p")
    for number in range(600):
        flood(small, publisher, f"t/{number % 50}")
    again = small.client("away", clean=False, expiry=100)
    got = len(again.messages())
    assert 0 < got < 600
    assert got + small.machine.meters.lost == 600


@pytest.mark.parametrize("is_away", [False, True])
def test_messages_in_flight_are_bounded_over_all_clients(small, is_away) -> None:
    publisher = small.client("p")
    for at in range(20):
        client = small.client(f"c{at}", clean=False, expiry=100, answers=False)
        client.subscribe(f"t/{at}", qos=1)
        for _ in range(30):
            flood(small, publisher, f"t/{at}")
        if is_away:
            client.lose()
    meters = small.machine.meters
    assert 5 < meters.crowded_out < 20
    assert meters.lost >= 30 * meters.crowded_out
    assert connack(small.client("c0", clean=False, expiry=100)).session_present is False


def test_retained_messages_that_were_replaced_and_not_read_are_bounded(small) -> None:
    publisher = small.client("p")
    for at in range(40):
        for topic in range(10):
            flood(small, publisher, f"r/{topic}", 10 * KIB)
            publisher.publish(f"r/{topic}", bytes(10 * KIB), 1, retain=True)
        reader = small.client(f"c{at}", answers=False, receive_maximum=1)
        reader.subscribe("r/#", qos=1)
        assert messages(small) <= BOUND + 300 * KIB
    assert small.machine.meters.crowded_out


def test_one_client_may_wait_for_all_retained_messages_under_many_filters(small) -> None:
    publisher = small.client("p")
    for at in range(1_000):
        publisher.publish(f"r/{at}", b"x", 1, retain=True)
    reader = small.client("c", answers=False, receive_maximum=1)
    for at in range(100):
        if reader.end is not None:
            break
        reader.subscribe(
            *("/".join(["+"] * k + ["#"]) for k in (0, 1)), "r/+", qos=1, identifier=at + 1
        )
    assert messages(small) <= BOUND + 200 * KIB


def test_identifiers_of_qos_2_that_are_never_released_are_bounded(small) -> None:
    for at in range(10):
        client = small.client(f"c{at}", version=V4, clean=False, answers=False)
        for number in range(1, 4_001):
            client.push(Publish("t", b"", 2, packet_id=number))
        small.run()
        assert messages(small) <= BOUND + 64 * 4_000 + 200 * KIB
    assert small.machine.meters.crowded_out


def test_clients_that_keep_up_are_not_slowed(small) -> None:
    reader, publisher = small.client("r"), small.client("p")
    reader.subscribe("t", qos=1)
    for _ in range(1_000):
        flood(small, publisher, "t")
    assert len(reader.messages()) == 1_000
    assert (small.machine.meters.crowded_out, small.machine.meters.lost) == (0, 0)


# --- caches and buffers of a connection ---


def test_topics_cached_for_a_connection_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr(session, "ALIAS_BYTES", 10 * KIB)
    monkeypatch.setattr("callboard.mqtt.router.delivery.ALIAS_BYTES", 10 * KIB)
    monkeypatch.setattr(logs, "CACHED_BYTES", 200 * KIB)

    class Open:
        def may_publish(self, _topic: str) -> bool:
            return True

        may_receive = may_publish

        def may_subscribe(self, _topic_filter: str, qos: int) -> int:
            return qos

    stage = Stage()
    reader = stage.client("r", topic_alias_maximum=60_000, access=Open())
    reader.subscribe("#")
    publisher = stage.client("p", access=Open())
    for at in range(300):
        publisher.publish(f"{at}/" + "x" * 2_000)

    connection = stage.machine.sessions.connections["r"]
    assert len(reader.messages()) == 300
    assert sum(map(len, connection.aliases_out)) <= 10 * KIB
    assert sum(map(len, stage.machine.logs.routes)) <= 200 * KIB
    for each in stage.machine.sessions.connections.values():
        for answers in each.allowed or ():
            assert sum(map(len, answers)) <= session.MOST_ANSWERS * session.LONGEST_ANSWERED

    aliases = stage.client("a")
    for alias in range(1, 65):
        if aliases.end is None:
            aliases.publish(f"{alias}/" + "y" * 1_000, topic_alias=alias)
    assert aliases.end is not None
    assert aliases.end.reason_code == QUOTA


def test_large_properties_are_not_remembered() -> None:
    before = passed_on.__globals__["_passed_on"].cache_info().currsize
    large = [
        Properties(user_properties=(("k", "v" * 10),)),
        Properties(correlation_data=bytes(1_000)),
        Properties(response_topic="t" * 1_000),
        Properties(content_type="t" * 1_000),
    ]
    for each in large:
        assert passed_on(each).properties
    assert passed_on.__globals__["_passed_on"].cache_info().currsize == before


def test_answers_to_a_client_that_never_reads_are_bounded_in_bytes(monkeypatch) -> None:
    monkeypatch.setattr("callboard.mqtt.router.ingress.MOST_ACK_BYTES", 100 * KIB)
    stage = Stage(Limits(delivery_bytes=400))
    client = stage.client("c", reads=False)
    run = b"\x32\x06\0\1t\0\1\0" * 1_000
    for _ in range(300):
        client.push(run)
        if "c" in stage.machine.sessions.connections:
            stage.run()
            found = stage.machine.sessions.connections.get("c")
            assert found is None or sum(map(len, found.acks)) <= 5_000 * KIB
    assert "c" not in stage.machine.sessions.connections


# --- all of it, at random ---


def attack(stage: Stage, rng: random.Random, names: list[str]) -> None:  # noqa: C901
    """Make the router store more for a client."""
    name, version = rng.choice(names), rng.choice((V4, V5))
    will = Will(
        "w" * rng.randrange(1, 50), bytes(rng.choice((0, 5_000))), rng.randrange(3), True
    )
    if version == V5:
        will = Will(will.topic, will.payload, will.qos, True, Properties(will_delay_interval=9))
    said = {"expiry": rng.choice((0, 50)), "topic_alias_maximum": 50} if version == V5 else {}
    client = stage.client(
        name,
        version=version,
        clean=rng.random() < 0.3,
        answers=rng.random() < 0.5,
        will=rng.choice((will, None)),
        **said,
    )
    for _ in range(rng.randrange(1, 12)):
        if client.end is not None or connack(client).reason_code:
            return
        topic = "/".join(rng.choice("abcdefgh") for _ in range(rng.choice((1, 3, 60))))
        match rng.randrange(5):
            case 0:
                filters = [
                    topic,
                    topic + "/#",
                    f"$share/{topic[:1]}/{topic}",
                    "#",
                    "+/" + topic,
                ]
                client.subscribe(*rng.sample(filters, 3), qos=rng.randrange(3))
            case 1 | 2:
                size = rng.choice((0, 10, 3_000, 40_000))
                client.publish(topic, bytes(size), rng.randrange(3), retain=rng.random() < 0.6)
            case 3:
                for number in range(1, rng.choice((2, 300))):
                    client.push(client.message(topic, b"x", 2, packet_id=number))
                stage.run()
            case 4:
                stage.advance(rng.choice((0.1, 5.0, 60.0)))
    if rng.random() < 0.7:
        client.lose()
    elif client.end is None:
        client.send(Disconnect(0, Properties() if version == V5 else None))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_whatever_clients_do_the_bounds_hold(seed, monkeypatch) -> None:
    monkeypatch.setattr(sessions, "SLACK", 50 * KIB)
    limits = Limits(
        connections=12,
        sessions=20,
        subscription_bytes=60 * KIB,
        sessions_bytes=300 * KIB,
        message_bytes=600 * KIB,
        retained_bytes=200 * KIB,
        retained=30,
        segment_bytes=20 * KIB,
        acknowledge_patience=0,
    )
    stage, rng = Stage(limits), random.Random(seed)
    stage.machine.sessions.look_at = 0
    names = [f"client-{at}" for at in range(60)]
    for _ in range(120):
        attack(stage, rng, names)
        found = stage.machine.sessions
        assert found.remote == len(found.connections) <= 12
        assert len(found.graveyard) + len(found.connections) <= 20 + 12
        assert held(stage) <= 300 * KIB
        assert all(each.weight <= 60 * KIB for each in found)
        assert retained(stage).weight == counted(stage) <= 200 * KIB
        stage.run()  # what the last turn brought is seen by the next one
        assert messages(stage) <= (600 + 50) * KIB
    stage.advance(Limits().session_expiry + 1)
    for connection in list(stage.machine.sessions.connections.values()):
        connection.link.disconnect()
    stage.advance(Limits().session_expiry + 1)
    assert (held(stage), messages(stage)) == (0, 0)
    assert len(stage.machine.logs) == 0
    meters = stage.machine.meters
    assert meters.over_quota
    assert meters.not_retained


def test_the_weight_of_a_tree_is_the_sum_of_its_paths() -> None:
    tree: TopicTree[int] = TopicTree()
    tree.set("a/b", 1)
    alone = tree.weight
    tree.set("a/c/d", 2)
    assert alone == weight_of_way("a/b")
    assert tree.weight < alone + weight_of_way("a/c/d") - LEVEL_BYTES + 1
    tree.remove("a/c/d")
    assert tree.weight == alone
    tree.remove("a/b")
    assert tree.weight == 0
