"""Making masters and clones on a node."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from actors.errors import NotRegistered
from actors.future import Future
from actors.signals import Down
from callboard.endpoint.topic import checked_topic, clone_topic
from callboard.store.backend import Backend, StoreBackend, make_backend
from callboard.store.clone_actor import CloneActor
from callboard.store.errors import MasterExists, StoreClosed
from callboard.store.frontend import Store
from callboard.store.master_actor import MasterActor
from callboard.store.options import CloneOptions, StoreOptions
from callboard.store.port import Port
from callboard.store.store_metrics import count_store
from callboard.store.wall_clock import wall_offset

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub

__all__ = ["aattach_master", "attach_clone", "attach_master"]

SEARCH_TIMEOUT: Final = 2.0
"""Seconds that the nodes in reach may take to say whether they have a master of a name."""


def attach_master(
    hub: "Hub",
    name: str,
    backend: Backend | StoreBackend = Backend.Memory,
    options: Mapping[str, Any] | None = None,
    *,
    store_options: StoreOptions | None = None,
) -> Store:
    """Make the master of a store; there is one for each name in the whole network.

    Args:
        hub: of the node that it lives on.
        name: of the store.
        backend: where its values are kept.
        options: of the backend.
        store_options: times.

    Raises:
        MasterExists: a node in reach has a master of this name.
        BackendFailure: the file cannot be opened.
        InvalidData: the backend has no such option.
        WouldBlock: called on the thread of a running event loop; await `aattach_master`.
    """
    made = _checked_backend(backend, options)
    _claim(hub, name)
    try:
        _judge(hub.node.find(_master_name(name), SEARCH_TIMEOUT), name, SEARCH_TIMEOUT * 2)
        return _start_master(hub, name, made, store_options)
    finally:
        _release(hub, name)


async def aattach_master(
    hub: "Hub",
    name: str,
    backend: Backend | StoreBackend = Backend.Memory,
    options: Mapping[str, Any] | None = None,
    *,
    store_options: StoreOptions | None = None,
) -> Store:
    """Make the master of a store; the awaitable twin of `attach_master`."""
    made = _checked_backend(backend, options)
    _claim(hub, name)
    try:
        search = hub.node.find(_master_name(name), SEARCH_TIMEOUT)
        try:
            await search
        except NotRegistered:
            pass
        _judge(search, name, 0.0)
        return _start_master(hub, name, made, store_options)
    finally:
        _release(hub, name)


def attach_clone(hub: "Hub", name: str, *, store_options: CloneOptions | None = None) -> Store:
    """Make a clone of a store; its master may be anywhere in reach, or come later.

    Args:
        hub: of the node that it lives on.
        name: of the store.
        store_options: times.
    """
    checked_topic(clone_topic(name))
    port = Port(hub, name)
    options = store_options or CloneOptions()
    ref = hub.node.runtime.spawn(CloneActor, (port, options))
    ref.target.monitor(("store", name), lambda down: _ended(port, None, down))
    count_store(hub, port)
    return Store(port, ref, is_master=False, options=options)


def _start_master(
    hub: "Hub", name: str, backend: StoreBackend, options: StoreOptions | None
) -> Store:
    node = hub.node
    contents = backend.open(wall_offset(node.runtime.runner.now))
    port = Port(hub, name)
    options = options or StoreOptions()
    try:
        ref = node.runtime.spawn(MasterActor, (port, backend, contents, options))
    except BaseException:
        backend.close()
        raise
    node.register(_master_name(name), ref)
    ref.target.monitor(("store", name), lambda down: _ended(port, backend, down))
    count_store(hub, port)
    return Store(port, ref, is_master=True, options=options)


def _ended(port: Port, backend: StoreBackend | None, down: Down) -> None:
    """The actor of a store ended: by itself, or with its node."""
    port.close(StoreClosed(f"the store {port.name!r} ended: {down.detail or down.reason}"))
    if backend is not None:
        backend.close()


def _checked_backend(
    backend: Backend | StoreBackend, options: Mapping[str, Any] | None
) -> StoreBackend:
    return make_backend(backend, options) if isinstance(backend, Backend) else backend


def _master_name(name: str) -> str:
    """Return the name in the directories of nodes; a store's own name may have any letters."""
    return f"callboard.master.{checked_topic(name).encode().hex()}"


def _judge(search: Future[Any], name: str, timeout: float) -> None:
    try:
        found = search.result(timeout)
    except NotRegistered:
        return
    msg = f"the store {name!r} has a master at {found}; attach a clone instead"
    raise MasterExists(msg)


def _claim(hub: "Hub", name: str) -> None:
    """Let nobody else on this node make the same master meanwhile."""
    with hub.lock:
        if name in hub.claims:
            msg = f"a master of the store {name!r} is being made on this node already"
            raise MasterExists(msg)
        hub.claims.add(name)


def _release(hub: "Hub", name: str) -> None:
    with hub.lock:
        hub.claims.discard(name)
