"""A store as a mapping of Python."""

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from callboard.store.errors import NoSuchKey

if TYPE_CHECKING:
    from callboard.store.frontend import Store

__all__ = ["StoreMapping"]


class StoreMapping(MutableMapping[Any, Any]):
    """Reads and writes a store as a dict; what a clone writes comes back from its master.

    `mapping[key] = value` puts, `del mapping[key]` erases. Deleting raises `KeyError` when this
    copy does not have the key; nothing else here waits for the master.
    """

    def __init__(self, store: "Store") -> None:
        """Use `store.mapping()`."""
        self._store = store

    def __getitem__(self, key: Any) -> Any:
        value = self._store.get(key)
        if value is None and not self._store.exists(key):
            raise NoSuchKey(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._store.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self._store.exists(key):
            raise NoSuchKey(key)
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
