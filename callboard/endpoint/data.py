"""One value of the data model: fifteen types, a total order, a text form.

| number | type | Python to data | data to Python |
|---|---|---|---|
| 0 | none | None | None |
| 1 | boolean | bool | bool |
| 2 | count | `Count` | `Count` |
| 3 | integer | int | int |
| 4 | real | float | float |
| 5 | string | str, bytes | str, or bytes where they are no UTF-8 |
| 6 | address | `IPv4Address`, `IPv6Address`, `Address` | `IPv4Address`, `IPv6Address` |
| 7 | subnet | `IPv4Network`, `IPv6Network`, `Subnet` | `IPv4Network`, `IPv6Network` |
| 8 | port | `Port` | `Port` |
| 9 | timestamp | datetime, `Timestamp` | datetime in UTC, to microseconds |
| 10 | timespan | timedelta, `Timespan` | timedelta, to microseconds |
| 11 | enum value | `Enum` | `Enum` |
| 12 | set | set, frozenset | set |
| 13 | table | dict and other mappings | dict |
| 14 | vector | list, tuple | tuple |

Values are ordered by type number, then by value. Two reals need a rule that C++ leaves out:
NaN equals NaN and is the largest, or a set with a NaN would have no order.

The names are those of Zeek Broker's Python package, version 1.4.
"""

import datetime
import ipaddress
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import total_ordering
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

from callboard.endpoint.address import Address, Port, Subnet
from callboard.endpoint.container import Set, Table, Vector
from callboard.endpoint.errors import DataOverflow, InvalidData, UnsupportedData
from callboard.endpoint.python_value import immutable_value, python_value
from callboard.endpoint.scalar import Count, Enum
from callboard.endpoint.timespan import Timespan, Timestamp

__all__ = ["DEPTH_LIMIT", "Data", "DataType", "ImmutableData"]

#: Containers in containers; a list that holds itself would have no end.
DEPTH_LIMIT: Final = 100
_INTEGERS: Final = range(-(2**63), 2**63)


class DataType(IntEnum):
    """The types, with their numbers on every wire; they are also the order of the types."""

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


@runtime_checkable
class AsData(Protocol):
    """Whatever knows its own form as data, as an event does."""

    def as_data(self) -> "Data":
        """Return that form."""
        ...


@total_ordering
class Data:
    """An immutable value of one of the fifteen types.

    >>> str(Data([1, Count(2), {"key": None}]))
    '(1, 2, {key -> nil})'
    >>> Data(True) < Data(Count(0)) < Data(-5)
    True

    Raises:
        UnsupportedData: the model has no type for the value.
        DataOverflow: a number outside the range of its type.
        InvalidData: containers nested deeper than `DEPTH_LIMIT`, or text without UTF-8 form.
    """

    __slots__ = ("_key", "_type", "_value")

    Type: ClassVar = DataType

    def __init__(self, value: Any = None) -> None:
        self._type, self._value = _typed(value, 0)
        self._key: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, kind: DataType, value: Any) -> "Data":
        """Make data of a value that is known to be right: for decoders, nothing is checked.

        `value` is what the attribute `value` shows for that type.
        """
        made = Data.__new__(Data)
        made._type, made._value, made._key = kind, value, None  # noqa: SLF001
        return made

    @staticmethod
    def from_py(value: Any) -> "Data":
        """Return a Python value as data; the same as `Data(value)`."""
        return Data(value)

    @staticmethod
    def to_py(data: "Data") -> Any:
        """Return data as a Python value, as the table above says.

        Members of sets and keys of tables are made hashable: sets among them become frozen
        sets, tables `FrozenTable`. Python merges members that it calls equal (`1`, `1.0` and
        `True`), which data keeps apart.
        """
        return python_value(data, hashed=False)

    @property
    def value(self) -> Any:
        """The value: a Python scalar (bytes for strings) or a class of this package."""
        return self._value

    @property
    def order_key(self) -> tuple[Any, ...]:
        """Where the value stands in the total order, as something that Python can compare."""
        if self._key is None:
            self._key = (int(self._type), *_ORDER[self._type](self._value))
        return self._key

    def get_type(self) -> DataType:
        """Return the type."""
        return self._type

    def _as(self, kind: DataType) -> Any:
        if self._type is not kind:
            msg = f"this is data of type {self._type.name}, not {kind.name}: {str(self)[:80]}"
            raise UnsupportedData(msg)
        return self._value

    def as_none(self) -> None:
        """Return None. All `as_…` raise `UnsupportedData` on data of another type."""
        self._as(DataType.Nil)

    def as_boolean(self) -> bool:
        """Return the bool."""
        return bool(self._as(DataType.Boolean))

    def as_count(self) -> int:
        """Return the count as an int."""
        return int(self._as(DataType.Count))

    def as_integer(self) -> int:
        """Return the int."""
        return int(self._as(DataType.Integer))

    def as_real(self) -> float:
        """Return the float."""
        return float(self._as(DataType.Real))

    def as_string(self) -> bytes:
        """Return the bytes of the string."""
        return bytes(self._as(DataType.String))

    def as_address(self) -> Address:
        """Return the address."""
        found: Address = self._as(DataType.Address)
        return found

    def as_subnet(self) -> Subnet:
        """Return the subnet."""
        found: Subnet = self._as(DataType.Subnet)
        return found

    def as_port(self) -> Port:
        """Return the port."""
        found: Port = self._as(DataType.Port)
        return found

    def as_timestamp(self) -> float:
        """Return the seconds since 1970; `value` is exact."""
        moment: Timestamp = self._as(DataType.Timestamp)
        return moment.time_since_epoch().total_seconds()

    def as_timespan(self) -> float:
        """Return the seconds; `value` is exact."""
        span: Timespan = self._as(DataType.Timespan)
        return span.total_seconds()

    def as_enum_value(self) -> Enum:
        """Return the enum value."""
        found: Enum = self._as(DataType.EnumValue)
        return found

    def as_set(self) -> Set:
        """Return the set."""
        found: Set = self._as(DataType.Set)
        return found

    def as_table(self) -> Table:
        """Return the table."""
        found: Table = self._as(DataType.Table)
        return found

    def as_vector(self) -> Vector:
        """Return the vector."""
        found: Vector = self._as(DataType.Vector)
        return found

    def __eq__(self, other: object) -> bool:
        return self.order_key == other.order_key if isinstance(other, Data) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self.order_key < other.order_key if isinstance(other, Data) else NotImplemented

    def __hash__(self) -> int:
        # Python's hash of a tuple of numbers can be chosen by who chooses the numbers, that of
        # a text cannot: whoever sends data must not be able to slow a dict down.
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
        return immutable_value(data, hashed=False)


# ------------------------------------------------------------------- Python values as data

_Typed = tuple[DataType, Any]


def _integer(value: int, _depth: int) -> _Typed:
    if value not in _INTEGERS:
        shown = value if value.bit_length() <= 64 else f"of {value.bit_length():,} bits"
        more = f"; Count({value}) has room for it" if 0 < value < 2**64 else ""
        msg = f"the integer {shown} does not fit 64 signed bits{more}"
        raise DataOverflow(msg)
    return DataType.Integer, value


def _string(value: str, _depth: int) -> _Typed:
    try:
        return DataType.String, value.encode()
    except UnicodeEncodeError as cause:
        msg = f"a string has no UTF-8 form: {cause}"
        raise InvalidData(msg) from cause


def _nested(value: Any, depth: int) -> Data:
    if depth >= DEPTH_LIMIT:
        msg = f"data is nested deeper than {DEPTH_LIMIT} containers"
        raise InvalidData(msg)
    kind, inner = _typed(value, depth + 1)
    return Data.of(kind, inner)


def _vector(value: Any, depth: int) -> _Typed:
    return DataType.Vector, Vector([_nested(item, depth) for item in value])


def _set(value: Any, depth: int) -> _Typed:
    return DataType.Set, Set([_nested(item, depth) for item in value])


def _table(value: Mapping[Any, Any], depth: int) -> _Typed:
    return DataType.Table, Table(
        [(_nested(key, depth), _nested(item, depth)) for key, item in value.items()]
    )


def _plain(kind: DataType) -> Callable[[Any, int], _Typed]:
    return lambda value, _depth: (kind, value)


_ip_address: Final = lambda ip, _depth: (DataType.Address, Address.from_ip(ip))  # noqa: E731
_ip_network: Final = lambda ip, _depth: (DataType.Subnet, Subnet.from_ip(ip))  # noqa: E731

#: Ordered: a subclass goes with the first of its bases that stands here (bool before int).
_FROM_PYTHON: Final[dict[type, Callable[[Any, int], _Typed]]] = {
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
    datetime.datetime: lambda t, _depth: (DataType.Timestamp, Timestamp.from_datetime(t)),
    datetime.timedelta: lambda t, _depth: (DataType.Timespan, Timespan.from_timedelta(t)),
    MappingProxyType: _table,
    Mapping: _table,
}


def _typed(value: Any, depth: int) -> _Typed:
    convert = _FROM_PYTHON.get(type(value))
    if convert is not None:
        return convert(value, depth)
    if isinstance(value, Data):
        return value.get_type(), value.value
    if isinstance(value, AsData):
        made = value.as_data()
        return made.get_type(), made.value
    for kind, converter in _FROM_PYTHON.items():
        if isinstance(value, kind):
            return converter(_bare(value), depth)
    msg = f"the data model has no type for {type(value).__module__}.{type(value).__qualname__}"
    raise UnsupportedData(msg)


def _bare(value: Any) -> Any:
    """Strip a user's subclass (as an IntEnum) off a scalar, so that nothing of it stays."""
    match value:
        case bool():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case bytes():
            return bytes(value)
    return value


# ------------------------------------------------------------------------- order and text


def _real_key(value: float) -> tuple[bool, float]:
    # Both zeros are one in their text too, which hashes are made of.
    return (True, 0.0) if value != value else (False, value + 0.0)  # noqa: PLR0124


_ORDER: Final[dict[DataType, Callable[[Any], tuple[Any, ...]]]] = {
    DataType.Nil: lambda _value: (),
    DataType.Boolean: lambda value: (value,),
    DataType.Count: lambda value: (value.value,),
    DataType.Integer: lambda value: (value,),
    DataType.Real: _real_key,
    DataType.String: lambda value: (value,),
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
