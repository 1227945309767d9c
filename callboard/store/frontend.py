"""`Store`: what users hold of a master or a clone. Methods as in Broker's Python package.

Every blocking method `x` has a twin `ax` to be awaited, with the same signature.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from actors.current import current_cell
from actors.errors import ResultTimeout
from actors.future import Future
from actors.reference import ActorRef
from callboard.endpoint.message_queue import MessageQueue
from callboard.store.errors import StoreClosed
from callboard.store.mapping import StoreMapping
from callboard.store.options import StoreOptions
from callboard.store.patience import expire_in, within
from callboard.store.port import Port
from callboard.store.proxy import StoreProxy
from callboard.store.reader import StoreReader
from callboard.store.store_actor import Detach
from callboard.store.store_event import StoreEvent
from callboard.store.writer import StoreWriter

if TYPE_CHECKING:
    from callboard.store.store_actor import StoreActor

__all__ = ["AWAIT_IDLE_TIMEOUT", "Store"]

AWAIT_IDLE_TIMEOUT: Final = 15.0
"""Seconds that `await_idle` waits."""

CLOSE_TIMEOUT: Final = 15.0
"""Seconds that `close` waits for the disk."""


class Store(StoreReader, StoreWriter):
    """A master or a clone of a store, for any thread.

    Reads look at the copy on this node. On a master they see all that was written through it
    before; on a clone they see a write when it has come back from the master. Writes return at
    once; `await_idle` tells when they have arrived.
    """

    def __init__(
        self,
        port: Port,
        ref: "ActorRef[StoreActor]",
        *,
        is_master: bool,
        options: StoreOptions,
    ) -> None:
        """Use `attach_master` or `attach_clone`."""
        self._port = port
        self._ref = ref
        self._is_master = is_master
        self._options = options
        entity = port.machine.entity
        self._who = (entity.endpoint.bytes, entity.object)

    def name(self) -> str:
        """Return the name of the store."""
        return self._port.name

    def node_id(self) -> str:
        """Return the id of the endpoint that it lives on."""
        return str(self._port.machine.entity.endpoint)

    @property
    def is_master(self) -> bool:
        """Whether this is the master."""
        return self._is_master

    @property
    def is_closed(self) -> bool:
        """Whether the store has ended."""
        return self._port.error is not None

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
        future = self._port.idle()
        if callback is not None:
            self._call_back(future, timeout, callback)
            return None
        try:
            return future.result(timeout)
        except (ResultTimeout, StoreClosed):
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
            return await within(self._port, self._port.idle(), timeout)
        except (TimeoutError, StoreClosed):
            return False

    def _call_back(
        self, future: Future[bool], timeout: float, callback: Callable[[bool], object]
    ) -> None:
        def done(finished: Future[bool]) -> None:
            callback(finished.exception() is None and finished.result(0))

        expire_in(self._port, future, timeout)
        future._add(done)  # noqa: SLF001  # on the node's thread, also if a loop runs here

    async def watch(self, prefix: str = "") -> AsyncIterator[StoreEvent]:
        """Iterate over the changes of keys that start with a text; of all keys without one.

        A watcher that is too slow misses the oldest changes beyond 65,536.
        """
        with self.changes(prefix) as queue:
            while True:
                try:
                    event = await queue.aget()
                except EOFError:
                    return
                yield event

    @contextmanager
    def changes(self, prefix: str = "") -> Iterator[MessageQueue[StoreEvent]]:
        """Keep a queue of such changes, for threads: `queue.get(timeout)`."""
        queue = self._port.watch(prefix)
        try:
            yield queue
        finally:
            self._port.unwatch(queue)

    def mapping(self) -> StoreMapping:
        """Return the store as a mutable mapping."""
        return StoreMapping(self)

    def proxy(self) -> StoreProxy:
        """Return a proxy, which asks now and receives the answers later."""
        return StoreProxy(self)

    # --- the end ---

    def close(self) -> None:
        """Detach: end this master or clone, after all that was written. Idempotent."""
        if self._port.error is not None:
            return
        future: Future[None] = Future(self)
        self._ref.tell(Detach(future))
        if current_cell.get() is not None:
            return  # a handler never waits; its node goes on when it returns
        try:
            future.result(CLOSE_TIMEOUT)
        except ResultTimeout:
            self._ref.kill()

    async def aclose(self) -> None:
        """Detach: end this master or clone, after all that was written."""
        if self._port.error is not None:
            return
        future: Future[None] = Future(self)
        self._ref.tell(Detach(future))
        try:
            await within(self._port, future, CLOSE_TIMEOUT)
        except TimeoutError:
            self._ref.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        role = "master" if self._is_master else "clone"
        return f"<{role} of store {self._port.name!r}>"
