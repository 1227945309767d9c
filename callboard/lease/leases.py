"""The register: a key-value store with compare-and-set.

A value carries its writer and a number that the writer increments. If a reply is lost, the
writer reads the value again: if it has its own id and that number, the write succeeded.
"""

from typing import NamedTuple, Protocol

from callboard import locks


class LeaseValue(NamedTuple):
    """The value of a name."""

    #: Id of the life (incarnation) of the process that wrote it.
    writer: str
    #: Incremented by the writer with each write of the name.
    number: int
    #: The content, as JSON that people can read in the database.
    text: str = ""


#: Result of `read`: a value and its version; None and 0 for a name without a value.
Versioned = tuple[LeaseValue | None, int]


class Leases(Protocol):
    """A register. Calls block, but only for seconds, and may be made from any thread.

    Each name is linearizable: once a write has returned, every later read sees it.
    """

    def read(self, name: str) -> Versioned:
        """Return the value of a name and its version, which grows with each write.

        Raises:
            StateUnavailable: the register cannot be reached.
        """

    def write(self, name: str, value: LeaseValue, expected_version: int) -> bool:
        """Replace a value if it has the expected version; return whether it was replaced.

        Raises:
            StateUnavailable: nothing was written.
            OutcomeUnknown: the value may have been written; read it again.
        """

    def is_gone(self, writer: str) -> bool:
        """Return whether a writer's process has ended for certain."""

    def again(self) -> "Leases":
        """Return the register with a new connection, which must be closed before this one."""

    def close(self) -> None:
        """Release all resources; running calls may fail."""


class MemoryLeases:
    """A register in this process' memory."""

    def __init__(self) -> None:
        """Start with an empty register."""
        self._values: dict[str, tuple[LeaseValue, int]] = {}
        self._lock = locks.lock("lease register in memory", 560)

    def read(self, name: str) -> Versioned:
        """Return the value of a name and its version."""
        return self._values.get(name, (None, 0))

    def write(self, name: str, value: LeaseValue, expected_version: int) -> bool:
        """Replace a value if it has the expected version; return whether it was replaced."""
        with self._lock:
            if self._values.get(name, (None, 0))[1] != expected_version:
                return False
            self._values[name] = (value, expected_version + 1)
            return True

    def is_gone(self, writer: str) -> bool:
        """Return False: memory offers no proof that a process has ended."""
        return False

    def again(self) -> "MemoryLeases":
        """Return the register itself, which does not use connections."""
        return self

    def close(self) -> None:
        """Do nothing."""
