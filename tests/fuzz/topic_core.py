"""Whole cores: a machine, and an endpoint on a node, fed by a peer that has gone mad."""

import random
from typing import Any

from callboard.basp.header import CORE_ACTOR
from callboard.model.errors import MalformedMessage
from callboard.simulation.cluster import Cluster
from callboard.topics.hub import Hub
from callboard.topics.machine.core import Core
from callboard.topics.machine.effect import DeliverItems, Item
from callboard.topics.machine.run import PackedType, encode_pair, pack_runs
from tests.fuzz.case import Case, require
from tests.fuzz.node import errors_are_violations
from tests.fuzz.topic_run import damaged, run

_STEPS = 40
_RUNS = 60
_MAD, _FRIEND = b"m" * 18, b"f" * 18
_OURS = b"o" * 16


class TopicCore:
    """Feeds a core with runs of two nodes, while links come and go and users publish."""

    name = "core"

    def make(self, seed: int) -> Case:
        """Return what happens, in order."""
        rng = random.Random(seed)
        valid = [run(rng) for _ in range(8)]
        return {"steps": [_step(rng, valid) for _ in range(_STEPS)]}

    def run(self, case: Case) -> int:
        """Nothing but `MalformedMessage` comes out, and a friend is served as before."""
        core = Core(_OURS, path_of=lambda node: (node,))
        subscriber = object()
        core.subscribe(subscriber, ["/a"], 0.0)
        for now, (what, given) in enumerate(case["steps"], 1):
            try:
                self._do(core, what, given, float(now))
            except MalformedMessage:
                continue
        items = _delivered(core.receive(_FRIEND, _data("/a/friend", 7), 1e6))
        require(items == [("/a/friend", 7)], f"a friend's message became {items}")
        counters = core.counters
        require(counters.deserialized <= counters.received, f"{counters}")
        return len(case["steps"])

    def _do(self, core: Core, what: str, given: Any, now: float) -> None:
        match what:
            case "run":
                core.receive(_MAD, given, now)
            case "publish":
                core.data_inputs([(given, encode_pair(given, 1))])
            case "found":
                core.endpoint_found(_MAD, now)
            case "lost":
                core.endpoint_lost(_MAD, "it ended")
            case "link":
                core.link_established(_MAD)
            case "cut":
                core.link_lost(_MAD, "cut")
            case "tick":
                core.tick(now)
        core.node_of(_OURS)


def _step(rng: random.Random, valid: list[bytes]) -> list[Any]:
    if rng.random() < 0.7:
        payload = rng.choice(valid) if rng.random() < 0.3 else damaged(rng, valid)
        return ["run", payload]
    what = rng.choice(("publish", "found", "lost", "link", "cut", "tick"))
    return [what, rng.choice(("/a", "/a/b", "/c", "<$>/local/x"))]


def _data(topic: str, value: Any) -> bytes:
    ((payload, _),) = pack_runs(PackedType.DATA, 16, [encode_pair(topic, value)])
    return payload


def _delivered(effects: list[Any]) -> list[Item]:
    return [item for effect in effects if type(effect) is DeliverItems for item in effect.items]


class Taker:
    def __init__(self) -> None:
        self.items: list[Item] = []

    def take(self, items: list[Item]) -> None:
        self.items += items


class TopicEndpoint:
    """An endpoint on a node that is linked with a friend and with a node gone mad."""

    name = "endpoint"

    def make(self, seed: int) -> Case:
        """Return the hostile node's messages to the core actor."""
        rng = random.Random(seed)
        valid = [run(rng) for _ in range(12)]
        return {"runs": [_message(rng, valid) for _ in range(_RUNS)], "seed": seed}

    def run(self, case: Case) -> int:
        """Both must continue: the endpoint serves its friend, and logs no error."""
        with errors_are_violations():
            cluster = Cluster(1)
            try:
                self._live(cluster, case["runs"])
            finally:
                cluster.close()
        return len(case["runs"])

    def _live(self, cluster: Cluster, runs: list[Any]) -> None:
        victim, friend, mad = cluster(3, topology="star")
        hub, good = Hub.of(victim), Hub.of(friend)
        taker, far = Taker(), Taker()
        hub.add_receiver(taker, ["/friend", "/a"]).result(5)
        good.add_receiver(far, ["/back"]).result(5)
        core = mad.runtime.ref_of(victim.node_id, CORE_ACTOR)
        cluster.advance(1.0)
        for index, message in enumerate(runs):
            core.tell(message)
            if index % 10 == 0:
                cluster.advance(0.01)
        good.publish("/friend/1", 1)
        hub.publish("/back", 2)
        cluster.advance(3.0)
        from_friend = [item for item in taker.items if item[0].startswith("/friend")]
        require(from_friend == [("/friend/1", 1)], f"the friend's became {from_friend}")
        require(("/back", 2) in far.items, "the endpoint publishes no more")


def _message(rng: random.Random, valid: list[bytes]) -> Any:
    if rng.random() < 0.05:
        return rng.choice((None, 5, "text", [1], {"a": 1}, 1.5))
    return rng.choice(valid) if rng.random() < 0.3 else damaged(rng, valid)
