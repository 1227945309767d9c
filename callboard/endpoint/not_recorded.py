"""The event of messages that a recording could not keep."""

from dataclasses import dataclass

__all__ = ["NotRecorded"]


@dataclass(frozen=True, slots=True)
class NotRecorded:
    """Event: messages are missing in a log, because its disk is too slow or refuses them.

    Attributes:
        folder: the directory of the log.
        count: messages.
    """

    folder: str
    count: int
