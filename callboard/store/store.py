"""`Store`: a handle of a master or a clone, with the methods of Broker's Python package.

Every blocking method `x` has an awaitable twin `ax` with the same signature. A value is stored
as it is when the method is called; later changes of a list are not stored.
"""

import asyncio
import datetime
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from callboard.closing import Closing
from callboard.kernel.context import current_cell
from callboard.kernel.errors import NodeClosed, ResultTimeout, WouldBlock
from callboard.kernel.reply import Future
from callboard.model.data import DataType
from callboard.model.errors import InvalidData
from callboard.model.timespan import Timespan
from callboard.store import errors
from callboard.store.machine.arithmetic import index_of
from callboard.store.machine.change import StoreEvent
from callboard.store.machine.clone import Clone
from callboard.store.machine.command import Action, Command
from callboard.store.machine.master import Master
from callboard.store.machine.stored import (
    Stored,
    Token,
    data_of,
    key_of,
    python_of,
    stored_of,
    token_of,
)
from callboard.store.store_actor import StoreActor
from callboard.support.aliases import alias
from callboard.support.items import Items
from callboard.topics.message_queue import MessageQueue

#: Seconds that `await_idle` waits.
AWAIT_IDLE_TIMEOUT: Final = 15.0

#: Seconds that `close` waits for the disk.
CLOSE_TIMEOUT: Final = 15.0

#: Seconds that a read waits for earlier writes of this node.
SETTLE_TIMEOUT: Final = 15.0

#: Seconds that the master has to answer a request.
ANSWER_TIMEOUT: Final = 15.0

#: Time until a key expires, in seconds or as a timespan; None: it does not expire.
Expiry = float | datetime.timedelta | Timespan | None


P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])

#: The entries of a master or clone.
Entries = dict[Token, Stored]

# ------------------------------------------------- reads: functions of the entries


def reads(
    read: Callable[Concatenate[Entries, P], T],
) -> Callable[Concatenate["Store", P], T]:
    """Return the method of a read; it waits until the entries can be read."""

    def method(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return read(self._entries(), *args, **kwargs)

    return _named(method, read, "")


def areads(
    read: Callable[Concatenate[Entries, P], T],
) -> Callable[Concatenate["Store", P], Coroutine[Any, Any, T]]:
    """Return the awaitable method of a read."""

    async def method(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return read(await self._aentries(), *args, **kwargs)

    return _named(method, read, "a")


def _get(entries: Entries, key: Any) -> Any:
    """Return the value of a key; None if it has none.

    Raises:
        NoSuchMaster: this clone has never reached its master.
        StaleData: this clone has been without its master for too long.
        StoreClosed: the store was closed.
        WouldBlock: called on the thread of a running event loop; await `aget`.
    """
    return python_of(entries.get(token_of(key)))


def _exists(entries: Entries, key: Any) -> bool:
    """Return whether a key has a value. Raises as `get`."""
    return token_of(key) in entries


def _keys(entries: Entries) -> set[Any]:
    """Return all keys. Raises as `get`."""
    return set(map(key_of, list(entries)))


def _get_index_from_value(entries: Entries, key: Any, index: Any) -> Any:
    """Return the element at an index of a key's value.

    For a set it is whether the set has the member, for a table the value of a key, for a
    vector the element at a position; None if the key or the index does not exist.

    Raises:
        TypeClash: the value is not a set, table or vector.
        EndpointError: as for `get`.
    """
    with suppress(KeyError):
        return index_of(entries[token_of(key)], index)
    return None


# ------------------------------------------------- writes: functions that return a command


def writes(build: Callable[P, Action]) -> Callable[Concatenate["Store", P], None]:
    """Return the method that writes the command of a function."""

    def method(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> None:
        self._actor.write(build(*args, **kwargs))

    return _named(method, build, "", has_owner=False)


def awrites(
    build: Callable[P, Action],
) -> Callable[Concatenate["Store", P], Coroutine[Any, Any, None]]:
    """Return the awaitable method, which waits for room; the command is made when it starts."""

    async def method(self: "Store", /, *args: P.args, **kwargs: P.kwargs) -> None:
        await self._awrite(build(*args, **kwargs))

    return _named(method, build, "a", has_owner=False)


def _named(
    method: F, function: Callable[..., object], prefix: str, *, has_owner: bool = True
) -> F:
    """Give a method of `Store` the name, documentation and parameters of a function.

    The place of `self` is the first parameter of the function, unless it has no such owner.
    """
    name = function.__name__.removeprefix("_")
    described: Any = method
    described.__name__, described.__qualname__ = prefix + name, f"Store.{prefix}{name}"
    described.__doc__ = f"Awaitable twin of `{name}`." if prefix else function.__doc__
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if has_owner else 0 :]
    owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    described.__signature__ = signature.replace(
        parameters=[owner, *parameters],
        return_annotation=signature.return_annotation if has_owner else None,
    )
    return method


#: A global name is looked up faster than an attribute of a class, and puts are frequent.
_PUT: Final = Command.PUT


def _put(key: Any, value: Any, expiry: Expiry = None) -> Action:
    """Set the value of a key.

    Args:
        key: any value of the data model.
        value: any value of the data model, as it is at the time of the call.
        expiry: seconds (or a timespan) after which the key is removed.

    Raises:
        EndpointError: the key, value or expiry is not one of the data model.
        StoreError: the store is closed, or its backend failed.
    """
    return _PUT, token_of(key), stored_of(value), None if expiry is None else _ns(expiry)


def _erase(key: Any) -> Action:
    """Remove a key. Raises as `put`."""
    return Command.ERASE, token_of(key)


def _clear() -> Action:
    """Remove all keys. Raises as `put`."""
    return (Command.CLEAR,)


def _increment(key: Any, amount: Any = 1, expiry: Expiry = None) -> Action:
    """Add to a number, or a timespan to a time. A missing key starts from zero.

    The master computes the new value. An amount that does not fit the type of the value
    changes nothing; the master's node logs it and reports an event `CommandsRefused`.
    """
    return _add(key, amount, None, expiry)


def _decrement(key: Any, amount: Any = 1, expiry: Expiry = None) -> Action:
    """Subtract from a number or a time; a missing key is refused, see `increment`."""
    return _subtract(key, amount, expiry)


def _append(key: Any, text: str, expiry: Expiry = None) -> Action:
    """Append to a string; a missing key starts from an empty one."""
    return _add(key, text, DataType.String, expiry)


def _insert_into(
    key: Any, index: Any, *args: Any, value: Any = None, expiry: Expiry = None
) -> Action:
    """Insert a member into a set or, given a value too, an entry into a table.

    Args:
        key: key of the set or table.
        index: the member, or the key of the entry.
        args: the value, and an expiry.
        value: the value, by keyword; None for a member of a set.
        expiry: time until `key` expires, with the whole set or table.
    """
    if len(args) > 2 or (args and value is not None) or (args[1:] and expiry is not None):
        msg = "insert_into takes a key, an index, one value and one expiry"
        raise TypeError(msg)
    expiry = args[1] if args[1:] else expiry
    if args or value is not None:
        return _add(key, (index, args[0] if args else value), DataType.Table, expiry)
    return _add(key, index, DataType.Set, expiry)


def _remove_from(key: Any, index: Any, expiry: Expiry = None) -> Action:
    """Remove a member of a set, or an entry of a table."""
    return _subtract(key, index, expiry)


def _push(key: Any, value: Any, expiry: Expiry = None) -> Action:
    """Append an element to a vector; a missing key starts from an empty one."""
    return _add(key, value, DataType.Vector, expiry)


def _pop(key: Any, expiry: Expiry = None) -> Action:
    """Remove the last element of a vector."""
    return _subtract(key, None, expiry)


def _add(key: Any, value: Any, initial: DataType | None, expiry: Expiry) -> Action:
    """Return an addition; a missing key starts from an empty value of `initial`'s type.

    Without `initial` it is the type of the value.
    """
    stored = stored_of(value)
    kind = initial or data_of(stored).get_type()
    return Command.ADD, token_of(key), stored, int(kind), _ns(expiry)


def _subtract(key: Any, value: Any, expiry: Expiry) -> Action:
    """Return a subtraction."""
    return Command.SUBTRACT, token_of(key), stored_of(value), _ns(expiry)


def _ns(expiry: Any) -> int | None:
    """Return an expiry in nanoseconds."""
    match expiry:
        case None:
            return None
        case Timespan():
            return expiry.count()
        case datetime.timedelta():
            return Timespan.from_timedelta(expiry).count()
        case int() | float() if not isinstance(expiry, bool):
            # `float` raises OverflowError for an integer beyond the largest float.
            return Timespan(
                float(max(-sys.float_info.max, min(expiry, sys.float_info.max)))
            ).count()
    label = "a bool" if isinstance(expiry, bool) else f"{expiry!r:.60}"
    msg = f"an expiry must be a number of seconds or a timespan, not {label}"
    raise InvalidData(msg)


class Store(Closing):
    """A master or a clone of a store, for any thread.

    Reads use the copy on this node. On a master they see all earlier writes of this node; on a
    clone they see a write after the master has sent it back. Writes return at once;
    `await_idle` waits until the master has acknowledged them.
    """

    def __init__(self, actor: StoreActor) -> None:
        """Use `attach_master` or `attach_clone`."""
        self._actor = actor
        #: Whether this is the master.
        self.is_master = isinstance(actor.machine, Master)

    def name(self) -> str:
        """Return the name of the store."""
        return self._actor.name

    def node_id(self) -> str:
        """Return the id of its endpoint."""
        return str(self._actor.machine.entity.endpoint)

    @property
    def is_closed(self) -> bool:
        """Whether the store has ended."""
        return self._actor.error is not None

    # --- reading ---

    def __len__(self) -> int:
        """Return the number of keys. Raises as `get`."""
        return len(self._entries())

    def _entries(self) -> Entries:
        """Return the entries; wait until they can be read."""
        if asyncio._get_running_loop() is not None and current_cell.get() is None:  # noqa: SLF001
            msg = "reading a store may block the running event loop; await the twins: aget …"
            raise WouldBlock(msg)
        if not self._can_read():
            try:
                self._actor.readable().result(self._read_timeout())
            except ResultTimeout as cause:
                raise self._unreachable() from cause
        return self._checked_entries()

    async def _aentries(self) -> Entries:
        """Return the entries; the awaitable twin of `_entries`."""
        if not self._can_read():
            readable = self._actor.readable()
            try:
                await self._actor.within(readable, self._read_timeout())
            except TimeoutError as cause:
                raise self._unreachable() from cause
        return self._checked_entries()

    get, aget = reads(_get), areads(_get)
    exists, aexists = reads(_exists), areads(_exists)
    keys, akeys = reads(_keys), areads(_keys)
    get_index_from_value = reads(_get_index_from_value)
    aget_index_from_value = areads(_get_index_from_value)

    def when_readable(self, read: Callable[[], object]) -> None:
        """Call `read` when it can read without a wait, or when the wait has failed."""
        if self._can_read():
            read()
            return
        readable = self._actor.readable()
        self._actor.expire_in(readable, self._read_timeout())
        readable.on_done(lambda _: read())

    def _can_read(self) -> bool:
        """Return whether a read needs no wait."""
        machine = self._actor.machine
        return machine.has_copy if isinstance(machine, Clone) else self._actor.is_readable()

    def _read_timeout(self) -> float:
        """Return the seconds that a read may wait."""
        machine = self._actor.machine
        return machine.options.max_get_delay if isinstance(machine, Clone) else SETTLE_TIMEOUT

    def _unreachable(self) -> Exception:
        """Return the error of a read whose wait has timed out."""
        name = self._actor.name
        if self.is_master:
            return errors.RequestTimeout(
                f"the master of the store {name!r} has not executed earlier writes within "
                f"{self._read_timeout():g} s; is its node busy?"
            )
        msg = (
            f"the clone of the store {name!r} has not found its master within "
            f"{self._read_timeout():g} s; is a node with the master reachable?"
        )
        return errors.NoSuchMaster(msg)

    def _checked_entries(self) -> Entries:
        """Return the entries; raise if they are stale or the store has ended."""
        actor = self._actor
        if actor.error is not None:
            raise actor.error
        machine = actor.machine
        if isinstance(machine, Clone) and machine.lost_at is not None:
            now = actor.now()
            if machine.is_stale(now):
                msg = (
                    f"the clone of the store {actor.name!r} has been without its master for "
                    f"{now - machine.lost_at:.0f} s"
                )
                raise errors.StaleData(msg)
        return machine.entries

    # --- writing ---

    def put_unique(self, key: Any, value: Any, expiry: Expiry = None) -> bool:
        """Set the value of a key if it has none, and return whether it was set.

        The master decides, so one of several concurrent callers gets True.

        Raises:
            RequestTimeout: the master did not answer; it may have put the value or not.
            EndpointError: as for `put`.
        """
        request, future = self._ask_unique(key, value, expiry)
        try:
            return future.result(ANSWER_TIMEOUT)
        except ResultTimeout as cause:
            raise self._no_answer(request) from cause

    async def aput_unique(self, key: Any, value: Any, expiry: Expiry = None) -> bool:
        """Set the value of a key if it has none, and return whether it was set."""
        request, future = self._ask_unique(key, value, expiry)
        try:
            return await self._actor.within(future, ANSWER_TIMEOUT)
        except TimeoutError as cause:
            raise self._no_answer(request) from cause

    async def _awrite(self, action: Action) -> None:
        """Write a command, once there is room for another one."""
        while not self._actor.has_room():
            await self._actor.readable()
        self._actor.write(action)

    aput = awrites(_put)

    def put(self, key: Any, value: Any, expiry: Expiry = None) -> None:
        """Set the value of a key.

        Args:
            key: any value of the data model.
            value: any value of the data model, as it is at the time of the call.
            expiry: seconds (or a timespan) after which the key is removed.

        Raises:
            EndpointError: the key, value or expiry is not one of the data model.
            StoreError: the store is closed, or its backend failed.
        """
        # By hand, as the calls of `writes` would cost a tenth of it.
        self._actor.write(_put(key, value, expiry))

    erase, aerase = alias(data="key")(writes(_erase)), awrites(_erase)
    clear, aclear = writes(_clear), awrites(_clear)
    increment, aincrement = writes(_increment), awrites(_increment)
    decrement, adecrement = writes(_decrement), awrites(_decrement)
    append, aappend = alias(s="text")(writes(_append)), awrites(_append)
    insert_into, ainsert_into = writes(_insert_into), awrites(_insert_into)
    remove_from, aremove_from = writes(_remove_from), awrites(_remove_from)
    push, apush = writes(_push), awrites(_push)
    pop, apop = writes(_pop), awrites(_pop)

    def ask_unique(self, key: Any, value: Any, expiry: Expiry = None) -> Future[bool]:
        """Send a `put_unique`, and return the future of its answer."""
        return self._ask_unique(key, value, expiry)[1]

    def _ask_unique(self, key: Any, value: Any, expiry: Expiry) -> tuple[int, Future[bool]]:
        """Send a `put_unique`, and return its request and the future of its answer."""
        _, *fields = _put(key, value, expiry)  # raises before the request is registered
        request, future = self._actor.question()
        asker = self._actor.machine.entity.plain
        self._actor.write((Command.PUT_UNIQUE, *fields, asker, request))
        return request, future

    def _no_answer(self, request: int) -> errors.RequestTimeout:
        """Drop a request, and return the error for its caller."""
        self._actor.forget(request)
        msg = (
            f"the master of the store {self._actor.name!r} did not answer within "
            f"{ANSWER_TIMEOUT:g} s; it may have put the value or not"
        )
        return errors.RequestTimeout(msg)

    # --- waiting and watching ---

    def await_idle(
        self,
        timeout: float = AWAIT_IDLE_TIMEOUT,
        callback: Callable[[bool], object] | None = None,
    ) -> bool | None:
        """Wait until the store is idle; return False after `timeout` seconds.

        A master is idle when all clones have acknowledged the last command, no handshake is
        pending, no command of a writer waits, and all changes are as durable as its backend
        promises. A clone is idle when it is connected, misses no command, and the master has
        acknowledged (and so made durable) all of its writes.

        With a callback it returns None at once, and later calls `callback(result)` on the
        node's thread.
        """
        future = self._actor.idle()
        if callback is not None:
            on_result = callback
            self._actor.expire_in(future, timeout)
            # On the node's thread, even if the caller's thread runs an event loop.
            future.on_done(lambda done: on_result(done.exception() is None and done.result(0)))
            return None
        try:
            return future.result(timeout)
        except (ResultTimeout, errors.StoreClosed):
            future.cancel()
            return False

    async def aawait_idle(
        self,
        timeout: float = AWAIT_IDLE_TIMEOUT,
        callback: Callable[[bool], object] | None = None,
    ) -> bool | None:
        """Wait until the store is idle; return False after `timeout` seconds."""
        if callback is not None:
            return self.await_idle(timeout, callback)
        try:
            return await self._actor.within(self._actor.idle(), timeout)
        except (TimeoutError, errors.StoreClosed):
            return False

    def watch(self, prefix: str = "") -> AsyncIterator[StoreEvent]:
        """Iterate over the changes of keys with a prefix.

        A slow watcher loses the oldest changes beyond 65,536. A cancelled wait for the next
        change loses none.
        """
        watching = ExitStack()
        queues: list[MessageQueue[StoreEvent]] = []

        async def next_event() -> StoreEvent:
            if not queues:  # the first wait starts the queue of changes
                queues.append(watching.enter_context(self.changes(prefix)))
            return await queues[0].aget()

        return Items(next_event, watching.close, ends=(EOFError,))

    @contextmanager
    def changes(self, prefix: str = "") -> Iterator[MessageQueue[StoreEvent]]:
        """Provide a queue of the changes of keys with a prefix: `queue.get(timeout)`."""
        queue = self._actor.watch(prefix)
        try:
            yield queue
        finally:
            self._actor.unwatch(queue)

    def close_with_node(self, queue: MessageQueue[Any]) -> None:
        """Close a queue of answers when the node ends."""
        self._actor.close_with_node(queue)

    def mapping(self) -> "StoreMapping":
        """Return the store as a mutable mapping."""
        return StoreMapping(self)

    def proxy(self) -> "StoreProxy":
        """Return a proxy, which sends requests without waiting for their answers."""
        return StoreProxy(self)

    # --- the end ---

    def close(self) -> None:
        """Detach: end this master or clone after all of its writes. Idempotent."""
        future = self._actor.detach()
        if current_cell.get() is not None:
            return  # the node can end the store only after this handler has returned
        try:
            with suppress(NodeClosed):  # the end of the node has ended the store
                future.result(CLOSE_TIMEOUT)
        except ResultTimeout:
            self._actor.me.kill()

    async def aclose(self) -> None:
        """Detach: end this master or clone after all of its writes."""
        future = self._actor.detach()
        try:
            with suppress(NodeClosed):  # the end of the node has ended the store
                await self._actor.within(future, CLOSE_TIMEOUT)
        except TimeoutError:
            self._actor.me.kill()

    def __repr__(self) -> str:
        return f"<{self._actor.machine.role} of store {self._actor.name!r}>"


# ------------------------------------------------------------------------- other views


class StoreMapping(MutableMapping[Any, Any]):
    """A store as a mutable mapping; a clone sees a write after its master has sent it back.

    `mapping[key] = value` puts, `del mapping[key]` erases. Deletion raises `KeyError` if this
    copy does not have the key. No method waits for an answer of the master.
    """

    def __init__(self, store: Store) -> None:
        """Use `store.mapping()`."""
        self._store = store

    def __getitem__(self, key: Any) -> Any:
        value = self._store.get(key)
        if value is None and not self._store.exists(key):
            raise errors.NoSuchKey(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._store.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self._store.exists(key):
            raise errors.NoSuchKey(key)
        self._store.erase(key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._store.keys())

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, key: object) -> bool:
        return self._store.exists(key)

    def clear(self) -> None:
        """Remove all keys, as one command."""
        self._store.clear()

    def __repr__(self) -> str:
        return f"<mapping of {self._store!r}>"


class StoreResponse(NamedTuple):
    """The answer to a request of a proxy.

    Attributes:
        id: number of the request.
        answer: the result; None after an error.
        error: the error, or None.
    """

    id: int
    answer: Any
    error: Exception | None = None


class StoreProxy:
    """Requests to a store without waits; each request has a number and gets one answer."""

    def __init__(self, store: Store) -> None:
        """Use `store.proxy()`."""
        self._store = store
        self._requests = count(1)
        self._mailbox: MessageQueue[StoreResponse] = MessageQueue()
        store.close_with_node(self._mailbox)

    def exists(self, key: Any) -> int:
        """Request whether a key has a value; return the number of the request."""
        return self._read(lambda: self._store.exists(key))

    def get(self, key: Any) -> int:
        """Request the value of a key."""
        return self._read(lambda: self._store.get(key))

    def keys(self) -> int:
        """Request all keys."""
        return self._read(self._store.keys)

    def get_index_from_value(self, key: Any, index: Any) -> int:
        """Request the element at an index of a key's value."""
        return self._read(lambda: self._store.get_index_from_value(key, index))

    def put_unique(self, key: Any, value: Any, expiry: Expiry = None) -> int:
        """Request to put a value if the key has none."""
        request = next(self._requests)

        def answered(future: Future[bool]) -> None:
            self._answer(request, lambda: future.result(0))

        self._store.ask_unique(key, value, expiry).on_done(answered)
        return request

    def available(self) -> int:
        """Return the number of answers that wait."""
        return self._mailbox.available()

    def fd(self) -> int:
        """Return a file descriptor that is readable while answers wait."""
        return self._mailbox.fd()

    def receive(self, timeout: float | None = None) -> StoreResponse | None:
        """Return the next answer; None if none arrives within `timeout` seconds."""
        return self._mailbox.get(timeout)

    async def areceive(self) -> StoreResponse:
        """Return the next answer."""
        return await self._mailbox.aget()

    def _read(self, read: Callable[[], Any]) -> int:
        """Read as soon as that needs no wait; return the number of the request."""
        request = next(self._requests)
        self._store.when_readable(lambda: self._answer(request, read))
        return request

    def _answer(self, request: int, read: Callable[[], Any]) -> None:
        """Put the outcome of a read into the mailbox."""
        try:
            response = StoreResponse(request, read())
        except Exception as error:  # noqa: BLE001  # the caller receives it as the answer
            response = StoreResponse(request, None, error)
        self._mailbox.take([response])
