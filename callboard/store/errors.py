"""Errors of stores.

::

    endpoint.EndpointError
    └── StoreError
        ├── MasterExists          a reachable node has a master of this name
        ├── NoSuchMaster          (TimeoutError) the clone has not found its master
        ├── NoSuchKey             (KeyError) the store does not have the key
        ├── TypeClash             (TypeError) the value of the key has another type
        ├── StaleData             the clone has been without its master for too long
        ├── RequestTimeout        (TimeoutError) the master did not answer
        ├── BackendFailure        (OSError) the disk or file of a master failed
        └── StoreClosed           the store or its endpoint was closed
"""

from callboard.model.errors import EndpointError
from callboard.topics.machine.status import EC


class StoreError(EndpointError):
    """Root of the errors of stores; `code` is the error code of Broker."""

    code: EC = EC.Unspecified


class MasterExists(StoreError):
    """A master of this name exists; the network may have only one."""

    code = EC.MasterExists


class NoSuchMaster(StoreError, TimeoutError):
    """A master of this name was not found in time."""

    code = EC.NoSuchMaster


class NoSuchKey(StoreError, KeyError):
    """The store does not have the key."""

    code = EC.NoSuchKey

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class TypeClash(StoreError, TypeError):
    """The operation does not fit the type of the key's value."""

    code = EC.TypeClash


class StaleData(StoreError):
    """The clone has been without its master for too long to answer from its copy."""

    code = EC.StaleData


class RequestTimeout(StoreError, TimeoutError):
    """The master did not answer in time; it may have executed the request."""

    code = EC.RequestTimeOut


class BackendFailure(StoreError, OSError):
    """The backend of a master failed; no further write is acknowledged."""

    code = EC.BackendFailure


class StoreClosed(StoreError):
    """The store was detached, or its endpoint was shut down."""

    code = EC.ShuttingDown
