"""Zeek's ZeroMQ: damaged publishes, subscriptions and greetings at the machine of a member."""

import random

from callboard.model.data import Data
from callboard.model.scalar import Count
from callboard.zeek.value import value_to_bytes
from callboard.zeek.zeromq import BackendHello, ClusterHello, ZeroMqNode
from tests.fuzz.case import Case, require
from tests.fuzz.mutation import mutate_bytes

_EVENT = Data([Count(1), Count(1), ["ping", ["a", Count(7), 4.5, {"k": [1, None]}]]])
_HELLOS = [
    hello(name, "other").as_data() for hello in (BackendHello, ClusterHello) for name in "ab"
]
_PAYLOADS = [value_to_bytes(each) for each in (_EVENT, *_HELLOS)]
_JSON = b'{"@data-type":"vector","data":[{"@data-type":"count","data":7}]}'
_OWN, _OTHER = b"zeek.cluster.nodeid.me.", b"zeek.cluster.nodeid.other."
_MESSAGES = 20


def _publish(rng: random.Random) -> list[bytes]:
    """Return the parts of a publish."""
    topic = rng.choice([b"zeek.cluster.worker", b"/ours", _OWN])
    sender = rng.choice([b"other", b"me", b"ours"])
    if rng.random() < 0.2:
        return [topic, sender, b"broker-json-v1", _JSON]
    return [topic, sender, b"broker-bin-v1", rng.choice(_PAYLOADS)]


def _damaged(rng: random.Random, parts: list[bytes]) -> list[bytes]:
    """Return parts, some of them altered, missing or repeated."""
    found = [mutate_bytes(rng, each) if rng.random() < 0.3 else each for each in parts]
    if rng.random() < 0.1:
        found = rng.choices(found, k=rng.randrange(7))
    return found


class ZeroMqMember:
    """Feeds both sockets of a member."""

    name = "zeromq"

    def make(self, seed: int) -> Case:
        """Return messages and subscriptions."""
        rng = random.Random(seed)
        prefixes = [b"\1zeek.", b"\0zeek.", b"\1" + _OTHER, b"\0" + _OTHER, b"\1" + _OWN]
        prefixes.append(b"\1callboard.door.me.1.")
        return {
            "messages": [_damaged(rng, _publish(rng)) for _ in range(_MESSAGES)],
            "frames": [
                mutate_bytes(rng, each) if rng.random() < 0.3 else each
                for each in rng.choices(prefixes, k=_MESSAGES)
            ],
        }

    def run(self, case: Case) -> int:
        """Feed all; each message is taken, counted, or a greeting, and can be sent again."""
        node = ZeroMqNode("me", lambda sender: sender == b"ours", member="m")
        node.mark()
        for parts, frame in zip(case["messages"], case["frames"], strict=True):
            node.take_subscriptions([[frame]])
            before = node.own + node.unreadable
            found = node.take([parts])
            is_told = node.own + node.unreadable - before
            is_greeting = not found and not is_told and parts[0] == _OWN
            require(len(found) + is_told + is_greeting == 1, "a message got lost")
            for topic, content in (*found, *node.answers):
                require(len(node.pack(topic, content)) == 4, "it cannot be sent")
            node.answers.clear()
            node.want([] if node.is_wanted("zeek.x") else ["zeek."])
        require(set(node.nodes) <= {"other"}, "a node is up that never greeted")
        return 2 * _MESSAGES
