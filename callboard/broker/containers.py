"""Data with mutable containers, as in Zeek Broker's package.

Received values have immutable containers (see `callboard.topics`). They are copied when they
become data, and when they are read from data.

    numbers = broker.Vector()
    numbers.append(broker.Data(1))
    endpoint.publish("/numbers", numbers)
"""

from collections import abc
from typing import Any, overload

from callboard.model import data as model
from callboard.model.data import Data as AnyData
from callboard.model.data import order_key
from callboard.support.aliases import alias


class Vector(abc.MutableSequence[AnyData]):
    """A sequence of values; items are converted to data."""

    def __init__(self, items: abc.Iterable[Any] = ()) -> None:
        self._items = [AnyData(item) for item in items]

    def as_data(self) -> AnyData:
        """Return the vector as data."""
        return AnyData(model.Vector(self._items))

    @alias(i="index", x="value")
    def insert(self, index: int, value: Any) -> None:
        """Insert a value before a position."""
        self._items.insert(index, AnyData(value))

    @alias(x="value")
    def append(self, value: Any) -> None:
        """Append a value."""
        self._items.append(AnyData(value))

    @alias(L="values")
    def extend(self, values: abc.Iterable[Any]) -> None:
        """Append values."""
        super().extend(values)

    @alias(i="index")
    def pop(self, index: int = -1) -> AnyData:
        """Remove and return an item, by default the last one."""
        return super().pop(index)

    @alias(x="value")
    def remove(self, value: Any) -> None:
        """Remove the first item with this value.

        Raises:
            ValueError: no item has this value.
        """
        self._items.remove(AnyData(value))

    @alias(x="value")
    def count(self, value: Any) -> int:
        """Return how often a value occurs."""
        return super().count(value)

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> AnyData: ...
    @overload
    def __getitem__(self, index: slice) -> "Vector": ...
    def __getitem__(self, index: int | slice) -> "AnyData | Vector":
        items = self._items[index]
        return Vector(items) if isinstance(items, list) else items

    def __setitem__(self, index: Any, value: Any) -> None:
        self._items[index] = [*map(AnyData, value)] if type(index) is slice else AnyData(value)

    def __delitem__(self, index: int | slice) -> None:
        del self._items[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vector | model.Vector):
            return NotImplemented
        return list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it can change

    def __repr__(self) -> str:
        return repr(model.Vector(self._items))


class Set(abc.MutableSet[AnyData]):
    """A sorted set of values."""

    def __init__(self, items: abc.Iterable[Any] = ()) -> None:
        self._items = {AnyData(item) for item in items}

    def as_data(self) -> AnyData:
        """Return the set as data."""
        return AnyData(model.Set(self._items))

    @alias(x="value")
    def add(self, value: Any) -> None:
        """Add a value."""
        self._items.add(AnyData(value))

    def discard(self, value: Any) -> None:
        """Remove a value, if present."""
        self._items.discard(AnyData(value))

    @alias(x="value")
    def remove(self, value: Any) -> None:
        """Remove a value, if present: as in Broker, a missing value is not an error."""
        self.discard(value)

    def __contains__(self, value: object) -> bool:
        return value in self._items

    def __iter__(self) -> abc.Iterator[AnyData]:
        return iter(sorted(self._items, key=order_key))

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(model.Set(self._items))


class Table(abc.MutableMapping[AnyData, AnyData]):
    """Values by key, sorted by key."""

    def __init__(self, entries: abc.Mapping[Any, Any] | None = None) -> None:
        self._entries: dict[AnyData, AnyData] = {}
        self.update(entries or {})

    def as_data(self) -> AnyData:
        """Return the table as data."""
        return AnyData(model.Table(self._entries.items()))

    def __getitem__(self, key: Any) -> AnyData:
        return self._entries[AnyData(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._entries[AnyData(key)] = AnyData(value)

    def __delitem__(self, key: Any) -> None:
        del self._entries[AnyData(key)]

    def __iter__(self) -> abc.Iterator[AnyData]:
        return iter(sorted(self._entries, key=order_key))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        entries = (f"{key}: {self._entries[key]}" for key in self)
        return f"Table{{{', '.join(entries)}}}"


class Data(AnyData):
    """A value of the data model; its containers are returned as mutable copies.

    Their items are of the base class, `callboard.model.data.Data`.

    >>> members = Data([{1}, {2: 3}]).as_vector()
    >>> members.append("x")
    >>> members
    Vector[{1}, {2 -> 3}, x]
    """

    __slots__ = ()

    @staticmethod
    @alias(x="value")
    def from_py(value: Any) -> "Data":
        """Return a Python value as data; the same as `Data(value)`."""
        return Data(value)

    @staticmethod
    @alias(d="data")
    def to_py(data: AnyData) -> Any:
        """Return data as a Python value with mutable sets and tables."""
        return AnyData.to_py(data)

    @alias(x="value")
    def __init__(self, value: Any = None) -> None:
        super().__init__(value)

    def as_vector(self) -> Vector:  # type: ignore[override]
        """Return a copy of the vector."""
        return Vector(super().as_vector())

    def as_set(self) -> Set:  # type: ignore[override]
        """Return a copy of the set."""
        return Set(super().as_set())

    def as_table(self) -> Table:  # type: ignore[override]
        """Return a copy of the table."""
        return Table(super().as_table())


class ImmutableData(Data, model.ImmutableData):
    """Data whose Python values are immutable, and so safe to share."""

    __slots__ = ()

    @staticmethod
    @alias(d="data")
    def to_py(data: AnyData) -> Any:
        """Return data as a Python value: frozen sets, tuples, and read-only mappings."""
        return model.ImmutableData.to_py(data)
