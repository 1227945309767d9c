"""Vectors, sets and tables of data: immutable, hashable, in the data model's own order.

Zeek's bindings show C++ containers that can be changed. Ours cannot, because they are parts
of values that are shared between subscribers and used as keys.
"""

from collections.abc import ItemsView, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from callboard.endpoint.data import Data

__all__ = ["FrozenTable", "Set", "Table", "Vector", "order_key"]


def order_key(item: "Data") -> tuple[Any, ...]:
    """Return the place of a value in the total order."""
    return item.order_key


class Vector:
    """A run of values; duplicates count, order counts."""

    __slots__ = ("_items",)

    def __init__(self, items: "Iterable[Data]" = ()) -> None:
        self._items = tuple(items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> "Iterator[Data]":
        return iter(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    @overload
    def __getitem__(self, index: int) -> "Data": ...

    @overload
    def __getitem__(self, index: slice) -> "Vector": ...

    def __getitem__(self, index: int | slice) -> "Data | Vector":
        if isinstance(index, slice):
            return Vector(self._items[index])
        return self._items[index]

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, Vector) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._items)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self._items))})"

    def __repr__(self) -> str:
        return f"Vector[{', '.join(map(str, self._items))}]"


class Set(AbstractSet["Data"]):
    """Values without order or duplicates; iteration goes from the smallest to the largest."""

    __slots__ = ("_items", "_members")

    def __init__(self, items: "Iterable[Data]" = ()) -> None:
        # dict keeps the first of equal ones, as Broker's set does.
        unique = list(dict.fromkeys(items))
        unique.sort(key=order_key)
        self._items = tuple(unique)
        self._members = frozenset(unique)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> "Iterator[Data]":
        return iter(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._members

    def __eq__(self, other: object) -> bool:
        return self._members == other._members if isinstance(other, Set) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._members)

    def __str__(self) -> str:
        return f"{{{', '.join(map(str, self._items))}}}"

    def __repr__(self) -> str:
        return f"Set{self}"


class Table(Mapping["Data", "Data"]):
    """Values by key; iteration goes from the smallest key to the largest."""

    __slots__ = ("_entries",)

    def __init__(self, entries: "Iterable[tuple[Data, Data]]" = ()) -> None:
        self._entries = dict(sorted(dict(entries).items(), key=lambda e: e[0].order_key))

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> "Iterator[Data]":
        return iter(self._entries)

    def __getitem__(self, key: "Data") -> "Data":
        return self._entries[key]

    def items(self) -> "ItemsView[Data, Data]":
        """Return the pairs of key and value."""
        return self._entries.items()

    def __eq__(self, other: object) -> bool:
        return self._entries == other._entries if isinstance(other, Table) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __str__(self) -> str:
        return f"{{{', '.join(f'{key} -> {value}' for key, value in self._entries.items())}}}"

    def __repr__(self) -> str:
        return f"Table{self}"


class FrozenTable(Mapping[Any, Any]):
    """A table of Python values that may itself be a member of a set or a key.

    Equal to a dict with the same entries.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[Any, Any]) -> None:
        self._entries = dict(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __getitem__(self, key: Any) -> Any:
        return self._entries[key]

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        return f"FrozenTable({self._entries!r})"
