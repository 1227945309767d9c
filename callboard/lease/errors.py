"""What can go wrong with databases of leases and of entities' states.

::

    CallboardError
    └── StorageError
        ├── StateUnavailable      the database is away, nothing happened (ConnectionError)
        │   ├── StateBusy         another process holds the lock for writing
        │   └── StateFull         no room is left
        ├── OutcomeUnknown        perhaps it happened, and the database cannot be asked
        ├── StateCorrupt          what is stored cannot be right
        ├── ValueRefused          the database takes no such value       (ValueError)
        ├── StateVersion          a newer callboard, or a newer program, wrote it
        ├── WrongState            another state than the one that was meant
        ├── DatabaseReplaced      another server, or one that lost what it had acknowledged
        │   └── StateReplaced     a file of the database was removed or replaced
        ├── UnsafeDatabase        it could lose or mix up what it acknowledges  (ValueError)
        ├── Fenced                another owner has the slot
        └── LeaseLost             this process did not raise its lease in time
"""

from callboard.kernel.errors import CallboardError


class StorageError(CallboardError):
    """Root of what databases of leases and states raise."""


class StateUnavailable(StorageError, ConnectionError):
    """The database could not be reached, or refused; nothing happened: repeat it."""


class StateBusy(StateUnavailable):
    """Another process holds the database's lock for writing; the text names it if it can."""


class StateFull(StateUnavailable):
    """The disk of the database is full; nothing that was acknowledged is lost."""


class OutcomeUnknown(StorageError):
    """The answer was lost and the database cannot be asked: perhaps it happened."""


class StateCorrupt(StorageError):
    """The stored data is invalid: a damaged file, or a missing number."""


class ValueRefused(StorageError, ValueError):
    """The database takes no such value, such as a text with NUL; it was not written."""


class StateVersion(StorageError):
    """A newer callboard wrote the tables, or a newer program the events and values."""

    #: The name of the message type that this program lacks, if that is why.
    missing: str = ""


class WrongState(StorageError):
    """The state is another one than that which the others of the cluster use."""


class DatabaseReplaced(StorageError):
    """Another server answers, or it failed over: acknowledged commits may be lost."""


class StateReplaced(DatabaseReplaced):
    """A file of the database was removed or replaced under this process.

    It does not use the database any more: start the node again.
    """


class UnsafeDatabase(StorageError, ValueError):
    """With its settings or its place the database could lose acknowledged commits."""


class Fenced(StorageError):
    """Another owner claimed the slot: writes of this one are left out."""


class LeaseLost(StorageError):
    """This process did not renew its lease in time; `handler` names what ran meanwhile."""

    def __init__(self, message: str, handler: str = "") -> None:
        super().__init__(message)
        self.handler = handler
