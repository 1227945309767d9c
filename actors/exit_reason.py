"""Reasons for the end of an actor."""

from enum import StrEnum


class ExitReason(StrEnum):
    """The reasons that monitors and links receive.

    A reason equals its text (`ExitReason.NORMAL == "normal"`). Down messages carry its position
    in this list, so new reasons must be added at the end.
    """

    NORMAL = "normal"
    SHUTDOWN = "shutdown"
    KILLED = "killed"
    ERROR = "error"
    NOT_FOUND = "not_found"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    OVERFLOW = "overflow"

    @property
    def ordinal(self) -> int:
        """The number of this reason on the wire."""
        return _ORDINALS[self]

    @classmethod
    def from_ordinal(cls, ordinal: int) -> "ExitReason":
        """Return the reason for a number from the wire; `ERROR` for an unknown number."""
        return _REASONS[ordinal] if 0 <= ordinal < len(_REASONS) else cls.ERROR


_REASONS = tuple(ExitReason)
_ORDINALS = {reason: ordinal for ordinal, reason in enumerate(_REASONS)}
