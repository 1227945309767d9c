"""Values as our endpoints send them to each other: CBOR, with a tag for each type it lacks.

====== =================== =====================================================
tag    content             type
====== =================== =====================================================
258    array               set (a registered tag)
48920  unsigned integer    count
48921  16 bytes            address
48922  [16 bytes, length]  subnet
48923  [number, protocol]  port
48924  integer             timestamp, nanoseconds since 1970
48925  integer             timespan, nanoseconds
48926  text                enum value
48927  array               table: key, value, key, value …
====== =================== =====================================================

None, booleans, integers of 64 bits, reals, text and arrays (vectors) are plain CBOR; a string
that is no UTF-8 is a byte string. Maps and all other tags are refused. Tags 48920 to 48927 are
unassigned in IANA's first-come range at the time of writing.

Most values are plain, and then neither side touches them in Python: cbor2 writes them, and
reads a whole run of messages in one call.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NoReturn

import cbor2

from basp.cbor_tags import REFUSED, SET
from basp.hash_collisions import check_hashes
from callboard.endpoint.address import Address, Port, Subnet
from callboard.endpoint.container import FrozenTable, Set, Table, Vector
from callboard.endpoint.data import DEPTH_LIMIT, Data, DataType
from callboard.endpoint.errors import InvalidData, MalformedMessage
from callboard.endpoint.message import MessageType
from callboard.endpoint.scalar import Count, Enum
from callboard.endpoint.timespan import Timespan, Timestamp

__all__ = [
    "decode_data",
    "decode_run",
    "decode_value",
    "encode_pair",
    "encode_plain_pair",
    "encode_value",
]

COUNT: Final = 48920
ADDRESS: Final = 48921
SUBNET: Final = 48922
PORT: Final = 48923
TIMESTAMP: Final = 48924
TIMESPAN: Final = 48925
ENUM: Final = 48926
TABLE: Final = 48927

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_PLAIN_DEPTH: Final = 16
_SIMPLE: Final = frozenset({str, float, bool, type(None)})
_UNSENT: Final = (*REFUSED, 2, 3, 37, 1004)

#: A run is an array of values, whose parts may be nested as deep as the model allows; a tag
#: and its content count as two levels.
_LOAD_DEPTH: Final = 3 * DEPTH_LIMIT + 2


# ------------------------------------------------------------------------------------ encoding


def encode_pair(topic: str, value: Any) -> bytes:
    """Encode a topic and a value: what runs are put together from.

    Raises:
        EndpointError: the data model has no such value.
    """
    return cbor2.dumps(topic) + encode_value(value)


def encode_plain_pair(topic: str, content: Any) -> bytes:
    """Encode a topic and content of our own making that is plain CBOR: bytes stay bytes."""
    return cbor2.dumps(topic) + cbor2.dumps(content)


def encode_value(value: Any) -> bytes:
    """Encode a Python value or `Data`.

    Raises:
        UnsupportedData: the data model has no type for it.
        DataOverflow: a number outside the range of its type.
        InvalidData: nested too deep, or text without UTF-8 form.
    """
    if _is_plain(value, 0):
        try:
            return cbor2.dumps(value)
        except UnicodeEncodeError as cause:
            msg = f"a string has no UTF-8 form: {cause}"
            raise InvalidData(msg) from cause
    return cbor2.dumps(_tree(value if isinstance(value, Data) else Data(value)))


def _is_plain(value: object, depth: int) -> bool:
    """Return whether CBOR has all types in a value."""
    kind = type(value)
    if kind in _SIMPLE:
        return True
    if type(value) is int:
        return _LOWEST <= value <= _HIGHEST
    if (type(value) is list or type(value) is tuple) and depth < _PLAIN_DEPTH:
        for item in value:
            # The same tests as above: a call for each element would double the time.
            inner = type(item)
            if inner in _SIMPLE or (inner is int and _LOWEST <= item <= _HIGHEST):
                continue
            if not _is_plain(item, depth + 1):
                return False
        return True
    return False


def _tree(data: Data) -> Any:
    """Return data as values and tags that cbor2 knows."""
    return _TREES[data.get_type()](data.value)


def _string_tree(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _table_tree(value: Any) -> cbor2.CBORTag:
    return cbor2.CBORTag(TABLE, [_tree(part) for entry in value.items() for part in entry])


_TREES: Final[dict[DataType, Callable[[Any], Any]]] = {
    DataType.Nil: lambda value: value,
    DataType.Boolean: lambda value: value,
    DataType.Count: lambda value: cbor2.CBORTag(COUNT, int(value)),
    DataType.Integer: lambda value: value,
    DataType.Real: lambda value: value,
    DataType.String: _string_tree,
    DataType.Address: lambda value: cbor2.CBORTag(ADDRESS, value.bytes()),
    DataType.Subnet: lambda value: cbor2.CBORTag(
        SUBNET, [value.network().bytes(), value.length()]
    ),
    DataType.Port: lambda value: cbor2.CBORTag(PORT, [value.number(), int(value.get_type())]),
    DataType.Timestamp: lambda value: cbor2.CBORTag(
        TIMESTAMP, value.time_since_epoch().count()
    ),
    DataType.Timespan: lambda value: cbor2.CBORTag(TIMESPAN, value.count()),
    DataType.EnumValue: lambda value: cbor2.CBORTag(ENUM, value.name),
    DataType.Set: lambda value: cbor2.CBORTag(SET, [_tree(item) for item in value]),
    DataType.Table: _table_tree,
    DataType.Vector: lambda value: [_tree(item) for item in value],
}


# ------------------------------------------------------------------------------------ decoding


def decode_run(payload: bytes) -> tuple[MessageType, list[tuple[str, Any]]]:
    """Decode a run: its type, and each topic with its value as immutable Python values.

    Raises:
        MalformedMessage: it is no run, or a value in it is none.
    """
    values = _load(_load_python, payload)
    if type(values) is not tuple or len(values) < _HEAD or len(values) % 2:
        msg = "a run is an array of type, TTL, and pairs of topic and value"
        raise MalformedMessage(msg)
    topics = values[2::2]
    if (
        type(values[0]) is not int
        or values[0] not in _KINDS
        or not {*map(type, topics)} <= _TEXT
    ):
        msg = f"a run of type {str(values[0])[:20]} with topics that are no text"
        raise MalformedMessage(msg)
    return _KINDS[values[0]], list(zip(topics, values[3::2], strict=True))


def decode_value(encoded: bytes) -> Any:
    """Decode one value to immutable Python values; times are cut to microseconds.

    Raises:
        MalformedMessage: it is no value of the data model.
    """
    return _load(_load_python, encoded)


def decode_data(encoded: bytes) -> Data:
    """Decode one value exactly.

    Raises:
        MalformedMessage: it is no value of the data model.
    """
    return _load(lambda body: _as_data(_load_exact(body)), encoded)  # type: ignore[no-any-return]


def _load(load: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return load(body)
    except Exception as cause:  # whatever a peer's bytes make cbor2 or a constructor raise
        last: BaseException = cause
        while last.__cause__ is not None:  # cbor2 wraps once for each tag around the place
            last = last.__cause__
        msg = f"a message of {len(body):,} B cannot be read: {type(last).__name__}: {last}"
        raise MalformedMessage(msg) from cause


_HEAD: Final = 2
_KINDS: Final = {int(kind): kind for kind in MessageType}
_TEXT: Final = {str}

_Reader = Callable[[Any, bool], Any]


def _refuse(tag: int) -> _Reader:
    def refuse(_content: object, _is_key: bool) -> NoReturn:  # noqa: FBT001
        msg = f"CBOR tag {tag} is none of the data model"
        raise InvalidData(msg)

    return refuse


def _refuse_tag(tag: cbor2.CBORTag, _is_key: bool) -> NoReturn:  # noqa: FBT001
    msg = f"CBOR tag {tag.tag} is none of the data model"
    raise InvalidData(msg)


def _refuse_map(_content: object, _is_key: bool) -> NoReturn:  # noqa: FBT001
    msg = "tables travel as arrays of keys and values, not as CBOR maps"
    raise InvalidData(msg)


def _integer(content: Any) -> int:
    if type(content) is not int or not _LOWEST <= content <= _HIGHEST:
        msg = f"{str(content)[:40]!r} is no integer of 64 bits"
        raise InvalidData(msg)
    return content


def _count(content: Any) -> Count:
    if type(content) is not int:
        msg = f"{type(content).__name__} is no count"
        raise InvalidData(msg)
    return Count(content)


def _address(content: Any) -> Address:
    if type(content) is not bytes:
        msg = f"{type(content).__name__} is no address"
        raise InvalidData(msg)
    return Address(content)


def _subnet(content: Any) -> Subnet:
    address, length = content
    return Subnet(_address(address), _integer(length))


def _port(content: Any) -> Port:
    number, protocol = content
    return Port(_integer(number), _integer(protocol))


def _enum(content: Any) -> Enum:
    if type(content) is not str:
        msg = f"{type(content).__name__} is no name of an enum value"
        raise InvalidData(msg)
    return Enum(content)


def _items(content: Any) -> Any:
    if type(content) is not list and type(content) is not tuple:
        msg = f"{type(content).__name__} is no array"
        raise InvalidData(msg)
    return content


def _python_set(content: Any, _is_key: bool) -> frozenset[Any]:  # noqa: FBT001
    check_hashes(_items(content))
    return frozenset(content)


def _python_table(content: Any, _is_key: bool) -> FrozenTable:  # noqa: FBT001
    keys, values = _items(content)[::2], content[1::2]
    check_hashes(keys)
    return FrozenTable(dict(zip(keys, values, strict=True)))


_SCALARS: Final[dict[int, tuple[DataType, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    COUNT: (DataType.Count, _count, lambda count: count),
    ADDRESS: (DataType.Address, _address, Address.to_ip),
    SUBNET: (DataType.Subnet, _subnet, Subnet.to_ip),
    PORT: (DataType.Port, _port, lambda port: port),
    TIMESTAMP: (
        DataType.Timestamp,
        lambda content: Timestamp(Timespan(_integer(content))),
        Timestamp.to_datetime,
    ),
    TIMESPAN: (
        DataType.Timespan,
        lambda content: Timespan(_integer(content)),
        Timespan.to_timedelta,
    ),
    ENUM: (DataType.EnumValue, _enum, lambda enum: enum),
}


def _python_reader(read: Callable[[Any], Any], convert: Callable[[Any], Any]) -> _Reader:
    return lambda content, _is_key: convert(read(content))


def _exact_reader(kind: DataType, read: Callable[[Any], Any]) -> _Reader:
    return lambda content, _is_key: Data.of(kind, read(content))


def _exact_set(content: Any, _is_key: bool) -> Data:  # noqa: FBT001
    items = [_as_data(item) for item in _items(content)]
    check_hashes(items)
    return Data.of(DataType.Set, Set(items))


def _exact_table(content: Any, _is_key: bool) -> Data:  # noqa: FBT001
    parts = [_as_data(part) for part in _items(content)]
    check_hashes(parts[::2])
    return Data.of(DataType.Table, Table(list(zip(parts[::2], parts[1::2], strict=True))))


def _as_data(value: Any) -> Data:
    """Return what cbor2 read as data; what had a tag is data already."""
    match value:
        case Data():
            return value
        case None:
            return Data.of(DataType.Nil, None)
        case bool():
            return Data.of(DataType.Boolean, value)
        case int():
            return Data.of(DataType.Integer, _integer(value))
        case float():
            return Data.of(DataType.Real, value)
        case str():
            return Data.of(DataType.String, value.encode())
        case bytes():
            return Data.of(DataType.String, value)
        case list() | tuple():
            return Data.of(DataType.Vector, Vector([_as_data(item) for item in value]))
    msg = f"the data model has no {type(value).__name__}"
    raise InvalidData(msg)


_REFUSALS: Final = {tag: _refuse(tag) for tag in _UNSENT}

_load_python = partial(
    cbor2.loads,
    semantic_decoders=_REFUSALS
    | {tag: _python_reader(read, convert) for tag, (_, read, convert) in _SCALARS.items()}
    | {SET: _python_set, TABLE: _python_table},
    tag_hook=_refuse_tag,
    object_hook=_refuse_map,
    max_depth=_LOAD_DEPTH,
    strict_hashable_types=True,
    immutable=True,
)
_load_exact = partial(
    cbor2.loads,
    semantic_decoders=_REFUSALS
    | {tag: _exact_reader(kind, read) for tag, (kind, read, _) in _SCALARS.items()}
    | {SET: _exact_set, TABLE: _exact_table},
    tag_hook=_refuse_tag,
    object_hook=_refuse_map,
    max_depth=_LOAD_DEPTH,
    strict_hashable_types=True,
)
