"""Making masters and clones on a node."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final
from uuid import UUID

from callboard.endpoint.hub import Hub
from callboard.kernel.checks import wrong_argument
from callboard.kernel.errors import NotPermitted, NotRegistered, WrongValue
from callboard.kernel.reply import Future
from callboard.model.errors import InvalidData
from callboard.store.backend.interface import Backend, MemoryBackend, StoreBackend
from callboard.store.backend.sqlite import SqliteBackend, SqliteOptions
from callboard.store.errors import MasterExists
from callboard.store.machine.clone import Clone
from callboard.store.machine.command import EntityId
from callboard.store.machine.master import Master
from callboard.store.options import CloneOptions, StoreOptions
from callboard.store.store import Store
from callboard.store.store_actor import StoreActor, master_name
from callboard.store.store_metrics import count_store

#: Seconds that the nodes in reach may take to say whether they have a master of a name.
SEARCH_TIMEOUT: Final = 2.0


def attach_master(
    hub: Hub,
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
    check_store_name(name)
    made = make_backend(backend, options)
    with _claimed(hub, name):
        _judge(hub.node.find(master_name(name), SEARCH_TIMEOUT), name, SEARCH_TIMEOUT * 2)
        return _start_master(hub, name, made, store_options)


async def aattach_master(
    hub: Hub,
    name: str,
    backend: Backend | StoreBackend = Backend.Memory,
    options: Mapping[str, Any] | None = None,
    *,
    store_options: StoreOptions | None = None,
) -> Store:
    """Make the master of a store; the awaitable twin of `attach_master`."""
    made = make_backend(backend, options)
    with _claimed(hub, name):
        search = hub.node.find(master_name(name), SEARCH_TIMEOUT)
        with suppress(NotRegistered, NotPermitted):
            await search
        _judge(search, name, 0.0)
        return _start_master(hub, name, made, store_options)


def attach_clone(hub: Hub, name: str, *, store_options: CloneOptions | None = None) -> Store:
    """Make a clone of a store; its master may be anywhere in reach, or come later.

    Args:
        hub: of the node that it lives on.
        name: of the store.
        store_options: times.
    """
    check_store_name(name)
    make_entity = partial(_make_entity, hub)

    def make_clone(now: float) -> Clone:
        return Clone(make_entity(), make_entity, now, store_options)

    return Store(_start(hub, name, make_clone, None))


def check_store_name(name: object) -> None:
    """Look whether a store can have a name.

    Raises:
        WrongArgument: it is no text.
        WrongValue: it is empty.
    """
    if not isinstance(name, str):
        msg = "the name of a store is a text"
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
    """Return a sender of commands that was not there before."""
    return EntityId(UUID(bytes=hub.endpoint_id), hub.make_object())


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


def make_backend(
    backend: Backend | StoreBackend, options: Mapping[str, Any] | None
) -> StoreBackend:
    """Return the backend that a user named or made.

    Raises:
        InvalidData: options that it does not have.
    """
    if not isinstance(backend, Backend):
        return backend
    if backend is Backend.SQLite:
        return SqliteBackend(SqliteOptions.read(options or {}))
    if options:
        msg = f"the memory backend has no option {next(iter(options))!r}"
        raise InvalidData(msg)
    return MemoryBackend()


def _judge(search: Future[Any], name: str, timeout: float) -> None:
    """Refuse a name that has a master somewhere in reach."""
    try:
        found = search.result(timeout)
    except (NotRegistered, NotPermitted):  # a leaf may have a store for itself alone
        return
    msg = f"the store {name!r} has a master at {found}; attach a clone instead"
    raise MasterExists(msg)


@contextmanager
def _claimed(hub: Hub, name: str) -> Iterator[None]:
    """Let nobody else on this node make the same master meanwhile."""
    with hub.lock:
        if name in hub.claims:
            msg = f"a master of the store {name!r} is being made on this node already"
            raise MasterExists(msg)
        hub.claims.add(name)
    try:
        yield
    finally:
        with hub.lock:
            hub.claims.discard(name)
