"""The CBOR of the data model, as values travel between our own nodes: one item each.

What CBOR has stays plain: null, booleans, integers of 64 signed bits, floats, text, byte
strings (for strings that are not UTF-8), arrays (for vectors). The rest has tags of our own:

| tag | content | type |
|---|---|---|
| 48920 | unsigned integer | count |
| 48921 | 4 or 16 bytes | address |
| 48922 | [4 or 16 bytes, length] | subnet |
| 48923 | [number, protocol] | port |
| 48924 | integer | timestamp, in ns since 1970 |
| 48925 | integer | timespan, in ns |
| 48926 | text | enum value |
| 48927 | array | set |
| 48928 | [key, value, key, value …] | table |

Sets and tables travel as arrays, so that reading one never hashes what a peer chose.

Messages take a short way: publishers hand over Python values, and subscribers get Python
values. Going by way of `Data` makes an object for each value, twice; most values are plain
and need none. The functions on Python values give the same bytes as those on data, and the
values of `Data.to_py`; tests hold both equal.
"""

import datetime
import ipaddress
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeVar

import cbor2

from callboard.kernel.codec import (
    CONTAINER,
    CborReader,
    PayloadTooHeavy,
    RemoteProtocolError,
    bad_content,
    check_weight,
    read_as,
)
from callboard.model.address import Address, Port, Subnet
from callboard.model.data import (
    DEPTH_LIMIT,
    Data,
    DataType,
    ImmutableData,
    Set,
    Table,
    Vector,
    refuse_depth,
)
from callboard.model.errors import EndpointError, InvalidData
from callboard.model.scalar import Count, Enum, Octets
from callboard.model.timespan import Timespan, Timestamp

T = TypeVar("T")

#: Containers and tags that a value, or all of one run, may hold, or eight times as many
#: scalars. What is in a set or a table counts as a container: it is hashed and put in order.
MAX_ITEMS: Final = 500_000

_FAMILIES: Final = {4: 4, 16: 6}
_PAIR: Final = 2
#: A table in a table is an array in a tag; and one for the array around the whole.
_CBOR_DEPTH: Final = 2 * DEPTH_LIMIT + 3


def data_to_cbor(data: Data) -> bytes:
    """Return the CBOR of one value.

    Raises:
        InvalidData: nested deeper than `DEPTH_LIMIT`.
    """
    return cbor2.dumps(item_of_data(data, 0))


def data_from_cbor(payload: bytes) -> Data:
    """Return the value that fills the bytes.

    Raises:
        InvalidData: they are no such value.
    """
    return read_item(payload, data_of_item)


def refuse_heavy(payload: bytes, spent: int = 0) -> int:
    """Refuse CBOR that costs too much time to read.

    Args:
        payload: the bytes.
        spent: what was read before, together with which they count.

    Returns:
        What both weigh.

    Raises:
        InvalidData: more than `MAX_ITEMS` containers do, or the bytes are no CBOR.
    """
    most = CONTAINER * MAX_ITEMS
    if not spent and len(payload) <= MAX_ITEMS:
        return CONTAINER * len(payload)  # each item has a byte
    try:
        return spent + check_weight(payload, most - spent, _HASHED)
    except PayloadTooHeavy:
        msg = (
            f"a message of {len(payload):,} B holds more than {MAX_ITEMS:,} containers "
            f"(or {CONTAINER} times as many scalars), with what came with it"
        )
        raise InvalidData(msg) from None
    except RemoteProtocolError as error:
        raise InvalidData(str(error)) from None


def read_item(payload: bytes, convert: Callable[[Any, int], T]) -> T:
    """Return what `convert` makes of the one CBOR item that fills the bytes.

    Args:
        payload: the bytes.
        convert: gets the item, and 0 as its depth.

    Raises:
        InvalidData: there is no such item, or the data model has no such value.
    """
    try:
        return convert(_READER.read(payload), 0)
    except InvalidData:
        raise
    except (EndpointError, RemoteProtocolError) as cause:
        raise InvalidData(str(cause)) from cause


# ------------------------------------------------------------------------------- writing


def item_of_data(data: Data, depth: int) -> Any:
    """Return data at some depth as an item that cbor2 can write."""
    kind, value = data.get_type(), data.value
    if kind in _PLAIN_KINDS:
        return value
    content = _CONTENTS.get(kind)
    if content is not None:
        item = content(value)
    else:
        refuse_depth(depth)
        parts = chain.from_iterable(value.pairs) if kind is DataType.Table else value
        item = [item_of_data(part, depth + 1) for part in parts]
    tag = _TAGS.get(kind)
    return item if tag is None else cbor2.CBORTag(tag, item)


def _text(value: bytes) -> str | bytes:
    """Return the bytes of a string as text, where they are UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _packed(address: Address) -> bytes:
    """Return the 4 or 16 bytes of an address."""
    return address.bytes()[12:] if address.is_v4() else address.bytes()


_PLAIN_KINDS: Final = {DataType.Nil, DataType.Boolean, DataType.Integer, DataType.Real}
#: What stands for a value, in the tag of its type if that has one.
_CONTENTS: Final[dict[DataType, Callable[[Any], Any]]] = {
    DataType.String: _text,
    DataType.Count: int,
    DataType.Address: _packed,
    DataType.Subnet: lambda subnet: [_packed(subnet.network()), subnet.length()],
    DataType.Port: lambda port: [port.number(), int(port.get_type())],
    DataType.Timestamp: lambda at: at.time_since_epoch().count(),
    DataType.Timespan: lambda span: span.count(),
    DataType.EnumValue: lambda value: value.name,
}

# ------------------------------------------------------------------------------- reading


def data_of_item(node: Any, depth: int) -> Data:
    """Return an item that cbor2 has read, at some depth, as data."""
    kind = type(node)
    if kind is list or kind is tuple:  # an array in a tag comes as a tuple
        return Data.of(DataType.Vector, Vector(_items(node, depth)))
    if kind is cbor2.CBORTag:
        wanted, known, make = _FROM_TAG[node.tag]
        if type(node.value) is not wanted:
            msg = f"data of type {known.name} does not hold a {type(node.value).__name__}"
            raise InvalidData(msg)
        return Data.of(known, make(node.value, depth))
    if kind not in _PLAIN:
        msg = f"data holds no {kind.__name__}"
        raise InvalidData(msg)
    return Data(node)


def _items(nodes: Sequence[Any], depth: int) -> list[Data]:
    """Return items of a container as data."""
    refuse_depth(depth)
    return [data_of_item(node, depth + 1) for node in nodes]


def _table(nodes: Sequence[Any], depth: int) -> Table:
    """Return keys and values in turns as a table."""
    parts = _items(nodes, depth)
    if len(parts) % _PAIR:
        msg = f"a table of {len(parts)} keys and values is not even"
        raise InvalidData(msg)
    return Table(zip(parts[::2], parts[1::2], strict=True))


def _address(packed: object, _depth: int = 0) -> Address:
    """Return 4 or 16 bytes as an address."""
    if not isinstance(packed, bytes) or len(packed) not in _FAMILIES:
        msg = "an address has 4 or 16 bytes"
        raise InvalidData(msg)
    return Address(packed, _FAMILIES[len(packed)])


def _numbers(content: Sequence[Any], first: type) -> tuple[Any, int]:
    """Return the two fields of a subnet or port."""
    if len(content) != _PAIR or type(content[0]) is not first or type(content[1]) is not int:
        msg = f"[{first.__name__}, int] is wanted, not an array of {len(content)}"
        raise InvalidData(msg)
    return content[0], content[1]


def _subnet(content: Sequence[Any], _depth: int) -> Subnet:
    """Return an address and a length as a subnet."""
    packed, length = _numbers(content, bytes)
    return Subnet(_address(packed), length)


_Maker = Callable[[Any, int], Any]
_PLAIN: Final = frozenset((type(None), bool, int, float, str, bytes))
_FROM_TAG: Final[dict[int, tuple[type, DataType, _Maker]]] = {
    48920: (int, DataType.Count, lambda number, _depth: Count(number)),
    48921: (bytes, DataType.Address, _address),
    48922: (tuple, DataType.Subnet, _subnet),
    48923: (tuple, DataType.Port, lambda content, _depth: Port(*_numbers(content, int))),
    48924: (int, DataType.Timestamp, lambda ns, _depth: Timestamp(Timespan(ns))),
    48925: (int, DataType.Timespan, lambda ns, _depth: Timespan(ns)),
    48926: (str, DataType.EnumValue, lambda name, _depth: Enum(name)),
    48927: (tuple, DataType.Set, lambda nodes, depth: Set(_items(nodes, depth))),
    48928: (tuple, DataType.Table, _table),
}

_TAGS: Final = {kind: tag for tag, (_, kind, _) in _FROM_TAG.items()}
#: Tags of sets and tables, whose elements and keys are hashed.
_HASHED: Final = frozenset({_TAGS[DataType.Set], _TAGS[DataType.Table]})
_READER: Final = CborReader("data", max_depth=_CBOR_DEPTH, kept=_FROM_TAG)

# ------------------------------------------------------- the short way: Python values

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1
_PLAIN_DEPTH: Final = 16
_SAME: Final = frozenset((str, float, bool, type(None)))


def python_to_cbor(value: Any) -> bytes:
    """Return the bytes of `data_to_cbor(Data(value))`.

    Raises:
        EndpointError: as `Data` does.
    """
    kind = type(value)
    try:
        if kind is list or kind is tuple:
            for item in value:  # a few texts and numbers, mostly: found out without a call
                inner = type(item)
                if inner in _SAME or (inner is int and _LOWEST <= item <= _HIGHEST):
                    continue
                break
            else:
                return cbor2.dumps(value)
        return cbor2.dumps(value if _is_plain(value, 0) else _item(value, 0))
    except UnicodeEncodeError as cause:
        msg = f"a string has no UTF-8 form: {cause}"
        raise InvalidData(msg) from cause


def python_from_cbor(payload: bytes) -> Any:
    """Return the value of `Data.to_py(data_from_cbor(payload))`.

    Raises:
        InvalidData: the bytes are no such value.
    """
    return read_item(payload, _python)


def immutable_of_item(node: Any, depth: int) -> Any:
    """Return an item that cbor2 has read, at some depth, as Python values that never change."""
    kind = type(node)
    if kind in _SAME or kind is bytes:
        return node
    if kind is int and _LOWEST <= node <= _HIGHEST:
        return node
    if (kind is list or kind is tuple) and depth < DEPTH_LIMIT:
        return tuple([immutable_of_item(each, depth + 1) for each in node])
    return ImmutableData.to_py(data_of_item(node, depth))


def immutable_from_cbor(payload: bytes) -> Any:
    """Return the item that fills the bytes as Python values that never change, in one pass.

    What is no value, or deeper than nearly all are, is for `immutable_of_item`. Numbers without
    a tag may be too large, and CBOR's odd values may be there: `decode_run` looks for them.

    Raises:
        RemoteProtocolError: it cannot be read so.
    """
    return _IMMUTABLE_READER.read(payload)


def _frozen(kind: DataType, make: Callable[[Any], Any]) -> Callable[[Any, object], Any]:
    """Return what makes a value of the content of a tag, by way of `Data`."""

    def read(content: Any, _is_key: object) -> Any:
        if type(content) is not tuple:
            raise bad_content(content, kind.name)
        return ImmutableData.to_py(Data.of(kind, make(content)))

    return read


def _table_of(parts: Sequence[Any]) -> Table:
    """Return keys and values in turns, as Python has them, as a table."""
    if not {*map(type, parts[::2])} <= _KEYS or len(parts) % _PAIR:
        raise bad_content(parts, "table")  # keys of less than a microsecond are lost in Python
    data = [Data(part) for part in parts]
    return Table(zip(data[::2], data[1::2], strict=True))


def _read_count(number: Any, _is_key: object) -> Count:
    """Make a count; the smallest ones are there."""
    if type(number) is not int:
        raise bad_content(number, "count")
    return _SMALL[number] if 0 <= number < len(_SMALL) else Count(number)


@lru_cache(4096)
def _read_address(packed: Any, _is_key: object) -> Any:
    """Make an address; events name the same ones again and again."""
    return _address(packed).to_ip()


_KEYS: Final = frozenset(
    (str, int, Count, Enum, Port, ipaddress.IPv4Address, ipaddress.IPv6Address)
)
_SMALL: Final = tuple(map(Count, range(256)))
_IMMUTABLE_READER: Final = CborReader(
    "data",
    {
        48920: _read_count,
        48921: _read_address,
        48922: _frozen(DataType.Subnet, lambda content: _subnet(content, 0)),
        48923: read_as(tuple, lambda content: Port(*_numbers(content, int)), "port"),
        48924: read_as(int, lambda ns: Timestamp(Timespan(ns)).to_datetime(), "timestamp"),
        48925: read_as(int, lambda ns: Timespan(ns).to_timedelta(), "timespan"),
        48926: read_as(str, Enum, "enum value"),
        48927: _frozen(DataType.Set, lambda parts: Set(map(Data, parts))),
        48928: _frozen(DataType.Table, _table_of),
    },
    max_depth=_PLAIN_DEPTH,
    has_maps=False,
    is_immutable=True,
)


def _is_plain(value: object, depth: int) -> bool:
    """Return whether CBOR itself has all types in a value: then nothing is converted."""
    kind = type(value)
    if kind in _SAME:
        return True
    if type(value) is int:
        return _LOWEST <= value <= _HIGHEST
    if (type(value) is list or type(value) is tuple) and depth < _PLAIN_DEPTH:
        for item in value:
            # The same tests as above: a call for each element would double the time.
            inner = type(item)
            if inner in _SAME or (inner is int and _LOWEST <= item <= _HIGHEST):
                continue
            if not _is_plain(item, depth + 1):
                return False
        return True
    return False


def _item(value: Any, depth: int) -> Any:
    """Return a Python value as an item that cbor2 can write."""
    kind = type(value)
    if kind in _SAME:
        return value
    if kind is int and _LOWEST <= value <= _HIGHEST:
        return value
    if kind is list or kind is tuple:
        refuse_depth(depth)
        return [_item(each, depth + 1) for each in value]
    if kind is Octets:
        return bytes(value)
    tagged = _ITEMS.get(kind)
    return item_of_data(Data(value), depth) if tagged is None else tagged(value)


#: Tagged scalars that most events hold; the others go by way of `Data`.
_ITEMS: Final[dict[type, Callable[[Any], cbor2.CBORTag]]] = {
    Count: lambda count: cbor2.CBORTag(48920, count.value),
    ipaddress.IPv4Address: lambda address: cbor2.CBORTag(48921, address.packed),
    Port: lambda port: cbor2.CBORTag(48923, (port.number(), int(port.get_type()))),
    datetime.datetime: lambda moment: cbor2.CBORTag(
        48924, Timestamp.from_datetime(moment).time_since_epoch().count()
    ),
    datetime.timedelta: lambda span: cbor2.CBORTag(
        48925, Timespan.from_timedelta(span).count()
    ),
    Enum: lambda value: cbor2.CBORTag(48926, value.name),
}


def _python(node: Any, depth: int) -> Any:
    """Return an item that cbor2 has read as Python values that can be changed."""
    kind = type(node)
    if kind in _SAME:
        return node
    if kind is int and _LOWEST <= node <= _HIGHEST:
        return node
    if kind is list and depth < DEPTH_LIMIT:
        return tuple([_python(each, depth + 1) for each in node])
    return Data.to_py(data_of_item(node, depth))
