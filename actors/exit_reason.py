"""Why an actor ended."""

from enum import StrEnum


class ExitReason(StrEnum):
    """The reasons that monitors and links are told.

    A reason equals its own text (`ExitReason.NORMAL == "normal"`). Its place in this list
    travels in the header of a down message, so new ones go to the end.
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
        """The number that stands for this reason on the wire."""
        return _ORDINALS[self]

    @classmethod
    def from_ordinal(cls, ordinal: int) -> "ExitReason":
        """Return the reason for a number from the wire; an unknown one counts as `ERROR`."""
        return _REASONS[ordinal] if 0 <= ordinal < len(_REASONS) else cls.ERROR


_REASONS = tuple(ExitReason)
_ORDINALS = {reason: ordinal for ordinal, reason in enumerate(_REASONS)}
