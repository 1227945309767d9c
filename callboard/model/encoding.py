"""CBOR encoding of the data model, used between our own nodes; a value is one item.

Types that CBOR has are plain: null, booleans, integers of 64 signed bits, floats, text, byte
strings (for strings that are not UTF-8), arrays (for vectors). The others have our own tags:

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

Sets and tables are encoded as arrays, so that decoding does not hash values chosen by a peer.

Messages take a shortcut: publishers pass Python values, and subscribers receive Python values.
A conversion through `Data` would create two objects for each value, which most values do not
need. The functions on Python values return the same bytes as the functions on data, and the
same values as `Data.to_py`; tests compare both.
"""

import datetime
import ipaddress
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeVar

import cbor2

from callboard.cbor.pieces import CONTAINER, check_weight
from callboard.cbor.reader import CborReader, bad_content, read_as
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
from callboard.protocol_errors import PayloadTooHeavy, RemoteProtocolError

T = TypeVar("T")

#: Limit of containers and tags in a value or in a run of values; scalars weigh an eighth. Items
#: of a set or table weigh as much as containers, because they are hashed and sorted.
MAX_ITEMS: Final = 500_000

_FAMILIES: Final = {4: 4, 16: 6}
_PAIR: Final = 2
#: Each level of a table takes two of CBOR (a tag and an array); and one for the outer array.
_CBOR_DEPTH: Final = 2 * DEPTH_LIMIT + 3


def data_to_cbor(data: Data) -> bytes:
    """Encode a value.

    Raises:
        InvalidData: the value is nested deeper than `DEPTH_LIMIT`.
    """
    return cbor2.dumps(item_of_data(data, 0))


def data_from_cbor(payload: bytes) -> Data:
    """Decode a value, which must use all bytes.

    Raises:
        InvalidData: the bytes are malformed.
    """
    return read_item(payload, data_of_item)


def refuse_heavy(payload: bytes, spent: int = 0) -> int:
    """Refuse CBOR that would take too long to decode.

    Args:
        payload: the bytes.
        spent: weight of the earlier values in the same run.

    Returns:
        The weight of all values.

    Raises:
        InvalidData: the weight exceeds `MAX_ITEMS` containers, or the bytes are not CBOR.
    """
    most = CONTAINER * MAX_ITEMS
    if not spent and len(payload) <= MAX_ITEMS:
        return CONTAINER * len(payload)  # each item has a byte
    try:
        return spent + check_weight(payload, most - spent, _HASHED)
    except PayloadTooHeavy:
        msg = (
            f"a message of {len(payload):,} B holds more than {MAX_ITEMS:,} containers "
            f"(or {CONTAINER} times as many scalars), counting what arrived with it"
        )
        raise InvalidData(msg) from None
    except RemoteProtocolError as error:
        raise InvalidData(str(error)) from None


def read_item(payload: bytes, convert: Callable[[Any, int], T]) -> T:
    """Decode the CBOR item that uses all bytes, and convert it.

    Args:
        payload: the bytes.
        convert: called with the item and the depth 0.

    Raises:
        InvalidData: the bytes are malformed, or the data model lacks the value.
    """
    try:
        return convert(_READER.read(payload), 0)
    except InvalidData:
        raise
    except (EndpointError, RemoteProtocolError) as cause:
        raise InvalidData(str(cause)) from cause


# ------------------------------------------------------------------------------- writing


def item_of_data(data: Data, depth: int) -> Any:
    """Convert data at a depth to an item that cbor2 can encode."""
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
    """Return the bytes of a string as text if they are UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _packed(address: Address) -> bytes:
    """Return the 4 or 16 bytes of an address."""
    return address.bytes()[12:] if address.is_v4() else address.bytes()


_PLAIN_KINDS: Final = {DataType.Nil, DataType.Boolean, DataType.Integer, DataType.Real}
#: Functions that convert a value to the content of its tag, or to a plain item.
_CONTENTS: Final[dict[DataType, Callable[[Any], Any]]] = {
    DataType.String: _text,
    DataType.Count: int,
    DataType.Address: _packed,
    DataType.Subnet: lambda subnet: [_packed(subnet.network()), subnet.length()],
    DataType.Port: lambda port: [port.number(), int(port.get_type())],
    DataType.Timestamp: lambda moment: moment.time_since_epoch().count(),
    DataType.Timespan: lambda span: span.count(),
    DataType.EnumValue: lambda value: value.name,
}

# ------------------------------------------------------------------------------- reading


def data_of_item(node: Any, depth: int) -> Data:
    """Convert a decoded item at a depth to data."""
    kind = type(node)
    if kind is list or kind is tuple:  # cbor2 decodes an array in a tag as a tuple
        return Data.of(DataType.Vector, Vector(_items(node, depth)))
    if kind is cbor2.CBORTag:
        content_type, data_type, make = _FROM_TAG[node.tag]
        if type(node.value) is not content_type:
            msg = f"data of type {data_type.name} does not hold a {type(node.value).__name__}"
            raise InvalidData(msg)
        return Data.of(data_type, make(node.value, depth))
    if kind not in _PLAIN:
        msg = f"data cannot hold a {kind.__name__}"
        raise InvalidData(msg)
    return Data(node)


def _items(nodes: Sequence[Any], depth: int) -> list[Data]:
    """Convert the decoded items of a container to data."""
    refuse_depth(depth)
    return [data_of_item(node, depth + 1) for node in nodes]


def _table(nodes: Sequence[Any], depth: int) -> Table:
    """Convert alternating keys and values to a table."""
    parts = _items(nodes, depth)
    if len(parts) % _PAIR:
        msg = f"a table needs pairs of key and value, not {len(parts)} items"
        raise InvalidData(msg)
    return Table(zip(parts[::2], parts[1::2], strict=True))


def _address(packed: object, _depth: int = 0) -> Address:
    """Convert 4 or 16 bytes to an address."""
    if not isinstance(packed, bytes) or len(packed) not in _FAMILIES:
        msg = "an address has 4 or 16 bytes"
        raise InvalidData(msg)
    return Address(packed, _FAMILIES[len(packed)])


def _numbers(content: Sequence[Any], first: type) -> tuple[Any, int]:
    """Return the two fields of a subnet or port."""
    if len(content) != _PAIR or type(content[0]) is not first or type(content[1]) is not int:
        msg = f"expected [{first.__name__}, int], not an array of {len(content)}"
        raise InvalidData(msg)
    return content[0], content[1]


def _subnet(content: Sequence[Any], _depth: int) -> Subnet:
    """Convert an address and a length to a subnet."""
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
_READER: Final = CborReader("data", max_depth=_CBOR_DEPTH, raw_tags=_FROM_TAG)

# ------------------------------------------------------- the shortcut: Python values

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1
_PLAIN_DEPTH: Final = 16
_SAME: Final = frozenset((str, float, bool, type(None)))


def python_to_cbor(value: Any) -> bytes:
    """Return the bytes of `data_to_cbor(Data(value))`.

    Raises:
        EndpointError: as for `Data`.
    """
    kind = type(value)
    try:
        if kind is list or kind is tuple:
            for item in value:  # mostly a few texts and numbers: checked inline
                inner = type(item)
                if inner in _SAME or (inner is int and _LOWEST <= item <= _HIGHEST):
                    continue
                break
            else:
                return cbor2.dumps(value)
        return cbor2.dumps(value if _is_plain(value, 0) else _item(value, 0))
    except UnicodeEncodeError as cause:
        msg = f"a string cannot be encoded as UTF-8: {cause}"
        raise InvalidData(msg) from cause


def python_from_cbor(payload: bytes) -> Any:
    """Return the value of `Data.to_py(data_from_cbor(payload))`.

    Raises:
        InvalidData: the bytes are malformed.
    """
    return read_item(payload, _python)


def immutable_of_item(node: Any, depth: int) -> Any:
    """Convert a decoded item at a depth to immutable Python values."""
    kind = type(node)
    if kind in _SAME or kind is bytes:
        return node
    if kind is int and _LOWEST <= node <= _HIGHEST:
        return node
    if (kind is list or kind is tuple) and depth < DEPTH_LIMIT:
        return tuple([immutable_of_item(item, depth + 1) for item in node])
    return ImmutableData.to_py(data_of_item(node, depth))


def immutable_from_cbor(payload: bytes) -> Any:
    """Decode an item, which must use all bytes, to immutable Python values in one pass.

    This fails for malformed or deeply nested items; `immutable_of_item` handles these. Integers
    may be too large, and CBOR's special values may occur: `decode_run` checks for both.

    Raises:
        RemoteProtocolError: the item cannot be decoded in this way.
    """
    return _IMMUTABLE_READER.read(payload)


def _frozen(kind: DataType, make: Callable[[Any], Any]) -> Callable[[Any, object], Any]:
    """Return a function that converts the content of a tag through `Data`."""

    def read(content: Any, _is_key: object) -> Any:
        if type(content) is not tuple:
            raise bad_content(content, kind.name)
        return ImmutableData.to_py(Data.of(kind, make(content)))

    return read


def _table_of(parts: Sequence[Any]) -> Table:
    """Convert alternating keys and values, which are Python values, to a table."""
    if not {*map(type, parts[::2])} <= _KEYS or len(parts) % _PAIR:
        raise bad_content(parts, "table")  # keys that differ by nanoseconds would merge
    data = [Data(part) for part in parts]
    return Table(zip(data[::2], data[1::2], strict=True))


def _read_count(number: Any, _is_key: object) -> Count:
    """Return a count; small ones are cached."""
    if type(number) is not int:
        raise bad_content(number, "count")
    return _SMALL[number] if 0 <= number < len(_SMALL) else Count(number)


@lru_cache(4096)
def _read_address(packed: Any, _is_key: object) -> Any:
    """Return an address; cached, because events repeat the same ones."""
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
    """Return whether CBOR has all types in a value, so that no conversion is needed."""
    kind = type(value)
    if kind in _SAME:
        return True
    if type(value) is int:
        return _LOWEST <= value <= _HIGHEST
    if (type(value) is list or type(value) is tuple) and depth < _PLAIN_DEPTH:
        for item in value:
            # The same tests as above, inline: a call for each element would double the time.
            inner = type(item)
            if inner in _SAME or (inner is int and _LOWEST <= item <= _HIGHEST):
                continue
            if not _is_plain(item, depth + 1):
                return False
        return True
    return False


def _item(value: Any, depth: int) -> Any:
    """Convert a Python value to an item that cbor2 can encode."""
    kind = type(value)
    if kind in _SAME:
        return value
    if kind is int and _LOWEST <= value <= _HIGHEST:
        return value
    if kind is list or kind is tuple:
        refuse_depth(depth)
        return [_item(item, depth + 1) for item in value]
    if kind is Octets:
        return bytes(value)
    tagged = _ITEMS.get(kind)
    return item_of_data(Data(value), depth) if tagged is None else tagged(value)


#: Tagged scalars that are frequent in events; other types are converted through `Data`.
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
    """Convert a decoded item to mutable Python values."""
    kind = type(node)
    if kind in _SAME:
        return node
    if kind is int and _LOWEST <= node <= _HIGHEST:
        return node
    if kind is list and depth < DEPTH_LIMIT:
        return tuple([_python(item, depth + 1) for item in node])
    return Data.to_py(data_of_item(node, depth))
