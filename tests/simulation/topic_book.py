"""The real events of a life of topics: endpoints, subscribers, and messages."""

from dataclasses import dataclass, field

from callboard import Node
from callboard.simulation import Cluster
from callboard.topics.hub import Hub
from callboard.topics.machine.core import Core
from callboard.topics.machine.effect import Item, PeerEvent

FOREVER = float("inf")


@dataclass(eq=False)
class Place:
    """A node with an endpoint; `slot` is its place in the ring, also after a restart."""

    index: int
    slot: int
    cluster: Cluster
    node: Node
    hub: Hub
    number: int = 0
    events: list[PeerEvent] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        """Whether its node runs, or is frozen."""
        return self.cluster.is_running(self.node)

    @property
    def is_active(self) -> bool:
        """Whether it can do something."""
        return self.is_alive and not self.cluster.is_paused(self.node)

    @property
    def core(self) -> Core:
        """The machine inside."""
        return self.hub.core

    @property
    def neighbors(self) -> set[bytes]:
        """The nodes that it has links with."""
        return {link.peer for link in self.node.links()}


@dataclass(eq=False)
class Taker:
    """A subscriber, and all that it got."""

    place: Place
    topics: set[str]
    since: float
    sees_own: bool = False
    until: float = FOREVER
    got: list[Item] = field(default_factory=list)

    def take(self, items: list[Item]) -> None:
        """Take a run."""
        self.got += items

    def wants(self, topic: str) -> bool:
        """Return whether its filter takes a topic."""
        return any(topic.startswith(one) for one in self.topics)


@dataclass(frozen=True)
class Published:
    """A message: who published it where and when, and how the cluster was at that moment.

    Attributes:
        publisher: the place's index.
        topic: of the message.
        number: counts the messages of the publisher.
        at: virtual seconds.
        target: for a directed message, the index of the place that it is for.
        is_calm: no fault was active.
        far: must reach the places of these indexes, if a subscriber there wants it.
        near: may reach these as well, or not: paths of equal length decide.
    """

    publisher: int
    topic: str
    number: int
    at: float
    target: int | None
    is_calm: bool
    far: frozenset[int]
    near: frozenset[int]


@dataclass
class TopicBook:
    """Everything of one life."""

    places: list[Place] = field(default_factory=list)
    takers: list[Taker] = field(default_factory=list)
    published: list[Published] = field(default_factory=list)
    changes: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def alive(self) -> list[Place]:
        """Return the places whose node runs."""
        return [place for place in self.places if place.is_alive]

    def active(self) -> list[Place]:
        """Return the places that can act."""
        return [place for place in self.places if place.is_active]

    def reach(self, source: Place) -> tuple[frozenset[int], frozenset[int]]:
        """Return the places that a message must reach, and those that it may reach or not.

        Computed from the links alone: a message takes the shortest path, at most as many links
        as its TTL, and does not pass a node that does not forward.
        """
        by_id = {place.node.node_id: place for place in self.alive()}
        distance, has_open, has_closed = {source: 0}, {source}, set[Place]()
        border, hops = [source], 0
        while border and hops < source.hub.options.ttl:
            hops += 1
            reached: list[Place] = []
            for place in border:
                is_open = place is source or place.hub.options.forwards
                for node_id in place.neighbors:
                    other = by_id.get(node_id)
                    if other is None or distance.setdefault(other, hops) != hops:
                        continue
                    if other not in has_open and other not in has_closed:
                        reached.append(other)
                    if is_open and place in has_open:
                        has_open.add(other)
                    if not is_open or place in has_closed:
                        has_closed.add(other)
            border = reached
        far = {place.index for place in has_open - has_closed - {source}}
        return frozenset(far), frozenset(place.index for place in has_open & has_closed)
