"""Vectors, sets and tables of data: immutable, hashable, in the data model's own order.

Zeek's bindings show C++ containers that can be changed. Ours cannot, because they are parts
of values that are shared between subscribers and used as keys.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
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
    """Values without order or duplicates; iteration goes from the smallest to the largest.

    Members are found by search in their order, not by hash: a peer cannot choose members
    that make a set slow.
    """

    __slots__ = ("_items",)

    def __init__(self, items: "Iterable[Data]" = ()) -> None:
        ordered = sorted(items, key=order_key)
        self._items = tuple(
            item for at, item in enumerate(ordered) if at == 0 or item != ordered[at - 1]
        )

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> "Iterator[Data]":
        return iter(self._items)

    def __contains__(self, item: object) -> bool:
        return _place(self._items, item) is not None

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, Set) else NotImplemented

    def __hash__(self) -> int:
        return hash((Set, self._items))

    def __str__(self) -> str:
        return f"{{{', '.join(map(str, self._items))}}}"

    def __repr__(self) -> str:
        return f"Set{self}"


class Table(Mapping["Data", "Data"]):
    """Values by key; iteration goes from the smallest key to the largest.

    Of entries with equal keys the last one counts. Keys are found by search in their order.
    """

    __slots__ = ("_keys", "_values")

    def __init__(self, entries: "Iterable[tuple[Data, Data]]" = ()) -> None:
        ordered = sorted(entries, key=lambda entry: entry[0].order_key)
        last = len(ordered) - 1
        kept = [
            entry
            for at, entry in enumerate(ordered)
            if at == last or entry[0] != ordered[at + 1][0]
        ]
        self._keys = tuple(key for key, _ in kept)
        self._values = tuple(value for _, value in kept)

    @property
    def pairs(self) -> "Iterator[tuple[Data, Data]]":
        """The entries, in the order of their keys; faster than `items()`."""
        return zip(self._keys, self._values, strict=True)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> "Iterator[Data]":
        return iter(self._keys)

    def __getitem__(self, key: "Data") -> "Data":
        place = _place(self._keys, key)
        if place is None:
            raise KeyError(key)
        return self._values[place]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Table):
            return NotImplemented
        return (self._keys, self._values) == (other._keys, other._values)

    def __hash__(self) -> int:
        return hash((self._keys, self._values))

    def __str__(self) -> str:
        return f"{{{', '.join(f'{key} -> {value}' for key, value in self.pairs)}}}"

    def __repr__(self) -> str:
        return f"Table{self}"


def _place(ordered: "tuple[Data, ...]", item: object) -> int | None:
    """Return where a value stands among ordered ones."""
    key = getattr(item, "order_key", None)
    if key is None:
        return None
    place = bisect_left(ordered, key, key=order_key)
    return place if place < len(ordered) and ordered[place].order_key == key else None


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
