"""Data between our own nodes: one CBOR item.

What CBOR has stays plain: null, booleans, integers of 64 signed bits, floats, text, byte
strings (for strings that are no UTF-8), arrays (for vectors). The rest has tags of our own:

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

Sets and tables go as arrays, so that reading one never hashes what a peer chose.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import cbor2

from basp.cbor_tags import REFUSED
from basp.errors import RemoteProtocolError
from basp.plain_cbor import parse_whole
from callboard.endpoint.address import Address, Port, Subnet
from callboard.endpoint.container import Set, Table, Vector
from callboard.endpoint.data import DEPTH_LIMIT, Data, DataType
from callboard.endpoint.errors import EndpointError, InvalidData
from callboard.endpoint.scalar import Count, Enum
from callboard.endpoint.timespan import Timespan, Timestamp

__all__ = ["data_from_cbor", "data_of_item", "data_to_cbor", "item_of_data", "read_item"]

T = TypeVar("T")

COUNT: Final = 48920
ADDRESS: Final = 48921
SUBNET: Final = 48922
PORT: Final = 48923
TIMESTAMP: Final = 48924
TIMESPAN: Final = 48925
ENUM: Final = 48926
SET: Final = 48927
TABLE: Final = 48928

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


def read_item(payload: bytes, convert: Callable[[Any, int], T]) -> T:
    """Return what `convert` makes of the one CBOR item that fills the bytes.

    Args:
        payload: the bytes.
        convert: gets the item, and 0 as its depth.

    Raises:
        InvalidData: there is no such item, or the data model has no such value.
    """
    try:
        return convert(parse_whole(_loads, payload, 1)[0], 0)
    except InvalidData:
        raise
    except (EndpointError, RemoteProtocolError) as cause:
        raise InvalidData(str(cause)) from cause


# ------------------------------------------------------------------------------- writing


def item_of_data(data: Data, depth: int) -> Any:
    """Return data at some depth as an item that cbor2 can write."""
    kind, value = data.get_type(), data.value
    plain = _TO_CBOR.get(kind)
    if plain is not None:
        return plain(value)
    if depth >= DEPTH_LIMIT:
        msg = f"data is nested deeper than {DEPTH_LIMIT} containers"
        raise InvalidData(msg)
    if kind is DataType.Table:
        return cbor2.CBORTag(
            TABLE, [item_of_data(part, depth + 1) for pair in value.pairs for part in pair]
        )
    items = [item_of_data(item, depth + 1) for item in value]
    return items if kind is DataType.Vector else cbor2.CBORTag(SET, items)


def _same(value: Any) -> Any:
    return value


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _packed(address: Address) -> bytes:
    return address.bytes()[12:] if address.is_v4() else address.bytes()


def _tagged(tag: int, content: Callable[[Any], Any]) -> Callable[[Any], cbor2.CBORTag]:
    return lambda value: cbor2.CBORTag(tag, content(value))


_TO_CBOR: Final[dict[DataType, Callable[[Any], Any]]] = {
    DataType.Nil: _same,
    DataType.Boolean: _same,
    DataType.Integer: _same,
    DataType.Real: _same,
    DataType.String: _text,
    DataType.Count: _tagged(COUNT, int),
    DataType.Address: _tagged(ADDRESS, _packed),
    DataType.Subnet: _tagged(SUBNET, lambda s: [_packed(s.network()), s.length()]),
    DataType.Port: _tagged(PORT, lambda port: [port.number(), int(port.get_type())]),
    DataType.Timestamp: _tagged(TIMESTAMP, lambda at: at.time_since_epoch().count()),
    DataType.Timespan: _tagged(TIMESPAN, lambda span: span.count()),
    DataType.EnumValue: _tagged(ENUM, lambda value: value.name),
}

# ------------------------------------------------------------------------------- reading


def _keep(tag: cbor2.CBORTag, _is_key: bool) -> cbor2.CBORTag:  # noqa: FBT001
    if tag.tag not in _FROM_TAG:
        msg = f"data holds no CBOR tag {tag.tag}"
        raise InvalidData(msg)
    return tag


def _refuse(_content: object, _is_key: bool) -> NoReturn:  # noqa: FBT001
    msg = "data holds none of CBOR's own tags"
    raise InvalidData(msg)


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
    if depth >= DEPTH_LIMIT:
        msg = f"data is nested deeper than {DEPTH_LIMIT} containers"
        raise InvalidData(msg)
    return [data_of_item(node, depth + 1) for node in nodes]


def _table(nodes: Sequence[Any], depth: int) -> Table:
    parts = _items(nodes, depth)
    if len(parts) % _PAIR:
        msg = f"a table of {len(parts)} keys and values is not even"
        raise InvalidData(msg)
    return Table(zip(parts[::2], parts[1::2], strict=True))


def _address(packed: object, _depth: int = 0) -> Address:
    if not isinstance(packed, bytes) or len(packed) not in _FAMILIES:
        msg = "an address has 4 or 16 bytes"
        raise InvalidData(msg)
    return Address(packed, _FAMILIES[len(packed)])


def _numbers(content: Sequence[Any], first: type) -> tuple[Any, int]:
    if len(content) != _PAIR or type(content[0]) is not first or type(content[1]) is not int:
        msg = f"[{first.__name__}, int] is wanted, not an array of {len(content)}"
        raise InvalidData(msg)
    return content[0], content[1]


def _subnet(content: Sequence[Any], _depth: int) -> Subnet:
    packed, length = _numbers(content, bytes)
    return Subnet(_address(packed), length)


_Maker = Callable[[Any, int], Any]
_PLAIN: Final = frozenset((type(None), bool, int, float, str, bytes))
_FROM_TAG: Final[dict[int, tuple[type, DataType, _Maker]]] = {
    COUNT: (int, DataType.Count, lambda number, _depth: Count(number)),
    ADDRESS: (bytes, DataType.Address, _address),
    SUBNET: (tuple, DataType.Subnet, _subnet),
    PORT: (tuple, DataType.Port, lambda content, _depth: Port(*_numbers(content, int))),
    TIMESTAMP: (int, DataType.Timestamp, lambda ns, _depth: Timestamp(Timespan(ns))),
    TIMESPAN: (int, DataType.Timespan, lambda ns, _depth: Timespan(ns)),
    ENUM: (str, DataType.EnumValue, lambda name, _depth: Enum(name)),
    SET: (tuple, DataType.Set, lambda nodes, depth: Set(_items(nodes, depth))),
    TABLE: (tuple, DataType.Table, _table),
}

#: What cbor2 would decode by itself: 2 and 3 are big integers, 258 is its set.
_STANDARD: Final = (*REFUSED, 2, 3, 37, 258, 1004)
_loads: Final = partial(
    cbor2.loads,
    semantic_decoders=dict.fromkeys(_STANDARD, _refuse),
    tag_hook=_keep,
    max_depth=_CBOR_DEPTH,
    strict_hashable_types=True,  # keys of maps, which we refuse, have secret hashes
)
