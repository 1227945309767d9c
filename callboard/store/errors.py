"""What can go wrong with stores.

::

    endpoint.EndpointError
    └── StoreError
        ├── MasterExists          the name has a master somewhere in reach
        ├── NoSuchMaster          (TimeoutError) the clone has not found its master
        ├── NoSuchKey             (KeyError) the store has no such key
        ├── TypeClash             (TypeError) the value of the key has another type
        ├── StaleData             the clone lost its master too long ago
        ├── RequestTimeout        (TimeoutError) the master did not answer
        ├── BackendFailure        (OSError) the disk or file of a master failed
        └── StoreClosed           the store or its endpoint was closed
"""

from callboard.endpoint.machine.status import EC
from callboard.model.errors import EndpointError


class StoreError(EndpointError):
    """Root of what stores raise; `code` is Broker's."""

    code: EC = EC.Unspecified


class MasterExists(StoreError):
    """Another master has the name: there is one in the whole network."""

    code = EC.MasterExists


class NoSuchMaster(StoreError, TimeoutError):
    """No master of that name was found in time."""

    code = EC.NoSuchMaster


class NoSuchKey(StoreError, KeyError):
    """The store has no such key."""

    code = EC.NoSuchKey

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class TypeClash(StoreError, TypeError):
    """The operation does not fit the value that the key has."""

    code = EC.TypeClash


class StaleData(StoreError):
    """The clone has been without its master for too long to answer from its copy."""

    code = EC.StaleData


class RequestTimeout(StoreError, TimeoutError):
    """The master did not answer in time; it may have done what was asked."""

    code = EC.RequestTimeOut


class BackendFailure(StoreError, OSError):
    """The backend of a master failed; no further write is acknowledged."""

    code = EC.BackendFailure


class StoreClosed(StoreError):
    """The store was detached, or its endpoint was shut down."""

    code = EC.ShuttingDown
