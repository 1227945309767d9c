"""What endpoints tell by `node.events()`: messages that were lost."""

from typing import Any

from callboard.kernel.actors import ActorRef
from callboard.support.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class NotRecorded:
    """Event: messages are missing in a log, because its disk is too slow or refuses them.

    Attributes:
        folder: the directory of the log.
        count: messages.
    """

    folder: str
    count: int


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Event: messages of topics were dropped, because a peer does not read.

    Attributes:
        peer: the neighbor's node id.
        count: messages.
        policy: what decided.
    """

    peer: bytes
    count: int
    policy: str


@dataclass(frozen=True, slots=True)
class SubscriptionOverflow:
    """Event: messages were dropped, as an actor is slower than its topics.

    Attributes:
        ref: the actor.
        topics: what it is subscribed to.
        count: messages since the last such event about this subscription.
    """

    ref: ActorRef[Any]
    topics: tuple[str, ...]
    count: int
