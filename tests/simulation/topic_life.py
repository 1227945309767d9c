"""One random life of topics, by seed: endpoints that join, leave, subscribe and publish.

Three to sixteen endpoints in a ring with chords; some do not forward or have a low messages to
all who want them and messages to one endpoint; ways that break, hang in one direction, get
slow, narrow or lossy; nodes that freeze, are killed, fall silent, start again or join; clocks
that run fast or slow; dials from both sides at once. Then the faults end. The rules are in
`topic_rules`.
"""

import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from callboard import Node
from callboard.proxies.events import LinkDown, LinkUp, PathMoved
from callboard.simulation import (
    Cluster,
    Fault,
    clock_rate,
    cluster_test,
    crash,
    cut,
    delay,
    doubling,
    isolate,
    kill,
    loss,
    narrow,
    one_way,
    partition,
    pause,
    swarm,
)
from callboard.topics.hub import Hub, HubOptions
from callboard.topics.machine.core import DEFAULT_TTL
from tests.simulation.logged import logged_errors
from tests.simulation.rules import Violation
from tests.simulation.topic_book import FOREVER, Place, Published, Taker, TopicBook
from tests.simulation.topic_rules import CALM, SETTLED, check_always, check_at_the_end

TOPICS = ("/a", "/a/b", "/a/c", "/b", "/b/x/y")
FILTERS = ("/a", "/a/b", "/b", "/b/x", "/c", "")

WHOLE_WITHIN = 60.0
"""Virtual seconds after the last fault within which all endpoints know each other."""


FAULTS = swarm(
    *(partition, one_way, isolate, cut, pause, kill, crash, doubling),
    *(delay.between(0.0001, 0.4), narrow.between(2_000, 50_000), loss),
    clock_rate.between(0.95, 1.05),
    span=40.0,
    most=16,
)

QUICK = 0.1
"""Seconds under way with which messages arrive in time all the same."""

FEWEST = 3
"""Endpoints that stay, however many leave."""


class TopicLife:
    """Lives in a cluster; `run` raises `Violation` for what must not be."""

    def __init__(self, cluster: Cluster, most: int = 16) -> None:
        self.most = most
        self.random = cluster.random
        self.cluster = cluster
        self.book = TopicBook()
        #: Faults by which messages need not arrive.
        self.active: list[Fault] = []
        self._watching = ExitStack()
        self._actions: dict[Callable[[random.Random], None], int] = {
            self._publish: 10,
            self._direct: 4,
            self._subscribe: 3,
            self._unsubscribe: 2,
            self._leave: 1,
            self._come_back: 2,
            self._join: 1,
            self._dial_twice: 2,
        }
        cluster.on_fault, cluster.restarted = self._disturbed, self._started

    def run(self) -> "TopicLife":
        """Live the life of this seed."""
        with logged_errors(self.book.errors), self._watching:
            self._begin()
            for _, chance in self.cluster.steps(self.random.randint(15, 40), within=0.0):
                if len(self.book.active()) > 1:
                    actions = list(self._actions)
                    chance.choices(actions, list(self._actions.values()))[0](chance)
                check_always(self.book)
                self.cluster.advance(chance.choice((0.0, 0.001, 0.02, 0.5, 3.0, 9.0)))
            self._rest()
            check_at_the_end(self.book)
        return self

    def _disturbed(self, fault: Fault, nodes: list[Node], begins: bool) -> None:
        """Record a fault."""
        self.changed()
        if begins and fault.kind in (kill, crash):
            self._gone(nodes[0])
        is_quick = fault.kind.name == "delay" and fault.amount < QUICK
        if is_quick or fault.kind in (kill, cut) or fault.kind.name == "clock_rate":
            return
        if not begins:
            self.active.remove(fault)
        elif fault.kind.is_lasting or fault.kind is crash:  # whose silence is noticed late
            self.active.append(fault)

    def _started(self, node: Node) -> None:
        """Take a node into the book that was started again; it dials its neighbors."""
        before = [place for place in self.book.places if place.node.address == node.address]
        self.link_to_ring(self.add(node, before[-1].slot))

    def note(self, *what: object) -> None:
        """Record a step of the life in the trace."""
        self.cluster.trace.note(self.cluster.now, "life", *what)

    def changed(self) -> None:
        """Record a change: messages published around it need not arrive."""
        self.book.changes.append(self.cluster.now)

    # --- begin ---

    def _begin(self) -> None:
        size = self.random.randint(3, self.most)
        self.note(size, "endpoints")
        for slot, node in enumerate(self.cluster(size, topology="none")):
            self.add(node, slot)
        for place in self.book.places:
            self.link_to_ring(place, both=False)
        for _ in range(size // 4):
            self.dial(*self.random.sample(self.book.places, 2))
        for _ in range(size):
            self._subscribe(self.random)
        self.cluster.advance(self.random.choice((0.0, 1.0, CALM + 1.0)))

    def add(self, node: Node, slot: int) -> Place:
        """Give a node an endpoint."""
        self._watching.enter_context(node.subscribed(self._happened))
        options = HubOptions(
            endpoint_id=self.random.randbytes(16),
            ttl=self.random.choice((DEFAULT_TTL, DEFAULT_TTL, DEFAULT_TTL, 1, 2)),
            forwards=self.random.random() < 0.85,
        )
        place = Place(len(self.book.places), slot, self.cluster, node, Hub.of(node, options))
        place.hub.on_peer_event(place.events.append)
        self.book.places.append(place)
        self.changed()
        return place

    def link_to_ring(self, place: Place, *, both: bool = True) -> None:
        """Dial the next one in the ring that lives, and the one before."""
        others = sorted(self.book.alive(), key=lambda other: other.slot)
        index = others.index(place)
        for other in (others[(index + 1) % len(others)], *([others[index - 1]] * both)):
            if other is not place:
                self.dial(place, other)

    def dial(self, one: Place, other: Place) -> None:
        """Make a node dial another one, and keep the link."""
        self.cluster.link(one.node, other.node)

    def _happened(self, event: object) -> None:
        if isinstance(event, LinkUp | LinkDown | PathMoved):
            self.changed()

    # --- what happens ---

    def _publish(self, chance: random.Random) -> None:
        place = chance.choice(self.book.active())
        count = chance.choice((1, 3, 40))
        self.note("publish", place.index, count)
        for _ in range(count):
            topic = self._entry(place, None, chance.choice(TOPICS))
            place.hub.publish(topic, [place.index, place.number])

    def _direct(self, chance: random.Random) -> None:
        """Publish to one endpoint, and to all before and after."""
        place = chance.choice(self.book.active())
        target = chance.choice(self.book.alive())
        self.note("direct", place.index, target.index)
        for aim in (None, target, target, None):
            topic = self._entry(place, aim, chance.choice(TOPICS))
            value = [place.index, place.number]
            if aim is None:
                place.hub.publish(topic, value)
            else:
                place.hub.publishing.send_to(aim.node.node_id, [(topic, value)])

    def _entry(self, place: Place, target: Place | None, topic: str) -> str:
        """Write a message into the book; returns its topic."""
        place.number += 1
        far, near = self.book.reach(place)
        aim = None if target is None else target.index
        is_calm = not self.active
        self.book.published.append(
            Published(
                *(place.index, topic, place.number, self.cluster.now, aim, is_calm),
                *(far, near),
            )
        )
        return topic

    def _subscribe(self, chance: random.Random) -> None:
        place = chance.choice(self.book.active())
        topics = set(chance.sample(FILTERS, chance.randint(1, 2)))
        sees_own = chance.random() < 0.3
        self.note("subscribe", place.index, *sorted(topics))
        taker = Taker(place, topics, self.cluster.now, sees_own)
        self.book.takers.append(taker)
        place.hub.add_receiver(taker, sorted(topics), sees_own=sees_own)
        self.cluster.advance(0.0)
        self.changed()

    def _unsubscribe(self, chance: random.Random) -> None:
        takers = [
            taker
            for taker in self.book.takers
            if taker.until == FOREVER and taker.place.is_active
        ]
        if takers:
            taker = chance.choice(takers)
            self.note("unsubscribe", taker.place.index, *sorted(taker.topics))
            taker.until = self.cluster.now
            taker.place.hub.remove_receiver(taker)
            self.cluster.advance(0.0)
            self.changed()

    def _leave(self, chance: random.Random) -> None:
        """Close an endpoint regularly."""
        active = self.book.active()
        if len(active) > FEWEST:
            place = chance.choice(active)
            self.note("leave", place.index)
            self.changed()
            self._gone(place.node)
            place.node.close()

    def _gone(self, node: Node) -> None:
        """Record that a node no longer receives messages."""
        for taker in self.book.takers:
            if taker.place.node is node:
                taker.until = min(taker.until, self.cluster.now)

    def _come_back(self, chance: random.Random) -> None:
        """Start a node again that has left."""
        gone = [node for node in self.cluster.machines() if not self.cluster.is_running(node)]
        if gone:
            node = chance.choice(gone)
            self.note("come back", node.name)
            self.cluster.restart(node)

    def _join(self, chance: random.Random) -> None:
        """Add a new endpoint, linked with two others."""
        slot = len(self.cluster.machines())
        if slot < self.most:
            place = self.add(self.cluster.node(f"late{slot}"), slot)
            self.note("join", place.index)
            for other in chance.sample(self.book.active()[:-1], 2):
                self.dial(place, other)

    def _dial_twice(self, chance: random.Random) -> None:
        one, other = chance.sample(self.book.active(), 2)
        self.note("dial", one.index, other.index)
        self.dial(one, other)
        self.dial(other, one)

    # --- the end ---

    def _rest(self) -> None:
        self.note("rest")
        self.cluster.calm()
        alive = self.book.alive()
        for place in alive:
            self.link_to_ring(place, both=False)
        if not self.cluster.run_until(partial(self._is_whole, alive), WHOLE_WITHIN):
            raise Violation(f"not all know each other {WHOLE_WITHIN:g} s after the last fault")
        self.cluster.advance(CALM + SETTLED)
        for place in alive:
            for topic in TOPICS:
                place.hub.publish(self._entry(place, None, topic), [place.index, place.number])
        self.cluster.advance(2 * SETTLED)

    def _is_whole(self, alive: list[Place]) -> bool:
        return all(len(place.node.nodes()) == len(alive) - 1 for place in alive)


@cluster_test(faults=FAULTS)
def live_topics(cluster: Cluster, most: int = 16) -> None:
    """Live a life of topics, for `python -m tests.simulation`."""
    TopicLife(cluster, most).run()
