"""Every message that a node knows, with fields of other types, to every part of a node.

Annotations are not checked when a message is decoded, so handlers must check it. Damaged bytes
are the matter of other targets: these messages are well-formed, and the link stays up.
"""

import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import cbor2

from callboard.actors.reference import ActorRef
from callboard.basp.frame import FrameReader, pack_frame
from callboard.basp.header import MESSAGE_ID_MASK, RESPONSE, Operation
from callboard.basp.node_id import NodeId
from callboard.simulation.cluster import Cluster
from callboard.topics.hub import Hub
from tests.fuzz.carriers import Shelf
from tests.fuzz.case import Case, require
from tests.fuzz.node import ESTABLISHED, PEERS, VICTIM, MadPeer, Toy, errors_are_violations
from tests.fuzz.topic_core import Taker
from tests.golden.messages import SAMPLES

CONNECTIONS = 3
FRAMES = 40
_SEED = 1
_MOMENT = 0.002
_DISPATCH = int(Operation.DISPATCH_MESSAGE)
#: Numbers of a node's parts, its test actors, missing actors, and the target of refused
#: messages.
_PARTS = (*range(8), 15, 16, 17, 999)
#: Members may end actors and nodes: that is not a defect.
_ENDS = ("DrainNode", "callboard.Stop", "callboard.Link", "callboard.Exit")
_ODD: Final[tuple[Any, ...]] = (
    None, True, 0, 1, -1, 255, 2**31, 2**62, 2**70, 0.5, float("nan"), float("inf"), "", "x",
    "a/b", "\x00", "x" * 5_000, b"", b"x", b"\xff" * 18, b"x" * 5_000, [], [[]], [1], ["x"], {},
    {"x": 1}, {"x": [2]}, [None] * 3, [["x", 1]], [b"k", 1, 2.0],
)  # fmt: skip


def _seeds() -> list[Any]:
    """Return the messages as items of CBOR, except for those that end something."""
    found = []
    for sample in SAMPLES.values():
        with suppress(cbor2.CBORDecodeError, ValueError):
            item = cbor2.loads(sample.write(sample.value))
            if not any(each in repr(item)[:80] for each in _ENDS):
                found.append(item)
    return found


_ITEMS = _seeds()


def _altered(rng: random.Random, item: Any, share: float) -> Any:
    """Return an item in which some parts are others."""
    if isinstance(item, cbor2.CBORTag):
        value = item.value
        if item.tag == _ITEMS[0][0].tag and isinstance(value[-1], Mapping):
            fields = {key: _altered(rng, each, share) for key, each in value[-1].items()}
            value = [value[0], fields]
        return rng.choice(_ODD) if rng.random() < share else cbor2.CBORTag(item.tag, value)
    if rng.random() < share:
        return rng.choice(_ODD)
    if isinstance(item, Mapping):
        return {key: _altered(rng, value, share) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_altered(rng, each, share) for each in item]
    return item


def _payload(rng: random.Random) -> bytes:
    (message, *options) = rng.choice(_ITEMS)
    share = rng.choice((0.0, 0.1, 0.3))
    if isinstance(message, cbor2.CBORTag) and share:
        message = _altered(rng, message, share) if rng.random() < 0.2 else _one(rng, message)
    return cbor2.dumps([message, *options])


def _one(rng: random.Random, message: cbor2.CBORTag) -> cbor2.CBORTag:
    """Return a message with one field of another type."""
    if not isinstance(message.value, list | tuple) or not isinstance(
        message.value[-1], Mapping
    ):
        return message
    name, fields = message.value[0], dict(message.value[-1])
    if fields:
        fields[rng.choice(sorted(fields, key=str))] = rng.choice(_ODD)
    return cbor2.CBORTag(message.tag, [name, fields])


class Parts:
    """A victim with all that a node may have, a friend that uses it, and a mad member."""

    name = "parts"

    def make(self, seed: int) -> Case:
        """Return the frames of each link, and what the mad member answers."""
        rng = random.Random(seed)
        connections = []
        for _ in range(CONNECTIONS):
            peer = rng.choice(PEERS)
            frames = [
                pack_frame(
                    _DISPATCH, rng.choice((0, 7, 8)), peer, VICTIM, rng.choice((0, 16)),
                    rng.choice(_PARTS), _payload(rng),
                )
                for _ in range(FRAMES)
            ]  # fmt: skip
            answers = [_payload(rng) for _ in range(FRAMES)]
            connections.append({"peer": peer, "frames": frames, "answers": answers})
        return {"connections": connections}

    def run(self, case: Case) -> int:
        """Check that the friend is served by each part, and that nothing is left."""
        with errors_are_violations():
            cluster = Cluster(_SEED)
            try:
                return _Shop(cluster).play(case["connections"])
            finally:
                cluster.close()


class _Shop:
    """One cluster of victim and friend."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.victim, self.friend = cluster(2, spawnable={"toy": Toy})
        require(self.victim.node_id == VICTIM, "the victim has another id")
        self.victim.host(Shelf)
        self.taker, self.theirs = Taker(), Hub.of(self.friend)
        Hub.of(self.victim).add_receiver(self.taker, ["/fuzz"]).result(5)
        self.victim.spawn(Toy)
        self.echo: ActorRef[Toy] = self.friend.ref(str(self.victim.spawn(Toy)))
        cluster.advance(0.5)

    def play(self, connections: list[Case]) -> int:
        self._check("first")
        fed = 0
        for connection in connections:
            fed += self._connection(connection)
            self._check(f"{fed}")
        self.cluster.advance(12.0)
        self._check("last")
        outgoing = self.victim._broker.outgoing
        outgoing.asks.forget_done()
        require(not (outgoing.asks.by_id or outgoing.asks.batches), "asks are left")
        require(len(self.victim.links()) == 1, "links are left")
        return fed

    def _check(self, what: str) -> None:
        """Use every part."""
        require(self.echo.ask(what).result(2) == what, "an echo is wrong")
        found = self.friend.entity(Shelf, "k-0").ask(what).result(2)
        require(found == what, "an entity is wrong")
        name = f"echo-{what}"
        self.victim.register(name, self.victim.spawn(Toy))
        require(self.friend.find(name).result(5) is not None, "the directory is wrong")
        toy = self.friend.remote_spawn(VICTIM, "toy")
        require(toy.ask("x").result(5) == "x", "the spawn server is wrong")
        self.theirs.publish("/fuzz", what)
        self.cluster.advance(0.3)
        require(("/fuzz", what) in self.taker.items, "a topic is wrong")

    def _connection(self, case: Case) -> int:
        peer = MadPeer(self.cluster, self.victim, NodeId(case["peer"]))
        peer.behave(ESTABLISHED)
        reader, answers = FrameReader(), list(case["answers"])
        fed = 0
        for frame in case["frames"]:
            self.cluster.advance(_MOMENT)
            for heard in reader.feed(peer.read()):
                message_id = heard[2] & MESSAGE_ID_MASK
                is_ask = heard[0] == _DISPATCH and not heard[2] & RESPONSE
                if heard[3] == VICTIM and is_ask and message_id and answers:
                    head = RESPONSE | message_id, case["peer"], VICTIM, 0, 0
                    peer.send(pack_frame(_DISPATCH, *head, answers.pop()))
            if not peer.send(frame):
                break
            fed += 1
        self.cluster.advance(0.05)
        peer.leave()
        return max(fed, 1)
