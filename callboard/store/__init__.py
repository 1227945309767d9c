"""Stores: one master, any number of clones, replicated over channels; see `docs/stores.md`."""

from callboard.store.attach import aattach_master, attach_clone, attach_master
from callboard.store.backend import Backend
from callboard.store.backend_options import BackendOptions
from callboard.store.errors import (
    BackendFailure,
    MasterExists,
    NoSuchKey,
    NoSuchMaster,
    RequestTimeout,
    StaleData,
    StoreClosed,
    StoreError,
    TypeClash,
)
from callboard.store.frontend import Store
from callboard.store.mapping import StoreMapping
from callboard.store.options import CloneOptions, StoreOptions
from callboard.store.proxy import StoreProxy, StoreResponse
from callboard.store.store_actor import CommandsRefused
from callboard.store.store_event import StoreEvent

__all__ = [
    "Backend",
    "BackendFailure",
    "BackendOptions",
    "CloneOptions",
    "CommandsRefused",
    "MasterExists",
    "NoSuchKey",
    "NoSuchMaster",
    "RequestTimeout",
    "StaleData",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreEvent",
    "StoreMapping",
    "StoreOptions",
    "StoreProxy",
    "StoreResponse",
    "TypeClash",
    "aattach_master",
    "attach_clone",
    "attach_master",
]
