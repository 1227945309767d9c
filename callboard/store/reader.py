"""What can be read from a store."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from actors.current import current_cell
from actors.errors import ResultTimeout, WouldBlock
from callboard.store.arithmetic import index_of
from callboard.store.clone import Clone
from callboard.store.errors import NoSuchMaster, RequestTimeout, StaleData
from callboard.store.options import CloneOptions, StoreOptions
from callboard.store.patience import expire_in, within
from callboard.store.port import Port
from callboard.store.replica import MISSING
from callboard.store.stored import Stored, Token, key_of, python_of, token_of

__all__ = ["StoreReader"]

SETTLE_TIMEOUT: Final = 15.0
"""Seconds that a read waits for what was written before it."""


class StoreReader:
    """The reading half of `Store`."""

    _port: Port
    _options: StoreOptions
    _is_master: bool

    def get(self, key: Any) -> Any:
        """Return the value of a key, None if there is none.

        Raises:
            NoSuchMaster: a clone that has never reached its master.
            StaleData: a clone that lost its master too long ago.
            StoreClosed: the store was closed.
            WouldBlock: called on the thread of a running event loop; await `aget`.
        """
        value = self._entries().get(token_of(key), MISSING)
        return None if value is MISSING else python_of(value)

    async def aget(self, key: Any) -> Any:
        """Return the value of a key, None if there is none."""
        value = (await self._aentries()).get(token_of(key), MISSING)
        return None if value is MISSING else python_of(value)

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
        """Return what the value of a key has at an index.

        That is whether a set holds it, what a table has under it, or the element of a vector;
        None if there is no such key or index.

        Raises:
            TypeClash: the value has no elements.
            EndpointError: as `get`.
        """
        return _element(self._entries(), key, index)

    async def aget_index_from_value(self, key: Any, index: Any) -> Any:
        """Return what the value of a key has at an index."""
        return _element(await self._aentries(), key, index)

    def __len__(self) -> int:
        """Return the number of keys. Raises as `get`."""
        return len(self._entries())

    def _entries(self) -> dict[Token, Stored]:
        port = self._port
        if asyncio._get_running_loop() is not None and current_cell.get() is None:  # noqa: SLF001
            msg = "reading a store may block the running event loop; await the twins: aget …"
            raise WouldBlock(msg)
        if not self._can_read():
            try:
                port.settle().result(self._patience())
            except ResultTimeout as cause:
                raise self._unreachable() from cause
        return self._checked_entries()

    async def _aentries(self) -> dict[Token, Stored]:
        if not self._can_read():
            settled = self._port.settle()
            try:
                await within(self._port, settled, self._patience())
            except TimeoutError as cause:
                raise self._unreachable() from cause
        return self._checked_entries()

    def when_readable(self, read: Callable[[], object]) -> None:
        """Call something that reads when reading it needs no waiting, or has failed."""
        if self._can_read():
            read()
            return
        settled = self._port.settle()
        expire_in(self._port, settled, self._patience())
        settled._add(lambda _: read())  # noqa: SLF001

    def _can_read(self) -> bool:
        machine = self._port.machine
        if isinstance(machine, Clone):
            return machine.was_connected
        return self._port.is_settled()

    def _patience(self) -> float:
        options = self._options
        return options.max_get_delay if isinstance(options, CloneOptions) else SETTLE_TIMEOUT

    def _unreachable(self) -> Exception:
        name = self._port.name
        if self._is_master:
            return RequestTimeout(f"the master of the store {name!r} does not come to its turn")
        msg = (
            f"the clone of the store {name!r} has not found its master within "
            f"{self._patience():g} s; is a node with the master in reach?"
        )
        return NoSuchMaster(msg)

    def _checked_entries(self) -> dict[Token, Stored]:
        port = self._port
        if port.error is not None:
            raise port.error
        machine = port.machine
        if isinstance(machine, Clone) and machine.lost_at is not None:
            now = port.now()
            if machine.is_stale(now):
                msg = (
                    f"the clone of the store {port.name!r} has been without its master for "
                    f"{now - machine.lost_at:.0f} s"
                )
                raise StaleData(msg)
        return machine.entries


def _element(entries: dict[Token, Stored], key: Any, index: Any) -> Any:
    value = entries.get(token_of(key), MISSING)
    if value is MISSING:
        return None
    try:
        return index_of(value, index)
    except KeyError:
        return None
