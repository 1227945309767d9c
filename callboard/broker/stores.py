"""Stores on an endpoint: `attach_master` and `attach_clone`."""

from collections.abc import Mapping
from typing import Any, Final

from callboard.broker.constants import Backend
from callboard.endpoint.errors import InvalidData
from callboard.endpoint.hub import Hub
from callboard.store import Backend as StoreBackend
from callboard.store import (
    CloneOptions,
    Store,
    StoreOptions,
    aattach_master,
    attach_clone,
    attach_master,
)

__all__ = ["StoreHolder"]

_BACKENDS: Final = {
    Backend.Memory: StoreBackend.Memory,
    Backend.SQLite: StoreBackend.SQLite,
}


class StoreHolder:
    """The part of an endpoint that makes stores."""

    hub: Hub
    #: Stores that were attached; they are closed with the endpoint.
    stores: list[Store]

    def _refuse_shut(self) -> None:
        raise NotImplementedError

    def attach_master(
        self,
        name: str,
        backend: Backend = Backend.Memory,
        options: Mapping[str, Any] | None = None,
        *,
        store_options: StoreOptions | None = None,
    ) -> Store:
        """Make the master of a store; there is one for each name in the whole network.

        Args:
            name: of the store.
            backend: where its values are kept.
            options: of the backend; SQLite needs `{"path": …}`.
            store_options: times.

        Raises:
            MasterExists: a node in reach has a master of this name.
            BackendFailure: the file cannot be opened.
            InvalidData: there is no such backend, or it has no such option.
            WouldBlock: on the thread of a running event loop; await `aattach_master`.
        """
        self._refuse_shut()
        kind = _kind(backend)
        return self._hold(
            attach_master(self.hub, name, kind, options, store_options=store_options)
        )

    async def aattach_master(
        self,
        name: str,
        backend: Backend = Backend.Memory,
        options: Mapping[str, Any] | None = None,
        *,
        store_options: StoreOptions | None = None,
    ) -> Store:
        """Awaitable twin of `attach_master`."""
        self._refuse_shut()
        kind = _kind(backend)
        made = await aattach_master(self.hub, name, kind, options, store_options=store_options)
        return self._hold(made)

    def attach_clone(self, name: str, *, store_options: CloneOptions | None = None) -> Store:
        """Make a clone of a store, whose master may come later; returns at once."""
        self._refuse_shut()
        return self._hold(attach_clone(self.hub, name, store_options=store_options))

    def _hold(self, store: Store) -> Store:
        self.stores = [one for one in self.stores if not one.is_closed]
        self.stores.append(store)
        return store


def _kind(backend: Backend) -> StoreBackend:
    if backend not in _BACKENDS:
        msg = f"there is no backend {Backend(backend).name}; take Memory or SQLite"
        raise InvalidData(msg)
    return _BACKENDS[backend]
