"""Errors of the databases of leases and of entities' states.

::

    CallboardError
    └── StorageError
        ├── StateUnavailable      the database cannot be reached, nothing was changed
        │   │                     (ConnectionError)
        │   ├── StateBusy         another process holds the write lock
        │   └── StateFull         the disk is full
        ├── OutcomeUnknown        the reply was lost: the change may have been made or not
        ├── StateCorrupt          the stored data is invalid
        ├── ValueRefused          the database cannot store the value    (ValueError)
        ├── StateVersion          a newer callboard, or a newer program, wrote the data
        ├── WrongState            the state differs from that of the cluster
        ├── DatabaseReplaced      another server, or one that lost acknowledged commits
        │   └── StateReplaced     a file of the database was removed or replaced
        ├── UnsafeDatabase        the database could lose acknowledged commits  (ValueError)
        ├── Fenced                another owner has the slot
        └── LeaseLost             this process did not renew its lease in time
"""

from callboard.kernel.errors import CallboardError


class StorageError(CallboardError):
    """Root of the errors of databases of leases and states."""


class StateUnavailable(StorageError, ConnectionError):
    """The database could not be reached, or refused; nothing was changed, so retry."""


class StateBusy(StateUnavailable):
    """Another process holds the write lock of the database; the text names it if possible."""


class StateFull(StateUnavailable):
    """The disk of the database is full; acknowledged commits are safe."""


class OutcomeUnknown(StorageError):
    """The reply of the database was lost: the change may have been made or not."""


class StateCorrupt(StorageError):
    """The stored data is invalid: a damaged file, or a missing number."""


class ValueRefused(StorageError, ValueError):
    """The database cannot store the value, such as a text with NUL; nothing was written."""


class StateVersion(StorageError):
    """A newer callboard wrote the tables, or a newer program the events and values."""

    #: Name of the message type that this program lacks, if that is the cause.
    missing: str = ""


class WrongState(StorageError):
    """The state is not the one that the other members of the cluster use."""


class DatabaseReplaced(StorageError):
    """Another server answers, or it failed over: acknowledged commits may be lost."""


class StateReplaced(DatabaseReplaced):
    """A file of the database was removed or replaced under this process.

    The process no longer uses the database: start the node again.
    """


class UnsafeDatabase(StorageError, ValueError):
    """The database could lose acknowledged commits, due to its settings or its location."""


class Fenced(StorageError):
    """Another owner claimed the slot: writes of this owner are refused."""


class LeaseLost(StorageError):
    """This process did not renew its lease in time; `handler` names the running handler."""

    def __init__(self, message: str, handler: str = "") -> None:
        super().__init__(message)
        self.handler = handler
