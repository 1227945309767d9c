"""What a host counts of its entities, and what a node tells of them."""

from dataclasses import field

from callboard.support.dataclass import dataclass
from callboard.support.histogram import Histogram

#: Of so many commits the time of one is taken.
TIMED: int = 16


@dataclass(slots=True)
class EntityCounters:
    """What happened to the entities of a type on a node since it hosts them."""

    #: Entities that were made, from what was stored or new.
    activations: int = 0
    #: Batches of one entity that became durable, and the events in them.
    commits: int = 0
    events: int = 0
    #: Batches that the database refused, or of which nobody knows.
    failures: int = 0
    #: Slots whose fence another node had raised when something was to be stored or read.
    fenced: int = 0
    #: Slots that came to this node, and that went to others.
    gained: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class EntityStats:
    """The entities of a type on a node, as `node.entity_stats()` tells.

    Attributes:
        type: The name of the type.
        state: Where events are kept; "" for nowhere.
        slots: How many of the 256 this node owns.
        active: Entities that live here just now.
        waiting: Messages that wait for entities here, and from here for those of other nodes.
        activated: Entities that were made here.
        commits: Batches of one entity that became durable.
        events: Events in them.
        failures: Batches that the database refused, or of which nobody knows.
        fenced: Times that a slot was found to be another node's.
        gained: Slots that came to this node.
        moves: Slots that went from this node to others.
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
    #: Seconds from the end of a handler's stretch until it was durable, of a sample.
    commit_seconds: Histogram = field(repr=False, compare=False, default_factory=Histogram)
