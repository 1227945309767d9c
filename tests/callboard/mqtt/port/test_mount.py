"""Mount points, and users and rules of single listeners, on real ports."""

import pytest

from callboard.mqtt import AclEntry, Hooks, ListenerSettings, Message, Router, RouterConfig
from callboard.mqtt.access.auth import Security
from callboard.mqtt.access.scrypt import hash_password
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.caller import Caller

HERE, THERE = "127.0.0.1:0", "localhost:0"
MOUNTED = (ListenerSettings(HERE, mount_point="site/"), ListenerSettings(THERE))


@pytest.fixture
def router():
    with Router(RouterConfig(listeners=MOUNTED, sys_interval=0)) as running:
        yield running


def ports(router: Router) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in router.addresses]


def publish(topic: str, payload: bytes = b"x", **fields) -> Publish:
    return Publish(topic, payload, 1, packet_id=9, **fields)


@pytest.mark.parametrize("version", [V4, V5])
def test_clients_of_a_mount_point_do_not_see_its_prefix(router, version) -> None:
    with (
        Caller(ports(router)[0], "inside", version) as inside,
        Caller(ports(router)[1], "outside", version) as outside,
    ):
        inside.subscribe("a/#")
        outside.subscribe("#")
        inside.say(publish("a/1"))
        answer, arrived = sorted(inside.hear_packets(2), key=lambda p: type(p).__name__)
        (seen,) = outside.hear_packets(1)
        outside.say(publish("site/a/2"))
        (_, own) = outside.hear_packets(2)
        (second,) = inside.hear_packets(1)

        assert isinstance(answer, PubAck)
        assert (arrived.topic, seen.topic, second.topic) == ("a/1", "site/a/1", "a/2")
        assert own.topic == "site/a/2"
        inside.say(Unsubscribe(3, ("a/#",)))
        (ended,) = inside.hear_packets(1)
        assert isinstance(ended, UnsubAck)
        assert router.call(router.machine.logs.get, "site/a/#") is None


def test_shares_wills_retained_messages_and_aliases_are_mounted(router) -> None:
    will = Will("gone", b"will")
    with Caller(ports(router)[1], "outside", V5) as outside:
        outside.subscribe("site/#")
        inside = Caller(ports(router)[0], "inside", V5, will=will)
        inside.say(Subscribe(1, (Subscription("$share/g/jobs/#"),)))
        (granted,) = inside.hear_packets(1)
        assert isinstance(granted, SubAck)
        assert "$share/g/site/jobs/#" in router.call(
            lambda: dict(router.machine.delivery.groups)
        )
        alias = Properties(topic_alias=1)
        inside.say(publish("state", retain=True, properties=alias))
        inside.say(publish("", b"y", properties=alias))
        inside.socket.close()

        heard = [(each.topic, each.payload) for each in outside.hear_packets(3)]

        assert heard == [("site/state", b"x"), ("site/state", b"y"), ("site/gone", b"will")]
        with Caller(ports(router)[0], "later", V5) as later:
            later.say(Subscribe(1, (Subscription("state"),)))
            _, retained = later.hear_packets(2)
            assert (retained.topic, retained.retain) == ("state", True)


def test_hooks_see_topics_with_the_prefix() -> None:
    seen: list[str] = []

    def look(_client, message: Message) -> None:
        seen.append(message.topic)

    config = RouterConfig(listeners=MOUNTED, sys_interval=0, hooks=Hooks(publish=look))
    with Router(config) as running, Caller(ports(running)[0], "c") as caller:
        caller.say(publish("a"))
        caller.hear_packets(1)
    assert seen == ["site/a"]


SECURITY = Security(
    users={"ann": hash_password(b"secret", cost=2)},
    acl=(AclEntry("ann", ("a/#",)),),
    listeners={THERE: Security(users={"bob": hash_password(b"word", cost=2)})},
)


def code(port: int, **fields) -> int:
    with Caller(port, "c", **fields) as caller:
        return caller.greeting.reason_code


def test_a_listener_has_its_own_users_and_rules() -> None:
    listeners = ListenerSettings(HERE), ListenerSettings(THERE)
    config = RouterConfig(listeners=listeners, security=SECURITY, sys_interval=0)
    with Router(config) as router:
        first, second = ports(router)
        ann = {"username": "ann", "password": b"secret"}
        bob = {"username": "bob", "password": b"word"}

        codes = [code(port, **user) for port in (first, second) for user in (ann, bob)]

        assert codes == [0, 4, 4, 0]
        with Caller(second, "b", **bob) as caller:
            caller.subscribe("z/#", 1)  # the rules of the other listener do not apply
            fresh = Security(users=SECURITY.users, listeners={THERE: SECURITY})
            router.reload(fresh)
            assert caller.hear_packets(1) == []  # bob is gone
        assert code(second, **ann) == 0
