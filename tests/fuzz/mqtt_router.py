"""A whole MQTT router, fed by clients that have gone mad."""

import random
from typing import Any

from callboard.mqtt.router.limits import Limits
from callboard.mqtt.wire.codec import encode
from callboard.mqtt.wire.errors import RemoteMqttError
from callboard.mqtt.wire.framing import find_frames
from callboard.mqtt.wire.packet import (
    V4,
    V5,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.stage import Client, Stage
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes
from tests.simulation.mqtt_rules import check_machine

_LIMIT = 1 << 16
_STEPS = 30
_TOPICS = ("a", "a/b", "$SYS/x", "$x", "friend/x")
_FILTERS = ("a", "a/#", "+/b", "#", "$share/g/a/+", "$share/g", "a/#/b", "$SYS/#", "friend/+")


class MqttRouter:
    """Feeds a router with whole packets that make no sense, in chunks of any size."""

    name = "mqtt-router"

    def make(self, seed: int) -> Case:
        """Return what happens, in order."""
        rng = random.Random(seed)
        versions = [rng.choice((V4, V5)) for _ in range(3)]
        steps = [_step(rng, versions) for _ in range(_STEPS)]
        return {"versions": versions, "steps": steps}

    def run(self, case: Case) -> int:
        """The router does not raise, serves a friend, and leaves nothing over."""
        stage = Stage(Limits(inflight=5, delivery_quota=50, subscriptions=20, retained=10))
        friend = stage.client("friend")
        friend.subscribe("friend/only", qos=2)
        clients: dict[int, Client] = {}
        for index, what, given in case["steps"]:
            _do(stage, clients, index, case["versions"][index], what, given)
            check_machine(stage.machine)
        for client in clients.values():
            client.lose()
        friend.got()
        friend.publish("friend/only", b"7", 2)
        require(friend.payloads().count(b"7") == 1, "a friend was not served")
        stage.advance(1e9)
        machine = stage.machine
        left = [log.topic_filter for log in machine.logs]
        require(left == ["friend/only"], f"logs are left: {left}")
        require(not machine.sessions.graveyard, "sessions are left")
        require(not machine.delivery.groups, "groups are left")
        require(not machine.sessions.wills, "wills are left")
        return len(case["steps"])


def _do(
    stage: Stage, clients: dict[int, Client], index: int, version: int, what: str, given: Any
) -> None:
    client = clients.get(index)
    match what:
        case "connect":
            clean, expiry, answers = given
            will = Will("a", b"gone", 1, properties=Properties() if version == V5 else None)
            clients[index] = stage.client(
                f"mad-{index}",
                version=version,
                clean=clean,
                expiry=expiry,
                will=will,
                answers=answers,
                **({"topic_alias_maximum": 2} if version == V5 else {}),
            )
        case "chunk":
            if client is not None and client.link in stage.machine.sessions.by_link:
                client.send(given)
        case "lose":
            if client is not None:
                client.lose()
        case "time":
            stage.advance(given)


def _step(rng: random.Random, versions: list[int]) -> list[Any]:
    index = rng.randrange(len(versions))
    what = rng.choices(("connect", "chunk", "lose", "time"), (3, 10, 1, 1))[0]
    match what:
        case "connect":
            return [index, what, [rng.random() < 0.5, rng.choice((0, 5)), rng.random() < 0.5]]
        case "chunk":
            return [index, what, _chunk(rng, versions[index])]
        case "time":
            return [index, what, rng.choice((0.1, 3.0, 20.0))]
    return [index, what, None]


def _chunk(rng: random.Random, version: int) -> bytes:
    """Return whole packets, some of them damaged."""
    corpus = [encode(_packet(rng, version), version) for _ in range(6)]
    chunk = b""
    for data in rng.choices(corpus, k=rng.randrange(1, 30)):
        damaged = mutate_bytes(rng, data, corpus) if rng.random() < 0.04 else data
        chunk += damaged * rng.choice((1, 1, 3))
    try:
        return chunk[: find_frames(chunk, _LIMIT).end]
    except RemoteMqttError:
        return b"\xc0\x00"


def _packet(rng: random.Random, version: int) -> Packet:
    some = Properties() if version == V5 else None
    number = rng.randint(1, 12)
    qos = rng.randrange(3)
    said = some
    if version == V5:
        said = Properties(
            topic_alias=rng.choice((None, None, 1, 99)),
            message_expiry_interval=rng.choice((None, 0, 5)),
        )
    topic = rng.choice(_TOPICS)
    asked = tuple(Subscription(each, qos) for each in rng.sample(_FILTERS, 2))
    packet_id = number if qos else 0
    return rng.choice(
        (
            Publish(
                topic, b"abc", qos, rng.random() < 0.3, packet_id=packet_id, properties=said
            ),
            Publish("a", b"x", 1, packet_id=number, properties=some),
            PubAck(number, 0, some),
            PubRec(number, 0, some),
            PubRel(number, 0, some),
            PubComp(number, 0, some),
            Subscribe(number, asked, some),
            Unsubscribe(number, (rng.choice(_FILTERS),), some),
            PingReq(),
            Disconnect(0, some),
        )
    )
