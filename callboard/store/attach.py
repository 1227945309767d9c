"""Creates masters and clones of stores on a node."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final
from uuid import UUID

from callboard.arguments import wrong_argument
from callboard.kernel.errors import NotPermitted, NotRegistered, WrongValue
from callboard.kernel.reply import Future
from callboard.store.backend.interface import Backend, StoreBackend
from callboard.store.backend.registry import make_backend
from callboard.store.errors import MasterExists
from callboard.store.machine.clone import Clone
from callboard.store.machine.command import EntityId
from callboard.store.machine.master import Master
from callboard.store.options import CloneOptions, StoreOptions
from callboard.store.store import Store
from callboard.store.store_actor import StoreActor, master_name
from callboard.store.store_metrics import count_store
from callboard.topics.hub import Hub

#: Seconds to wait for reachable nodes to report a master of the name.
SEARCH_TIMEOUT: Final = 2.0


def attach_master(
    hub: Hub,
    name: str,
    backend: Backend | StoreBackend = Backend.Memory,
    options: Mapping[str, Any] | None = None,
    *,
    store_options: StoreOptions | None = None,
) -> Store:
    """Create the master of a store. The network may have only one master for each name.

    Args:
        hub: hub of the master's node.
        name: name of the store.
        backend: storage of the values.
        options: options of the backend.
        store_options: times of the store's channels.

    Raises:
        MasterExists: a reachable node has a master of this name.
        BackendFailure: the file cannot be opened.
        InvalidData: the backend does not have an option.
        WouldBlock: called on the thread of a running event loop; await `aattach_master`.
    """
    check_store_name(name)
    storage = make_backend(backend, options)
    with _claimed(hub, name):
        _check_unique(
            hub.node.find(master_name(name), SEARCH_TIMEOUT), name, SEARCH_TIMEOUT * 2
        )
        return _start_master(hub, name, storage, store_options)


async def aattach_master(
    hub: Hub,
    name: str,
    backend: Backend | StoreBackend = Backend.Memory,
    options: Mapping[str, Any] | None = None,
    *,
    store_options: StoreOptions | None = None,
) -> Store:
    """Create the master of a store; the awaitable twin of `attach_master`."""
    storage = make_backend(backend, options)
    with _claimed(hub, name):
        search = hub.node.find(master_name(name), SEARCH_TIMEOUT)
        with suppress(NotRegistered, NotPermitted):
            await search
        _check_unique(search, name, 0.0)
        return _start_master(hub, name, storage, store_options)


def attach_clone(hub: Hub, name: str, *, store_options: CloneOptions | None = None) -> Store:
    """Create a clone of a store. Its master may be on any reachable node, or start later.

    Args:
        hub: hub of the clone's node.
        name: name of the store.
        store_options: times of the store's channels.
    """
    check_store_name(name)
    make_entity = partial(_make_entity, hub)

    def make_clone(now: float) -> Clone:
        return Clone(make_entity(), make_entity, now, store_options)

    return Store(_start(hub, name, make_clone, None))


def check_store_name(name: object) -> None:
    """Check the name of a store.

    Raises:
        WrongArgument: the name is not a text.
        WrongValue: the name is empty.
    """
    if not isinstance(name, str):
        msg = "the name of a store must be a text"
        raise wrong_argument(msg, name)
    if not name:
        msg = "a store needs a name, the same for its master and its clones"
        raise WrongValue(msg)


def _start_master(
    hub: Hub, name: str, backend: StoreBackend, options: StoreOptions | None
) -> Store:
    """Open the backend and start the actor of a master."""
    contents = backend.open(time.time_ns() / 1e9 - hub.runtime.now())

    def make_master(_now: float) -> Master:
        return Master(
            _make_entity(hub),
            options,
            rows=contents.rows,
            writers=contents.writers,
            unreadable=contents.unreadable,
            is_durable=backend.is_durable,
        )

    try:
        actor = _start(hub, name, make_master, backend)
    except BaseException:
        backend.close()
        raise
    hub.node.register(master_name(name), actor.me)
    return Store(actor)


def _make_entity(hub: Hub) -> EntityId:
    """Return a new, unique id for a sender of commands."""
    return EntityId(UUID(bytes=hub.endpoint_id), hub.new_object_id())


def _start(
    hub: Hub,
    name: str,
    make_machine: Callable[[float], Master | Clone],
    backend: StoreBackend | None,
) -> StoreActor:
    """Start the actor of a store."""
    runtime = hub.node.context
    ref = runtime.start_actor(StoreActor, (hub, name, make_machine, backend))
    actor: StoreActor = runtime.contexts[ref.actor_id].actor
    count_store(actor)
    return actor


def _check_unique(search: Future[Any], name: str, timeout: float) -> None:
    """Raise `MasterExists` if a reachable node has a master of the name."""
    try:
        master = search.result(timeout)
    except (NotRegistered, NotPermitted):  # on a leaf, the store is private
        return
    msg = f"the store {name!r} has a master at {master}; attach a clone instead"
    raise MasterExists(msg)


@contextmanager
def _claimed(hub: Hub, name: str) -> Iterator[None]:
    """Prevent the creation of a second master of the name on this node at the same time."""
    with hub.lock:
        if name in hub.claims:
            msg = f"a master of the store {name!r} is being created on this node already"
            raise MasterExists(msg)
        hub.claims.add(name)
    try:
        yield
    finally:
        with hub.lock:
            hub.claims.discard(name)
