"""Store proxies: ask now, receive the answers later, in one mailbox."""

from typing import TYPE_CHECKING, Any, NamedTuple

from actors.future import Future
from callboard.endpoint.message_queue import MessageQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from callboard.store.frontend import Store
    from callboard.store.writing import Expiry

__all__ = ["StoreProxy", "StoreResponse"]


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

    def __init__(self, store: "Store") -> None:
        """Use `store.proxy()`."""
        self._store = store
        self._requests = 0
        self._mailbox: MessageQueue[StoreResponse] = MessageQueue()

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
        """Ask for what the value of a key has at an index."""
        return self._read(lambda: self._store.get_index_from_value(key, index))

    def put_unique(self, key: Any, value: Any, expiry: "Expiry" = None) -> int:
        """Ask for a value to be put if the key has none."""
        request = self._next()

        def answered(future: Future[bool]) -> None:
            error = future.exception()
            answer = None if error is not None else future.result(0)
            self._deliver(request, answer, error if isinstance(error, Exception) else None)

        self._store.ask_unique(key, value, expiry)._add(answered)  # noqa: SLF001
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

    def _next(self) -> int:
        self._requests += 1
        return self._requests

    def _read(self, read: "Callable[[], Any]") -> int:
        request = self._next()
        self._store.when_readable(lambda: self._answer(request, read))
        return request

    def _answer(self, request: int, read: "Callable[[], Any]") -> None:
        try:
            answer = read()
        except Exception as error:  # noqa: BLE001  # it is the answer
            self._deliver(request, None, error)
        else:
            self._deliver(request, answer, None)

    def _deliver(self, request: int, answer: Any, error: Exception | None) -> None:
        self._mailbox.take([StoreResponse(request, answer, error)])
