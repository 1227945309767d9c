"""Reasons for the end of an actor."""

from enum import StrEnum
from typing import Final


class ExitReason(StrEnum):
    """The reasons that monitors and links receive.

    A reason equals its text (`ExitReason.NORMAL == "normal"`).
    """

    NORMAL = "normal"
    SHUTDOWN = "shutdown"
    KILLED = "killed"
    ERROR = "error"
    NOT_FOUND = "not_found"
    UNREACHABLE = "unreachable"

    @property
    def ordinal(self) -> int:
        """The number of this reason on the wire."""
        return _ORDINALS[self]

    @classmethod
    def from_ordinal(cls, ordinal: int) -> "ExitReason":
        """Return the reason for a number from the wire; `ERROR` for an unknown number."""
        return _REASONS.get(ordinal, cls.ERROR)


#: The numbers in down messages. 6 and 7 meant *timeout* and *overflow* in version 0.1, where no
#: actor ended for these reasons: the next new reason gets 8.
_ORDINALS: Final = {
    ExitReason.NORMAL: 0,
    ExitReason.SHUTDOWN: 1,
    ExitReason.KILLED: 2,
    ExitReason.ERROR: 3,
    ExitReason.NOT_FOUND: 4,
    ExitReason.UNREACHABLE: 5,
}
_REASONS: Final = {ordinal: reason for reason, ordinal in _ORDINALS.items()}
