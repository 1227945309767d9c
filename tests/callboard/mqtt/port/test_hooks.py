"""Hooks on packets, as seen by raw clients."""

import pytest

from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.port.hooks import Hooks
from callboard.mqtt.wire.client import Message
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    ConnAck,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
)
from callboard.mqtt.wire.properties import Properties
from callboard.mqtt.wire.reason_code import ReasonCode
from tests.callboard.mqtt.caller import Caller


def shout(client, message):
    return Message(message.topic, message.payload.upper(), message.qos, message.retain)


def drop_secrets(client, message):
    if message.payload == b"boom":
        raise ValueError
    return message.payload != b"secret"


def running(**hooks):
    return Router(RouterConfig(hooks=Hooks(**hooks), sys_interval=0))


@pytest.mark.parametrize("version", [V4, V5])
def test_publish_hook_changes_messages(version):
    with running(publish=shout) as router, Caller(router.port, "c", version) as caller:
        caller.subscribe("a", 1)
        caller.say(Publish("a", b"abc", 1, packet_id=7))

        got = caller.hear_packets(2)

        assert PubAck in map(type, got)
        assert [each.payload for each in got if isinstance(each, Publish)] == [b"ABC"]


def test_publish_hook_drops_messages_and_reports_it():
    with running(publish=drop_secrets) as router:
        with Caller(router.port, "five", V5) as caller:
            caller.say(Publish("a", b"secret", 1, packet_id=1, properties=Properties()))
            assert caller.hear_packets(1)[0].reason_code == ReasonCode.NOT_AUTHORIZED
            caller.say(Publish("a", b"boom", 2, packet_id=2, properties=Properties()))
            assert caller.hear_packets(1)[0].reason_code == ReasonCode.NOT_AUTHORIZED
        with Caller(router.port, "four", V4) as caller:
            caller.say(Publish("a", b"secret", 2, packet_id=1))
            assert caller.hear_packets(1) == [PubRec(1)]
            caller.say(PubRel(1))
            assert caller.hear_packets(1) == [PubComp(1)]
        assert router.call(lambda: router.machine.meters.published) == 0


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_deliver_hook_drops_messages_and_the_window_stays_free(qos):
    with running(deliver=drop_secrets) as router, Caller(router.port, "c", V4) as caller:
        caller.subscribe("a", qos)
        with router.link() as link:
            for _ in range(300):
                link.publish("a", b"secret", qos=qos)
            link.publish("a", b"open", qos=qos)
            while True:
                (got,) = caller.hear_packets(1)
                if isinstance(got, PubRel):
                    caller.say(PubComp(got.packet_id))
                else:
                    break

        assert got.payload == b"open"


def test_subscribe_hook_grants_and_refuses():
    def judge(client, topic_filter, qos):
        assert client.client_id == "c"
        if topic_filter == "bad":
            raise ValueError
        return {"no": ReasonCode.NOT_AUTHORIZED, "low": 0}.get(topic_filter)

    with running(subscribe=judge) as router, Caller(router.port, "c", V5) as caller:
        wanted = tuple(Subscription(each, 2) for each in ("no", "low", "yes", "bad"))
        caller.say(Subscribe(1, wanted, Properties()))

        assert caller.hear_packets(1) == [SubAck(1, (0x87, 0, 2, 0x80), Properties())]


def test_hooks_get_the_topic_of_an_alias():
    seen = []

    def note(client, message):
        seen.append(message.topic)

    with running(publish=note) as router, Caller(router.port, "c", V5) as caller:
        first = Publish("a", b"1", 1, packet_id=1, properties=Properties(topic_alias=1))
        second = Publish("", b"2", 1, packet_id=2, properties=Properties(topic_alias=1))
        caller.say(first, second)
        caller.hear_packets(2)

    assert seen == ["a", "a"]


def test_callers_receive_connack():
    with Router() as router, Caller(router.port, "x", V4) as caller:
        assert caller.greeting == ConnAck()
