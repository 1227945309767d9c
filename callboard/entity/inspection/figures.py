"""Counters of an entity host, and the statistics of a node's entities."""

from dataclasses import field

from callboard.support.dataclass import dataclass
from callboard.support.histogram import Histogram

#: The time of one in this many commits is measured.
TIMED: int = 16


@dataclass(slots=True)
class EntityCounters:
    """Counts of a type's entities on a node since it hosts the type."""

    #: Activations, of new and of stored entities.
    activations: int = 0
    #: Durable batches, each of one entity, and the events in them.
    commits: int = 0
    events: int = 0
    #: Batches that the database refused, or whose outcome is unknown.
    failures: int = 0
    #: Slots whose fence another node had raised before a commit or an answer.
    fenced: int = 0
    #: Slots gained, and slots lost to other nodes.
    gained: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class EntityStats:
    """The entities of a type on a node, as returned by `node.entity_stats()`.

    Attributes:
        type: The name of the type.
        state: The place of their events; "" for no state.
        slots: How many of the 256 slots this node owns.
        active: Active entities.
        waiting: Messages that wait for entities here, or here for entities of other nodes.
        activated: Activations since the node hosts the type.
        commits: Durable batches, each of one entity.
        events: Events in these batches.
        failures: Batches that the database refused, or whose outcome is unknown.
        fenced: Times that another node had claimed a slot.
        gained: Slots that this node has gained.
        moves: Slots that other nodes have taken over.
    """

    type: str
    state: str
    slots: int
    active: int
    waiting: int
    activated: int
    commits: int
    events: int
    failures: int
    fenced: int
    gained: int
    moves: int
    #: Seconds from the end of a unit of work until it was durable, of a sample.
    commit_seconds: Histogram = field(repr=False, compare=False, default_factory=Histogram)
