"""A register: named values that are replaced by compare-and-set.

A value carries its writer and a number that the writer counts. After a reply was lost the
writer reads the value again: if it is its own with that number, the write took place.
"""

from typing import NamedTuple, Protocol

from callboard import locks


class LeaseValue(NamedTuple):
    """What a register holds under a name."""

    #: Who wrote it: the id of a process' life (incarnation).
    writer: str
    #: Raised by the writer with each write of the name.
    number: int
    #: The content: JSON, so that people can read it in the database.
    text: str = ""


#: What `read` returns: a value and its version; None and 0 where there never was one.
Versioned = tuple[LeaseValue | None, int]


class Leases(Protocol):
    """A register. Every call blocks, may be made on any thread, and ends within seconds.

    Each name is linearizable: a write that returned is seen by every read that begins later.
    """

    def read(self, name: str) -> Versioned:
        """Return the value of a name and its version, which rises with each write.

        Raises:
            StateUnavailable: the register cannot be reached.
        """

    def write(self, name: str, value: LeaseValue, expected_version: int) -> bool:
        """Replace a value if its version is still the expected one; return whether it was.

        Raises:
            StateUnavailable: nothing was written.
            OutcomeUnknown: perhaps it was; read it again.
        """

    def is_gone(self, writer: str) -> bool:
        """Return whether a writer's process has ended for certain."""

    def again(self) -> "Leases":
        """Return the register by a connection of its own, closed by itself and before this."""

    def close(self) -> None:
        """Release what it holds; calls under way may fail."""


class MemoryLeases:
    """A register in this process' memory."""

    def __init__(self) -> None:
        """Make an empty register."""
        self._values: dict[str, tuple[LeaseValue, int]] = {}
        self._lock = locks.lock("lease register in memory", 560)

    def read(self, name: str) -> Versioned:
        """Return the value of a name and its version."""
        return self._values.get(name, (None, 0))

    def write(self, name: str, value: LeaseValue, expected_version: int) -> bool:
        """Replace a value if its version is the expected one; return whether it was."""
        with self._lock:
            if self._values.get(name, (None, 0))[1] != expected_version:
                return False
            self._values[name] = (value, expected_version + 1)
            return True

    def is_gone(self, writer: str) -> bool:
        """Return False: nothing proves a death in memory."""
        return False

    def again(self) -> "MemoryLeases":
        """Return the register: memory needs no connection."""
        return self

    def close(self) -> None:
        """Do nothing: memory needs no release."""
