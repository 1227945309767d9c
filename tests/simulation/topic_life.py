"""One random life of topics, by seed: endpoints that join, leave, subscribe and publish.

Up to sixteen endpoints in a ring with chords. What must hold:

- every subscriber gets the messages of one publisher on one topic in order, each at most once;
- a message that was published while nothing changed around it (no link, no subscription, for
  `CALM` seconds before and `SETTLED` after) arrives exactly once at every subscriber;
- there is at most one link for each pair of nodes;
- when all faults are over, everything arrives everywhere.
"""

import random
from dataclasses import dataclass, field
from functools import partial

from callboard import Node
from callboard.endpoint.core import Item
from callboard.endpoint.hub import Hub
from callboard.simulation import Cluster
from proxies.events import LinkDown, LinkUp, PathMoved
from tests.simulation.rules import Violation

CALM = 8.0
"""Seconds without a change after which paths and filters are the same everywhere."""

SETTLED = 4.0
"""Seconds in which a message arrives when nothing changes."""

TOPICS = ("/a", "/a/b", "/a/c", "/b", "/b/x/y")
FILTERS = ("/a", "/a/b", "/b", "/b/x", "/c", "")


@dataclass
class Published:
    """A message: who published it where and when, and which nodes were in reach."""

    publisher: int
    topic: str
    number: int
    at: float
    reach: frozenset[bytes]


@dataclass(eq=False)
class Taker:
    """A subscriber, and all that it got."""

    place: "Place"
    topics: set[str]
    since: float
    until: float = float("inf")
    got: list[Item] = field(default_factory=list)

    def take(self, items: list[Item]) -> None:
        """Take a run."""
        self.got += items

    def wants(self, topic: str) -> bool:
        """Return whether its filter takes a topic."""
        return any(topic.startswith(one) for one in self.topics)


@dataclass(eq=False)
class Place:
    """A node with an endpoint."""

    index: int
    node: Node
    hub: Hub
    since: float
    until: float = float("inf")
    number: int = 0


class TopicLife:
    """Lives one seed; `run` raises `Violation` for what must not be."""

    def __init__(self, seed: int, size: int = 16) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.cluster = Cluster(seed)
        self.places: list[Place] = []
        self.takers: list[Taker] = []
        self.published: list[Published] = []
        self.changes: list[float] = []
        self._size = self.random.randint(3, size)

    def run(self) -> "TopicLife":
        """Live the life of this seed."""
        try:
            self._begin()
            for _ in range(self.random.randint(15, 40)):
                self._act()
                self._check_links()
                self.cluster.advance(self.random.choice((0.0, 0.001, 0.02, 0.5, 3.0, 9.0)))
            self._rest()
            self._check_order()
            self._check_arrivals()
        finally:
            self.cluster.close()
        return self

    # --- begin ---

    def _begin(self) -> None:
        for node in self.cluster(self._size, topology="ring"):
            self._add(node)
        for _ in range(self._size // 4):
            one, other = self.random.sample(self.places, 2)
            one.node.connect(other.node.address)
        for _ in range(self._size):
            self._subscribe()

    def _add(self, node: Node) -> Place:
        node.subscribed(self._happened).__enter__()
        place = Place(len(self.places), node, Hub.of(node), self.cluster.now)
        self.places.append(place)
        self._changed()
        return place

    def _happened(self, event: object) -> None:
        if isinstance(event, LinkUp | LinkDown | PathMoved):
            self._changed()

    def _changed(self) -> None:
        self.changes.append(self.cluster.now)

    def _alive(self) -> list[Place]:
        return [place for place in self.places if place.until == float("inf")]

    # --- what happens ---

    def _act(self) -> None:
        actions = {
            self._publish: 10,
            self._subscribe: 3,
            self._unsubscribe: 2,
            self._cut: 2,
            self._partition: 2,
            self._heal: 3,
            self._leave: 1,
            self._join: 2,
            self._dial_twice: 2,
        }
        self.random.choices(list(actions), list(actions.values()))[0]()

    def _publish(self) -> None:
        place = self.random.choice(self._alive())
        for _ in range(self.random.choice((1, 3, 40))):
            topic = self.random.choice(TOPICS)
            self._publish_one(place, topic)

    def _publish_one(self, place: Place, topic: str) -> None:
        place.number += 1
        reach = frozenset(node.node_id for node in place.node.nodes())
        self.published.append(
            Published(place.index, topic, place.number, self.cluster.now, reach)
        )
        place.hub.publish(topic, [place.index, place.number])

    def _subscribe(self) -> None:
        place = self.random.choice(self._alive())
        topics = set(self.random.sample(FILTERS, self.random.randint(1, 2)))
        taker = Taker(place, topics, self.cluster.now)
        self.takers.append(taker)
        place.hub.add_receiver(taker, sorted(topics)).result(5)
        self._changed()

    def _unsubscribe(self) -> None:
        takers = [taker for taker in self.takers if taker.until == float("inf")]
        if takers:
            taker = self.random.choice(takers)
            taker.until = self.cluster.now
            taker.place.hub.remove_receiver(taker).result(5)
            self._changed()

    def _pair(self) -> tuple[Node, Node]:
        one, other = self.random.sample(self._alive(), 2)
        return one.node, other.node

    def _cut(self) -> None:
        self.cluster.cut(*self._pair())
        self._changed()

    def _partition(self) -> None:
        self.cluster.partition(*self._pair(), both=self.random.random() < 0.7)
        self._changed()

    def _heal(self) -> None:
        self.cluster.heal()
        self._changed()

    def _leave(self) -> None:
        if len(self._alive()) > 3:
            place = self.random.choice(self._alive())
            place.until = self.cluster.now
            for taker in self.takers:
                if taker.place is place:
                    taker.until = min(taker.until, self.cluster.now)
            (self.cluster.kill if self.random.random() < 0.5 else Node.close)(place.node)
            self._changed()

    def _join(self) -> None:
        if len(self._alive()) < 16:
            others = self.random.sample(self._alive(), 2)
            place = self._add(self.cluster.node(f"late{len(self.places)}"))
            for other in others:
                place.node._reach.dial(_endpoint(other.node), keep=True)  # noqa: SLF001

    def _dial_twice(self) -> None:
        one, other = self.random.sample(self._alive(), 2)
        one.node._reach.dial(_endpoint(other.node), keep=True)  # noqa: SLF001
        other.node._reach.dial(_endpoint(one.node), keep=True)  # noqa: SLF001
        self._changed()

    # --- the end ---

    def _rest(self) -> None:
        self.cluster.heal()
        alive = self._alive()
        for one, other in zip(alive, [*alive[1:], alive[0]], strict=True):
            if one is not other:
                one.node._reach.dial(_endpoint(other.node), keep=True)  # noqa: SLF001
        self.cluster.run_until(partial(self._is_whole, alive), 60.0)
        self.cluster.advance(CALM + SETTLED)
        for place in alive:
            for topic in TOPICS:
                self._publish_one(place, topic)
        self.cluster.advance(2 * SETTLED)

    def _is_whole(self, alive: list[Place]) -> bool:
        return all(len(place.node.nodes()) == len(alive) - 1 for place in alive)

    def _check_links(self) -> None:
        for place in self._alive():
            peers = [link.peer for link in place.node.links()]
            if len(peers) != len(set(peers)):
                raise Violation(f"{place.node} has two links with one node")

    def _check_order(self) -> None:
        for taker in self.takers:
            last: dict[int, int] = {}
            for topic, (publisher, number) in taker.got:
                if number <= last.get(publisher, 0):
                    raise Violation(
                        f"{number} of {publisher} on {topic} came after {last[publisher]} "
                        f"at a subscriber of {taker.place.index}"
                    )
                last[publisher] = number

    def _check_arrivals(self) -> None:
        changes = sorted(self.changes)
        got = [
            {(publisher, number) for _, (publisher, number) in taker.got}
            for taker in self.takers
        ]
        for message in self.published:
            if any(message.at - CALM < at < message.at + SETTLED for at in changes):
                continue
            for taker, received in zip(self.takers, got, strict=True):
                is_there = taker.since < message.at and taker.until > message.at + SETTLED
                is_in_reach = taker.place.node.node_id in message.reach
                if not is_there or not is_in_reach or not taker.wants(message.topic):
                    continue
                if (message.publisher, message.number) not in received:
                    raise Violation(f"{message} did not arrive at {taker.place.index}")


def _endpoint(node: Node) -> tuple[str, int]:
    host, _, port = node.address.removeprefix("basp://").rpartition(":")
    return host, int(port)
