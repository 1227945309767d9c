"""Values of the data model: fifteen types, a total order, a text form.

| number | type | Python to data | data to Python |
|---|---|---|---|
| 0 | none | None | None |
| 1 | boolean | bool | bool |
| 2 | count | `Count` | `Count` |
| 3 | integer | int | int |
| 4 | real | float | float |
| 5 | string | str, bytes | str, or bytes if not UTF-8 |
| 6 | address | `IPv4Address`, `IPv6Address`, `Address` | `IPv4Address`, `IPv6Address` |
| 7 | subnet | `IPv4Network`, `IPv6Network`, `Subnet` | `IPv4Network`, `IPv6Network` |
| 8 | port | `Port` | `Port` |
| 9 | timestamp | datetime, `Timestamp` | datetime in UTC, to microseconds |
| 10 | timespan | timedelta, `Timespan` | timedelta, to microseconds |
| 11 | enum value | `Enum` | `Enum` |
| 12 | set | set, frozenset | set |
| 13 | table | dict and other mappings | dict |
| 14 | vector | list, tuple | tuple |

Values are ordered by type number, then by value. C++ lacks an order of all reals; here NaN
equals NaN and is the largest real, so that a set with a NaN has an order.

Vectors, sets and tables hold data, are immutable and hashable, and use the order of the model.
Zeek's C++ bindings have mutable ones; ours are shared between subscribers and used as keys.

The names match the Python package of Zeek Broker, version 1.4.
"""

import datetime
import ipaddress
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from enum import IntEnum
from functools import total_ordering
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol, TypeVar, overload, runtime_checkable

from callboard.cbor.collisions import check_hashes
from callboard.model.address import Address, Port, Subnet
from callboard.model.errors import DataOverflow, InvalidData, UnsupportedData
from callboard.model.scalar import Count, Enum
from callboard.model.timespan import Timespan, Timestamp
from callboard.protocol_errors import CollidingKeys

T = TypeVar("T")

#: Levels of nested containers; without a limit, a list that contains itself would never end.
DEPTH_LIMIT: Final = 100
_INTEGERS: Final = range(-(2**63), 2**63)


class DataType(IntEnum):
    """The types; their numbers are used on every wire, and define the order of the types."""

    Nil = 0
    Boolean = 1
    Count = 2
    Integer = 3
    Real = 4
    String = 5
    Address = 6
    Subnet = 7
    Port = 8
    Timestamp = 9
    Timespan = 10
    EnumValue = 11
    Set = 12
    Table = 13
    Vector = 14

    def __str__(self) -> str:
        return f"Type.{self.name}"


# ---------------------------------------------------------------------------- containers


def order_key(item: "Data") -> tuple[Any, ...]:
    """Return the sort key of a value in the total order."""
    return item.order_key


class _Values:
    """The values of a vector or set."""

    __slots__ = ("_items",)

    _items: "tuple[Data, ...]"

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> "Iterator[Data]":
        return iter(self._items)

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), self._items))


class Vector(_Values):
    """A sequence of values."""

    __slots__ = ()

    def __init__(self, items: "Iterable[Data]" = ()) -> None:
        self._items = tuple(items)

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

    def __str__(self) -> str:
        return f"({', '.join(map(str, self._items))})"

    def __repr__(self) -> str:
        return f"Vector[{', '.join(map(str, self._items))}]"


class Set(_Values, AbstractSet["Data"]):
    """A set of values; iteration goes from the smallest to the largest.

    Members are found by bisection, not by hash, so a peer cannot choose members that make a set
    slow.
    """

    __slots__ = ()

    def __init__(self, items: "Iterable[Data]" = ()) -> None:
        ordered = sorted(items, key=order_key)
        self._items = tuple(
            item for i, item in enumerate(ordered) if i == 0 or item != ordered[i - 1]
        )

    def __contains__(self, item: object) -> bool:
        return _place(self._items, item) is not None

    def __str__(self) -> str:
        return f"{{{', '.join(map(str, self._items))}}}"

    def __repr__(self) -> str:
        return f"Set{self}"


class Table(Mapping["Data", "Data"]):
    """Values by key; iteration goes from the smallest key to the largest.

    If keys are equal, the last entry wins. Keys are found by bisection.
    """

    __slots__ = ("_keys", "_values")

    def __init__(self, entries: "Iterable[tuple[Data, Data]]" = ()) -> None:
        ordered = sorted(entries, key=lambda entry: entry[0].order_key)
        last = len(ordered) - 1
        unique = [
            entry
            for i, entry in enumerate(ordered)
            if i == last or entry[0] != ordered[i + 1][0]
        ]
        self._keys = tuple(key for key, _ in unique)
        self._values = tuple(value for _, value in unique)

    @property
    def pairs(self) -> "Iterator[tuple[Data, Data]]":
        """The entries in key order; faster than `items()`."""
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
    """Return the index of a value among ordered ones; None if it is missing."""
    key = getattr(item, "order_key", None)
    if key is None:
        return None
    place = bisect_left(ordered, key, key=order_key)
    return place if place < len(ordered) and ordered[place].order_key == key else None


class FrozenTable(Mapping[Any, Any]):
    """A hashable table of Python values, usable as a key or a member of a set.

    It equals a dict with the same entries.
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


@runtime_checkable
class AsData(Protocol):
    """An object that can convert itself to data, such as an event."""

    def as_data(self) -> "Data":
        """Return the object as data."""
        ...


@total_ordering
class Data:
    """An immutable value of one of the fifteen types.

    >>> str(Data([1, Count(2), {"key": None}]))
    '(1, 2, {key -> nil})'
    >>> Data(True) < Data(Count(0)) < Data(-5)
    True

    Raises:
        UnsupportedData: the model cannot represent the value.
        DataOverflow: a number is outside the range of its type.
        InvalidData: containers are nested deeper than `DEPTH_LIMIT`, or a text cannot be
            encoded as UTF-8.
    """

    __slots__ = ("_key", "_type", "_value")

    Type: ClassVar = DataType

    def __init__(self, value: Any = None) -> None:
        self._type, self._value = _typed(value, 0)
        self._key: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, kind: DataType, value: Any) -> "Data":
        """Create data without any check, for decoders.

        `value` must have the class that the attribute `value` has for this type.
        """
        data = Data.__new__(Data)
        data._type, data._value, data._key = kind, value, None  # noqa: SLF001
        return data

    @staticmethod
    def from_py(value: Any) -> "Data":
        """Convert a Python value; the same as `Data(value)`."""
        return Data(value)

    @staticmethod
    def to_py(data: "Data") -> Any:
        """Convert data to a Python value, as in the table above.

        Members of sets and keys of tables are made hashable: sets among them become frozen
        sets, tables `FrozenTable`. Python merges equal members (`1`, `1.0` and `True`) that
        are different data.
        """
        return python_value(data, hashed=False)

    @property
    def value(self) -> Any:
        """The value: a Python scalar (bytes for strings) or a class of this package."""
        return self._value

    @property
    def order_key(self) -> tuple[Any, ...]:
        """The sort key of the value in the total order."""
        if self._key is None:
            self._key = (int(self._type), *_ORDER[self._type](self._value))
        return self._key

    def get_type(self) -> DataType:
        """Return the type."""
        return self._type

    def _as(self, kind: DataType, _form: type[T]) -> T:
        """Return the value; raise `UnsupportedData` if the data is of another type."""
        if self._type is not kind:
            msg = f"this is data of type {self._type.name}, not {kind.name}: {str(self)[:80]}"
            raise UnsupportedData(msg)
        value: T = self._value
        return value

    def as_none(self) -> None:
        """Return None. All `as_…` raise `UnsupportedData` on data of another type."""
        self._as(DataType.Nil, type(None))

    def as_boolean(self) -> bool:
        """Return the bool."""
        return self._as(DataType.Boolean, bool)

    def as_count(self) -> int:
        """Return the count as an int."""
        return self._as(DataType.Count, Count).value

    def as_integer(self) -> int:
        """Return the int."""
        return self._as(DataType.Integer, int)

    def as_real(self) -> float:
        """Return the float."""
        return self._as(DataType.Real, float)

    def as_string(self) -> bytes:
        """Return the bytes of the string."""
        return self._as(DataType.String, bytes)

    def as_address(self) -> Address:
        """Return the address."""
        return self._as(DataType.Address, Address)

    def as_subnet(self) -> Subnet:
        """Return the subnet."""
        return self._as(DataType.Subnet, Subnet)

    def as_port(self) -> Port:
        """Return the port."""
        return self._as(DataType.Port, Port)

    def as_timestamp(self) -> float:
        """Return the seconds since 1970; `value` is exact."""
        return self._as(DataType.Timestamp, Timestamp).time_since_epoch().total_seconds()

    def as_timespan(self) -> float:
        """Return the seconds; `value` is exact."""
        return self._as(DataType.Timespan, Timespan).total_seconds()

    def as_enum_value(self) -> Enum:
        """Return the enum value."""
        return self._as(DataType.EnumValue, Enum)

    def as_set(self) -> Set:
        """Return the set."""
        return self._as(DataType.Set, Set)

    def as_table(self) -> Table:
        """Return the table."""
        return self._as(DataType.Table, Table)

    def as_vector(self) -> Vector:
        """Return the vector."""
        return self._as(DataType.Vector, Vector)

    def __eq__(self, other: object) -> bool:
        return self.order_key == other.order_key if isinstance(other, Data) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self.order_key < other.order_key if isinstance(other, Data) else NotImplemented

    def __hash__(self) -> int:
        # A peer that chooses the numbers in a tuple can choose its hash, and slow a dict down
        # with collisions. The hash of a text is salted.
        key = self.order_key
        return hash(repr(key) if self._type >= DataType.Set else key)

    def __str__(self) -> str:
        return _TEXT.get(self._type, str)(self._value)

    def __repr__(self) -> str:
        return f"<Data {self._type.name} {self}>"


class ImmutableData(Data):
    """Data whose Python values cannot be changed, so that they are safe to share.

    >>> ImmutableData.to_py(Data([{1}, [2]]))
    (frozenset({1}), (2,))
    """

    __slots__ = ()

    @staticmethod
    def to_py(data: Data) -> Any:
        """Return data as a Python value: frozen sets, tuples, and read-only mappings."""
        return python_value(data, hashed=False, frozen=True)


# ------------------------------------------------------------------- data as Python values


def python_value(data: "Data", *, hashed: bool, frozen: bool = False) -> Any:
    """Convert data to Python values.

    Args:
        data: the data.
        hashed: the result must be hashable, as a key or member: tables become `FrozenTable`.
        frozen: the result must be immutable: tables become `MappingProxyType`.
    """
    value = data.value
    match value:
        case Vector():
            return tuple([python_value(item, hashed=hashed, frozen=frozen) for item in value])
        case Set():
            members = [python_value(item, hashed=True, frozen=frozen) for item in value]
            return (frozenset if hashed or frozen else set)(_checked(members))
        case Table():
            keys = _checked([python_value(key, hashed=True, frozen=frozen) for key in value])
            pairs = value.pairs
            items = [python_value(item, hashed=hashed, frozen=frozen) for _, item in pairs]
            entries = dict(zip(keys, items, strict=True))
            if hashed:
                return FrozenTable(entries)
            return MappingProxyType(entries) if frozen else entries
    return _scalar(value)


def _checked(keys: list[Any]) -> list[Any]:
    """Return the keys; refuse keys with colliding hashes, which would make a dict slow."""
    try:
        check_hashes(keys)
    except CollidingKeys as cause:
        raise InvalidData(str(cause)) from cause
    return keys


_SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes})
#: Python types of values that are not containers.
_FLAT: Final = _SCALARS | {
    Count, Enum, Port, ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network,
    ipaddress.IPv6Network, datetime.datetime, datetime.timedelta,
}  # fmt: skip


def thawed(value: Any) -> Any:
    """Return an immutable Python value with its sets and tables made mutable.

    Members of sets and keys of tables stay immutable, because they must be hashable.
    """
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is tuple:
        for item in value:
            if type(item) not in _FLAT:
                return tuple([item if type(item) in _FLAT else thawed(item) for item in value])
        return value
    if kind is frozenset:
        return set(value)
    if kind is MappingProxyType or kind is FrozenTable:
        return {key: thawed(item) for key, item in value.items()}
    return value


def _scalar(value: Any) -> Any:
    """Return the Python form of a value that is not a container."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        case Address() | Subnet():
            return value.to_ip()
        case Timestamp():
            return value.to_datetime()
        case Timespan():
            return value.to_timedelta()
    return value


# ------------------------------------------------------------------- Python values as data

_Typed = tuple[DataType, Any]
_Converter = Callable[[Any, int], _Typed]


def _integer(value: int, _depth: int) -> _Typed:
    """Convert an int; refuse one that does not fit 64 signed bits."""
    if value not in _INTEGERS:
        number = value if value.bit_length() <= 64 else f"of {value.bit_length():,} bits"
        hint = f"; use Count({value})" if 0 < value < 2**64 else ""
        msg = f"the integer {number} does not fit into a signed 64-bit integer{hint}"
        raise DataOverflow(msg)
    return DataType.Integer, value


def _string(value: str, _depth: int) -> _Typed:
    """Convert a text to the bytes of a string."""
    try:
        return DataType.String, value.encode()
    except UnicodeEncodeError as cause:
        msg = f"a string cannot be encoded as UTF-8: {cause}"
        raise InvalidData(msg) from cause


def refuse_depth(depth: int) -> None:
    """Check that a container at this depth may have members.

    Raises:
        InvalidData: the container is nested as deep as `DEPTH_LIMIT`.
    """
    if depth >= DEPTH_LIMIT:
        msg = f"data is nested deeper than {DEPTH_LIMIT} containers"
        raise InvalidData(msg)


def _nested(value: Any, depth: int) -> Data:
    """Convert a member of a container at a depth to data."""
    refuse_depth(depth)
    kind, inner = _typed(value, depth + 1)
    return Data.of(kind, inner)


def _vector(value: Any, depth: int) -> _Typed:
    """Convert a sequence to a vector."""
    return DataType.Vector, Vector([_nested(item, depth) for item in value])


def _set(value: Any, depth: int) -> _Typed:
    """Convert a Python set to a set."""
    return DataType.Set, Set([_nested(item, depth) for item in value])


def _table(value: Mapping[Any, Any], depth: int) -> _Typed:
    """Convert a mapping to a table."""
    return DataType.Table, Table(
        [(_nested(key, depth), _nested(item, depth)) for key, item in value.items()]
    )


def _plain(kind: DataType, convert: Callable[[Any], Any] | None = None) -> _Converter:
    """Return a converter that keeps the value, or applies `convert` to it."""
    if convert is None:
        return lambda value, _depth: (kind, value)
    return lambda value, _depth: (kind, convert(value))


_ip_address: Final = _plain(DataType.Address, Address.from_ip)
_ip_network: Final = _plain(DataType.Subnet, Subnet.from_ip)

#: Ordered: an instance of a subclass uses the first entry that is a base (bool before int).
_FROM_PYTHON: Final[dict[type, _Converter]] = {
    type(None): _plain(DataType.Nil),
    bool: _plain(DataType.Boolean),
    int: _integer,
    float: _plain(DataType.Real),
    str: _string,
    bytes: _plain(DataType.String),
    list: _vector,
    tuple: _vector,
    dict: _table,
    set: _set,
    frozenset: _set,
    Count: _plain(DataType.Count),
    Enum: _plain(DataType.EnumValue),
    Port: _plain(DataType.Port),
    Address: _plain(DataType.Address),
    Subnet: _plain(DataType.Subnet),
    Timespan: _plain(DataType.Timespan),
    Timestamp: _plain(DataType.Timestamp),
    Vector: _vector,
    Set: _set,
    Table: _table,
    ipaddress.IPv4Address: _ip_address,
    ipaddress.IPv6Address: _ip_address,
    ipaddress.IPv4Network: _ip_network,
    ipaddress.IPv6Network: _ip_network,
    datetime.datetime: _plain(DataType.Timestamp, Timestamp.from_datetime),
    datetime.timedelta: _plain(DataType.Timespan, Timespan.from_timedelta),
    MappingProxyType: _table,
    Mapping: _table,
}


def _typed(value: Any, depth: int) -> _Typed:
    """Return the data type of a Python value, and the converted value."""
    convert = _FROM_PYTHON.get(type(value))
    if convert is not None:
        return convert(value, depth)
    if isinstance(value, Data):
        return value.get_type(), value.value
    if isinstance(value, AsData):
        data = value.as_data()
        return data.get_type(), data.value
    for kind, converter in _FROM_PYTHON.items():
        if isinstance(value, kind):
            return converter(_bare(value), depth)
    msg = f"the data model has no type for {type(value).__module__}.{type(value).__qualname__}"
    raise UnsupportedData(msg)


def _bare(value: Any) -> Any:
    """Convert a scalar of a user's subclass, such as an IntEnum, to its base type."""
    if isinstance(value, bool):
        return value
    kind = next((kind for kind in (int, float, bytes) if isinstance(value, kind)), None)
    return value if kind is None else kind(value)


# ------------------------------------------------------------------------- order and text


def _real_key(value: float) -> tuple[bool, float]:
    """Return the sort key of a real; NaN is the largest."""
    # Adding 0.0 turns -0.0 into 0.0: the zeros are equal, so their texts, which are hashed,
    # must be the same.
    return (True, 0.0) if value != value else (False, value + 0.0)


_ORDER: Final[dict[DataType, Callable[[Any], tuple[Any, ...]]]] = {
    DataType.Nil: lambda _value: (),
    **dict.fromkeys(
        (DataType.Boolean, DataType.Integer, DataType.String), lambda value: (value,)
    ),
    DataType.Count: lambda value: (value.value,),
    DataType.Real: _real_key,
    DataType.Address: lambda value: (value.bytes(),),
    DataType.Subnet: lambda value: (value.network().bytes(), value.length()),
    DataType.Port: lambda value: (value.number(), int(value.get_type())),
    DataType.Timestamp: lambda value: (value.time_since_epoch().count(),),
    DataType.Timespan: lambda value: (value.count(),),
    DataType.EnumValue: lambda value: (value.name,),
    DataType.Set: lambda items: (tuple(item.order_key for item in items),),
    DataType.Table: lambda table: (
        tuple((key.order_key, value.order_key) for key, value in table.pairs),
    ),
    DataType.Vector: lambda items: (tuple(item.order_key for item in items),),
}

_TEXT: Final[dict[DataType, Callable[[Any], str]]] = {
    DataType.Nil: lambda _value: "nil",
    DataType.Boolean: lambda value: "T" if value else "F",
    DataType.Real: lambda value: f"{value:f}",
    DataType.String: lambda value: value.decode("utf-8", "backslashreplace"),
}
