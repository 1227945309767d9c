"""Events of endpoints in `node.events()`: lost messages."""

from callboard.kernel.actors import ActorRef
from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class NotRecorded:
    """Event: messages are missing in a log, because its disk is too slow or failed.

    Attributes:
        folder: the directory of the log.
        count: number of messages.
    """

    folder: str
    count: int


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Event: messages of topics were dropped, because a peer does not read them.

    Attributes:
        peer: node id of the neighbor.
        count: number of messages.
        policy: name of the policy that dropped them.
    """

    peer: bytes
    count: int
    policy: str


@dataclass(frozen=True, slots=True)
class SubscriptionOverflow:
    """Event: messages were dropped, because an actor is slower than its topics.

    Attributes:
        ref: the actor.
        topics: filters of its subscription.
        count: number of messages since the last such event of this subscription.
    """

    ref: ActorRef
    topics: tuple[str, ...]
    count: int
