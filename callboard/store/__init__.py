"""Stores: one master, any number of clones, replicated over channels; see `docs/stores.md`."""

from callboard.store.attach import aattach_master, attach_clone, attach_master
from callboard.store.backend.interface import Backend, BackendOptions
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
from callboard.store.machine.change import StoreEvent
from callboard.store.options import CloneOptions, StoreOptions
from callboard.store.store import Store, StoreMapping, StoreProxy, StoreResponse
from callboard.store.store_actor import CommandsRefused

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
