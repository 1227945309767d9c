"""Containers of data that can be changed while a value is put together.

What is received holds containers that cannot be changed (see `callboard.endpoint`); these are
copied when they become data.

    numbers = broker.Vector()
    numbers.append(broker.Data(1))
    endpoint.publish("/numbers", numbers)
"""

from collections import abc
from typing import Any, overload

from callboard.model.data import Data, order_key
from callboard.model.data import Set as FrozenSet
from callboard.model.data import Table as FrozenMapping
from callboard.model.data import Vector as FrozenVector


class Vector(abc.MutableSequence[Data]):
    """A run of values; what is put in becomes data."""

    def __init__(self, items: abc.Iterable[Any] = ()) -> None:
        self._items = [Data(item) for item in items]

    def as_data(self) -> Data:
        """Return the vector as data."""
        return Data(FrozenVector(self._items))

    def insert(self, index: int, value: Any) -> None:
        """Insert a value before a position."""
        self._items.insert(index, Data(value))

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Data: ...
    @overload
    def __getitem__(self, index: slice) -> "Vector": ...
    def __getitem__(self, index: int | slice) -> "Data | Vector":
        found = self._items[index]
        return Vector(found) if isinstance(found, list) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[index] = [*map(Data, value)] if type(index) is slice else Data(value)

    def __delitem__(self, index: int | slice) -> None:
        del self._items[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vector | FrozenVector):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return repr(FrozenVector(self._items))


class Set(abc.MutableSet[Data]):
    """Values without duplicates, from the smallest to the largest."""

    def __init__(self, items: abc.Iterable[Any] = ()) -> None:
        self._items = {Data(item) for item in items}

    def as_data(self) -> Data:
        """Return the set as data."""
        return Data(FrozenSet(self._items))

    def add(self, value: Any) -> None:
        """Put a value in."""
        self._items.add(Data(value))

    def discard(self, value: Any) -> None:
        """Take a value out, if it is there."""
        self._items.discard(Data(value))

    def remove(self, value: Any) -> None:
        """Take a value out, if it is there: as in Broker, it need not be."""
        self.discard(value)

    def __contains__(self, value: object) -> bool:
        return value in self._items

    def __iter__(self) -> abc.Iterator[Data]:
        return iter(sorted(self._items, key=order_key))

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(FrozenSet(self._items))


class Table(abc.MutableMapping[Data, Data]):
    """Values by key, from the smallest key to the largest."""

    def __init__(self, entries: abc.Mapping[Any, Any] | None = None) -> None:
        self._entries: dict[Data, Data] = {}
        self.update(entries or {})

    def as_data(self) -> Data:
        """Return the table as data."""
        return Data(FrozenMapping(self._entries.items()))

    def __getitem__(self, key: Any) -> Data:
        return self._entries[Data(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._entries[Data(key)] = Data(value)

    def __delitem__(self, key: Any) -> None:
        del self._entries[Data(key)]

    def __iter__(self) -> abc.Iterator[Data]:
        return iter(sorted(self._entries, key=order_key))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return repr(FrozenMapping(self._entries.items()))
