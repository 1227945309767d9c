"""What can be written to a store."""

from typing import Any, Final

from actors.errors import ResultTimeout
from actors.future import Future
from callboard.endpoint.data import DataType
from callboard.store.action import Who
from callboard.store.clone import Clone
from callboard.store.errors import RequestTimeout
from callboard.store.patience import within
from callboard.store.port import Port
from callboard.store.writing import (
    Expiry,
    adding,
    clearing,
    erasing,
    inserting,
    putting,
    putting_unique,
    subtracting,
)

__all__ = ["StoreWriter"]

ANSWER_TIMEOUT: Final = 15.0
"""Seconds that a question to the master may take."""


class StoreWriter:
    """The writing half of `Store`."""

    _port: Port
    _who: Who

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
        self._port.write(putting(key, value, expiry))

    async def aput(self, key: Any, value: Any, expiry: Expiry = None) -> None:
        """Set the value of a key."""
        await self._awrite(putting(key, value, expiry))

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
            return await within(self._port, future, ANSWER_TIMEOUT)
        except TimeoutError as cause:
            raise self._no_answer(request) from cause

    def erase(self, key: Any) -> None:
        """Remove a key. Raises as `put`."""
        self._port.write(erasing(key))

    async def aerase(self, key: Any) -> None:
        """Remove a key."""
        await self._awrite(erasing(key))

    def clear(self) -> None:
        """Remove all keys. Raises as `put`."""
        self._port.write(clearing())

    async def aclear(self) -> None:
        """Remove all keys."""
        await self._awrite(clearing())

    def increment(self, key: Any, amount: Any = 1, expiry: Expiry = None) -> None:
        """Add to a number, or a timespan to a time. A missing key starts from zero.

        Like all that changes values this happens at the master: what does not fit the type of
        the value changes nothing, is logged, and is an event `CommandsRefused` of its node.
        """
        self._port.write(adding(key, amount, None, expiry))

    async def aincrement(self, key: Any, amount: Any = 1, expiry: Expiry = None) -> None:
        """Add to a number, or a timespan to a time."""
        await self._awrite(adding(key, amount, None, expiry))

    def decrement(self, key: Any, amount: Any = 1, expiry: Expiry = None) -> None:
        """Subtract from a number or a time; a missing key is refused, see `increment`."""
        self._port.write(subtracting(key, amount, expiry))

    async def adecrement(self, key: Any, amount: Any = 1, expiry: Expiry = None) -> None:
        """Subtract from a number or a time."""
        await self._awrite(subtracting(key, amount, expiry))

    def append(self, key: Any, text: str, expiry: Expiry = None) -> None:
        """Append to a string; a missing key starts from an empty one."""
        self._port.write(adding(key, text, DataType.String, expiry))

    async def aappend(self, key: Any, text: str, expiry: Expiry = None) -> None:
        """Append to a string."""
        await self._awrite(adding(key, text, DataType.String, expiry))

    def insert_into(self, key: Any, index: Any, *value: Any, expiry: Expiry = None) -> None:
        """Insert a member into a set or, given a value too, an entry into a table."""
        self._port.write(inserting(key, index, value, expiry))

    async def ainsert_into(
        self, key: Any, index: Any, *value: Any, expiry: Expiry = None
    ) -> None:
        """Insert a member into a set or, given a value too, an entry into a table."""
        await self._awrite(inserting(key, index, value, expiry))

    def remove_from(self, key: Any, index: Any, expiry: Expiry = None) -> None:
        """Remove a member of a set, or the entry of a table."""
        self._port.write(subtracting(key, index, expiry))

    async def aremove_from(self, key: Any, index: Any, expiry: Expiry = None) -> None:
        """Remove a member of a set, or the entry of a table."""
        await self._awrite(subtracting(key, index, expiry))

    def push(self, key: Any, value: Any, expiry: Expiry = None) -> None:
        """Append an element to a vector; a missing key starts from an empty one."""
        self._port.write(adding(key, value, DataType.Vector, expiry))

    async def apush(self, key: Any, value: Any, expiry: Expiry = None) -> None:
        """Append an element to a vector."""
        await self._awrite(adding(key, value, DataType.Vector, expiry))

    def pop(self, key: Any, expiry: Expiry = None) -> None:
        """Remove the last element of a vector."""
        self._port.write(subtracting(key, None, expiry))

    async def apop(self, key: Any, expiry: Expiry = None) -> None:
        """Remove the last element of a vector."""
        await self._awrite(subtracting(key, None, expiry))

    async def _awrite(self, action: tuple[Any, ...]) -> None:
        """Write, after what waits has become less."""
        while not self._port.has_room():
            await self._port.settle()
        self._port.write(action)

    def ask_unique(self, key: Any, value: Any, expiry: Expiry = None) -> Future[bool]:
        """Begin a `put_unique`; the future has its answer."""
        return self._ask_unique(key, value, expiry)[1]

    def _ask_unique(self, key: Any, value: Any, expiry: Expiry) -> tuple[int, Future[bool]]:
        putting(key, value, expiry)  # what is wrong with it is said before anything is asked
        request, future = self._port.question()
        self._port.write(putting_unique(key, value, expiry, self._who, request))
        return request, future

    def _no_answer(self, request: int) -> RequestTimeout:
        self._port.questions.pop(request, None)
        machine = self._port.machine
        if isinstance(machine, Clone):
            machine.forget(request)
        msg = (
            f"the master of the store {self._port.name!r} did not answer within "
            f"{ANSWER_TIMEOUT:g} s; it may have put the value or not"
        )
        return RequestTimeout(msg)
