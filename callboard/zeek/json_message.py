"""Messages of Zeek's WebSocket JSON, version 1: a text frame with a topic and a value.

    {"type": "data-message", "topic": "/t", "@data-type": "count", "data": 7}

| `@data-type` | `data` | notes |
|---|---|---|
| none | `{}` | |
| boolean | true, false | |
| count, integer | a number without fraction | `1.0` is an error |
| real | a number, `"nan"`, `"inf"` or `"-inf"` | 2.0 is written `2`, as Zeek does |
| string, enum-value | text | raw UTF-8: Broker 2.7 cannot read escapes with `u` |
| timespan | a number and ns, us, ms, s, min, h or d | the largest exact unit |
| timestamp | ISO 8601, UTC | three decimals, which Zeek reads as milliseconds |
| address, subnet, port | `10.1.2.3`, `10.0.0.0/8`, `80/tcp` | |
| vector, set | a list of `{"@data-type", "data"}` | |
| table | a list of `{"key", "value"}` with such objects | |

Values are converted directly between JSON and the encoding of our topics
(`callboard.model.encoding`), without `Data` objects.
"""

import datetime
import ipaddress
import json
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from json.encoder import encode_basestring
from types import MappingProxyType
from typing import Any, Final

import cbor2

from callboard.cbor.writer import encode_int, encode_text, head
from callboard.model.address import Address, Port, Subnet
from callboard.model.data import Data, FrozenTable, refuse_depth
from callboard.model.encoding import (
    MAX_ITEMS,
    data_to_cbor,
    immutable_of_item,
    item_of_data,
    read_item,
    refuse_heavy,
)
from callboard.model.errors import EndpointError, InvalidData, MalformedMessage
from callboard.model.scalar import COUNT_MAX, Count, Enum, Octets
from callboard.model.timespan import Timespan, Timestamp
from callboard.support.json_form import NUMBERS
from callboard.support.nesting import parse_json
from callboard.topics.machine.topic import checked_topic, is_reserved

_KIND: Final = "@data-type"
_DATA: Final = "data"
_ARRAY: Final = 0x80
_SHOWN: Final = 60
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1

# ------------------------------------------------------------------------------- reading


def parse_frame(text: str) -> dict[str, Any]:
    """Return the JSON object in a text frame.

    Raises:
        MalformedMessage: the text is not a JSON object.
    """
    try:
        frame = parse_json(text, parse=_parsed)
    except ValueError as cause:
        msg = f"the message is not JSON: {cause}"
        raise MalformedMessage(msg) from cause
    if type(frame) is not dict:
        msg = f"a message must be a JSON object, not {type(frame).__name__}"
        raise MalformedMessage(msg)
    return frame


def _parsed(text: str) -> Any:
    """Parse JSON; blanks around it take the slower decoder, as they are rare."""
    with suppress(StopIteration):
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    return _DECODER.decode(text)


def message_of_frame(frame: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return topic and value of a data message; the value in our encoding.

    Raises:
        InvalidData: a field is missing, or the value is not valid in the data model.
    """
    topic = frame.get("topic")
    if type(topic) is not str:
        msg = "mandatory field 'topic' is missing, or not a text"
        raise InvalidData(msg)
    _check_topic(topic)
    try:
        content = _READERS[frame[_KIND]](frame[_DATA], 0)
    except (KeyError, TypeError) as cause:
        raise _misshapen(cause) from cause
    except UnicodeEncodeError as cause:
        msg = f"a string has no UTF-8 form: {cause}"
        raise InvalidData(msg) from cause
    except InvalidData:
        raise
    except (EndpointError, OverflowError) as cause:
        raise InvalidData(str(cause)) from cause
    if len(content) > MAX_ITEMS:
        refuse_heavy(content)
    if _SET in content or _TABLE in content:
        read_item(content, immutable_of_item)  # refuses keys chosen to make hashing slow
    return topic, content


def reader_of(kind: str) -> Callable[[Any, int], bytes]:
    """Return the function that converts a JSON value of a type to our CBOR.

    The function takes the value and its nesting depth. It raises `EndpointError` for a value
    that the type does not have.
    """
    return _READERS[kind]


@lru_cache(1024)
def _check_topic(topic: str) -> None:
    """Refuse a topic that is too long or reserved."""
    if is_reserved(checked_topic(topic)):
        msg = f"topic {topic[:_SHOWN]!r} is reserved for endpoints"
        raise InvalidData(msg)


def _no_constant(name: str) -> Any:
    """Refuse a constant that JSON does not have, such as NaN."""
    msg = f"{name} is not a number in JSON"
    raise ValueError(msg)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
_scan: Final = _DECODER.scan_once  # type: ignore[attr-defined]


def _misshapen(cause: Exception) -> InvalidData:
    """Return an error for an object without its two fields, or with an unknown type."""
    missing = cause.args[0] if isinstance(cause, KeyError) and cause.args else None
    if missing in (_KIND, _DATA, "key", "value"):
        return InvalidData(f"mandatory field {missing!r} is missing")
    if missing is not None:
        return InvalidData(f"{str(missing)[:_SHOWN]!r} is not a data type")
    return InvalidData("a value must be an object with '@data-type' and 'data'")


def _wrong(data: object, expected: str) -> InvalidData:
    """Return an error for a value of another type."""
    return InvalidData(f"{expected} is not {str(data)[:_SHOWN]!r} ({type(data).__name__})")


_Reader = Callable[[Any, int], bytes]


def _tag(number: int) -> bytes:
    """Return the head of a tag."""
    return head(0xC0, number)


_COUNT, _, _, _PORT, _TIMESTAMP, _TIMESPAN, _ENUM, _SET, _TABLE = map(_tag, range(48920, 48929))
_pack_real: Final = struct.Struct(">Bd").pack


def _none(data: Any, _depth: int) -> bytes:
    """Read the empty value."""
    if data is not None and data != {}:
        raise _wrong(data, "none")
    return b"\xf6"


def _boolean(data: Any, _depth: int) -> bytes:
    """Read a boolean."""
    if type(data) is not bool:
        raise _wrong(data, "a boolean")
    return b"\xf5" if data else b"\xf4"


def _count(data: Any, _depth: int) -> bytes:
    """Read a count."""
    if type(data) is not int or not 0 <= data <= COUNT_MAX:
        raise _wrong(data, "a count")
    return _COUNT + encode_int(data)


def _integer(data: Any, _depth: int) -> bytes:
    """Read an integer."""
    if type(data) is not int or not _LOWEST <= data <= _HIGHEST:
        raise _wrong(data, "an integer")
    return encode_int(data)


def _real(data: Any, _depth: int) -> bytes:
    """Read a real."""
    if type(data) is not float and type(data) is not int:
        if type(data) is str and data in NUMBERS:
            return _pack_real(0xFB, NUMBERS[data])
        raise _wrong(data, "a real")
    real = float(data)
    if real - real != 0.0:  # `1e999` is valid JSON, but exceeds a double
        raise _wrong(data, "a real in the range of doubles")
    return _pack_real(0xFB, real)


def _string(data: Any, _depth: int) -> bytes:
    """Read a string."""
    if type(data) is not str:
        raise _wrong(data, "a string")
    return encode_text(data)


def _text(data: Any, expected: str) -> str:
    """Return a value that must be text."""
    if type(data) is not str:
        raise _wrong(data, expected)
    return data


def _timespan(data: Any, _depth: int) -> bytes:
    """Read a timespan."""
    return _TIMESPAN + encode_int(Timespan.parse(_text(data, "a timespan")).count())


def _timestamp(data: Any, _depth: int) -> bytes:
    """Read a timestamp."""
    timestamp = Timestamp.parse(_text(data, "a timestamp"))
    return _TIMESTAMP + encode_int(timestamp.time_since_epoch().count())


def _enum(data: Any, _depth: int) -> bytes:
    """Read an enum value."""
    return _ENUM + encode_text(_text(data, "an enum value"))


def _address(data: Any, _depth: int) -> bytes:
    """Read an address."""
    return _packed(_text(data, "an address"))


@lru_cache(4096)
def _packed(text: str) -> bytes:
    """Return the CBOR of an address; cached, as events repeat them."""
    return data_to_cbor(Data(Address.parse(text)))


def _subnet(data: Any, _depth: int) -> bytes:
    """Read a subnet."""
    return data_to_cbor(Data(Subnet.parse(_text(data, "a subnet"))))


def _port(data: Any, _depth: int) -> bytes:
    """Read a port."""
    port = Port.parse(_text(data, "a port"))
    return _PORT + b"\x82" + encode_int(port.number()) + encode_int(int(port.get_type()))


def _list(data: Any, expected: str) -> list[Any]:
    """Return a value that must be a list."""
    if type(data) is not list:
        raise _wrong(data, expected)
    return data


def _vector(data: Any, depth: int) -> bytes:
    """Read a vector."""
    nodes, readers, inner = _list(data, "a vector"), _READERS, depth + 1
    refuse_depth(depth)
    parts = [readers[node[_KIND]](node[_DATA], inner) for node in nodes]
    count = len(parts)
    return (_SHORT[count] if count < 24 else head(_ARRAY, count)) + b"".join(parts)


_SHORT: Final = tuple(head(_ARRAY, count) for count in range(24))


def _set(data: Any, depth: int) -> bytes:
    """Read a set."""
    return _SET + _vector(_list(data, "a set"), depth)


def _table(data: Any, depth: int) -> bytes:
    """Read a table."""
    nodes = _list(data, "a table")
    return _TABLE + _vector(
        [part for node in nodes for part in (node["key"], node["value"])], depth
    )


_READERS: Final[dict[str, _Reader]] = {
    "none": _none,
    "boolean": _boolean,
    "count": _count,
    "integer": _integer,
    "real": _real,
    "string": _string,
    "timespan": _timespan,
    "timestamp": _timestamp,
    "enum-value": _enum,
    "address": _address,
    "subnet": _subnet,
    "port": _port,
    "vector": _vector,
    "set": _set,
    "table": _table,
}

# ------------------------------------------------------------------------------- writing


def message_to_json(topic: str, value: Any) -> str:
    """Return the text frame of a data message.

    Args:
        topic: the topic.
        value: a value as published, as received, or as cbor2 reads it from our encoding.

    Raises:
        UnsupportedData: the value is not valid in the data model.
        EndpointError: as for `Data`.
    """
    body = _written(value)
    return f'{{"type":"data-message","topic":{encode_basestring(topic)},{body[1:]}'


def content_to_json(topic: str, content: bytes) -> str:
    """Return the text frame of a data message whose value is in our encoding."""
    return message_to_json(topic, cbor2.loads(content))


def _written(value: Any) -> str:
    """Return a value as a JSON object with its type."""
    write = _WRITERS.get(type(value))
    return _written(item_of_data(Data(value), 0)) if write is None else write(value)


def _integer_text(value: int) -> str:
    """Write an integer."""
    if not _LOWEST <= value <= _HIGHEST:
        return _written(Data(value))  # which says why not
    return f'{{"@data-type":"integer","data":{value}}}'


def _real_text(value: float) -> str:
    """Write a real; a whole one without a fraction."""
    if value - value != 0.0:
        return f'{{"@data-type":"real","data":"{value}"}}'
    whole = int(value) if abs(value) < _EXACT and (value or str(value) == "0.0") else None
    return f'{{"@data-type":"real","data":{whole if whole == value else repr(value)}}}'


def _bytes_text(value: bytes) -> str:
    """Write a string that may not be UTF-8."""
    return _string_text(value.decode("utf-8", "backslashreplace"))


def _string_text(value: str) -> str:
    """Write a string."""
    return f'{{"@data-type":"string","data":{encode_basestring(value)}}}'


def _items_text(kind: str, items: Any) -> str:
    """Write a set."""
    parts = [(_WRITERS.get(type(item)) or _written)(item) for item in items]
    return f'{{"@data-type":"{kind}","data":[{",".join(parts)}]}}'


def _vector_text(value: Any) -> str:
    """Write a vector."""
    parts = [(_WRITERS.get(type(item)) or _written)(item) for item in value]
    return f'{{"@data-type":"vector","data":[{",".join(parts)}]}}'


def _table_text(pairs: Any) -> str:
    """Write a table."""
    parts = [f'{{"key":{_written(key)},"value":{_written(item)}}}' for key, item in pairs]
    return f'{{"@data-type":"table","data":[{",".join(parts)}]}}'


def _plain_text(kind: str) -> Callable[[Any], str]:
    """Return the writer of a type whose text needs no escapes."""
    start = f'{{"@data-type":"{kind}","data":"'
    return lambda value: f'{start}{value}"}}'


def _count_text(number: int) -> str:
    """Write a count."""
    return f'{{"@data-type":"count","data":{number}}}'


def _enum_text(value: Any) -> str:
    """Write an enum value."""
    return f'{{"@data-type":"enum-value","data":{encode_basestring(str(value))}}}'


def _timespan_text(ns: int) -> str:
    """Write a timespan in the largest unit that is exact as a float."""
    for unit, factor in _UNITS:
        text = f"{ns / factor:.12g}"
        is_exact = abs(ns) >= factor and int(float(text) * factor) == ns
        if is_exact and "e" not in text and Timespan.parse(text + unit).count() == ns:
            return f'{{"@data-type":"timespan","data":"{text}{unit}"}}'
    return f'{{"@data-type":"timespan","data":"{ns}ns"}}'


def _timestamp_text(ns: int) -> str:
    """Write a timestamp with exactly three decimals; the rest is cut off."""
    seconds, fraction = divmod(ns, 1_000_000_000)
    moment = _EPOCH + datetime.timedelta(seconds=seconds)
    text = f"{moment:%Y-%m-%dT%H:%M:%S}.{fraction // 1_000_000:03}"
    return f'{{"@data-type":"timestamp","data":"{text}"}}'


def _datetime_text(value: datetime.datetime) -> str:
    """Write a datetime."""
    return _timestamp_text(Timestamp.from_datetime(value).time_since_epoch().count())


def _tagged_text(value: cbor2.CBORTag) -> str:
    """Write a value with one of our tags, as cbor2 reads it."""
    return _TAGGED[value.tag](value.value)


@lru_cache(4096)
def _ip(packed: bytes) -> str:
    """Return an address of 4 or 16 bytes as text."""
    return str(ipaddress.ip_address(packed))


_EXACT: Final = 1e15
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_UNITS: Final = (
    ("h", 3_600_000_000_000), ("min", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000),
    ("us", 1_000),
)  # fmt: skip
_address_text: Final = _plain_text("address")
_subnet_text: Final = _plain_text("subnet")
_port_text: Final = _plain_text("port")

#: Writers by tag number, for the content of the tag as cbor2 reads it.
_TAGGED: Final[dict[int, Callable[[Any], str]]] = dict(
    enumerate(
        (
            _count_text,
            lambda packed: _address_text(_ip(packed)),
            lambda parts: _subnet_text(f"{_ip(parts[0])}/{parts[1]}"),
            lambda parts: _port_text(Port(*parts)),
            _timestamp_text,
            _timespan_text,
            _enum_text,
            lambda items: _items_text("set", items),
            lambda items: _table_text(zip(items[::2], items[1::2], strict=True)),
        ),
        48920,
    )
)

_WRITERS: Final[dict[type, Callable[[Any], str]]] = {
    type(None): lambda _value: '{"@data-type":"none","data":{}}',
    bool: lambda value: f'{{"@data-type":"boolean","data":{"true" if value else "false"}}}',
    int: _integer_text,
    float: _real_text,
    str: _string_text,
    bytes: _bytes_text,
    Octets: _bytes_text,
    Count: lambda count: _count_text(count.value),
    Enum: _enum_text,
    Port: _port_text,
    Address: _address_text,
    Subnet: _subnet_text,
    ipaddress.IPv4Address: lambda address: _address_text(_ip(address.packed)),
    ipaddress.IPv6Address: _address_text,
    ipaddress.IPv4Network: _subnet_text,
    ipaddress.IPv6Network: _subnet_text,
    datetime.datetime: _datetime_text,
    tuple: _vector_text,
    list: _vector_text,
    frozenset: lambda value: _written(item_of_data(Data(value), 0)),  # in the model's order
    MappingProxyType: lambda value: _table_text(value.items()),
    FrozenTable: lambda value: _table_text(value.items()),
    cbor2.CBORTag: _tagged_text,
}
