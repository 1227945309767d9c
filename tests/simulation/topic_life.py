"""One random life of topics, by seed: endpoints that join, leave, subscribe and publish.

Three to sixteen endpoints in a ring with chords, some of which do not forward or have a low
TTL; messages to all who want them and messages to one endpoint; ways that break, hang in one
direction, get slow, narrow or lossy; nodes that freeze, are killed, fall silent, start again or
join; clocks that run fast or slow; dials from both sides at once. Then the faults end.
What must hold is in `topic_rules`.
"""

import random
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial

from callboard import Node
from callboard.endpoint.hub import Hub, HubOptions
from callboard.endpoint.machine.core import DEFAULT_TTL
from callboard.proxies.events import LinkDown, LinkUp, PathMoved
from callboard.simulation import Cluster
from tests.simulation.logged import logged_errors
from tests.simulation.rules import Violation
from tests.simulation.topic_book import FOREVER, Place, Published, Taker, TopicBook
from tests.simulation.topic_faults import TopicFaults
from tests.simulation.topic_rules import CALM, SETTLED, check_always, check_at_the_end

TOPICS = ("/a", "/a/b", "/a/c", "/b", "/b/x/y")
FILTERS = ("/a", "/a/b", "/b", "/b/x", "/c", "")

WHOLE_WITHIN = 60.0
"""Virtual seconds after the last fault within which all endpoints know each other."""


class TopicLife:
    """Lives one seed; `run` raises `Violation` for what must not be."""

    def __init__(self, seed: int, most: int = 16) -> None:
        self.seed = seed
        self.most = most
        self.random = random.Random(seed)
        self.cluster = Cluster(seed)
        self.book = TopicBook()
        self.faults = TopicFaults(self)
        self._watching = ExitStack()
        self._actions: dict[Callable[[], None], int] = {
            self._publish: 10,
            self._direct: 4,
            self._subscribe: 3,
            self._unsubscribe: 2,
            **self.faults.actions,
        }

    def run(self) -> "TopicLife":
        """Live the life of this seed."""
        with logged_errors(self.book.errors), closing(self):
            self._begin()
            for _ in range(self.random.randint(15, 40)):
                self.random.choices(list(self._actions), list(self._actions.values()))[0]()
                check_always(self.book)
                self.cluster.advance(self.random.choice((0.0, 0.001, 0.02, 0.5, 3.0, 9.0)))
            self._rest()
            check_at_the_end(self.book)
        return self

    def close(self) -> None:
        """End the watching and the cluster."""
        self._watching.close()
        self.cluster.close()

    def note(self, *what: object) -> None:
        """Note in the trace what the life does."""
        self.cluster.trace.note(self.cluster.now, "life", *what)

    def changed(self) -> None:
        """Note that something changed: what is published around it need not arrive."""
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
            self._subscribe()
        self.cluster.advance(self.random.choice((0.0, 1.0, CALM + 1.0)))

    def add(self, node: Node, slot: int) -> Place:
        """Give a node an endpoint."""
        self._watching.enter_context(node.subscribed(self._happened))
        options = HubOptions(
            endpoint_id=self.random.randbytes(16),
            ttl=self.random.choice((DEFAULT_TTL, DEFAULT_TTL, DEFAULT_TTL, 1, 2)),
            forwards=self.random.random() < 0.85,
        )
        place = Place(len(self.book.places), slot, node, Hub.of(node, options))
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
        """Let a node dial another one, and keep the link."""
        host, _, port = other.node.address.removeprefix("basp://").rpartition(":")
        one.node._reach.dial((host, int(port)), keep=True)

    def _happened(self, event: object) -> None:
        if isinstance(event, LinkUp | LinkDown | PathMoved):
            self.changed()

    # --- what happens ---

    def _publish(self) -> None:
        place = self.random.choice(self.book.active())
        count = self.random.choice((1, 3, 40))
        self.note("publish", place.index, count)
        for _ in range(count):
            topic = self._entry(place, None)
            place.hub.publish(topic, [place.index, place.number])

    def _direct(self) -> None:
        """Publish to one endpoint, and to all before and after."""
        place = self.random.choice(self.book.active())
        target = self.random.choice(self.book.alive())
        self.note("direct", place.index, target.index)
        for aim in (None, target, target, None):
            topic = self._entry(place, aim)
            value = [place.index, place.number]
            if aim is None:
                place.hub.publish(topic, value)
            else:
                place.hub.send_to(aim.node.node_id, [(topic, value)])

    def _entry(self, place: Place, target: Place | None, topic: str = "") -> str:
        """Write a message into the book; returns its topic."""
        place.number += 1
        far, near = self.book.reach(place)
        chosen = topic or self.random.choice(TOPICS)
        aim = None if target is None else target.index
        is_calm = not self.faults.is_active
        self.book.published.append(
            Published(
                *(place.index, chosen, place.number, self.cluster.now, aim, is_calm),
                *(far, near),
            )
        )
        return chosen

    def _subscribe(self) -> None:
        place = self.random.choice(self.book.active())
        topics = set(self.random.sample(FILTERS, self.random.randint(1, 2)))
        sees_own = self.random.random() < 0.3
        self.note("subscribe", place.index, *sorted(topics))
        taker = Taker(place, topics, self.cluster.now, sees_own)
        self.book.takers.append(taker)
        place.hub.add_receiver(taker, sorted(topics), sees_own=sees_own).result(5)
        self.changed()

    def _unsubscribe(self) -> None:
        takers = [
            taker
            for taker in self.book.takers
            if taker.until == FOREVER and not taker.place.is_paused
        ]
        if takers:
            taker = self.random.choice(takers)
            self.note("unsubscribe", taker.place.index, *sorted(taker.topics))
            taker.until = self.cluster.now
            taker.place.hub.remove_receiver(taker).result(5)
            self.changed()

    # --- the end ---

    def _rest(self) -> None:
        self.note("rest")
        self.faults.end()
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
