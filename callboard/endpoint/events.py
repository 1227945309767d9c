"""What endpoints tell by `node.events()`: messages that were lost."""

from dataclasses import dataclass


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
