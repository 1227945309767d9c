"""`Store`: what users hold of a master or a clone. Methods as in Broker's Python package.

Every blocking method `x` has a twin `ax` to be awaited, with the same signature. Values are
taken as they are when a method is called: later changes of a list are not stored.
"""

import asyncio
import datetime
import sys
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any, Final, NamedTuple

from callboard.endpoint.message_queue import MessageQueue
from callboard.kernel.context import current_cell
from callboard.kernel.errors import NodeClosed, ResultTimeout, WouldBlock
from callboard.kernel.reply import Future
from callboard.kernel.twins import Closing
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

#: Seconds that `await_idle` waits.
AWAIT_IDLE_TIMEOUT: Final = 15.0

#: Seconds that `close` waits for the disk.
CLOSE_TIMEOUT: Final = 15.0

#: Seconds that a read waits for what was written before it.
SETTLE_TIMEOUT: Final = 15.0

#: Seconds that a question to the master may take.
ANSWER_TIMEOUT: Final = 15.0

#: How long a key lives, in seconds or as a span of time; None: for ever.
Expiry = float | datetime.timedelta | Timespan | None


class Store(Closing):
    """A master or a clone of a store, for any thread.

    Reads look at the copy on this node. On a master they see all that was written through it
    before; on a clone they see a write when it has come back from the master. Writes return at
    once; `await_idle` tells when they have arrived.
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
        """Return the id of the endpoint that it lives on."""
        return str(self._actor.machine.entity.endpoint)

    @property
    def is_closed(self) -> bool:
        """Whether the store has ended."""
        return self._actor.error is not None

    # --- reading ---

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if there is none.

        Raises:
            NoSuchMaster: a clone that has never reached its master.
            StaleData: a clone that lost its master too long ago.
            StoreClosed: the store was closed.
            WouldBlock: called on the thread of a running event loop; await `aget`.
        """
        return python_of(self._entries().get(token_of(key)))

    async def aget(self, key: Any) -> Any:
        """Return the value of a key, None if there is none."""
        return python_of((await self._aentries()).get(token_of(key)))

    def exists(self, key: Any) -> bool:
        """Return whether a key has a value. Raises as `get`."""
        return token_of(key) in self._entries()

    async def aexists(self, key: Any) -> bool:
        """Return whether a key has a value."""
        return token_of(key) in await self._aentries()

    def keys(self) -> set[Any]:
        """Return all keys. Raises as `get`."""
        return set(map(key_of, list(self._entries())))

    async def akeys(self) -> set[Any]:
        """Return all keys."""
        return set(map(key_of, list(await self._aentries())))

    def get_index_from_value(self, key: Any, index: Any) -> Any:
        """Return the element at an index of a key's value.

        That is whether a set holds it, what a table has under it, or the element of a vector;
        None if there is no such key or index.

        Raises:
            TypeClash: the value has no elements.
            EndpointError: as `get`.
        """
        return _element(self._entries(), key, index)

    async def aget_index_from_value(self, key: Any, index: Any) -> Any:
        """Return the element at an index of a key's value."""
        return _element(await self._aentries(), key, index)

    def __len__(self) -> int:
        """Return the number of keys. Raises as `get`."""
        return len(self._entries())

    def _entries(self) -> dict[Token, Stored]:
        """Return the entries, after a wait where one is needed."""
        if asyncio._get_running_loop() is not None and current_cell.get() is None:  # noqa: SLF001
            msg = "reading a store may block the running event loop; await the twins: aget …"
            raise WouldBlock(msg)
        if not self._can_read():
            try:
                self._actor.settle().result(self._patience())
            except ResultTimeout as cause:
                raise self._unreachable() from cause
        return self._checked_entries()

    async def _aentries(self) -> dict[Token, Stored]:
        """Return the entries; the awaitable twin of `_entries`."""
        if not self._can_read():
            settled = self._actor.settle()
            try:
                await self._actor.within(settled, self._patience())
            except TimeoutError as cause:
                raise self._unreachable() from cause
        return self._checked_entries()

    def when_readable(self, read: Callable[[], object]) -> None:
        """Call something that reads when reading it needs no waiting, or has failed."""
        if self._can_read():
            read()
            return
        settled = self._actor.settle()
        self._actor.expire_in(settled, self._patience())
        settled.on_done(lambda _: read())

    def _can_read(self) -> bool:
        """Return whether a read needs no waiting."""
        machine = self._actor.machine
        return machine.has_copy if isinstance(machine, Clone) else self._actor.is_settled()

    def _patience(self) -> float:
        """Return the seconds that a read may wait."""
        machine = self._actor.machine
        return machine.options.max_get_delay if isinstance(machine, Clone) else SETTLE_TIMEOUT

    def _unreachable(self) -> Exception:
        """Return the error of a read that waited in vain."""
        name = self._actor.name
        if self.is_master:
            return errors.RequestTimeout(
                f"the master of the store {name!r} does not come to its turn"
            )
        msg = (
            f"the clone of the store {name!r} has not found its master within "
            f"{self._patience():g} s; is a node with the master in reach?"
        )
        return errors.NoSuchMaster(msg)

    def _checked_entries(self) -> dict[Token, Stored]:
        """Return the entries, unless they are too old or the store has ended."""
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

    def put(self, key: Any, value: Any, expiry: Expiry = None) -> None:
        """Set the value of a key.

        Args:
            key: any value of the data model.
            value: any value of the data model, as it is at this moment.
            expiry: seconds (or a span of time) after which the key is removed.

        Raises:
            EndpointError: the data model has no such key, value or expiry.
            StoreError: the store is closed, or its backend failed.
        """
        self._actor.write(_put(key, value, expiry))

    async def aput(self, key: Any, value: Any, expiry: Expiry = None) -> None:
        """Set the value of a key."""
        await self._awrite(_put(key, value, expiry))

    def put_unique(self, key: Any, value: Any, expiry: Expiry = None) -> bool:
        """Set the value of a key that has none; False when it has one. Atomic in the network.

        Raises:
            RequestTimeout: the master did not answer; it may have put the value or not.
            EndpointError: as `put`.
        """
        request, future = self._ask_unique(key, value, expiry)
        try:
            return future.result(ANSWER_TIMEOUT)
        except ResultTimeout as cause:
            raise self._no_answer(request) from cause

    async def aput_unique(self, key: Any, value: Any, expiry: Expiry = None) -> bool:
        """Set the value of a key that has none; False when it has one."""
        request, future = self._ask_unique(key, value, expiry)
        try:
            return await self._actor.within(future, ANSWER_TIMEOUT)
        except TimeoutError as cause:
            raise self._no_answer(request) from cause

    @alias(data="key")
    def erase(self, key: Any) -> None:
        """Remove a key. Raises as `put`."""
        self._actor.write((Command.ERASE, token_of(key)))

    async def aerase(self, key: Any) -> None:
        """Remove a key."""
        await self._awrite((Command.ERASE, token_of(key)))

    def clear(self) -> None:
        """Remove all keys. Raises as `put`."""
        self._actor.write((Command.CLEAR,))

    async def aclear(self) -> None:
        """Remove all keys."""
        await self._awrite((Command.CLEAR,))

    def increment(self, key: Any, amount: Any = 1, expiry: Expiry = None) -> None:
        """Add to a number, or a timespan to a time. A missing key starts from zero.

        Like all that changes values this happens at the master: what does not fit the type of
        the value changes nothing, is logged, and is an event `CommandsRefused` of its node.
        """
        self._actor.write(_add(key, amount, None, expiry))

    async def aincrement(self, key: Any, amount: Any = 1, expiry: Expiry = None) -> None:
        """Add to a number, or a timespan to a time."""
        await self._awrite(_add(key, amount, None, expiry))

    def decrement(self, key: Any, amount: Any = 1, expiry: Expiry = None) -> None:
        """Subtract from a number or a time; a missing key is refused, see `increment`."""
        self._actor.write(_subtract(key, amount, expiry))

    async def adecrement(self, key: Any, amount: Any = 1, expiry: Expiry = None) -> None:
        """Subtract from a number or a time."""
        await self._awrite(_subtract(key, amount, expiry))

    @alias(s="text")
    def append(self, key: Any, text: str, expiry: Expiry = None) -> None:
        """Append to a string; a missing key starts from an empty one."""
        self._actor.write(_add(key, text, DataType.String, expiry))

    async def aappend(self, key: Any, text: str, expiry: Expiry = None) -> None:
        """Append to a string."""
        await self._awrite(_add(key, text, DataType.String, expiry))

    def insert_into(
        self, key: Any, index: Any, *args: Any, value: Any = None, expiry: Expiry = None
    ) -> None:
        """Insert a member into a set or, given a value too, an entry into a table.

        Args:
            key: of the set or the table.
            index: the member, or the key of the entry.
            args: a value, and behind it an expiry.
            value: the value by name; None for a member of a set.
            expiry: how long the whole value of `key` is kept.
        """
        self._actor.write(_insert(key, index, args, value, expiry))

    async def ainsert_into(
        self, key: Any, index: Any, *args: Any, value: Any = None, expiry: Expiry = None
    ) -> None:
        """Insert a member into a set or, given a value too, an entry into a table."""
        await self._awrite(_insert(key, index, args, value, expiry))

    def remove_from(self, key: Any, index: Any, expiry: Expiry = None) -> None:
        """Remove a member of a set, or the entry of a table."""
        self._actor.write(_subtract(key, index, expiry))

    async def aremove_from(self, key: Any, index: Any, expiry: Expiry = None) -> None:
        """Remove a member of a set, or the entry of a table."""
        await self._awrite(_subtract(key, index, expiry))

    def push(self, key: Any, value: Any, expiry: Expiry = None) -> None:
        """Append an element to a vector; a missing key starts from an empty one."""
        self._actor.write(_add(key, value, DataType.Vector, expiry))

    async def apush(self, key: Any, value: Any, expiry: Expiry = None) -> None:
        """Append an element to a vector."""
        await self._awrite(_add(key, value, DataType.Vector, expiry))

    def pop(self, key: Any, expiry: Expiry = None) -> None:
        """Remove the last element of a vector."""
        self._actor.write(_subtract(key, None, expiry))

    async def apop(self, key: Any, expiry: Expiry = None) -> None:
        """Remove the last element of a vector."""
        await self._awrite(_subtract(key, None, expiry))

    async def _awrite(self, action: tuple[Any, ...]) -> None:
        """Write, after what waits has become less."""
        while not self._actor.has_room():
            await self._actor.settle()
        self._actor.write(action)

    def ask_unique(self, key: Any, value: Any, expiry: Expiry = None) -> Future[bool]:
        """Begin a `put_unique`; the future has its answer."""
        return self._ask_unique(key, value, expiry)[1]

    def _ask_unique(self, key: Any, value: Any, expiry: Expiry) -> tuple[int, Future[bool]]:
        """Begin a `put_unique`; returns its request and the future of its answer."""
        _, *fields = _put(key, value, expiry)  # what is wrong is said before anything is asked
        request, future = self._actor.question()
        self._actor.write(
            (Command.PUT_UNIQUE, *fields, self._actor.machine.entity.who, request)
        )
        return request, future

    def _no_answer(self, request: int) -> errors.RequestTimeout:
        """Forget a request, and return the error that it gets."""
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
        """Wait until the store is idle; False if it was not within `timeout` seconds.

        A master is idle when all clones have acknowledged the last command, no handshake is
        pending, no command of a writer waits, and everything is as durable as its backend
        promises. A clone is idle when it is connected, misses no command, and the master has
        acknowledged (which means: made durable) all that was written here.

        With a callback it returns None at once, and `callback(result)` is called later, on
        the node's thread.
        """
        future = self._actor.idle()
        if callback is not None:
            told = callback
            self._actor.expire_in(future, timeout)
            # On the node's thread, also if a loop runs here.
            future.on_done(lambda done: told(done.exception() is None and done.result(0)))
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
        """Wait until the store is idle; False if it was not within `timeout` seconds."""
        if callback is not None:
            return self.await_idle(timeout, callback)
        try:
            return await self._actor.within(self._actor.idle(), timeout)
        except (TimeoutError, errors.StoreClosed):
            return False

    def watch(self, prefix: str = "") -> AsyncIterator[StoreEvent]:
        """Iterate over the changes of keys that start with a text; of all keys without one.

        A watcher that is too slow misses the oldest changes beyond 65,536. A cancelled wait for
        the next change loses none.
        """
        watching = ExitStack()
        queues: list[MessageQueue[StoreEvent]] = []

        async def next_event() -> StoreEvent:
            if not queues:  # changes count from the first wait on
                queues.append(watching.enter_context(self.changes(prefix)))
            return await queues[0].aget()

        return Items(next_event, watching.close, ends=(EOFError,))

    @contextmanager
    def changes(self, prefix: str = "") -> Iterator[MessageQueue[StoreEvent]]:
        """Keep a queue of such changes, for threads: `queue.get(timeout)`."""
        queue = self._actor.watch(prefix)
        try:
            yield queue
        finally:
            self._actor.unwatch(queue)

    def close_with_node(self, queue: MessageQueue[Any]) -> None:
        """Close a queue of answers when the node ends, and with it the store."""
        self._actor.close_with_node(queue)

    def mapping(self) -> "StoreMapping":
        """Return the store as a mutable mapping."""
        return StoreMapping(self)

    def proxy(self) -> "StoreProxy":
        """Return a proxy, which asks now and receives the answers later."""
        return StoreProxy(self)

    # --- the end ---

    def close(self) -> None:
        """Detach: end this master or clone, after all that was written. Idempotent."""
        future = self._actor.detach()
        if current_cell.get() is not None:
            return  # a handler never waits; its node goes on when it returns
        try:
            with suppress(NodeClosed):  # which has ended the store
                future.result(CLOSE_TIMEOUT)
        except ResultTimeout:
            self._actor.me.kill()

    async def aclose(self) -> None:
        """Detach: end this master or clone, after all that was written."""
        future = self._actor.detach()
        try:
            with suppress(NodeClosed):  # which has ended the store
                await self._actor.within(future, CLOSE_TIMEOUT)
        except TimeoutError:
            self._actor.me.kill()

    def __repr__(self) -> str:
        return f"<{self._actor.machine.role} of store {self._actor.name!r}>"


def _element(entries: dict[Token, Stored], key: Any, index: Any) -> Any:
    """Return what a value has at an index, None where nothing is."""
    with suppress(KeyError):
        return index_of(entries[token_of(key)], index)
    return None


# ------------------------------------------------------------------- what methods write


#: At hand, as an attribute of a class is looked up at each use.
_PUT: Final = Command.PUT


def _put(key: Any, value: Any, expiry: Expiry) -> Action:
    """Return a put."""
    return _PUT, token_of(key), stored_of(value), None if expiry is None else _ns(expiry)


def _add(key: Any, value: Any, initial: DataType | None, expiry: Expiry) -> Action:
    """Return an addition; without a type to start from, it is that of the value."""
    stored = stored_of(value)
    kind = initial or data_of(stored).get_type()
    return Command.ADD, token_of(key), stored, int(kind), _ns(expiry)


def _insert(key: Any, index: Any, args: tuple[Any, ...], value: Any, expiry: Expiry) -> Action:
    """Return an insertion into a set, or, with a value, into a table."""
    if len(args) > 2 or (args and value is not None) or (args[1:] and expiry is not None):
        msg = "insert_into takes a key, an index, one value and one expiry"
        raise TypeError(msg)
    expiry = args[1] if args[1:] else expiry
    if args or value is not None:
        return _add(key, (index, args[0] if args else value), DataType.Table, expiry)
    return _add(key, index, DataType.Set, expiry)


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
            # An integer may be larger than any float is.
            return Timespan(
                float(max(-sys.float_info.max, min(expiry, sys.float_info.max)))
            ).count()
    shown = "a bool" if isinstance(expiry, bool) else f"{expiry!r:.60}"
    msg = f"an expiry is a number of seconds or a span of time, not {shown}"
    raise InvalidData(msg)


# ------------------------------------------------------------------------- other views


class StoreMapping(MutableMapping[Any, Any]):
    """Reads and writes a store as a dict; what a clone writes comes back from its master.

    `mapping[key] = value` puts, `del mapping[key]` erases. Deleting raises `KeyError` when this
    copy does not have the key; nothing else here waits for the master.
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
    """An answer.

    Attributes:
        id: of the request.
        answer: what was asked for; None when there is an error.
        error: what went wrong, or None.
    """

    id: int
    answer: Any
    error: Exception | None = None


class StoreProxy:
    """Asks a store without waiting; every request has a number and one answer."""

    def __init__(self, store: Store) -> None:
        """Use `store.proxy()`."""
        self._store = store
        self._requests = count(1)
        self._mailbox: MessageQueue[StoreResponse] = MessageQueue()
        store.close_with_node(self._mailbox)

    def exists(self, key: Any) -> int:
        """Ask whether a key has a value; returns the number of the request."""
        return self._read(lambda: self._store.exists(key))

    def get(self, key: Any) -> int:
        """Ask for the value of a key."""
        return self._read(lambda: self._store.get(key))

    def keys(self) -> int:
        """Ask for all keys."""
        return self._read(self._store.keys)

    def get_index_from_value(self, key: Any, index: Any) -> int:
        """Request the element at an index of a key's value."""
        return self._read(lambda: self._store.get_index_from_value(key, index))

    def put_unique(self, key: Any, value: Any, expiry: Expiry = None) -> int:
        """Ask for a value to be put if the key has none."""
        request = next(self._requests)

        def answered(future: Future[bool]) -> None:
            self._answer(request, lambda: future.result(0))

        self._store.ask_unique(key, value, expiry).on_done(answered)
        return request

    def available(self) -> int:
        """Return how many answers wait."""
        return self._mailbox.available()

    def fd(self) -> int:
        """Return a file descriptor that is readable while answers wait."""
        return self._mailbox.fd()

    def receive(self, timeout: float | None = None) -> StoreResponse | None:
        """Return the next answer; None when none came within `timeout` seconds."""
        return self._mailbox.get(timeout)

    async def areceive(self) -> StoreResponse:
        """Return the next answer."""
        return await self._mailbox.aget()

    def _read(self, read: Callable[[], Any]) -> int:
        """Read when that needs no waiting."""
        request = next(self._requests)
        self._store.when_readable(lambda: self._answer(request, read))
        return request

    def _answer(self, request: int, read: Callable[[], Any]) -> None:
        """Put the outcome of a read into the mailbox."""
        try:
            response = StoreResponse(request, read())
        except Exception as error:  # noqa: BLE001  # it is the answer
            response = StoreResponse(request, None, error)
        self._mailbox.take([response])
