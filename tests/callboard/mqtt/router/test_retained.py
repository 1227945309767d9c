"""Retained messages and wills."""

import pytest

from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.packet import V4, V5, Disconnect, Will
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.stage import Stage, connack


@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_retained_message_is_sent_to_later_subscribers(stage, version, qos) -> None:
    publisher = stage.client("p", version=version)
    publisher.publish("a/1", b"first", qos, retain=True)
    publisher.publish("a/1", b"second", qos, retain=True)
    publisher.publish("a/2", b"other", qos, retain=True)
    publisher.publish("a/3", b"not kept", qos)
    client = stage.client("c", version=version)

    client.subscribe("a/+", qos=1)

    messages = client.messages()
    assert {each.payload: each.retain for each in messages} == {b"second": True, b"other": True}
    assert {each.qos for each in messages} == {min(qos, 1)}


def test_an_empty_payload_removes_a_retained_message_only_with_the_retain_flag(stage) -> None:
    publisher = stage.client("p")
    for topic in ("kept", "gone"):
        publisher.publish(topic, b"x", retain=True)
    live = stage.client("live")
    live.subscribe("gone", retain_handling=2)

    publisher.publish("gone", b"", retain=True)
    publisher.publish("kept", b"")

    late = stage.client("late")
    late.subscribe("#")
    assert [(each.payload, each.retain) for each in live.messages()] == [(b"", False)]
    assert [each.topic for each in late.messages()] == ["kept"]


@pytest.mark.parametrize(("handling", "first", "again"), [(0, 1, 1), (1, 1, 0), (2, 0, 0)])
def test_retain_handling_decides_when_retained_messages_are_sent(
    stage, handling, first, again
) -> None:
    stage.client("p").publish("t", b"x", retain=True)
    client = stage.client("c")

    client.subscribe("t", retain_handling=handling)
    got_first = client.payloads()
    client.subscribe("t", retain_handling=handling)

    assert (len(got_first), len(client.payloads())) == (first, again)


def test_subscribing_again_in_3_1_1_sends_retained_messages_again(stage) -> None:
    stage.client("p").publish("t", b"x", retain=True)
    client = stage.client("c", version=V4)
    for _ in range(2):
        client.subscribe("t")
    assert client.payloads() == [b"x", b"x"]


def test_retained_messages_are_sent_before_live_ones(stage) -> None:
    publisher = stage.client("p")
    for number in range(500):
        publisher.publish(f"a/{number}", b"old", 1, retain=True)
    client = stage.client("c", answers=False)
    client.subscribe("a/#", qos=1)
    publisher.publish("a/0", b"live", 1)
    client.answers = True
    for each in client.messages():
        client._answer(each)
    stage.run()

    later = [each.payload for each in client.messages()]
    assert later[-1] == b"live"
    assert later[:-1] == [b"old"] * 400


def test_a_retained_message_expires(stage) -> None:
    publisher = stage.client("p")
    publisher.publish("t", b"short", retain=True, message_expiry_interval=10)
    publisher.publish("u", b"long", retain=True, message_expiry_interval=100)

    stage.advance(10)
    client = stage.client("c")
    client.subscribe("#")

    (message,) = client.messages()
    assert message.payload == b"long"
    assert message.properties.message_expiry_interval == 90
    assert len(stage.machine.logs.retained) == 1


def test_topics_above_the_limit_are_not_retained() -> None:
    stage = Stage(Limits(retained=2))
    publisher = stage.client("p")
    for topic in ("a", "b", "c", "a"):
        publisher.publish(topic, topic.encode(), retain=True)

    assert len(stage.machine.logs.retained) == 2
    assert stage.machine.logs.retained.get("c") is None


# --- wills ---


def watcher(stage: Stage):
    client = stage.client("watcher")
    client.subscribe("will/#", qos=2)
    return client


@pytest.mark.parametrize("version", [V4, V5])
def test_a_will_is_published_when_the_connection_is_lost(stage, version) -> None:
    seen = watcher(stage)
    client = stage.client("c", version=version, will=Will("will/c", b"gone", 1, retain=True))

    client.lose()

    assert [(each.payload, each.qos) for each in seen.messages()] == [(b"gone", 1)]
    late = stage.client("late")
    late.subscribe("will/c")
    assert [each.retain for each in late.messages()] == [True]


@pytest.mark.parametrize("version", [V4, V5])
def test_a_disconnect_drops_the_will(stage, version) -> None:
    seen = watcher(stage)
    client = stage.client("c", version=version, will=Will("will/c", b"gone"))

    client.send(Disconnect(0, Properties() if version == V5 else None))

    assert client.end is not None
    assert seen.got() == []


def test_a_disconnect_with_will_publishes_it(stage) -> None:
    seen = watcher(stage)
    client = stage.client("c", will=Will("will/c", b"gone", properties=Properties()))

    client.send(Disconnect(ReasonCode.DISCONNECT_WITH_WILL, Properties()))

    assert seen.payloads() == [b"gone"]


def test_a_protocol_error_publishes_the_will(stage) -> None:
    seen = watcher(stage)
    stage.client("c", version=V4, will=Will("will/c", b"gone")).send(b"\xf0\x00")
    assert seen.payloads() == [b"gone"]


def delayed(seconds: int) -> Will:
    return Will("will/c", b"gone", properties=Properties(will_delay_interval=seconds))


def test_a_delayed_will_waits(stage) -> None:
    seen = watcher(stage)
    stage.client("c", clean=False, expiry=100, will=delayed(10)).lose()

    stage.advance(9.9)
    before = seen.payloads()
    stage.advance(0.2)

    assert (before, seen.payloads()) == ([], [b"gone"])


def test_the_end_of_the_session_ends_the_delay(stage) -> None:
    seen = watcher(stage)
    stage.client("c", clean=False, expiry=5, will=delayed(10)).lose()
    stage.advance(5.1)
    assert seen.payloads() == [b"gone"]


def test_a_clean_start_publishes_a_will_that_waits(stage) -> None:
    seen = watcher(stage)
    stage.client("c", clean=False, expiry=100, will=delayed(10)).lose()
    stage.client("c", clean=True)
    assert seen.payloads() == [b"gone"]


def test_a_reconnect_cancels_a_will_that_waits(stage) -> None:
    seen = watcher(stage)
    stage.client("c", clean=False, expiry=100, will=delayed(10)).lose()
    stage.advance(5)
    stage.client("c", clean=False, expiry=100)
    stage.advance(50)
    assert seen.payloads() == []


@pytest.mark.parametrize(("version", "code"), [(V4, 3), (V5, ReasonCode.TOPIC_NAME_INVALID)])
def test_a_will_with_an_invalid_topic_is_refused_at_once(stage, version, code) -> None:
    client = stage.client("c", version=version, will=Will("a\0b", b"gone"))
    assert connack(client).reason_code == code
    assert not stage.machine.sessions.connections


def test_a_will_is_published_only_where_its_client_may_publish(stage) -> None:
    class Nothing:
        def may_publish(self, topic: str) -> bool:
            return False

        def may_subscribe(self, topic_filter: str, qos: int) -> int:
            return qos

        def may_receive(self, topic: str) -> bool:
            return True

    seen = watcher(stage)
    stage.client("c", access=Nothing(), will=Will("will/c", b"gone")).lose()
    sys = stage.client("s")
    sys.subscribe("$SYS/#")
    stage.client("d", will=Will("$SYS/broker", b"forged")).lose()
    assert (seen.got(), sys.got()) == ([], [])


def test_repeated_requests_do_not_accumulate(stage) -> None:
    publisher = stage.client("p")
    for number in range(300):
        publisher.publish(f"a/{number}", b"old", 1, retain=True)
    client = stage.client("c", answers=False, receive_maximum=1)

    for _ in range(50):
        client.subscribe("a/#", qos=1)

    assert len(stage.machine.sessions.connections["c"].session.tracker) == 1
