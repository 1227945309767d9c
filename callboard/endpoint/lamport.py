"""Lamport timestamps: a count that orders the versions of what one endpoint says."""

from dataclasses import dataclass
from typing import Final, Self

_LAST: Final = 2**64 - 1


@dataclass(frozen=True, slots=True, order=True)
class LamportTimestamp:
    """A 64-bit count with comparisons and a successor, and nothing else of an integer."""

    value: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.value <= _LAST:
            msg = f"a Lamport timestamp is between 0 and 2^64 - 1, not {self.value}"
            raise ValueError(msg)

    def next(self) -> Self:
        """Return the timestamp after this one."""
        return type(self)(self.value + 1)

    def merged(self, other: Self) -> Self:
        """Return the later of two timestamps: what a receiver goes on from."""
        return max(self, other)
